//! The address ranges that belong to services only (pure). Packets to an address there that no
//! service has are refused, and never leave the cluster.

use crate::view::Known;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::AddressRange;
use config_model::format::Cidr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ranges of addresses of one family, in order. They do not touch.
pub(crate) type Ranges = Vec<AddressRange>;

/// Most ranges: they are in the message of all services, outside of namespaces' shares.
pub(crate) const MOST_RANGES: usize = 4096;

/// Most addresses of a node that count: a node writes its own status.
const MOST_OF_NODE: usize = 8;

/// The addresses of a family in all ServiceCIDRs, except those of nodes, this one's own (`own`)
/// included, and of their pods: a ServiceCIDR that contains such addresses by mistake cuts no node
/// off. `None` before ServiceCIDRs and nodes are known.
pub(crate) fn of_services(known: &Known, own: &[IpAddr], family: Family) -> Option<Ranges> {
    let ranges = known.service_ranges.as_ref()?.values();
    let ranges = ranges.flat_map(|range| &range.0);
    let ranges = ranges.filter(|range| Family::of(range.address) == family);
    let nodes = known.nodes.as_ref()?.values();
    let single = |at: &IpAddr| Cidr {
        address: *at,
        prefix: family.bits(),
    };
    let of_nodes = nodes.flat_map(|node| {
        let addresses = node.addresses.iter().take(MOST_OF_NODE).map(single);
        addresses.chain(node.ranges.iter().copied())
    });
    let taken = of_nodes.chain(own.iter().map(single));
    let taken = taken.filter(|range| Family::of(range.address) == family);
    let ranges: Vec<Span> = ranges.map(Span::of).collect();
    // Usually none, however many nodes there are.
    let taken = taken.map(|range| Span::of(&range));
    let taken = taken.filter(|own| ranges.iter().any(|range| range.meets(*own)));
    let taken = taken.collect();
    let left = without(ranges, taken);
    let address = |number: u128| match family {
        Family::V4 => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        Family::V6 => Ipv6Addr::from(number).into(),
    };
    let left = left.into_iter().take(MOST_RANGES);
    let left = left.map(|span| AddressRange {
        first: address(span.first),
        last: address(span.last),
    });
    Some(left.collect())
}

/// A range of addresses, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    first: u128,
    last: u128,
}

impl Span {
    fn of(range: &Cidr) -> Self {
        let (first, bits): (u128, u32) = match range.network() {
            IpAddr::V4(address) => (u32::from(address).into(), 32),
            IpAddr::V6(address) => (address.into(), 128),
        };
        let others = bits - u32::from(range.prefix).min(bits);
        let others = u128::MAX.checked_shr(128 - others).unwrap_or_default();
        let last = first | others;
        Self { first, last }
    }

