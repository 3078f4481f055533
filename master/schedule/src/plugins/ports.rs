//! Ports of the host (upstream: `NodePorts`).

use super::plugin::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{ClusterEvent, EventKind};
use crate::node::HostPort;
use crate::request::PodRequest;
use crate::snapshot::Snapshot;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NodePorts",
    weight: 0,
    filter: Some(|pod, _| {
        let ports = &pod.demand.ports;
        (!ports.is_empty()).then(|| Box::new(Ports(ports)) as Box<dyn Filter>)
    }),
    score: None,
    events: &[EventKind::Node, EventKind::Left],
    wakes,
};

struct Ports<'a>(&'a [HostPort]);

fn collide(ports: &[HostPort], taken: &[HostPort]) -> bool {
    ports
        .iter()
        .any(|port| taken.iter().any(|taken| taken.collides(port)))
}

impl Filter for Ports<'_> {
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        if collide(self.0, &node.load.ports) {
            let reason = "node(s) didn't have free ports for the requested pod ports";
            found.push(Obstacle::passing(reason));
        }
    }
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, _: &Snapshot) -> bool {
    match event {
        ClusterEvent::Left(pods) => collide(&pod.demand.ports, &pods.usage.0.ports),
        ClusterEvent::Node(_) | ClusterEvent::Anything => true,
        ClusterEvent::NodeGone(_)
        | ClusterEvent::Placed(_)
        | ClusterEvent::Freed(_)
        | ClusterEvent::Namespace
        | ClusterEvent::Claim(_)
        | ClusterEvent::Volume
        | ClusterEvent::Class
        | ClusterEvent::Capacity => false,
    }
}
