//! `cluster.pod_cidrs`: the ranges of which each node gets a part for its pods.

use crate::defaults::{NODE_CIDR_MASK_IPV4, NODE_CIDR_MASK_IPV6, NODE_CIDRS_BITS, POD_CIDR};
use crate::fault::{FaultKind, Position, Sink};
use crate::format::{Cidr, FormatError};
use crate::raw::Texts;
use crate::read::At;
use crate::service_range::Placed;

/// Longest prefixes of a node's range: below it there is no room for the node's own address and a
/// pod's.
const MAX_IPV4: u8 = 30;
const MAX_IPV6: u8 = 126;

/// A range of pod addresses and the size of the part that each node gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodRange {
    /// The whole range: a network, with zeros after the prefix.
    pub range: Cidr,
    /// Prefix length of a node's part: at least that of the range, and at most 16 bits longer.
    pub node_prefix: u8,
}

/// The keys as written.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) pod_cidrs: Option<At<Texts>>,
    pub(crate) node_cidr_mask_ipv4: Option<At<i64>>,
    pub(crate) node_cidr_mask_ipv6: Option<At<i64>>,
}

/// Checks the ranges: at most one per address family, and no overlap with the services' ranges. An
/// empty list gives nodes none.
pub(crate) fn check(
    written: &Written,
    services: &[Placed],
    sink: &mut Sink<'_>,
) -> Option<Vec<PodRange>> {
    let Some(list) = &written.pod_cidrs else {
        return default(written, services, sink).map(|range| vec![range]);
    };
    let mut ranges: Vec<PodRange> = Vec::new();
    for text in &list.value {
        let range = network(text, sink);
        ranges.extend(range.and_then(|range| {
            let expected = if ranges
                .iter()
                .any(|other| is_of_family(&other.range, &range))
            {
                "at most one range of IPv4 and one of IPv6".to_owned()
            } else if let Some((services, _)) =
                services.iter().find(|(one, _)| overlap(one, &range))
            {
                format!("a range apart from that of services, {services}")
            } else {
                return part(written, range, Some(&text.place), sink);
            };
            sink.fault(
                FaultKind::Conflict,
                &text.place,
                range.to_string(),
                &expected,
            );
            None
        }));
    }
    if ranges.len() < list.value.len() {
        return None;
    }
    refuse_idle_masks(written, &ranges, sink);
    Some(ranges)
}

/// The default range.
fn default(written: &Written, services: &[Placed], sink: &mut Sink<'_>) -> Option<PodRange> {
    let range: Cidr = POD_CIDR.parse().ok()?;
    let near = services.iter().find(|(one, _)| overlap(one, &range));
    if let Some((services, Some(place))) = near {
        let expected = format!("a range apart from that of pods, {range}");
        let suggestion = Some("or give pods another one: `pod_cidrs`".to_owned());
        let found = services.to_string();
        sink.suggest(FaultKind::Conflict, place, found, &expected, suggestion);
        return None;
    }
    let part = part(written, range, None, sink);
    refuse_idle_masks(written, part.as_slice(), sink);
    part
}

/// A range as a network, with zeros after the prefix.
fn network(text: &At<String>, sink: &mut Sink<'_>) -> Option<Cidr> {
    let cidr: Cidr = sink.parse(text)?;
    let network = Cidr {
        address: cidr.network(),
        ..cidr
    };
    if network == cidr {
        return Some(cidr);
    }
    let error = FormatError::new("a network, with zeros after the prefix");
    sink.parsed(text, Err(error.hint(format!("write \"{network}\""))))
}

/// The name of a range's family.
pub(crate) fn family(range: &Cidr) -> &'static str {
    if range.address.is_ipv4() {
        "IPv4"
    } else {
        "IPv6"
    }
}

pub(crate) fn is_of_family(one: &Cidr, other: &Cidr) -> bool {
    one.address.is_ipv4() == other.address.is_ipv4()
}

fn overlap(one: &Cidr, other: &Cidr) -> bool {
    one.contains(other.network()) || other.contains(one.network())
}

/// A range with the size of a node's part: as written, or the default if the range is large enough.
fn part(
    written: &Written,
    range: Cidr,
    place: Option<&Position>,
    sink: &mut Sink<'_>,
) -> Option<PodRange> {
    let (mask, default, longest) = if range.address.is_ipv4() {
        (&written.node_cidr_mask_ipv4, NODE_CIDR_MASK_IPV4, MAX_IPV4)
    } else {
        (&written.node_cidr_mask_ipv6, NODE_CIDR_MASK_IPV6, MAX_IPV6)
    };
    if let Some(place) = place.filter(|_| range.prefix > longest) {
        let expected = format!("a prefix length of {longest} at most");
        sink.fault(FaultKind::BadValue, place, range.to_string(), &expected);
        return None;
    }
    let last = range.prefix.saturating_add(NODE_CIDRS_BITS).min(longest);
    let node_prefix = match mask {
        Some(mask) => sink.number(mask, &(range.prefix.into()..=last.into()))?,
        None => default.max(range.prefix).min(last),
    };
    Some(PodRange { range, node_prefix })
}

/// Reports a mask for a family without a range, which would have no effect.
fn refuse_idle_masks(written: &Written, ranges: &[PodRange], sink: &mut Sink<'_>) {
    let masks = [
        (&written.node_cidr_mask_ipv4, true, "IPv4"),
        (&written.node_cidr_mask_ipv6, false, "IPv6"),
    ];
    for (mask, is_ipv4, family) in masks {
        let served = ranges
            .iter()
            .any(|one| one.range.address.is_ipv4() == is_ipv4);
        if let Some(mask) = mask.as_ref().filter(|_| !served) {
            let expected = format!("no such key without a range of {family} in `pod_cidrs`");
            let found = mask.value.to_string();
            sink.fault(FaultKind::Conflict, &mask.place, found, &expected);
        }
    }
}
