//! Ports of the host (upstream: `NodePorts`).

use super::plugin::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{ClusterEvent, EventKind};
use crate::node::{HostPort, HostPorts, WantedPort};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NodePorts",
    weight: 0,
    filter: Some(|pod, _| {
        let ports = &pod.demand.ports;
        (!ports.is_empty()).then(|| Box::new(Ports::of(ports)) as Box<dyn Filter>)
    }),
    score: None,
    events: &[EventKind::Node, EventKind::Left],
    wakes,
};

/// The ports that a pod wants.
#[derive(Debug)]
struct Ports(Vec<WantedPort>);

impl Ports {
    fn of(ports: &[HostPort]) -> Self {
        Self(ports.iter().map(WantedPort::of).collect())
    }

    fn collide(&self, taken: &HostPorts) -> bool {
        self.0.iter().any(|port| port.collides(taken))
    }
}

impl Filter for Ports {
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        if self.collide(&node.load.ports) {
            let reason = "node(s) didn't have free ports for the requested pod ports";
            found.push(Obstacle::passing(reason));
        }
    }
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, _: &Snapshot) -> bool {
    match event {
        ClusterEvent::Left(pods) => {
            let (own, left) = (&pod.demand.ports, &pods.usage.0.ports);
            // Most pods have none.
            let may_collide = !own.is_empty() && !left.is_empty();
            may_collide && Ports::of(own).collide(&HostPorts::of(left))
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn port(address: &str, protocol: &str, port: i32) -> HostPort {
        HostPort {
            address: address.to_owned(),
            protocol: protocol.to_owned(),
            port,
        }
    }

    #[test]
    fn ports_collide_at_one_address_or_where_one_of_them_is_at_all() {
        let (here, there, all) = ("10.0.0.1", "10.0.0.2", "0.0.0.0");
        for (own, taken, expected) in [
            (port(here, "TCP", 80), port(here, "TCP", 80), true),
            (port(here, "TCP", 80), port(there, "TCP", 80), false),
            (port(here, "TCP", 80), port(all, "TCP", 80), true),
            (port(all, "TCP", 80), port(there, "TCP", 80), true),
            (port(all, "TCP", 80), port(all, "TCP", 80), true),
            (port(here, "TCP", 80), port(here, "UDP", 80), false),
            (port(all, "TCP", 80), port(all, "TCP", 81), false),
        ] {
            let mut held = HostPorts::of(&[taken.clone(), taken.clone()]);
            let own = Ports::of(&[own]);
            assert_eq!(own.collide(&held), expected, "{own:?} {taken:?}");
            held.remove(&taken);
            assert_eq!(own.collide(&held), expected, "another pod has it still");
            held.remove(&taken);
            assert!(!own.collide(&held) && held == HostPorts::default());
        }
    }

    /// Compared one by one, these would take longer than anybody waits.
    #[test]
    fn many_ports_of_a_pod_are_not_compared_with_many_of_a_node() {
        let ports = |address: &str| -> Vec<HostPort> {
            (1..=60_000)
                .map(|number| port(address, "TCP", number))
                .collect()
        };
        let (own, mut held) = (Ports::of(&ports("10.0.0.1")), HostPorts::default());
        let taken = ports("10.0.0.2");
        for port in &taken {
            held.add(port);
        }
        for _node in 0..20 {
            assert!(!own.collide(&held));
        }
        for port in &taken {
            held.remove(port);
        }
        assert_eq!(held, HostPorts::default());
    }
}
