//! Refuses cordoned nodes (upstream: `NodeUnschedulable`).

use super::plugin::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{ClusterEvent, EventKind};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use crate::taints::NodeTaint;
use config_kube::taints::UNSCHEDULABLE;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NodeUnschedulable",
    weight: 0,
    filter: Some(|pod, _| (!is_tolerant(pod)).then(|| Box::new(Cordoned) as Box<dyn Filter>)),
    score: None,
    events: &[EventKind::Node],
    wakes,
};

fn is_tolerant(pod: &PodRequest) -> bool {
    NodeTaint::found(UNSCHEDULABLE).tolerated(&pod.tolerations)
}

struct Cordoned;

impl Filter for Cordoned {
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        if node.info.cordoned {
            found.push(Obstacle::lasting("node(s) were unschedulable"));
        }
    }
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, _: &Snapshot) -> bool {
    match event {
        ClusterEvent::Node(node) => !node.now.cordoned || is_tolerant(pod),
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
