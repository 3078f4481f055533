//! Which pods the kubelet ends to make room for a critical pod that does not fit (upstream's
//! `CriticalPodAdmissionHandler`).

use crate::fit::{RESOURCES, asks as requested};
use agent_resources::qos;
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::quantity::Amount;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How much is lacking of a resource.
#[derive(Clone, Copy)]
struct Lack {
    resource: &'static str,
    amount: Amount,
}

/// The pods among `others` that must end so that `pod` fits, by their indexes. Few rather than
/// many, of the lowest class that will do, and of these the ones whose requests are nearest to what
/// is lacking (upstream's rules). `None` where even the end of all that `may_end` makes no room.
pub fn victims(
    pod: &Pod,
    others: &[Arc<Pod>],
    may_end: impl Fn(&Pod) -> bool,
    allocatable: &BTreeMap<&'static str, Amount>,
) -> Option<Vec<usize>> {
    let candidates = (0..others.len()).filter(|&at| may_end(&others[at]));
    let mut classes = [Vec::new(), Vec::new(), Vec::new()];
    for at in candidates {
        let class = match qos::class(&others[at]) {
            "BestEffort" => 0,
            "Burstable" => 1,
            _ => 2,
        };
        classes[class].push(at);
    }
    let lacks = lacks(pod, others, allocatable);
    let [best_effort, burstable, guaranteed] = &classes;
    let all = [&best_effort[..], burstable, guaranteed].concat();
    if !without(&lacks, others, &all).is_empty() {
        return None;
    }
    // Guaranteed pods end only for what the end of all lower pods would not free; Burstable ones
    // for what those and all BestEffort ones leave lacking; BestEffort ones for the rest.
    let lower = [&best_effort[..], burstable].concat();
    let mut chosen = nearest(without(&lacks, others, &lower), others, guaranteed);
    let rest = [&best_effort[..], &chosen].concat();
    chosen.extend(nearest(without(&lacks, others, &rest), others, burstable));
    chosen.extend(nearest(
        without(&lacks, others, &chosen),
        others,
        best_effort,
    ));
    Some(chosen)
}

/// The amount of a resource that counts as used by a pod: its request, or one of `pods`.
fn takes(pod: &Pod, resource: &str) -> Amount {
    match resource {
        "pods" => Amount::units(1),
        _ => requested(pod, resource),
    }
}

/// What the pod lacks beside the others.
fn lacks(
    pod: &Pod,
    others: &[Arc<Pod>],
    allocatable: &BTreeMap<&'static str, Amount>,
) -> Vec<Lack> {
    let resources = ["pods"].into_iter().chain(RESOURCES);
    let lack = |resource: &'static str| {
        let (own, most) = (takes(pod, resource), *allocatable.get(resource)?);
        let used = others.iter().map(|other| takes(other, resource)).sum();
        let wanted = own + used;
        // A resource that the pod does not request is never lacking, even where the others already
        // use more of it than there is.
        (own > Amount::ZERO && wanted > most).then(|| Lack {
            resource,
            amount: wanted - most,
        })
    };
    resources.filter_map(lack).collect()
}

/// What is still lacking once these pods have ended.
fn without(lacks: &[Lack], others: &[Arc<Pod>], ended: &[usize]) -> Vec<Lack> {
    let left = |lack: &Lack| {
        let freed = ended.iter().map(|&at| takes(&others[at], lack.resource));
        let freed: Amount = freed.sum();
        (lack.amount > freed).then(|| Lack {
            amount: lack.amount - freed,
            ..*lack
        })
    };
    lacks.iter().filter_map(left).collect()
}

/// The candidates that free what is lacking, the nearest to it first; all where they do not
/// suffice.
fn nearest(mut lacks: Vec<Lack>, others: &[Arc<Pod>], candidates: &[usize]) -> Vec<usize> {
    let (mut left, mut chosen) = (candidates.to_vec(), Vec::new());
    while !lacks.is_empty() {
        let best = left.iter().copied().min_by(|&one, &other| {
            let distance = |at: usize| distance(&lacks, &others[at]);
            let size = |at: usize| ["memory", "cpu"].map(|name| takes(&others[at], name));
            let by_distance = distance(one).total_cmp(&distance(other));
            // Of equally near pods the one with the smallest requests ends.
            by_distance.then_with(|| size(one).cmp(&size(other)))
        });
        // Greedy, as upstream: after each choice the distances are to what is still lacking.
        let Some(best) = best else { break };
        left.retain(|&at| at != best);
        lacks = without(&lacks, others, &[best]);
        chosen.push(best);
    }
    chosen
}

/// How much of what is lacking the end of a pod leaves: the sum of the squares of the parts of each
/// resource.
fn distance(lacks: &[Lack], pod: &Pod) -> f64 {
    let part = |lack: &Lack| {
        let left = (lack.amount - takes(pod, lack.resource)).max(Amount::ZERO);
        let share = left.share_of(lack.amount);
        share * share
    };
    lacks.iter().map(part).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(resources: &Value) -> Arc<Pod> {
        let container = json!({"name": "a", "resources": resources});
        let pod = json!({"spec": {"containers": [container]}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn asks(cpu: &str) -> Arc<Pod> {
        pod(&json!({"requests": {"cpu": cpu}}))
    }

    fn guaranteed(cpu: &str) -> Arc<Pod> {
        pod(&json!({"limits": {"cpu": cpu, "memory": "1Mi"}}))
    }

    fn chosen(own: &Pod, others: &[Arc<Pod>], pods: i64) -> Option<Vec<usize>> {
        let allocatable =
            BTreeMap::from([("cpu", Amount::units(4)), ("pods", Amount::units(pods))]);
        let may_end = |pod: &Pod| pod.metadata.name.is_none();
        victims(own, others, may_end, &allocatable)
    }

    #[test]
    fn the_lowest_class_and_the_nearest_request_make_room() {
        let others = [guaranteed("1"), asks("500m"), asks("1500m"), asks("1")];
        assert_eq!(chosen(&asks("800m"), &others, 9), Some(vec![3]));
        assert_eq!(chosen(&asks("1200m"), &others, 9), Some(vec![2]));
        assert_eq!(chosen(&asks("2"), &others, 9), Some(vec![2, 1]));
        let all = chosen(&asks("4"), &others, 9).unwrap();
        assert_eq!(all, [0, 2, 3, 1], "burstable pods do not suffice");
        assert_eq!(chosen(&asks("5"), &others, 9), None);
    }

    #[test]
    fn a_place_is_made_by_the_pod_that_asks_for_least() {
        let others = [asks("100m"), pod(&json!({})), guaranteed("1")];
        assert_eq!(chosen(&asks("100m"), &others, 3), Some(vec![1]));
        assert_eq!(chosen(&asks("100m"), &others, 4), Some(vec![]));
    }

    #[test]
    fn a_pod_that_may_not_end_is_never_a_victim() {
        let mut kept = asks("3");
        Arc::make_mut(&mut kept).metadata.name = Some("kept".to_owned());
        assert_eq!(chosen(&asks("2"), &[kept.clone(), asks("1")], 9), None);
        assert_eq!(chosen(&asks("1"), &[kept, asks("1")], 9), Some(vec![1]));
    }
}
