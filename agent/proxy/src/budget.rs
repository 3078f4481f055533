//! Divides the nftables table among the services of namespaces (pure).
//!
//! A family's table is one message to the kernel, of limited size ([`MAX_BATCH`]). A few Services
//! with as many ports as the API accepts would fill it, and a node whose agent starts would serve
//! none at all. So if all together take too much, the namespaces that take most are not served
//! until the others fit ([`Lightest`]). A namespace within an equal share is always served, and so
//! are the few services that pods of all namespaces need, whatever else is in theirs. If a
//! namespace exceeds its share of the memory for watched objects, none of its services is served
//! either.

use crate::fronts::Here;
use crate::view::{Key, Port, Protocol, Service, Slice};
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::MAX_BATCH;
use config_kube::identity::{API_SERVICE, NAMES_SERVICE};
use config_limits::Lightest;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Bytes of the message that belong to no namespace: the fixed part, the chains that pick endpoints
/// (one for each number of endpoints), and host ports.
const FRAME: usize = 4 << 20;
/// Bytes of map and set elements, besides the addresses in them: for a front, with its element in
/// the set of restricted or of empty fronts; for a front with affinity, with the cluster IP's; for
/// an endpoint of a front; for an endpoint in the set for affinity; for a source range. A test
/// compares them with the encoding.
const FRONT: usize = 128;
const OWN_FRONT: usize = 40;
const END: usize = 40;
const STAYING: usize = 28;
const RANGE: usize = 24;
/// Bytes for a chain of a service with an affinity timeout of its own.
const CHAIN: usize = 2600;
/// The affinity timeout whose chains services share (upstream's default).
const USUAL_AFFINITY: u32 = 10_800;

/// The services that pods of all namespaces need: the API and DNS. They are counted outside of
/// their namespaces, so that other Services there displace neither.
const EVERYONES: [(&str, &str); 2] = [API_SERVICE, NAMES_SERVICE];
/// Most bytes of one of them that are counted so, far more than it needs. A larger one counts in
/// its namespace, so that nobody evades the limit by editing it.
const MOST_OF_EVERYONES: usize = 256 << 10;

/// Most bytes that a service counts as, so that sums do not overflow.
const MOST: usize = 1 << 40;
/// Most bytes that all services together take.
pub(crate) const WHOLE: usize = MAX_BATCH - FRAME;

/// Whether a service that takes this much is served whatever its namespace takes.
pub fn is_everyones(name: &Key, bytes: usize) -> bool {
    EVERYONES.contains(&(&*name.namespace, &*name.name)) && bytes <= MOST_OF_EVERYONES
}

/// The services of a namespace that can be served whatever it takes.
pub(crate) fn everyones(namespace: &str) -> impl Iterator<Item = Key> {
    let own = EVERYONES.into_iter();
    let own = own.filter(move |(of, _)| *of == namespace);
    own.map(|(namespace, name)| Key {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Bytes that a service takes at most in the message of either family. A service that is left out
/// counts more than the whole table.
pub(crate) fn weigh(service: &Service, slices: &[&Arc<Slice>], here: Here<'_>) -> usize {
    if service.left_out {
        return MOST;
    }
    let of_family = |family| of_family(family, service, slices, here);
    let all = Family::BOTH.into_iter().map(of_family);
    all.max().unwrap_or_default().min(MOST)
}

fn of_family(family: Family, service: &Service, slices: &[&Arc<Slice>], here: Here<'_>) -> usize {
    let count = |all: &[std::net::IpAddr]| {
        let own = all.iter().filter(|at| Family::of(**at) == family);
        own.count()
    };
    if count(&service.addresses) == 0 {
        return 0;
    }
    let mut ends: HashMap<(&str, Protocol), usize> = HashMap::new();
    for slice in slices.iter().filter(|slice| !slice.foreign) {
        let own = slice.endpoints.iter();
        let own = own.filter(|one| Family::of(one.address) == family);
        let own = own.count();
        for port in &slice.ports {
            *ends.entry((&port.name, port.protocol)).or_default() += own;
        }
    }
    let address = usize::try_from(family.bytes()).unwrap_or(usize::MAX);
    let nodes = count(here.addresses);
    let named = count(&service.external) + count(&service.balancers);
    let staying = service.affinity.map_or(0, |_| STAYING + 2 * address);
    let own_front = service.affinity.map_or(0, |_| OWN_FRONT + 2 * address);
    // With `externalTrafficPolicy: Local`, callers inside and outside get different endpoints.
    let sides = 1 + usize::from(service.external_local);
    let ranges = (service.sources.len() + service.balancers.len()) * (RANGE + 2 * address);
    let ends_of = |port: &Port| {
        if service.name_server {
            count(here.name_servers)
        } else {
            let found = ends.get(&(&*port.name, port.protocol));
            found.copied().unwrap_or_default()
        }
    };
    let ports = service.ports.iter().map(|port| {
        let ends = ends_of(port);
        let fronts = count(&service.addresses) + named + port.node_port.map_or(0, |_| nodes);
        let end = END + 2 * address + staying;
        let front = FRONT + 2 * address + ends.saturating_mul(end);
        let beside = ranges.saturating_add(own_front);
        fronts.saturating_mul(sides.saturating_mul(front).saturating_add(beside))
    });
    let ports = ports.fold(0_usize, usize::saturating_add);
    if service.affinity.is_none_or(|time| time == USUAL_AFFINITY) {
        return ports;
    }
    // Each number of endpoints has chains of its own. Readiness and hints are ignored: there are no
    // more numbers than ports, and none is higher than that of all endpoints.
    let all = service.ports.iter().map(ends_of);
    let led = all.clone().filter(|ends| *ends > 0).count();
    let numbers = led.min(all.max().unwrap_or_default());
    let outside = named > 0 || service.ports.iter().any(|port| port.node_port.is_some());
    let chains = match (outside, service.external_local) {
        (false, _) => 1,
        (true, false) => 2,
        // Pods and the node's own programs have one each.
        (true, true) => 4,
    };
    ports.saturating_add(numbers.saturating_mul(chains * CHAIN))
}

/// The namespaces that are not served, given the bytes that each takes.
pub(crate) fn closed(taken: &BTreeMap<String, usize>, whole: usize) -> BTreeSet<String> {
    // Usually all fit, and this is called at each change.
    if taken.values().sum::<usize>() <= whole {
        return BTreeSet::new();
    }
    let mut lightest = Lightest::of(whole);
    let closed = taken.iter();
    let closed = closed.flat_map(|(namespace, bytes)| lightest.count(namespace, *bytes));
    closed.map(|(namespace, _)| namespace.clone()).collect()
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
