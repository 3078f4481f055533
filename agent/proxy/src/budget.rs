//! How the services of namespaces share the packet filter (pure).
//!
//! A family's table is one message to the kernel, of limited size ([`MAX_BATCH`]). A few Services
//! with as many ports as the API takes would fill it: no service of anybody would come into force
//! on a node whose agent starts. So where all together take too much, the namespaces that take most
//! are not served until the others fit. A namespace within an equal share is always served.

use crate::fronts::Here;
use crate::view::{Protocol, Service, Slice};
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::MAX_BATCH;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Bytes of the message that are of no service: what never changes, and the chains that pick among
/// as many endpoints as services have.
const FRAME: usize = 4 << 20;
/// Bytes beside the addresses in it: for a front, with its place among those that are restricted or
/// without endpoints; for an endpoint of a front, for the same as one with which clients stay, and
/// for a range of callers. A test holds this against the encoding.
const FRONT: usize = 128;
const END: usize = 40;
const STAYING: usize = 28;
const RANGE: usize = 24;
/// Bytes for the chains of a service whose clients stay for a time of its own.
const OWN_CHAINS: usize = 16 << 10;
/// The time that others have, too (upstream's default).
const USUAL_AFFINITY: u32 = 10_800;

/// Most that a service is counted with: sums of these stay exact.
const MOST: usize = 1 << 40;
/// What all services together take at most.
pub(crate) const WHOLE: usize = MAX_BATCH - FRAME;

/// Bytes that a service takes at most in the message of either family.
pub(crate) fn weigh(service: &Service, slices: &[&Arc<Slice>], here: Here<'_>) -> usize {
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
    for slice in slices {
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
    // Callers inside and outside may be led to different ones.
    let sides = 1 + usize::from(service.external_local);
    let ranges = (service.sources.len() + service.balancers.len()) * (RANGE + 2 * address);
    let own_chains = service.affinity.filter(|time| *time != USUAL_AFFINITY);
    let ports = service.ports.iter().map(|port| {
        let ends = if service.name_server {
            count(here.name_servers)
        } else {
            let found = ends.get(&(&*port.name, port.protocol));
            found.copied().unwrap_or_default()
        };
        let fronts = count(&service.addresses) + named + port.node_port.map_or(0, |_| nodes);
        let end = END + 2 * address + staying;
        let front = FRONT + 2 * address + ends.saturating_mul(end);
        fronts.saturating_mul(sides.saturating_mul(front).saturating_add(ranges))
    });
    let ports = ports.fold(0_usize, usize::saturating_add);
    ports.saturating_add(own_chains.map_or(0, |_| OWN_CHAINS))
}

/// The namespaces that are not served, where each takes this much.
pub(crate) fn closed(taken: &BTreeMap<String, usize>, whole: usize) -> BTreeSet<String> {
    let mut sum: usize = taken.values().sum();
    let mut closed = BTreeSet::new();
    if sum <= whole {
        return closed;
    }
    let open = taken.iter().map(|(namespace, bytes)| (*bytes, namespace));
    let mut open: BTreeSet<(usize, &String)> = open.collect();
    while sum > whole
        && let Some((bytes, namespace)) = open.pop_last()
    {
        closed.insert(namespace.clone());
        sum = sum.saturating_sub(bytes);
    }
    closed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fronts::of_service;
    use crate::served::tests::histories;
    use crate::table::{Entries, difference, entries};
    use agent_sys::netlink::filter::{Change, encoded_length};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_service_takes_more_of_a_message_than_it_is_counted_with(states in histories()) {
            for (known, addresses) in &states {
                let here = Here {
                    node: "n1",
                    zone: known.zone("n1"),
                    addresses,
                    name_servers: &known.name_servers,
                };
                let (services, slices) = known.whole().unwrap();
                // Each with all slices: a service has more endpoints so.
                let slices: Vec<_> = slices.values().collect();
                for service in services.values() {
                    for family in Family::BOTH {
                        let all = of_service(service, &slices, here).into_iter();
                        let own = all.filter(|(_, front, _)| Family::of(front.address) == family);
                        let fronts = own.map(|(_, front, pick)| (front, pick)).collect();
                        let mut changes = difference(family, &Entries::default(), &entries(&fronts));
                        changes.retain(|change| {
                            matches!(change, Change::AddEntries { .. } | Change::AddElements { .. })
                        });
                        let headers = encoded_length(family, &[]) + 96 * changes.len();
                        let bytes = encoded_length(family, &changes);
                        let most = of_family(family, service, &slices, here) + headers;
                        prop_assert!(bytes <= most, "{} > {}: {:?}", bytes, most, fronts);
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_served_fits_and_an_equal_share_always_is(
            weights in proptest::collection::vec(0_usize..1200, 1..12),
        ) {
            let whole = 1000;
            let names = (0..weights.len()).map(|at| at.to_string());
            let taken: BTreeMap<String, usize> = names.zip(weights.iter().copied()).collect();
            let closed = closed(&taken, whole);
            let open = || taken.iter().filter(|(name, _)| !closed.contains(*name));
            prop_assert!(open().map(|(_, bytes)| bytes).sum::<usize>() <= whole);
            let share = whole / weights.len();
            for (name, bytes) in &taken {
                prop_assert!(*bytes > share || !closed.contains(name), "{name} takes {bytes}");
            }
        }
    }
}
