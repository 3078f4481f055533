//! Most bytes that parts of a table take in a batch ([`super::batch`]), for those who share its
//! limited size ([`super::filter::MAX_BATCH`]) before they make it.

use super::filter::Step;

/// Bytes for a chain, for a rule, and for each step of a rule. A step takes up to 92, but those
/// that do are alone or beside shorter ones.
const CHAIN: usize = 96;
const RULE: usize = 144;
const STEP: usize = 48;
/// Bytes for a set, for an element beside its key, and for a range beside its addresses.
const SET: usize = 256;
const ELEMENT: usize = 13;
const RANGE: usize = 34;

/// Bytes of a rule.
pub fn of_rule(steps: &[Step]) -> usize {
    RULE + steps.len() * STEP
}

/// Bytes of a chain without a hook, with its rules.
pub fn of_chain<'a>(rules: impl IntoIterator<Item = &'a [Step]>) -> usize {
    let rules = rules.into_iter().map(of_rule);
    CHAIN + rules.sum::<usize>()
}

/// Bytes of a set of this many keys of one length.
pub fn of_keys(keys: usize, length: usize) -> usize {
    SET + keys * (ELEMENT + length.next_multiple_of(4))
}

/// Bytes of a set of this many ranges, of addresses of one length.
pub fn of_ranges(ranges: usize, length: usize) -> usize {
    SET + ranges * (RANGE + 2 * length)
}

#[cfg(test)]
mod tests {
    use super::super::Family;
    use super::super::filter::{AddressRange, Change, encoded_length};
    use super::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    /// The longest name that the tables have for a set or a chain.
    const NAME: &str = "a-name-of-thirty-one-characters";

    /// Bytes of changes beside the batch's edges.
    fn encoded(family: Family, changes: &[Change]) -> usize {
        encoded_length(family, changes) - encoded_length(family, &[])
    }

    #[test]
    fn sets_take_no_more_than_they_are_counted_with() {
        let (table, name) = ("pratique-policies", NAME);
        for count in [0_u32, 1, 2, 511, 512, 513, 1024, 5000] {
            let many = usize::try_from(count).unwrap();
            for length in [4_u32, 6, 10, 16, 22] {
                let size = usize::try_from(length).unwrap();
                let key = |number: u32| [vec![0; size - 4], number.to_be_bytes().to_vec()].concat();
                let changes = [
                    Change::AddSet {
                        table,
                        name: name.into(),
                        shown_as: 0,
                        length,
                    },
                    Change::AddElements {
                        table,
                        set: name.into(),
                        keys: (0..count).map(key).collect(),
                    },
                ];
                let bytes = encoded(Family::V4, &changes);
                assert!(bytes <= of_keys(many, size), "{count} of {length}: {bytes}");
            }
            for family in Family::BOTH {
                let at = |number: u32| -> IpAddr {
                    match family {
                        Family::V4 => Ipv4Addr::from(number).into(),
                        Family::V6 => Ipv6Addr::from(u128::from(number)).into(),
                    }
                };
                let ranges = (0..count).map(|number| AddressRange {
                    first: at(4 * number),
                    last: at(4 * number + 1),
                });
                let change = Change::AddRanges {
                    table,
                    name: name.into(),
                    ranges: ranges.collect(),
                };
                let bytes = encoded(family, &[change]);
                let size = usize::try_from(family.bytes()).unwrap();
                assert!(
                    bytes <= of_ranges(many, size),
                    "{count} of {family:?}: {bytes}"
                );
            }
        }
    }
}
