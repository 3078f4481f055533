//! Prefers nodes of which the same share of CPU and memory is used (upstream:
//! `NodeResourcesBalancedAllocation`).

use super::plugin::{Candidate, Plugin, never};
use crate::request::PodRequest;
use crate::resources::{ResourceName, whole_percent};
use crate::snapshot::Snapshot;
use config_kube::Amount;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesBalancedAllocation",
    weight: 1,
    filter: None,
    score: Some(score),
    events: &[],
    wakes: never,
};

/// 100 minus the standard deviation of the two used shares, which is half of their difference.
fn score(pod: &PodRequest, _: &Snapshot, candidates: &[Candidate<'_>]) -> Option<Vec<i64>> {
    let needed = [ResourceName::Cpu, ResourceName::Memory]
        .map(|name| (name, pod.demand.needed.amount(name)));
    if needed.iter().all(|(_, needed)| *needed == Amount::ZERO) {
        return None;
    }
    let score = |node: &Candidate<'_>| {
        let used = needed.map(|(name, needed)| {
            let whole = node.info.allocatable.amount(name);
            let used = node.load.needed.amount(name) + needed;
            (whole > Amount::ZERO).then(|| used.share_of(whole).min(1.0))
        });
        let [Some(cpu), Some(memory)] = used else {
            return whole_percent(1.0);
        };
        whole_percent(1.0 - (cpu - memory).abs() / 2.0)
    };
    Some(candidates.iter().map(score).collect())
}
