//! Allocates pod IPs: a table that gives each address to one pod at a time (pure). It holds the
//! pods' ranges of user ids ([`IdRanges`]) too, so that both are given and released together.
//!
//! Guarantees: no address is given to two pods, none outside of the ranges or a reserved one is
//! given, and a pod that asks again keeps what it has. A released address is given again only after
//! all others of its range, since peers may remember who had it.

use crate::error::Error;
use agent_confine::users::IdRanges;
use config_model::format::Cidr;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses and the ranges of ids of all pods of the node, as its file has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Addresses by the pod's uid: one for each range.
    given: BTreeMap<String, Vec<IpAddr>>,
    /// The last address that was given of each range: the search for a free one continues after it.
    last: Vec<IpAddr>,
    /// The ranges of user and group ids.
    #[serde(default)]
    pub users: IdRanges,
}

impl Table {
    /// The addresses of a pod, one of each range in their order.
    pub fn of(&self, uid: &str) -> Option<&[IpAddr]> {
        self.given.get(uid).map(Vec::as_slice)
    }

    /// All pods that have addresses or ids, by uid.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        let given = self.given.keys().map(String::as_str);
        given.chain(self.users.uids())
    }

    /// Gives a pod one address of each range; a pod whose addresses still fit the ranges keeps
    /// them. True if something changed.
    ///
    /// # Errors
    /// If there is no range, or one of them is full; then nothing has changed.
    pub fn give(&mut self, uid: &str, ranges: &[Cidr]) -> Result<bool, Error> {
        if ranges.is_empty() {
            return Err(Error::NoRange);
        }
        if self.of(uid).is_some_and(|own| fits(own, ranges)) {
            return Ok(false);
        }
        let others: BTreeSet<IpAddr> = self
            .given
            .iter()
            .filter(|(other, _)| *other != uid)
            .flat_map(|(_, addresses)| addresses.iter().copied())
            .collect();
        let mut own = Vec::new();
        for range in ranges {
            let last = self.last.iter().find(|last| range.contains(**last));
            let free = next_free(range, last.copied(), &others);
            own.push(free.ok_or_else(|| Error::Full(range.to_string()))?);
        }
        self.last.clone_from(&own);
        self.given.insert(uid.to_owned(), own);
        Ok(true)
    }

    /// Records the addresses that a running pod was found to have; true if that changed something.
    /// If another pod has one of them, nothing is recorded.
    pub fn keep(&mut self, uid: &str, addresses: &[IpAddr]) -> bool {
        let own = addresses.to_vec();
        let taken = self
            .given
            .iter()
            .any(|(other, given)| other != uid && given.iter().any(|one| own.contains(one)));
        !own.is_empty() && !taken && self.given.insert(uid.to_owned(), own.clone()) != Some(own)
    }

    /// Takes a pod's addresses and ids back; true if it had any.
    pub fn take_back(&mut self, uid: &str) -> bool {
        let ids = self.users.take_back(uid);
        self.given.remove(uid).is_some() || ids
    }

    /// Whether nothing is given twice. A damaged or edited file may break that.
    pub fn is_sound(&self) -> bool {
        let mut seen = BTreeSet::new();
        let mut all = self.given.values().flatten();
        self.users.is_sound() && all.all(|address| seen.insert(*address))
    }
}

/// Whether addresses are one of each range, in their order, and none is reserved.
fn fits(addresses: &[IpAddr], ranges: &[Cidr]) -> bool {
    let is_of = |(address, range): (&IpAddr, &Cidr)| {
        let (first, last) = ends(range);
        range.contains(*address) && (first..=last).contains(&number(*address))
    };
    addresses.len() == ranges.len() && addresses.iter().zip(ranges).all(is_of)
}

/// The first free address after the last one that was given; at the end of the range, the search
/// continues at its start.
fn next_free(range: &Cidr, last: Option<IpAddr>, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let (first, end) = ends(range);
    let from = last.map_or(first, |last| number(last).saturating_add(1).max(first));
    let v4 = range.address.is_ipv4();
    (from..=end)
        .chain(first..=from.saturating_sub(1).min(end))
        .map(|number| of_number(number, v4))
        .find(|address| !taken.contains(address))
}

/// The first and the last address of a range that a pod can get; the first is greater if there is
/// none. Reserved are the network's own address, the node's ([`gateway`]), and the last one, which
/// other hosts may take for a broadcast address.
fn ends(range: &Cidr) -> (u128, u128) {
    let bits = if range.address.is_ipv4() { 32 } else { 128 };
    let host = u32::from(u8::saturating_sub(bits, range.prefix));
    let network = number(range.network());
    let size = 1_u128.checked_shl(host).unwrap_or(u128::MAX);
    (
        network.saturating_add(2),
        network.saturating_add(size.saturating_sub(2)),
    )
}

/// How many pods a range has room for.
pub fn room(range: &Cidr) -> u128 {
    let (first, last) = ends(range);
    last.saturating_add(1).saturating_sub(first)
}

