//! Namespaces: how far their deletion is.

use crate::views::uid;
use config_kube::k8s_openapi::api::core::v1::Namespace;
use master_client::View;

/// The finalizer that keeps a namespace until its content is deleted.
pub const FINALIZER: &str = "kubernetes";

/// A namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceView {
    /// UID.
    pub uid: String,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Whether the content is still to be deleted.
    pub unfinished: bool,
}

impl View for NamespaceView {
    type Object = Namespace;

    fn read(namespace: Namespace) -> Self {
        let finalizers = namespace.spec.and_then(|spec| spec.finalizers);
        Self {
            uid: uid(&namespace.metadata),
            terminating: namespace.metadata.deletion_timestamp.is_some(),
            unfinished: finalizers.iter().flatten().any(|name| name == FINALIZER),
        }
    }
}
