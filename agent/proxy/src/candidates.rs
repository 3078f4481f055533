//! Selects the endpoints of a service's port that take connections: by node, hints and readiness
//! (pure).

use crate::view::{Endpoint, Hints, Port, Protocol, Slice};
use agent_sys::netlink::Family;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// One port of an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndpointPort<'a> {
    endpoint: &'a Endpoint,
    /// Its number, which may differ from slice to slice.
    port: u16,
}

impl EndpointPort<'_> {
    fn address(&self) -> (IpAddr, u16) {
        (self.endpoint.address, self.port)
    }
}

/// A service's endpoints of one address family, by the name and protocol of its ports. Ports of a
/// slice that the service does not have are skipped: there may be thousands of them, and no budget
/// counts them.
pub(crate) fn endpoints<'a>(
    family: Family,
    ports: &'a [Port],
    slices: &[&'a Arc<Slice>],
) -> HashMap<(&'a str, Protocol), Vec<EndpointPort<'a>>> {
    let none = |port: &'a Port| ((&*port.name, port.protocol), Vec::new());
    let mut found: HashMap<_, Vec<EndpointPort<'_>>> = ports.iter().map(none).collect();
    for slice in slices.iter().filter(|slice| !slice.foreign) {
        for port in &slice.ports {
            let Some(of_port) = found.get_mut(&(&*port.name, port.protocol)) else {
                continue;
            };
            let own = slice.endpoints.iter();
            let own = own.filter(|one| Family::of(one.address) == family);
            of_port.extend(own.map(|endpoint| EndpointPort {
                endpoint,
                port: port.port,
            }));
        }
    }
    found
}

/// Which endpoints are used, by topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Near<'a> {
    /// All.
    Anywhere,
    /// Those that run on a node.
    Node(&'a str),
    /// Those whose hints name a node (`forNodes`).
    ForNode(&'a str),
    /// Those whose hints name a zone (`forZones`).
    ForZone(&'a str),
}

impl Near<'_> {
    fn takes(self, endpoint: &Endpoint) -> bool {
        let hints = endpoint.hints.as_deref();
        match self {
            Self::Anywhere => true,
            Self::Node(node) => endpoint.node.as_deref() == Some(node),
            Self::ForNode(node) => {
                hints.is_some_and(|hints| hints.nodes.iter().any(|one| one == node))
            }
            Self::ForZone(zone) => {
                hints.is_some_and(|hints| hints.zones.iter().any(|one| one == zone))
            }
        }
    }
}

/// The endpoints for callers on this node. Hints count only if every ready endpoint has them and
/// one of them names this node or zone, so that incomplete or outdated hints leave no caller
/// without an endpoint (upstream's rule, KEP-2433, KEP-3015).
pub(crate) fn nearest<'a>(
    endpoints: &[EndpointPort<'_>],
    node: &'a str,
    zone: Option<&'a str>,
) -> Near<'a> {
    let ready = || {
        endpoints
            .iter()
            .map(|one| one.endpoint)
            .filter(|one| one.ready)
    };
    let all_have =
        |has: fn(&Hints) -> bool| ready().all(|one| one.hints.as_deref().is_some_and(has));
    let some_takes = |near: Near<'_>| ready().any(|one| near.takes(one));
    let for_node = Near::ForNode(node);
    if all_have(|hints| !hints.nodes.is_empty()) && some_takes(for_node) {
        return for_node;
    }
    let for_zone = zone.map(Near::ForZone);
    let for_zone = for_zone.filter(|near| some_takes(*near));
    for_zone
        .filter(|_| all_have(|hints| !hints.zones.is_empty()))
        .unwrap_or(Near::Anywhere)
}

/// All endpoints that serve, terminating ones too: UDP flows that were sent to them stay.
pub(crate) fn serving(endpoints: &[EndpointPort<'_>]) -> Vec<(IpAddr, u16)> {
    let own = endpoints.iter().filter(|one| one.endpoint.serving);
    let own = own.map(EndpointPort::address);
    own.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The endpoints that take new connections: the ready ones; without any, those that still serve
/// while they terminate (KEP-1669).
pub(crate) fn candidates(endpoints: &[EndpointPort<'_>], near: Near<'_>) -> Vec<(IpAddr, u16)> {
    let with = |wanted: fn(&Endpoint) -> bool| {
        let own = endpoints.iter();
        let own = own.filter(|one| wanted(one.endpoint) && near.takes(one.endpoint));
        own.map(EndpointPort::address)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    };
    let ready = with(|one| one.ready);
    if ready.is_empty() {
        with(|one| one.serving && one.terminating)
    } else {
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::SlicePort;

    #[test]
    fn ports_of_slices_that_the_service_lacks_are_ignored() {
        let endpoint = |number: u8| Endpoint {
            address: [10, 1, 0, number].into(),
            ready: true,
            serving: true,
            terminating: false,
            hostname: None,
            node: None,
            hints: None,
        };
        let port = |number: u16| SlicePort {
            name: format!("p{number}"),
            protocol: Protocol::Tcp,
            port: number,
        };
        let slice = Arc::new(Slice {
            service: "web".to_owned(),
            ports: (1..=20_000).map(port).collect(),
            endpoints: (0..100).map(endpoint).collect(),
            foreign: false,
        });
        let ports = ["p7", "web"].map(|name| Port {
            name: name.to_owned(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        });
        let found = endpoints(Family::V4, &ports, &[&slice, &slice]);
        let made: usize = found.values().map(Vec::len).sum();
        assert_eq!((found.len(), made), (2, 200));
        assert_eq!(found[&("p7", Protocol::Tcp)].len(), 200);
    }
}
