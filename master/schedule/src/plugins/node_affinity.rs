//! Node selectors and node affinity (upstream: `NodeAffinity`).

use super::plugin::{Candidate, Filter, Obstacle, Plugin, shares};
use crate::affinity::NodePreferences;
use crate::event::{ClusterEvent, EventKind};
use crate::node::NodeInfo;
use crate::request::PodRequest;
use crate::snapshot::Snapshot;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NodeAffinity",
    weight: 2,
    filter: Some(|pod, _| {
        let asks = pod.node_preferences.requires();
        asks.then(|| Box::new(Selectors(&pod.node_preferences)) as Box<dyn Filter>)
    }),
    score: Some(score),
    events: &[EventKind::Node],
    wakes,
};

struct Selectors<'a>(&'a NodePreferences);

impl Filter for Selectors<'_> {
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        if !self.0.allow(&node.info.name, &node.info.labels) {
            let reason = "node(s) didn't match Pod's node affinity/selector";
            found.push(Obstacle::lasting(reason));
        }
    }
}

fn score(pod: &PodRequest, _: &Snapshot, candidates: &[Candidate<'_>]) -> Option<Vec<i64>> {
    let preferences = &pod.node_preferences;
    if !preferences.prefers() {
        return None;
    }
    let weights = candidates
        .iter()
        .map(|node| preferences.weight(&node.info.name, &node.info.labels));
    shares(weights.collect())
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, _: &Snapshot) -> bool {
    match event {
        ClusterEvent::Node(node) => {
            let NodeInfo { name, labels, .. } = &node.now;
            pod.node_preferences.allow(name, labels)
        }
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
