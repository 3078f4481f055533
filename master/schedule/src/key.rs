//! Names of pods.

use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use master_client::Key;
use std::fmt;

/// A pod's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl PodKey {
    /// The key of a pod.
    pub fn of(pod: &Pod) -> Self {
        Self::named(&pod.metadata)
    }

    /// The namespace and name of an object.
    pub(crate) fn named(meta: &ObjectMeta) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self {
            namespace: text(&meta.namespace),
            name: text(&meta.name),
        }
    }
}

impl From<Key> for PodKey {
    fn from(Key { namespace, name }: Key) -> Self {
        Self { namespace, name }
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
