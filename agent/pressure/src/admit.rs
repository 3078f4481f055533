//! Which new pods a node under pressure admits, and which never end for it, by upstream's rules.

use crate::thresholds::Condition;
use config_kube::k8s_openapi::api::core::v1::{Pod, Taint};
use config_kube::taints::{NO_SCHEDULE, PRESSURES, tolerates};
use config_static_pods::is_static;
use std::collections::BTreeSet;

/// Pods from this priority on are never evicted, nor refused under pressure (upstream's
/// `SystemCriticalPriority`).
pub const CRITICAL: i32 = 2_000_000_000;

/// The reason of pods that are refused or evicted for pressure.
pub const EVICTED: &str = "Evicted";

/// The pod's priority.
#[must_use]
pub fn priority(pod: &Pod) -> i32 {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.priority).unwrap_or_default()
}

/// Whether the cluster or the node depends on the pod (upstream's `IsCriticalPod`): a static pod,
/// whatever its priority, as nothing would make another in its place.
#[must_use]
pub fn is_critical(pod: &Pod) -> bool {
    is_static(pod) || priority(pod) >= CRITICAL
}

/// Whether `other` may end to make room for a critical pod (upstream's `Preemptable`): one that is
/// not critical, or that has a priority, and a lower one. A static pod without one never does.
#[must_use]
pub fn makes_room(critical: &Pod, other: &Pod) -> bool {
    let given = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.priority);
    let lower = given(other).zip(given(critical));
    !is_critical(other) || lower.is_some_and(|(other, own)| other < own)
}

/// Why a new pod is refused, if it is. Memory pressure alone refuses only pods without any request,
/// unless they tolerate the taint of such nodes; any other pressure refuses all but critical pods.
#[must_use]
pub fn refusal(
    conditions: &BTreeSet<Condition>,
    pod: &Pod,
    is_best_effort: bool,
) -> Option<String> {
    if conditions.is_empty() || is_critical(pod) {
        return None;
    }
    let memory_alone = conditions.iter().eq([&Condition::MemoryPressure]);
    if memory_alone && (!is_best_effort || tolerates_pressure(pod)) {
        return None;
    }
    let names: Vec<&str> = conditions.iter().map(|one| one.name()).collect();
    Some(format!("The node had condition: [{}]. ", names.join(" ")))
}

fn tolerates_pressure(pod: &Pod) -> bool {
    let memory = Condition::MemoryPressure.name();
    let of_memory = |(condition, _): &&(&str, &str)| *condition == memory;
    let Some((_, key)) = PRESSURES.iter().find(of_memory) else {
        return false;
    };
    let taint = Taint {
        key: (*key).to_owned(),
        effect: NO_SCHEDULE.to_owned(),
        ..Taint::default()
    };
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter());
    tolerations.flatten().any(|one| tolerates(one, &taint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn refused(conditions: &[Condition], spec: &Value, is_best_effort: bool) -> Option<String> {
        let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let conditions = conditions.iter().copied().collect();
        refusal(&conditions, &pod, is_best_effort)
    }

    fn plain() -> Value {
        json!({"containers": []})
    }

    #[test]
    fn a_node_without_pressure_admits_all() {
        assert_eq!(refused(&[], &plain(), true), None);
    }

    #[test]
    fn memory_pressure_refuses_pods_without_requests() {
        let memory = [Condition::MemoryPressure];
        assert_eq!(
            refused(&memory, &plain(), true).as_deref(),
            Some("The node had condition: [MemoryPressure]. ")
        );
        assert_eq!(refused(&memory, &plain(), false), None);
        let tolerates = json!({"containers": [], "tolerations": [
            {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"},
        ]});
        assert_eq!(refused(&memory, &tolerates, true), None);
        let other = json!({"containers": [], "tolerations": [{"key": "a", "operator": "Exists"}]});
        assert!(refused(&memory, &other, true).is_some());
    }

    #[test]
    fn a_static_pod_is_never_refused_and_ends_only_for_a_higher_priority_of_both() {
        let read = |manifest: &str| config_static_pods::read(manifest, "node").unwrap();
        let manifest = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, image: i}]}}";
        let plain = read(manifest);
        assert!(is_critical(&plain));
        for condition in [
            Condition::MemoryPressure,
            Condition::DiskPressure,
            Condition::PidPressure,
        ] {
            assert_eq!(refusal(&[condition].into(), &plain, true), None);
        }
        let of = |priority: Value| -> Pod {
            serde_json::from_value(json!({"spec": {"containers": [], "priority": priority}}))
                .unwrap()
        };
        let critical = of(json!(CRITICAL));
        assert!(!makes_room(&critical, &plain));
        assert!(makes_room(&plain, &of(json!(CRITICAL - 1))));
        assert!(!makes_room(&plain, &critical));
        assert!(makes_room(&of(json!(CRITICAL + 1000)), &critical));
        let mut low = plain.clone();
        low.spec.as_mut().unwrap().priority = Some(7);
        assert!(makes_room(&critical, &low));
    }

    #[test]
    fn any_other_pressure_refuses_all_but_critical_pods() {
        let everything = json!({"containers": [], "tolerations": [{"operator": "Exists"}]});
        for condition in [Condition::DiskPressure, Condition::PidPressure] {
            assert!(refused(&[condition], &everything, false).is_some());
            let critical = json!({"containers": [], "priority": CRITICAL});
            assert_eq!(refused(&[condition], &critical, true), None);
        }
        let both = [Condition::DiskPressure, Condition::MemoryPressure];
        assert_eq!(
            refused(&both, &everything, false).as_deref(),
            Some("The node had condition: [MemoryPressure DiskPressure]. ")
        );
    }
}
