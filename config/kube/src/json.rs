//! Objects as JSON, encoded and decoded in this crate alone.
//!
//! A decoder of a large kind is some hundred kilobytes of code. `serde_json::from_slice::<Pod>`
//! makes one in each crate that calls it, and `serde_json::from_value` a second one, for trees;
//! here is one for each kind, and generic callers ask for `T: FromJson`. Trees are read and made by
//! way of their text, which takes microseconds where it is done.

use crate::{CertificatePolicy, ImageRelease, Machine, NodeAttestation};
use k8s_openapi::api::{
    apps, authentication, authorization, autoscaling, batch, certificates, coordination, core,
    discovery, events, flowcontrol, networking, policy, rbac, scheduling, storage,
};
use serde::de::Error as _;
use serde_json::{Error, Value};

/// A kind that this crate decodes.
pub trait FromJson: Sized {
    /// Decodes one JSON value, with nothing after it.
    ///
    /// # Errors
    /// The JSON does not match the type; the error gives line and column. Or the bytes are not
    /// UTF-8.
    fn from_json(bytes: &[u8]) -> Result<Self, Error>;

    /// Decodes a tree.
    ///
    /// # Errors
    /// The tree does not match the type; line and column are those of its text without white space.
    fn from_tree(tree: &Value) -> Result<Self, Error> {
        Self::from_json(&tree.to_json()?)
    }
}

/// A kind that this crate encodes.
pub trait ToJson {
    /// Encodes it, without white space.
    ///
    /// # Errors
    /// None for the kinds of this crate.
    fn to_json(&self) -> Result<Vec<u8>, Error>;

    /// Encodes it as a tree.
    ///
    /// # Errors
    /// None for the kinds of this crate.
    fn to_tree(&self) -> Result<Value, Error> {
        Value::from_json(&self.to_json()?)
    }
}

/// The bytes as text. This one check costs far less than that of each string inside them, which
/// decoding from bytes makes.
fn text(bytes: &[u8]) -> Result<&str, Error> {
    str::from_utf8(bytes).map_err(Error::custom)
}

macro_rules! json {
    ($($kind:ty),* $(,)?) => {
        $(
            impl FromJson for $kind {
                fn from_json(bytes: &[u8]) -> Result<Self, Error> {
                    serde_json::from_str(text(bytes)?)
                }
            }

            impl ToJson for $kind {
                fn to_json(&self) -> Result<Vec<u8>, Error> {
                    serde_json::to_vec(self)
                }
            }
        )*
    };
}

json!(
    Value,
    CertificatePolicy,
    ImageRelease,
    Machine,
    NodeAttestation
);

json!(
    authentication::v1::TokenRequest,
    core::v1::Binding,
    core::v1::ConfigMap,
    core::v1::Endpoints,
    core::v1::Event,
    core::v1::Namespace,
    core::v1::Node,
    core::v1::Pod,
    core::v1::Secret,
    core::v1::Service,
    core::v1::ServiceAccount,
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    discovery::v1::EndpointSlice,
    events::v1::Event,
    networking::v1::IPAddress,
    networking::v1::ServiceCIDR,
    rbac::v1::ClusterRole,
    rbac::v1::ClusterRoleBinding,
    rbac::v1::Role,
    rbac::v1::RoleBinding,
    scheduling::v1::PriorityClass,
    flowcontrol::v1::FlowSchema,
    flowcontrol::v1::PriorityLevelConfiguration,
);

// What controllers act on.
json!(
    apps::v1::ControllerRevision,
    apps::v1::DaemonSet,
    apps::v1::Deployment,
    apps::v1::ReplicaSet,
    apps::v1::StatefulSet,
    autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::CronJob,
    batch::v1::Job,
    core::v1::PersistentVolume,
    core::v1::PersistentVolumeClaim,
    core::v1::PodTemplateSpec,
    core::v1::ReplicationController,
    core::v1::ResourceQuota,
    policy::v1::PodDisruptionBudget,
    storage::v1::CSIDriver,
    storage::v1::CSINode,
    storage::v1::CSIStorageCapacity,
    storage::v1::StorageClass,
    storage::v1::VolumeAttachment,
    authorization::v1::SubjectAccessReview,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_round_trips_and_an_error_names_line_and_column() {
        let text = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}"#;
        let pod = core::v1::Pod::from_json(text).unwrap();
        assert_eq!(pod.to_json().unwrap(), text);
        let fault = core::v1::Pod::from_json(br#"{"metadata":{"name":1}}"#).unwrap_err();
        assert!(fault.to_string().contains("column 21"), "{fault}");
        assert!(core::v1::Pod::from_json(b"{} {}").is_err());
        let fault = core::v1::Pod::from_json(b"{\"kind\":\"\xff\"}").unwrap_err();
        assert!(fault.to_string().contains("index 9"), "{fault}");
    }

    #[test]
    fn a_tree_is_what_serde_json_makes_of_the_type() {
        let tree = serde_json::json!({
            "metadata": {"labels": {"a": "\u{e9}\n"}},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}}}],
                "terminationGracePeriodSeconds": i64::MAX},
        });
        let template = core::v1::PodTemplateSpec::from_tree(&tree).unwrap();
        assert_eq!(template, serde_json::from_value(tree.clone()).unwrap());
        assert_eq!(template.to_tree().unwrap(), tree);
        assert_eq!(serde_json::to_value(&template).unwrap(), tree);
    }
}
