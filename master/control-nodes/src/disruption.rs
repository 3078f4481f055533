//! Writes the condition of a pod that is deleted because of a disruption (upstream:
//! `DisruptionTarget`).

use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use master_client::{ApiError, Key, Patch};
use master_control::writer::Writer;
use serde_json::{Value, json};

/// Why a pod is deleted.
#[derive(Debug)]
pub(crate) struct Disruption {
    /// In one CamelCase word.
    pub(crate) reason: &'static str,
    /// For a person.
    pub(crate) message: &'static str,
}

/// The pod that is deleted, as its controller saw it.
#[derive(Debug)]
pub(crate) struct EndingPod<'a> {
    /// The object's key.
    pub(crate) key: &'a Key,
    /// Its UID.
    pub(crate) uid: &'a str,
    /// The generation of the spec that the controller saw.
    pub(crate) generation: i64,
}

/// Sets the condition of a pod.
pub(crate) async fn disrupt(
    writer: &Writer,
    pod: &EndingPod<'_>,
    disruption: &Disruption,
) -> Result<(), ApiError> {
    let condition = condition(pod, &Time(writer.client().now()), disruption);
    write(writer, pod, json!({ "conditions": [condition] })).await
}

/// Sets the phase of a pod to `Failed`: no kubelet will report how it ended.
pub(crate) async fn fail(
    writer: &Writer,
    pod: &EndingPod<'_>,
    disruption: Option<&Disruption>,
) -> Result<(), ApiError> {
    let now = Time(writer.client().now());
    let condition = disruption.map(|disruption| condition(pod, &now, disruption));
    write(writer, pod, failed(pod, condition)).await
}

fn failed(pod: &EndingPod<'_>, condition: Option<Value>) -> Value {
    let mut status = json!({"phase": "Failed", "observedGeneration": pod.generation});
    if let Some(condition) = condition {
        status["conditions"] = json!([condition]);
    }
    status
}

fn condition(pod: &EndingPod<'_>, now: &Time, disruption: &Disruption) -> Value {
    json!({
        "type": "DisruptionTarget", "status": "True", "reason": disruption.reason, "message": disruption.message,
        "lastTransitionTime": now, "observedGeneration": pod.generation,
    })
}

async fn write(writer: &Writer, pod: &EndingPod<'_>, status: Value) -> Result<(), ApiError> {
    let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid}, "status": status}));
    writer.patch_status::<Pod>(pod.key, &patch).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disruption_names_the_generation_that_was_judged() {
        let key = Key::new("default", "p");
        let pod = EndingPod {
            key: &key,
            uid: "u",
            generation: 3,
        };
        let disruption = Disruption {
            reason: "DeletionByPodGC",
            message: "m",
        };
        let now = Time(jiff::Timestamp::UNIX_EPOCH);
        let condition = condition(&pod, &now, &disruption);
        assert_eq!(condition["observedGeneration"], 3);
        let status = failed(&pod, Some(condition));
        assert_eq!(status["observedGeneration"], 3);
        assert_eq!(status["conditions"][0]["reason"], "DeletionByPodGC");
    }
}