    /// Whether both have an address in common.
    fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The addresses in one of these ranges and in none of the others.
fn without(mut ranges: Vec<Span>, mut others: Vec<Span>) -> Vec<Span> {
    ranges.sort_unstable();
    others.sort_unstable();
    let mut left: Vec<Span> = Vec::new();
    let mut add = |first: u128, last: u128| match left.last_mut() {
        Some(span) if first <= span.last.saturating_add(1) => span.last = last.max(span.last),
        _ => left.push(Span { first, last }),
    };
    for range in ranges {
        // The first address that is not decided yet, if there is one.
        let mut next = Some(range.first);
        for other in others.iter().filter(|other| other.meets(range)) {
            let Some(from) = next else { break };
            let before = other.first.checked_sub(1);
            if let Some(before) = before.filter(|before| *before >= from) {
                add(from, before);
            }
            next = other.last.checked_add(1).map(|behind| behind.max(from));
        }
        if let Some(from) = next.filter(|from| *from <= range.last) {
            add(from, range.last);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{Node, ServiceRange};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn known(services: &[&str], addresses: &[&str], pods: &[&str]) -> Known {
        let all = |texts: &[&str]| -> Vec<Cidr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let range = |text: &&str| ((*text).to_owned(), Arc::new(ServiceRange(all(&[*text]))));
        let node = Node {
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ranges: all(pods),
            ..Node::default()
        };
        Known {
            service_ranges: Some(services.iter().map(range).collect()),
            nodes: Some([("n2".to_owned(), Arc::new(node))].into()),
            ..Known::default()
        }
    }

    fn ranges_of(known: &Known, own: &[&str], family: Family) -> Vec<String> {
        let own: Vec<IpAddr> = own.iter().map(|text| text.parse().unwrap()).collect();
        let ranges = of_services(known, &own, family).unwrap();
        let text = |range: &AddressRange| format!("{}-{}", range.first, range.last);
        ranges.iter().map(text).collect()
    }

    #[test]
    fn ranges_of_services_are_joined_and_leave_nodes_and_pods_out() {
        let services = [
            "10.96.0.0/16",
            "10.97.0.0/16",
            "10.96.1.0/24",
            "fd00:96::/112",
        ];
        let usual = known(&services, &["192.0.2.1", "2001:db8::1"], &["10.244.0.0/24"]);
        assert_eq!(
            ranges_of(&usual, &["192.0.2.2"], Family::V4),
            ["10.96.0.0-10.97.255.255"]
        );
        assert_eq!(
            ranges_of(&usual, &[], Family::V6),
            ["fd00:96::-fd00:96::ffff"]
        );
        // ServiceCIDRs that contain addresses of nodes and pods.
        let large = known(
            &["10.0.0.0/8", "::/0"],
            &["10.0.0.1", "::1"],
            &["10.244.0.0/24"],
        );
        assert_eq!(
            ranges_of(&large, &["10.255.255.255", "10.0.0.0"], Family::V4),
            ["10.0.0.2-10.243.255.255", "10.244.1.0-10.255.255.254"]
        );
        let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let before = format!("::2-{}e", &last[..last.len() - 1]);
        assert_eq!(
            ranges_of(&large, &[last], Family::V6),
            ["::-::", before.as_str()]
        );
        assert_eq!(
            ranges_of(
                &known(&["10.0.0.0/24"], &[], &["10.0.0.0/16"]),
                &[],
                Family::V4
            ),
            [""; 0]
        );
        // Nothing is refused before the nodes are known.
        let early = Known {
            nodes: None,
            ..usual.clone()
        };
        assert_eq!(of_services(&early, &[], Family::V4), None);
        let early = Known {
            service_ranges: None,
            ..usual
        };
        assert_eq!(of_services(&early, &[], Family::V4), None);
    }

    #[test]
    fn addresses_of_services_and_of_any_nodes_pods_are_in_the_cluster() {
        let all = known(
            &["10.96.0.0/16", "fd00:96::/112"],
            &["192.168.77.12"],
            &["10.244.2.0/24", "fd00:244:2::/64"],
        );
        let is_inside = |text: &str| all.is_in_cluster(text.parse().unwrap());
        for inside in ["10.96.0.1", "fd00:96::1", "10.244.2.9", "fd00:244:2::9"] {
            assert!(is_inside(inside), "{inside}");
        }
        for outside in ["192.168.77.12", "10.244.3.9", "10.97.0.1", "2001:db8::1"] {
            assert!(!is_inside(outside), "{outside}");
        }
        assert!(!Known::default().is_in_cluster([10, 96, 0, 1].into()));
    }

    #[test]
    fn no_more_ranges_are_made_than_share_a_message() {
        let addresses: Vec<String> = (0..=255)
            .flat_map(|a| (0..=127).map(move |b| format!("10.96.{a}.{}", 2 * b)))
            .collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let ranges = known(&["10.96.0.0/16"], &[], &[]);
        assert_eq!(
            ranges_of(&ranges, &addresses, Family::V4).len(),
            MOST_RANGES
        );
        // One range after each of the addresses of a node that count.
        let of_node = known(&["10.96.0.0/16"], &addresses, &[]);
        assert_eq!(ranges_of(&of_node, &[], Family::V4).len(), MOST_OF_NODE);
    }

    proptest! {
        #[test]
        fn an_address_is_left_where_it_is_in_a_range_and_in_no_other(
            ranges in proptest::collection::vec((0_u128..40, 0_u128..10), 0..6),
            others in proptest::collection::vec((0_u128..40, 0_u128..10), 0..6),
        ) {
            let of = |all: Vec<(u128, u128)>| -> Vec<Span> {
                let span = |(first, more): (u128, u128)| Span { first, last: first + more };
                all.into_iter().map(span).collect()
            };
            let (ranges, others) = (of(ranges), of(others));
            let left = without(ranges.clone(), others.clone());
            let has = |all: &[Span], at| all.iter().any(|span| (span.first..=span.last).contains(&at));
            for at in 0..60 {
                prop_assert_eq!(has(&left, at), has(&ranges, at) && !has(&others, at), "{}", at);
            }
            for (one, next) in left.iter().zip(left.iter().skip(1)) {
                prop_assert!(one.last + 1 < next.first, "{:?}", left);
            }
        }
    }
}