/// The node's own address in a range: the pods' default gateway, and the source address of the node
/// towards its pods.
///
/// # Errors
/// If the range has no room for a node and a pod.
pub fn gateway(range: &Cidr) -> Result<IpAddr, Error> {
    if room(range) == 0 {
        let why = "it has no room for a pod";
        return Err(Error::Range(range.to_string(), why));
    }
    let first = number(range.network()).saturating_add(1);
    Ok(of_number(first, range.address.is_ipv4()))
}

/// First and last address of a range, as numbers.
pub fn edges(range: &Cidr) -> (u128, u128) {
    let first = number(range.network());
    let bits: u8 = if range.address.is_ipv4() { 32 } else { 128 };
    let host = bits.saturating_sub(range.prefix);
    let host = u128::MAX
        .checked_shl(host.into())
        .map_or(u128::MAX, |bits| !bits);
    (first, first | host)
}

/// An address as a number, for arithmetic.
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The reverse of [`number`].
pub fn of_number(number: u128, v4: bool) -> IpAddr {
    if v4 {
        Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into()
    } else {
        Ipv6Addr::from(number).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn given(table: &Table, uid: &str) -> Vec<String> {
        let own = table.of(uid).unwrap_or_default();
        own.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_first_pod_has_the_first_address_behind_the_nodes() {
        let ranges = ranges(&["10.1.2.0/24", "fd00:1::/64"]);
        assert_eq!(gateway(&ranges[0]).unwrap().to_string(), "10.1.2.1");
        assert_eq!(gateway(&ranges[1]).unwrap().to_string(), "fd00:1::1");
        let mut table = Table::default();
        assert!(table.give("a", &ranges).unwrap());
        assert_eq!(given(&table, "a"), ["10.1.2.2", "fd00:1::2"]);
        assert!(!table.give("a", &ranges).unwrap(), "it keeps what it has");
    }

    #[test]
    fn an_address_comes_back_only_after_all_others() {
        let ranges = ranges(&["10.1.2.0/29"]);
        let mut table = Table::default();
        for (uid, address) in [("a", "10.1.2.2"), ("b", "10.1.2.3"), ("c", "10.1.2.4")] {
            table.give(uid, &ranges).unwrap();
            assert_eq!(given(&table, uid), [address]);
            table.take_back(uid);
        }
        for (uid, address) in [("d", "10.1.2.5"), ("e", "10.1.2.6"), ("f", "10.1.2.2")] {
            table.give(uid, &ranges).unwrap();
            assert_eq!(given(&table, uid), [address]);
        }
    }

    #[test]
    fn a_full_range_and_one_without_room_are_errors() {
        let small = ranges(&["10.1.2.0/30"]);
        assert_eq!(room(&small[0]), 1);
        let mut table = Table::default();
        table.give("a", &small).unwrap();
        let before = table.clone();
        assert!(matches!(table.give("b", &small), Err(Error::Full(_))));
        assert_eq!(table, before);
        assert!(matches!(table.give("b", &[]), Err(Error::NoRange)));
        for none in ["10.1.2.0/31", "fd00:1::/127", "fd00:1::/128"] {
            let none = ranges(&[none]);
            assert_eq!(room(&none[0]), 0);
            assert!(gateway(&none[0]).is_err() && table.give("b", &none).is_err());
        }
    }

    #[test]
    fn a_node_with_another_range_gives_addresses_of_that() {
        let mut table = Table::default();
        table.give("a", &ranges(&["10.1.2.0/24"])).unwrap();
        table.give("a", &ranges(&["10.1.3.0/24"])).unwrap();
        assert_eq!(given(&table, "a"), ["10.1.3.2"]);
    }

    #[derive(Debug, Clone)]
    enum Event {
        Give(u8),
        TakeBack(u8),
        /// The agent restarts, and reads the table from its file.
        Restart,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            4 => (0_u8..12).prop_map(Event::Give),
            2 => (0_u8..12).prop_map(Event::TakeBack),
            1 => Just(Event::Restart),
        ];
        proptest::collection::vec(event, 0..80)
    }

    proptest! {
        #[test]
        fn no_address_is_given_twice_whatever_happens(events in events(), wide in any::<bool>()) {
            let ranges = ranges(if wide { &["10.9.0.0/28", "fd00::/120"] } else { &["10.9.0.0/29"] });
            let mut table = Table::default();
            for event in events {
                match event {
                    Event::Give(pod) => {
                        let before = table.clone();
                        if table.give(&pod.to_string(), &ranges).is_ok() {
                            prop_assert!(fits(table.of(&pod.to_string()).unwrap(), &ranges));
                        } else {
                            prop_assert_eq!(&table, &before);
                            prop_assert_eq!(u128::try_from(before.given.len()).unwrap(), room(&ranges[0]));
                        }
                    }
                    Event::TakeBack(pod) => {
                        table.take_back(&pod.to_string());
                        prop_assert!(table.of(&pod.to_string()).is_none());
                    }
                    Event::Restart => {
                        let text = serde_json::to_string(&table).unwrap();
                        table = serde_json::from_str(&text).unwrap();
                    }
                }
                prop_assert!(table.is_sound());
            }
        }
    }
}
