//! Taints and tolerations (upstream: `TaintToleration`).

use super::plugin::{Candidate, Filter, MAX_NODE_SCORE, Obstacle, Plugin, shares};
use crate::event::{ClusterEvent, EventKind};
use crate::node::NodeInfo;
use crate::request::PodRequest;
use crate::snapshot::Snapshot;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "TaintToleration",
    weight: 3,
    filter: Some(|pod, _| Some(Box::new(Tolerations(pod)))),
    score: Some(score),
    events: &[EventKind::Node],
    wakes,
};

struct Tolerations<'a>(&'a PodRequest);

fn refuses(pod: &PodRequest, node: &NodeInfo) -> bool {
    let mut taints = node.taints.iter();
    taints.any(|taint| taint.forbids() && !taint.tolerated(&pod.tolerations))
}

impl Filter for Tolerations<'_> {
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        if refuses(self.0, node.info) {
            // No taint is named, so that nodes with different ones are counted together (upstream).
            found.push(Obstacle::lasting("node(s) had untolerated taint(s)"));
        }
    }
}

/// Scores a node the higher, the fewer `PreferNoSchedule` taints it has that the pod does not
/// tolerate.
fn score(pod: &PodRequest, _: &Snapshot, candidates: &[Candidate<'_>]) -> Option<Vec<i64>> {
    if candidates.iter().all(|node| node.info.taints.is_empty()) {
        return None;
    }
    let count = |node: &Candidate<'_>| {
        let taints = node.info.taints.iter();
        let disliked =
            taints.filter(|taint| !taint.forbids() && !taint.tolerated(&pod.tolerations));
        i64::try_from(disliked.count()).unwrap_or(i64::MAX)
    };
    let shares = shares(candidates.iter().map(count).collect())?;
    Some(
        shares
            .into_iter()
            .map(|share| MAX_NODE_SCORE - share)
            .collect(),
    )
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, _: &Snapshot) -> bool {
    match event {
        ClusterEvent::Node(node) => !refuses(pod, &node.now),
        ClusterEvent::Anything => true,
        ClusterEvent::Placed(_)
        | ClusterEvent::Left(_)
        | ClusterEvent::Freed(_)
        | ClusterEvent::NodeGone(_)
        | ClusterEvent::Namespace
        | ClusterEvent::Claim(_)
        | ClusterEvent::Volume
        | ClusterEvent::Class
        | ClusterEvent::Capacity => false,
    }
}
