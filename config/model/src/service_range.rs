//! `cluster.service_cidr`: the ranges of services' addresses.

use crate::defaults::SERVICE_CIDR;
use crate::fault::{FaultKind, Position, Sink};
use crate::format::{Cidr, FormatError};
use crate::pod_range::{PodRange, family, is_of_family};
use crate::raw::OneOrMore;
use crate::read::At;

/// A range, and its place in the document; the default has none.
pub(crate) type Placed = (Cidr, Option<Position>);

/// Checks the ranges: one of each family at most, the first of which services have without asking.
pub(crate) fn check(written: Option<At<OneOrMore>>, sink: &mut Sink<'_>) -> Option<Vec<Placed>> {
    let Some(written) = written else {
        return Some(vec![(SERVICE_CIDR.parse().ok()?, None)]);
    };
    let At { value, place } = written;
    let list = value.0;
    sink.not_empty(
        &At {
            value: list.clone(),
            place,
        },
        "a range",
    );
    let mut ranges: Vec<Placed> = Vec::new();
    for text in &list {
        let Some(range) = range(text, sink) else {
            continue;
        };
        if ranges.iter().any(|(other, _)| is_of_family(other, &range)) {
            let expected = "at most one range of IPv4 and one of IPv6";
            sink.fault(
                FaultKind::Conflict,
                &text.place,
                range.to_string(),
                expected,
            );
            continue;
        }
        ranges.push((range, Some(text.place.clone())));
    }
    (!ranges.is_empty() && ranges.len() == list.len()).then_some(ranges)
}

fn range(text: &At<String>, sink: &mut Sink<'_>) -> Option<Cidr> {
    let cidr: Cidr = sink.parse(text)?;
    let wide = if cidr.address.is_ipv4() {
        12..=30
    } else {
        108..=126
    };
    let error = if cidr.network() != cidr.address {
        let network = Cidr {
            address: cidr.network(),
            ..cidr
        };
        FormatError::new("a network, with zeros after the prefix")
            .hint(format!("write \"{network}\""))
    } else if wide.contains(&cidr.prefix) {
        return Some(cidr);
    } else {
        FormatError::new(&format!(
            "a prefix length from {} to {}",
            wide.start(),
            wide.end()
        ))
    };
    sink.parsed(text, Err(error))
}

/// Reports Service ranges of an address family in which no pod has an address: such a Service could
/// have no endpoint. Not checked where another program allocates the pods' ranges.
pub(crate) fn check_pods(
    services: &[Placed],
    pods: &[PodRange],
    written: Option<&Position>,
    sink: &mut Sink<'_>,
) -> Option<()> {
    let mut fine = Some(());
    for (range, own) in services.iter().filter(|_| !pods.is_empty()) {
        if pods.iter().any(|one| is_of_family(&one.range, range)) {
            continue;
        }
        fine = None;
        let family = family(range);
        let Some(place) = own.as_ref().or(written) else {
            continue;
        };
        let (found, expected) = if own.is_some() {
            (
                range.to_string(),
                format!("a range of {family} in `pod_cidrs` as well"),
            )
        } else {
            let found = format!("no range of {family}");
            (
                found,
                format!("one, as services have {range}, or other ranges in `service_cidr`"),
            )
        };
        sink.fault(FaultKind::Conflict, place, found, &expected);
    }
    fine
}
