//! The condition of a pod that a disruption ends (upstream: `DisruptionTarget`).

use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;
use master_client::{ApiError, Key, Patch};
use master_control::writer::Writer;
use serde_json::json;

/// Why a pod is ended.
#[derive(Debug)]
pub(crate) struct Disruption {
    /// In one CamelCase word.
    pub(crate) reason: &'static str,
    /// For a person.
    pub(crate) message: &'static str,
    /// The pod's last phase, where it has reached it.
    pub(crate) phase: Option<&'static str>,
}

/// Marks a pod with this UID.
pub(crate) async fn disrupt(
    writer: &Writer,
    key: &Key,
    uid: &str,
    disruption: &Disruption,
) -> Result<(), ApiError> {
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": disruption.reason, "message": disruption.message,
        "lastTransitionTime": Time(Timestamp::now()),
    });
    let mut status = json!({"conditions": [condition]});
    if let Some(phase) = disruption.phase {
        status["phase"] = phase.into();
    }
    let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}));
    writer.patch_status::<Pod>(key, &patch).await.map(drop)
}
