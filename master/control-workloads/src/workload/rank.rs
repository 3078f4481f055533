//! Which pods are deleted first when there are too many (upstream: `ActivePodsWithRanks`).

use super::pod::OwnedPod;
use jiff::Timestamp;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

/// The number of active pods of one application, by node.
pub type Crowd = HashMap<Arc<str>, usize>;

/// The order of deletion; the lesser pod goes first:
/// - without a node before bound, pending before running, not ready before ready
/// - the lower deletion cost (`controller.kubernetes.io/pod-deletion-cost`)
/// - more pods of the application on its node
/// - ready for a shorter time, more restarts, younger; then by UID
///
/// Times are compared by their order of magnitude (base 2, KEP-2185), so that among pods of about
/// one age the UID decides and not the creation order. Upstream compares UIDs as soon as two ages
/// have one magnitude, which is no order of three pods.
pub fn order(one: &OwnedPod, other: &OwnedPod, crowd: &Crowd, now: Timestamp) -> Ordering {
    let beside = |pod: &OwnedPod| crowd.get(&pod.node).copied().unwrap_or_default();
    let bound = |pod: &OwnedPod| !pod.node.is_empty();
    bound(one)
        .cmp(&bound(other))
        .then_with(|| phase(one).cmp(&phase(other)))
        .then_with(|| one.ready.is_some().cmp(&other.ready.is_some()))
        .then_with(|| one.cost.cmp(&other.cost))
        .then_with(|| beside(other).cmp(&beside(one)))
        .then_with(|| magnitude(one.ready, now).cmp(&magnitude(other.ready, now)))
        .then_with(|| other.restarts.cmp(&one.restarts))
        .then_with(|| magnitude(one.created, now).cmp(&magnitude(other.created, now)))
        .then_with(|| one.uid.cmp(&other.uid))
}

fn phase(pod: &OwnedPod) -> u8 {
    match &*pod.phase {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    }
}

/// The order of magnitude of an age, base 2. An unset time counts as younger than all.
fn magnitude(time: Option<Timestamp>, now: Timestamp) -> i64 {
    let Some(time) = time else { return -1 };
    let age = now.duration_since(time).as_nanos();
    u128::try_from(age)
        .ok()
        .and_then(u128::checked_ilog2)
        .map_or(0, i64::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    fn now() -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_hours(500_000)
    }

    fn ago(seconds: i64) -> Timestamp {
        now() - SignedDuration::from_secs(seconds)
    }

    fn pod(uid: &str) -> OwnedPod {
        OwnedPod {
            uid: uid.to_owned(),
            node: "n1".into(),
            phase: "Running".into(),
            ready: Some(ago(1000)),
            created: Some(ago(2000)),
            ..OwnedPod::default()
        }
    }

    #[test]
    fn pods_go_in_upstreams_order() {
        let crowd = Crowd::from([("n1".into(), 1), ("n2".into(), 3)]);
        // Each differs from the next in one thing, the first goes first.
        let order_of = [
            OwnedPod {
                node: "".into(),
                phase: "Pending".into(),
                ready: None,
                ..pod("a")
            },
            OwnedPod {
                phase: "Pending".into(),
                ready: None,
                ..pod("b")
            },
            OwnedPod {
                phase: "Unknown".into(),
                ready: None,
                ..pod("c")
            },
            OwnedPod {
                ready: None,
                ..pod("d")
            },
            OwnedPod {
                cost: -5,
                ..pod("e")
            },
            OwnedPod {
                node: "n2".into(),
                ..pod("f")
            },
            OwnedPod {
                ready: Some(ago(10)),
                ..pod("g")
            },
            OwnedPod {
                restarts: (2, 0),
                ..pod("h")
            },
            OwnedPod {
                restarts: (1, 9),
                ..pod("i")
            },
            OwnedPod {
                created: Some(ago(1500)),
                ..pod("zz")
            },
            pod("zzz"),
            OwnedPod {
                cost: 5,
                ..pod("aa")
            },
        ];
        let mut shuffled: Vec<OwnedPod> = order_of.iter().rev().cloned().collect();
        shuffled.sort_by(|one, other| order(one, other, &crowd, now()));
        let uids = |pods: &[OwnedPod]| pods.iter().map(|pod| pod.uid.clone()).collect::<Vec<_>>();
        assert_eq!(uids(&shuffled), uids(&order_of));
    }
}
