use super::*;
use crate::fronts::{Fronts, MOST_HOST_FRONTS, of_service};
use crate::ranges::MOST_RANGES;
use crate::served::{Served, tests::histories};
use crate::table::{self, Entries, difference, entries};
use crate::view::{Endpoint, HostPort, Known, Objects, SlicePort};
use agent_sys::netlink::filter::{AddressRange, Change, encoded_length};
use proptest::prelude::*;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// The addresses and settings of a test's service.
#[derive(Debug, Clone, Copy)]
struct Kind {
    node_ports: bool,
    external_local: bool,
    affinity: Option<u32>,
}

/// An address of a family.
fn at(family: Family, net: u8, number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    match family {
        Family::V4 => [10, net, high, low].into(),
        Family::V6 => [0xfd00, net.into(), 0, 0, 0, 0, 0, number].into(),
    }
}

/// A service whose ports each have as many endpoints as the port's number, all on this node.
fn service(
    family: Family,
    number: u16,
    ports: RangeInclusive<u16>,
    kind: Kind,
) -> (Service, Vec<Arc<Slice>>) {
    let port = |port: u16| Port {
        name: port.to_string(),
        protocol: Protocol::Tcp,
        port,
        node_port: kind.node_ports.then_some(port + 30_000 + number * 100),
    };
    let service = Service {
        addresses: vec![at(family, 96, number)],
        ports: ports.clone().map(port).collect(),
        affinity: kind.affinity,
        external_local: kind.external_local,
        ..Service::default()
    };
    let slice = |port: u16| Slice {
        service: String::new(),
        ports: vec![SlicePort {
            name: port.to_string(),
            protocol: Protocol::Tcp,
            port,
        }],
        endpoints: (1..=port).map(|number| endpoint(family, number)).collect(),
        foreign: false,
    };
    (service, ports.map(slice).map(Arc::new).collect())
}

fn endpoint(family: Family, number: u16) -> Endpoint {
    Endpoint {
        address: at(family, 1, number),
        ready: true,
        serving: true,
        terminating: false,
        hostname: None,
        node: Some("n1".to_owned()),
        hints: None,
    }
}

fn here(addresses: &[IpAddr]) -> Here<'_> {
    Here {
        node: "n1",
        zone: None,
        addresses,
        name_servers: &[],
    }
}

/// The fronts of a service that are of a family.
fn fronts_of(family: Family, service: &Service, slices: &[&Arc<Slice>], at: Here<'_>) -> Fronts {
    let all = of_service(service, slices, at).into_iter();
    let own = all.filter(|(_, front, _)| Family::of(front.address) == family);
    own.map(|(_, front, pick)| (front, pick)).collect()
}

/// Bytes of an empty table.
fn bare(family: Family) -> usize {
    encoded_length(family, &table::all(family, &Entries::default()))
}

#[test]
fn services_with_affinity_timeouts_of_their_own_take_what_they_are_counted_with() {
    let kinds = [(false, false), (true, false), (true, true)];
    for (family, (node_ports, external_local)) in Family::BOTH
        .into_iter()
        .flat_map(|family| kinds.map(|kind| (family, kind)))
    {
        let addresses = [at(family, 2, 1)];
        let (mut fronts, mut counted) = (Fronts::new(), 0);
        for number in 0..12 {
            let kind = Kind {
                node_ports,
                external_local,
                affinity: Some(86_399 - u32::from(number)),
            };
            let ports = if node_ports { 20 } else { 30 };
            let (service, slices) = service(family, number, 1..=ports, kind);
            let slices: Vec<_> = slices.iter().collect();
            counted += weigh(&service, &slices, here(&addresses));
            fronts.extend(fronts_of(family, &service, &slices, here(&addresses)));
        }
        let bytes = encoded_length(family, &table::all(family, &entries(&fronts)));
        let frame = bare(family) + 1024;
        assert!(frame <= FRAME, "{frame}");
        assert!(
            bytes <= frame + counted,
            "{family:?}, {node_ports}, {external_local}: {bytes} > {frame} + {counted}"
        );
    }
}

#[test]
fn entries_that_belong_to_no_namespace_fit_in_the_frame() {
    for family in Family::BOTH {
        let addresses = [at(family, 2, 1)];
        let ports = (1..=60_000).map(|port| HostPort {
            address: None,
            protocol: Protocol::Tcp,
            port,
            pod: at(family, 1, port),
            pod_port: port,
        });
        let known = Known {
            services: Some(Objects::new()),
            slices: Some(Objects::new()),
            host_ports: vec![("a".to_owned(), ports.collect())],
            ..Known::default()
        };
        let mut served = Served::default();
        served.take(&Arc::new(known), here(&addresses));
        let mut fronts = served.all();
        fronts.retain(|front, _| Family::of(front.address) == family);
        assert!((4096..=MOST_HOST_FRONTS).contains(&fronts.len()));
        let mut bytes = encoded_length(family, &table::all(family, &entries(&fronts)));
        let single = |number: u16| at(family, 96, number * 2);
        let ranges = (0..u16::try_from(MOST_RANGES).unwrap()).map(|one| AddressRange {
            first: single(one),
            last: single(one),
        });
        bytes += encoded_length(family, &table::service_ranges(&ranges.collect::<Vec<_>>()));
        // Each number of endpoints in turn, with all chains that there are, while all fits.
        let (mut counted, mut chains) = (0, Vec::new());
        for ports in 1.. {
            let kinds = [None, Some(USUAL_AFFINITY)];
            for (affinity, external_local) in kinds
                .into_iter()
                .flat_map(|affinity| [(affinity, false), (affinity, true)])
            {
                let kind = Kind {
                    node_ports: true,
                    external_local,
                    affinity,
                };
                let (service, slices) = service(family, 1, ports..=ports, kind);
                let slices: Vec<_> = slices.iter().collect();
                counted += weigh(&service, &slices, here(&addresses));
                let fronts = fronts_of(family, &service, &slices, here(&addresses));
                let mut changes = difference(family, &Entries::default(), &entries(&fronts));
                changes.retain(|change| {
                    matches!(change, Change::AddBranch { .. } | Change::AddRule { .. })
                });
                chains.extend(changes);
            }
            if counted > WHOLE {
                break;
            }
        }
        bytes += encoded_length(family, &chains);
        assert!(bytes <= FRAME, "{family:?}: {bytes}");
    }
}

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
                    let fronts = fronts_of(family, service, &slices, here);
                    let mut changes = difference(family, &Entries::default(), &entries(&fronts));
                    // Chains of no time are in the frame, as sets of ranges are.
                    let own = |chain: &str| chain.contains("-stay-");
                    let mut headers = encoded_length(family, &[]);
                    changes.retain(|change| {
                        let is_filled =
                            matches!(change, Change::AddEntries { .. } | Change::AddElements { .. });
                        headers += if is_filled { 96 } else { 0 };
                        is_filled
                            || matches!(change, Change::AddBranch { name, .. } if own(name))
                            || matches!(change, Change::AddRule { chain, .. } if own(chain))
                    });
                    let bytes = encoded_length(family, &changes);
                    let most = of_family(family, service, &slices, here) + headers;
                    prop_assert!(bytes <= most, "{} > {}: {:?}", bytes, most, fronts);
                }
            }
        }
    }
}
