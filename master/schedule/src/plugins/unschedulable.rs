//! Nodes that are cordoned (upstream: `NodeUnschedulable`).

use super::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{Event, Kind};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use crate::taints::NodeTaint;
use config_kube::taints::UNSCHEDULABLE;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NodeUnschedulable",
    weight: 0,
    filter: Some(|pod, _| (!is_tolerant(pod)).then(|| Box::new(Cordoned) as Box<dyn Filter>)),
    score: None,
    hears: &[Kind::Node],
    wakes,
};

fn is_tolerant(pod: &PodRequest) -> bool {
    NodeTaint::found(UNSCHEDULABLE).tolerated(&pod.tolerations)
}

struct Cordoned;

impl Filter for Cordoned {
    fn look(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        if node.info.cordoned {
            found.push(Obstacle::lasting("node(s) were unschedulable"));
        }
    }
}

fn wakes(pod: &PodRequest, event: &Event, _: &Snapshot) -> bool {
    match event {
        Event::Node(node) => !node.now.cordoned || is_tolerant(pod),
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
