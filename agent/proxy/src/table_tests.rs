use super::*;
use crate::fronts::Pick;
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::filter::Filter;
use proptest::prelude::*;
use std::collections::HashSet;

fn any_family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
}

/// The address of a service and of a pod.
pub(super) fn at(family: Family, net: u8, last: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, net, 0, last]),
        Family::V6 => IpAddr::from([0xfd00, net.into(), 0, 0, 0, 0, 0, last.into()]),
    }
}

/// Fronts of a family, one state after the other.
fn states() -> impl Strategy<Value = (Family, Vec<Fronts>)> {
    any_family().prop_flat_map(|family| {
        let states = proptest::collection::vec(any_fronts(family), 1..8);
        (Just(family), states)
    })
}

fn any_fronts(family: Family) -> impl Strategy<Value = Fronts> {
    let front = (1_u8..6, any::<bool>(), 1_u16..3).prop_map(move |(last, udp, port)| Front {
        address: at(family, 96, last),
        protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
        port,
    });
    let ends = proptest::collection::btree_set((1_u8..8, 1_u16..3), 0..6);
    let bits = family.bits();
    let sources = proptest::collection::vec((1_u8..4, bits - 2..=bits), 0..3);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let pick = (ends, flags, sources).prop_map(
        move |(ends, (stays, as_node, silent, inside), sources)| Pick {
            endpoints: ends
                .into_iter()
                .map(|(last, port)| (at(family, 1, last), port))
                .collect(),
            affinity: stays.then_some(60),
            own_front: (stays && as_node).then(|| Front {
                address: at(family, 96, 9),
                protocol: Protocol::Tcp,
                port: 1,
            }),
            as_node,
            silent,
            inside: inside.then(|| (at(family, 4, 1), 1)).into_iter().collect(),
            serving: Vec::new(),
            sources: sources
                .into_iter()
                .map(|(last, prefix)| Cidr {
                    address: at(family, 3, last),
                    prefix,
                })
                .collect(),
        },
    );
    proptest::collection::btree_map(front, pick, 0..8)
}

/// What the kernel would hold after changes.
#[derive(Debug, Default, Clone, PartialEq)]
struct Model {
    entries: BTreeMap<(Name, Vec<u8>), Option<Value>>,
    chains: HashSet<String>,
}

impl Model {
    fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::AddEntries { map, entries, .. } => {
                    for (key, value) in entries {
                        if let Value::Goto(chain) = &value {
                            assert!(self.chains.contains(&**chain) || *chain == NOBODY);
                        }
                        assert!(
                            self.entries
                                .insert((map.into(), key), Some(value))
                                .is_none()
                        );
                    }
                }
                Change::AddElements { set, keys, .. } => {
                    for key in keys {
                        assert!(self.entries.insert((set.clone(), key), None).is_none());
                    }
                }
                Change::RemoveElements { set, keys, .. } => {
                    for key in keys {
                        assert!(self.entries.remove(&(set.clone(), key)).is_some());
                    }
                }
                Change::AddBranch { name, .. } => assert!(self.chains.insert(name.into_owned())),
                Change::AddTable(_)
                | Change::RemoveTable(_)
                | Change::AddChain { .. }
                | Change::AddMap { .. }
                | Change::AddMemory { .. }
                | Change::AddMeter { .. }
                | Change::AddSet { .. }
                | Change::AddRanges { .. }
                | Change::ClearTable(_)
                | Change::ClearSet { .. }
                | Change::ClearChain { .. }
                | Change::RemoveChain { .. }
                | Change::RemoveSet { .. }
                | Change::AddRule { .. } => {}
            }
        }
    }
}

proptest! {
    #[test]
    fn step_by_step_and_at_once_give_the_same((family, states) in states()) {
        let (mut model, mut chains) = (Model::default(), Chains::of(family, &Entries::default()));
        let mut held = &Fronts::new();
        for state in &states {
            model.apply(chains.lead(held, state));
            held = state;
        }
        let mut fresh = Model::default();
        fresh.apply(difference(family, &Entries::default(), &entries(states.last().unwrap())));
        prop_assert_eq!(model.entries, fresh.entries);
        prop_assert!(fresh.chains.is_subset(&model.chains));
        prop_assert!(chains.lead(held, held).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn the_kernel_takes_every_change((family, states) in states()) {
        in_new(&[Kind::Network], || {
            let mut filter = Filter::open(family)?;
            let (mut chains, mut held) = (Chains::of(family, &Entries::default()), &Fronts::new());
            filter.apply(&all(family, &entries(held)))?;
            for state in &states {
                let changes = chains.lead(held, state);
                if !changes.is_empty() {
                    filter.apply(&changes)?;
                }
                held = state;
            }
            filter.apply(&all(family, &entries(held)))
        })
        .unwrap();
    }
}
