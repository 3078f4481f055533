//! Node selectors and node affinity (upstream: `NodeAffinity`).

use super::{Candidate, Filter, Obstacle, Plugin, shares};
use crate::affinity::NodePreferences;
use crate::event::{Event, Kind};
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
    hears: &[Kind::Node],
    wakes,
};

struct Selectors<'a>(&'a NodePreferences);

impl Filter for Selectors<'_> {
    fn look(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
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

fn wakes(pod: &PodRequest, event: &Event, _: &Snapshot) -> bool {
    match event {
        Event::Node(node) => {
            let NodeInfo { name, labels, .. } = &node.now;
            pod.node_preferences.allow(name, labels)
        }
        Event::Anything => true,
        Event::Placed(_)
        | Event::Left(_)
        | Event::Freed(_)
        | Event::NodeGone(_)
        | Event::Namespace
        | Event::Claim(_)
        | Event::Volume
        | Event::Class
        | Event::Capacity => false,
    }
}
