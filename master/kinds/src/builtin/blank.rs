//! The initial status of new objects: upstream's types always show their numbers and some of their
//! structs.

use master_schema::registry::Kind;
use serde_json::{Value, json};

/// Sets it in the descriptors of kinds with a status.
pub(super) fn apply(kinds: &mut [Kind]) {
    for kind in kinds {
        kind.blank = kind.has_status().then(|| status(&kind.group, &kind.kind));
    }
}

fn status(group: &str, kind: &str) -> Value {
    match (group, kind) {
        ("" | "apps", "ReplicationController" | "ReplicaSet") => json!({"replicas": 0}),
        ("apps", "StatefulSet") => json!({"replicas": 0, "availableReplicas": 0}),
        ("apps", "DaemonSet") => json!({
            "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0,
        }),
        ("autoscaling", "HorizontalPodAutoscaler") => json!({"desiredReplicas": 0}),
        ("policy", "PodDisruptionBudget") => json!({
            "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0,
        }),
        ("" | "networking.k8s.io", "Service" | "Ingress") => json!({"loadBalancer": {}}),
        ("storage.k8s.io", "VolumeAttachment") => json!({"attached": false}),
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_status_of_a_new_object_fits_its_kind() {
        let registry = super::super::registry();
        for kind in registry.kinds().iter().filter(|kind| kind.blank.is_some()) {
            let mut object =
                serde_json::Map::from_iter([("status".to_owned(), kind.blank.clone().unwrap())]);
            let before = object.clone();
            let checked = registry.schemas().check(kind.source.name(), &mut object);
            assert!(
                checked.unknown.is_empty() && checked.wrong.is_empty() && object == before,
                "{}",
                kind.kind
            );
        }
    }
}
