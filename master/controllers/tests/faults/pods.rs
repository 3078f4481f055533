//! Reads of a pod's fields, and the status that a node reports.

use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::Timestamp;
use serde_json::{Value, json};

/// The status that a node reports for a pod that is ready from `now` on.
pub(crate) fn running(now: Timestamp) -> Value {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"phase": "Running", "startTime": now, "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": now}]})
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut ready = conditions.into_iter().flatten();
    pod.metadata.deletion_timestamp.is_none()
        && ready.any(|one| one.type_ == "Ready" && one.status == "True")
}

pub(crate) fn phase(pod: &Pod) -> &str {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase.unwrap_or("Pending")
}

/// Whether a pod has ended.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub(crate) fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

/// Whether it is a pod of a StatefulSet: no other may run under its name.
pub(crate) fn has_identity(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == "StatefulSet")
}

/// Whether it runs to completion.
pub(crate) fn is_finite(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.restart_policy.as_deref()) == Some("Never")
}

pub(crate) fn is_bound(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_some())
}

/// The application of a pod, by its label.
pub(crate) fn app(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get("app"))
        .map_or("", String::as_str)
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}
