//! Computes the address ranges of `ipBlock` peers, without their exceptions, as disjoint nftables
//! ranges (pure).

use crate::model::PolicyPeer;
use agent_cluster::address;
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::AddressRange;
use config_model::format::Cidr;
use std::collections::BTreeSet;

/// The ranges of all `ipBlock` peers of a family, sorted and disjoint: nftables refuses a set with
/// overlapping intervals.
pub(crate) fn blocks(family: Family, peers: &[PolicyPeer]) -> Vec<AddressRange> {
    let edges = |range: &Cidr| (Family::of(range.address) == family).then(|| address::edges(range));
    let mut all = Vec::new();
    for peer in peers {
        let PolicyPeer::Block { cidr, except } = peer else {
            continue;
        };
        // By their first addresses, so that one pass cuts them out.
        let holes: BTreeSet<(u128, u128)> = except.iter().filter_map(edges).collect();
        let Some((first, last)) = edges(cidr) else {
            continue;
        };
        let mut from = Some(first);
        for (hole, end) in holes {
            let Some(start) = from.filter(|start| *start <= last) else {
                break;
            };
            if let Some(before) = hole.checked_sub(1).filter(|before| start <= *before) {
                all.push((start, before.min(last)));
            }
            // An exception may lie within an earlier one: `start` must not go back.
            from = end.checked_add(1).map(|next| next.max(start));
        }
        all.extend(
            from.filter(|start| *start <= last)
                .map(|start| (start, last)),
        );
    }
    all.sort_unstable();
    let mut joined: Vec<(u128, u128)> = Vec::new();
    for (from, to) in all {
        match joined.last_mut() {
            Some((_, end)) if from <= end.saturating_add(1) => *end = to.max(*end),
            _ => joined.push((from, to)),
        }
    }
    let address = |number| address::of_number(number, family == Family::V4);
    let joined = joined.into_iter();
    joined
        .map(|(from, to)| AddressRange {
            first: address(from),
            last: address(to),
        })
        .collect()
}
