//! Taints that several components use, and which tolerations match a taint (Kubernetes: "Taints and
//! Tolerations").

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// The kubelet reports that the node is not ready.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The kubelet does not report.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// An admin cordoned the node.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// An admin declared the machine shut down.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The node's machine is Suspect: no new pods.
pub const SUSPECT: &str = "pratique.dev/suspect";
/// The node's machine is Untrusted: pods are evicted, and the node's requests are refused.
pub const UNTRUSTED: &str = "pratique.dev/untrusted";
/// Conditions that are faults when true, and their taints.
pub const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "node.kubernetes.io/network-unavailable",
    ),
];

/// Effect: new pods are not scheduled.
pub const NO_SCHEDULE: &str = "NoSchedule";
/// Effect: new pods are preferably not scheduled.
pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";
/// Effect: new pods are not scheduled and running pods are evicted.
pub const NO_EXECUTE: &str = "NoExecute";

/// Whether a toleration matches a taint. One with an unknown operator matches none.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => !key.is_empty() && text(&toleration.value) == text(&taint.value),
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn taken(toleration: Value) -> bool {
        let taint = json!({"key": "gpu", "value": "yes", "effect": "NoSchedule"});
        tolerates(
            &serde_json::from_value(toleration).unwrap(),
            &serde_json::from_value(taint).unwrap(),
        )
    }

    #[test]
    fn tolerations_match_as_upstream_says() {
        assert!(taken(json!({"key": "gpu", "value": "yes"})));
        assert!(taken(
            json!({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"})
        ));
        assert!(taken(json!({"key": "gpu", "operator": "Exists"})));
        assert!(taken(json!({"operator": "Exists"})));
        assert!(!taken(json!({"key": "gpu", "value": "no"})));
        assert!(!taken(json!({"key": "cpu", "operator": "Exists"})));
        assert!(!taken(
            json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"})
        ));
        assert!(!taken(json!({"value": "yes"})));
        assert!(!taken(
            json!({"key": "gpu", "operator": "Gt", "value": "1"})
        ));
    }
}
