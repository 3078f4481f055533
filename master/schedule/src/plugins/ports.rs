//! Ports of the host (upstream: `NodePorts`).

use super::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{Event, Kind};
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
    hears: &[Kind::Node, Kind::Left],
    wakes,
};

struct Ports<'a>(&'a [HostPort]);

fn collide(ports: &[HostPort], taken: &[HostPort]) -> bool {
    ports
        .iter()
        .any(|port| taken.iter().any(|taken| taken.collides(port)))
}

impl Filter for Ports<'_> {
    fn look(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        if collide(self.0, &node.load.ports) {
            let reason = "node(s) didn't have free ports for the requested pod ports";
            found.push(Obstacle::passing(reason));
        }
    }
}

fn wakes(pod: &PodRequest, event: &Event, _: &Snapshot) -> bool {
    match event {
        Event::Left(pods) => collide(&pod.demand.ports, &pods.0.ports),
        Event::Node(_) | Event::Anything => true,
        Event::NodeGone(_)
        | Event::Placed(_)
        | Event::Freed(_)
        | Event::Namespace
        | Event::Claim(_)
        | Event::Volume
        | Event::Class
        | Event::Capacity => false,
    }
}
