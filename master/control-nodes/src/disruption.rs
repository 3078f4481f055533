//! The condition of a pod that a disruption ends (upstream: `DisruptionTarget`).

use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use master_client::{ApiError, Key, Patch};
use master_control::writer::Writer;
use serde_json::{Value, json};

/// Why a pod is ended.
#[derive(Debug)]
pub(crate) struct Disruption {
    /// In one CamelCase word.
    pub(crate) reason: &'static str,
    /// For a person.
    pub(crate) message: &'static str,
}

/// Marks a pod with this UID.
pub(crate) async fn disrupt(
    writer: &Writer,
    key: &Key,
    uid: &str,
    disruption: &Disruption,
) -> Result<(), ApiError> {
    write(
        writer,
        key,
        uid,
        json!({"conditions": [condition(writer, disruption)]}),
    )
    .await
}

/// Ends a pod with this UID as failed: no kubelet will say how it ended.
pub(crate) async fn fail(
    writer: &Writer,
    key: &Key,
    uid: &str,
    disruption: Option<&Disruption>,
) -> Result<(), ApiError> {
    let mut status = json!({"phase": "Failed"});
    if let Some(disruption) = disruption {
        status["conditions"] = json!([condition(writer, disruption)]);
    }
    write(writer, key, uid, status).await
}

fn condition(writer: &Writer, disruption: &Disruption) -> Value {
    json!({
        "type": "DisruptionTarget", "status": "True", "reason": disruption.reason, "message": disruption.message,
        "lastTransitionTime": Time(writer.client().now()),
    })
}

async fn write(writer: &Writer, key: &Key, uid: &str, status: Value) -> Result<(), ApiError> {
    let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}));
    writer.patch_status::<Pod>(key, &patch).await.map(drop)
}
