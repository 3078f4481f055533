//! Invariants of places and rates, against plain models, by generated cases.

use config_limits::{Network, Rate, Rates, SlotTable, networks};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

#[derive(Debug, Clone)]
enum Step {
    Enter(u8),
    Touch(u16),
    Leave(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_u8..12).prop_map(Step::Enter),
        1 => (0_u16..300).prop_map(Step::Touch),
        1 => (0_u16..300).prop_map(Step::Leave),
    ];
    prop::collection::vec(step, 0..300)
}

/// A host within a block of three.
fn groups(host: u8, hosts: usize, blocks: usize) -> [((bool, u8), usize); 2] {
    [((false, host), hosts), ((true, host / 3), blocks)]
}

proptest! {
    /// The table never exceeds its slots, a host's share or a block's. A newcomer always gets a
    /// slot, and evicts the oldest of the narrowest full group, or else the oldest of a largest
    /// block.
    #[test]
    fn a_full_room_is_shared_fairly(
        steps in steps(), total in 1_usize..20, hosts in 1_usize..6, blocks in 1_usize..12
    ) {
        let mut places = SlotTable::new(total);
        // The holders: since when, and of which host.
        let mut model: BTreeMap<u64, (usize, u8)> = BTreeMap::new();
        let mut next = 0_u64;
        for (time, step) in steps.into_iter().enumerate() {
            match step {
                Step::Enter(host) => {
                    let of = |host: u8| model.iter().filter(move |(_, (_, other))| *other == host).count();
                    let in_block = |block: u8| model.iter().filter(move |(_, (_, other))| other / 3 == block).count();
                    let oldest = |among: &dyn Fn(u8) -> bool| {
                        model.iter().filter(|(_, (_, host))| among(*host)).min_by_key(|(_, (since, _))| *since).map(|(id, _)| *id)
                    };
                    let expected = if of(host) >= hosts {
                        oldest(&|other| other == host)
                    } else if in_block(host / 3) >= blocks {
                        oldest(&|other| other / 3 == host / 3)
                    } else if model.len() >= total {
                        let most = (0..4).map(in_block).max().unwrap_or_default();
                        oldest(&|other| in_block(other / 3) == most)
                    } else {
                        None
                    };
                    prop_assert_eq!(places.enter(next, &groups(host, hosts, blocks)), expected);
                    if let Some(out) = expected {
                        model.remove(&out);
                    }
                    model.insert(next, (time, host));
                    next += 1;
                }
                Step::Touch(id) => {
                    places.touch(u64::from(id));
                    if let Some((since, _)) = model.get_mut(&u64::from(id)) {
                        *since = time;
                    }
                }
                Step::Leave(id) => {
                    prop_assert_eq!(places.leave(u64::from(id)), model.remove(&u64::from(id)).is_some());
                }
            }
            prop_assert_eq!(places.len(), model.len());
            prop_assert!(places.len() <= total);
            for host in 0..12 {
                let ((own, _), (block, _)) = (groups(host, 1, 1)[0], groups(host, 1, 1)[1]);
                prop_assert_eq!(places.count(&own), model.values().filter(|(_, other)| *other == host).count());
                prop_assert!(places.count(&own) <= hosts && places.count(&block) <= blocks);
            }
        }
    }

    /// The only member of a block keeps its slot, however many come from blocks that have two.
    #[test]
    fn a_flood_from_few_blocks_does_not_evict_the_only_member_of_another(crowd in prop::collection::vec(0_u8..9, 30..200)) {
        let mut places = SlotTable::new(9);
        prop_assert_eq!(places.enter(1000, &groups(11, 9, 9)), None);
        for (id, host) in (0..).zip(crowd) {
            prop_assert_ne!(places.enter(id, &groups(host, 9, 9)), Some(1000));
        }
    }

    /// In any period a name gets its burst and the rate of that period, and no more; a refused
    /// request is allowed after the returned wait; and the table keeps its size.
    #[test]
    fn a_name_gets_its_burst_and_its_rate(
        calls in prop::collection::vec((0_u8..4, 0_u64..400), 1..200), burst in 1_u32..6, every in 1_u64..300
    ) {
        let rate = Rate { burst, every: Duration::from_millis(every) };
        let mut rates = Rates::new(4);
        let mut admitted: BTreeMap<u8, Vec<Duration>> = BTreeMap::new();
        let mut now = Duration::ZERO;
        for (name, pause) in calls {
            now += Duration::from_millis(pause);
            match rates.take(&[(name, rate)], now) {
                Ok(()) => admitted.entry(name).or_default().push(now),
                Err(wait) => {
                    prop_assert!(!wait.is_zero() && wait <= rate.every);
                    let before = admitted.get(&name).map_or(0, Vec::len);
                    prop_assert!(before >= usize::try_from(burst).expect("small"), "refused before its burst");
                    now += wait;
                    prop_assert_eq!(rates.take(&[(name, rate)], now), Ok(()));
                    admitted.entry(name).or_default().push(now);
                }
            }
            prop_assert!(rates.len() <= 4);
        }
        for times in admitted.values() {
            for (first, start) in times.iter().enumerate() {
                for (count, end) in times[first..].iter().enumerate() {
                    let passed = end.saturating_sub(*start);
                    let most = u128::from(burst) + passed.as_millis() / u128::from(every);
                    prop_assert!((count as u128) < most + 1, "{} in {passed:?}", count + 1);
                }
            }
        }
    }

    /// A refusal for one name uses up nothing of the others.
    #[test]
    fn a_refusal_takes_nothing(others in 1_u32..5) {
        let (narrow, wide) = (Rate { burst: 1, every: Duration::from_secs(10) }, Rate { burst: 5, every: Duration::from_secs(10) });
        let mut rates = Rates::new(100);
        for _ in 0..50 {
            rates.take(&[(0, narrow), (99, wide)], Duration::ZERO).ok();
        }
        for name in 1..=others {
            prop_assert_eq!(rates.take(&[(name, narrow), (99, wide)], Duration::ZERO).is_ok(), name < 5);
        }
    }

    /// The owner of a /48 gets no more than one block's share, whichever of its addresses it comes
    /// from.
    #[test]
    fn an_owner_of_many_addresses_is_one_owner(hosts in prop::collection::vec(any::<u128>(), 1..200)) {
        let rate = Rate { burst: 10, every: Duration::from_secs(1) };
        let mut rates: Rates<Network> = Rates::new(1 << 12);
        let own = 0x2001_0db8_0007_u128 << 80;
        let admitted = hosts.iter().filter(|bits| {
            let address = IpAddr::V6(Ipv6Addr::from_bits(own | (**bits >> 48)));
            let names: Vec<_> = networks(address).into_iter().map(|network| (network, rate)).collect();
            rates.take(&names, Duration::ZERO).is_ok()
        });
        prop_assert!(admitted.count() <= 10);
    }
}

/// However many networks come, the table keeps its size, and an occasional caller is not refused.
#[test]
fn a_table_of_rates_keeps_its_size_under_ten_thousand_addresses() {
    let rate = Rate {
        burst: 2,
        every: Duration::from_secs(1),
    };
    let mut rates = Rates::new(1000);
    for round in 0..3_u64 {
        for name in 0..10_000_u64 {
            rates
                .take(&[(name, rate)], Duration::from_millis(round * 10))
                .ok();
            assert!(rates.len() <= 1000);
        }
    }
    assert!(
        rates
            .take(&[(10_001, rate)], Duration::from_millis(30))
            .is_ok()
    );
    assert!(
        rates
            .take(&[(10_001, rate)], Duration::from_secs(100))
            .is_ok()
    );
    assert_eq!(rates.len(), 1, "a name with its whole burst is not kept");
}
