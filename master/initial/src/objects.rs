//! The system's namespaces with their service accounts, priority classes, and the storage class of
//! nodes' own folders.

use config_kube::k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use config_kube::k8s_openapi::api::scheduling::v1::PriorityClass;
use config_kube::k8s_openapi::api::storage::v1::StorageClass;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::local_volume;
use master_client::{Client, Object};
use master_schema::error::ApiError;

/// Namespaces that always exist.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// The service account of pods that name none.
const ACCOUNT: &str = "default";
/// Upstream's priority classes for system pods, above all that a user may define.
const CLASSES: [(&str, i32, &str); 2] = [
    (
        "system-node-critical",
        2_000_001_000,
        "For pods that a node needs, and that must stay on it.",
    ),
    (
        "system-cluster-critical",
        2_000_000_000,
        "For pods that the cluster needs, and that may move to another node.",
    ),
];

/// Creates what is missing of the namespaces and their accounts.
pub(crate) async fn namespaces(client: &Client) -> Result<(), ApiError> {
    for name in NAMESPACES {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        make(
            client,
            &Namespace {
                metadata,
                ..Namespace::default()
            },
        )
        .await?;
        let metadata = ObjectMeta {
            name: Some(ACCOUNT.to_owned()),
            namespace: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        make(
            client,
            &ServiceAccount {
                metadata,
                ..ServiceAccount::default()
            },
        )
        .await?;
    }
    Ok(())
}

/// Creates what is missing of the classes.
pub(crate) async fn classes(client: &Client) -> Result<(), ApiError> {
    for (name, value, description) in CLASSES {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        let (value, description) = (Some(value), Some(description.to_owned()));
        make(
            client,
            &PriorityClass {
                metadata,
                value,
                description,
                ..PriorityClass::default()
            },
        )
        .await?;
    }
    make(client, &local_class()).await
}

/// The class of volumes that are folders of nodes: the default one, until an admin changes its
/// annotation.
fn local_class() -> StorageClass {
    let mark = "storageclass.kubernetes.io/is-default-class".to_owned();
    StorageClass {
        metadata: ObjectMeta {
            name: Some(local_volume::CLASS.to_owned()),
            annotations: Some([(mark, "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        provisioner: local_volume::PROVISIONER.to_owned(),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("WaitForFirstConsumer".to_owned()),
        allow_volume_expansion: Some(false),
        ..StorageClass::default()
    }
}

async fn make<T: Object>(client: &Client, object: &T) -> Result<(), ApiError> {
    match client.create(object).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() => Ok(()),
        Err(error) => Err(error),
    }
}
