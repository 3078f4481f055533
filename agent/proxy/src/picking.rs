//! The chains that pick an endpoint for a connection (pure).
//!
//! Affinity (`sessionAffinity: ClientIP`): a map that the chains fill holds clients with their
//! endpoints, each for the service's timeout. Its key has the front of the cluster IP, whichever
//! address of the service the client calls: a client stays with one endpoint for each port of the
//! service (upstream's rule). If that endpoint is gone, or the front that the client calls does not
//! have it, the client gets another one, and stays with that. When the map is full, new clients are
//! served without affinity.

use crate::table::{LEAVES_AS_NODE, REGISTER, front_bytes, load_front, rule_of};
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::{Change, Name, Step};

/// From front and random number to the endpoint; the same for callers on this node.
pub(crate) const ENDPOINTS: &str = "endpoints";
pub(crate) const ENDPOINTS_INSIDE: &str = "endpoints-inside";
/// From a front with affinity to the front of its service's cluster IP.
pub(crate) const OWN_FRONTS: &str = "own-fronts";
/// From client and cluster IP's front to the endpoint with which the client stays.
pub(crate) const CLIENTS: &str = "clients";
/// The pairs of front and endpoint with which clients may stay; the same for callers on this node.
pub(crate) const STAYING: &str = "staying";
pub(crate) const STAYING_INSIDE: &str = "staying-inside";

/// A chain that picks an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Chain {
    /// The number of endpoints to pick from.
    pub(crate) endpoints: u32,
    /// Seconds for which a client stays with one.
    pub(crate) affinity: Option<u32>,
    /// Whether the connection leaves with the node's own address.
    pub(crate) as_node: bool,
    /// Whether it is for this node's pods and its own programs only.
    pub(crate) inside: bool,
}

impl Chain {
    /// Its name in the kernel.
    pub(crate) fn name(self) -> Name {
        let mut name = format!("pick-{}", self.endpoints);
        if let Some(seconds) = self.affinity {
            name = format!("{name}-stay-{seconds}");
        }
        if self.as_node {
            name.push_str("-as-node");
        }
        if self.inside {
            name.push_str("-inside");
        }
        name.into()
    }
}

/// The map in which a chain finds endpoints, and the set of those with which clients may stay.
pub(crate) fn places(chain: Chain) -> (&'static str, &'static str) {
    if chain.inside {
        (ENDPOINTS_INSIDE, STAYING_INSIDE)
    } else {
        (ENDPOINTS, STAYING)
    }
}

/// The rules of a chain that picks one of a number of endpoints.
///
/// Registers: a front and what follows it, then an endpoint. There is no room for a second front
/// after an IPv6 endpoint. So it is loaded again right before the endpoint where a key needs both,
/// and at the first register after that.
pub(crate) fn picking(family: Family, chain: Chain) -> Vec<Change> {
    let behind_front = front_bytes(family) / REGISTER;
    let endpoint = behind_front + family.bytes() / REGISTER;
    let client = Step::LoadNetwork {
        offset: family.source_offset(),
        length: family.bytes(),
        to: behind_front,
    };
    let find = |map| Step::Find {
        key: 0,
        map,
        to: endpoint,
    };
    let (endpoints, staying) = places(chain);
    let any = || {
        let mut steps = load_front(family, 0);
        steps.push(Step::LoadRandom {
            below: chain.endpoints,
            to: behind_front,
        });
        steps.push(find(endpoints));
        steps
    };
    let mark = chain.as_node.then_some(Step::SetMark(LEAVES_AS_NODE));
    let there = Step::Destination {
        address: endpoint,
        port: endpoint + family.bytes() / REGISTER,
    };
    let leads = |steps: Vec<Step>| {
        let end = mark.iter().chain([&there]).cloned();
        rule_of(chain.name(), steps.into_iter().chain(end).collect())
    };
    let mut rules = Vec::new();
    if let Some(seconds) = chain.affinity {
        // In place of the front that is called.
        let own = Step::Find {
            key: 0,
            map: OWN_FRONTS,
            to: 0,
        };
        let remember = Step::Remember {
            key: 0,
            map: CLIENTS,
            value: endpoint,
            milliseconds: u64::from(seconds).saturating_mul(1000),
        };
        // A client whose endpoint still serves the front stays with it.
        let mut steps = load_front(family, 0);
        steps.extend([own.clone(), client.clone(), find(CLIENTS)]);
        let before = endpoint - behind_front;
        steps.extend(load_front(family, before));
        steps.push(Step::In(before, staying.into()));
        steps.extend(load_front(family, 0));
        steps.extend([own.clone(), client.clone(), remember.clone()]);
        rules.push(leads(steps));
        // Any other client gets an endpoint with which it stays. An entry of it in the map is of an
        // endpoint that is gone, and has to be removed: it would keep its value.
        let forget = Step::Forget {
            key: 0,
            map: CLIENTS,
            value: endpoint,
        };
        let mut steps = any();
        steps.extend([own, client, forget, remember]);
        rules.push(leads(steps));
    }
    // For a client that can't be remembered.
    rules.push(leads(any()));
    rules
}
