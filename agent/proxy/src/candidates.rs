//! Which endpoints of a service's port take a connection: by node, by hints, by readiness (pure).

use crate::view::{Endpoint, Hints, Protocol, Slice};
use agent_sys::netlink::Family;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Endpoints, each with its number.
pub(crate) type Ends<'a> = Vec<(&'a Endpoint, u16)>;

/// The endpoints of a service at addresses of a family, by the names and protocols of its ports. A
/// service may have thousands of ports, and each slice as many.
pub(crate) fn endpoints<'a>(
    family: Family,
    slices: &[&'a Arc<Slice>],
) -> HashMap<(&'a str, Protocol), Ends<'a>> {
    let mut found: HashMap<_, Ends<'_>> = HashMap::new();
    for slice in slices {
        for port in &slice.ports {
            let own = slice.endpoints.iter();
            let own = own.filter(|one| Family::of(one.address) == family);
            let of_port = found.entry((&*port.name, port.protocol)).or_default();
            of_port.extend(own.map(|one| (one, port.port)));
        }
    }
    found
}

/// Which endpoints are used, by where they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Near<'a> {
    /// Those anywhere.
    Anywhere,
    /// Those on a node.
    Node(&'a str),
    /// Those that are meant for a node's callers.
    ForNode(&'a str),
    /// Those that are meant for a zone's callers.
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

/// Where callers of this node are led: by hints only if every ready endpoint has them and one is
/// meant for these callers, so that hints of a moment before or after never leave anybody without
/// an endpoint (upstream's rule, KEP-2433, KEP-3015).
pub(crate) fn nearest<'a>(
    endpoints: &[(&Endpoint, u16)],
    node: &'a str,
    zone: Option<&'a str>,
) -> Near<'a> {
    let ready = || {
        endpoints
            .iter()
            .map(|(one, _)| *one)
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

/// The endpoints that serve, wherever they run and also on their way out: datagrams go on to them.
pub(crate) fn serving(endpoints: &[(&Endpoint, u16)]) -> Vec<(IpAddr, u16)> {
    let own = endpoints.iter().filter(|(one, _)| one.serving);
    let own = own.map(|(one, port)| (one.address, *port));
    own.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The endpoints that take connections: those that are ready, and where there is none, those that
/// still serve on their way out (KEP-1669).
pub(crate) fn candidates(endpoints: &[(&Endpoint, u16)], near: Near<'_>) -> Vec<(IpAddr, u16)> {
    let with = |wanted: fn(&Endpoint) -> bool| {
        let own = endpoints.iter();
        let own = own.filter(|(one, _)| wanted(one) && near.takes(one));
        own.map(|(one, port)| (one.address, *port))
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
