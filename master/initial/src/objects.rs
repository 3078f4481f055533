//! The system's namespaces with their service accounts, and priority classes.

use config_kube::k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use config_kube::k8s_openapi::api::scheduling::v1::PriorityClass;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
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
    Ok(())
}

async fn make<T: Object>(client: &Client, object: &T) -> Result<(), ApiError> {
    match client.create(object).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() => Ok(()),
        Err(error) => Err(error),
    }
}
