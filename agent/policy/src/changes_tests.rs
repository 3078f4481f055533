//! Applies changes of policies one after the other, to a model of the kernel's tables and to the
//! kernel of this host. The latter needs root.

use super::tests::{Own, fresh, world};
use super::*;
use crate::model::Policy;
use agent_proxy::Key;
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::dump::Held;
use agent_sys::netlink::filter::{AddressRange, Change, Step, Value, Verdict};
use agent_sys::netlink::links::octets;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The parts that a world keeps of the previous one.
type Kept = (bool, [bool; 5], [bool; 7]);

/// A sequence of worlds. Each keeps some policies and pods of the previous one, as the same objects
/// or as equal ones, and sometimes all namespaces.
fn history() -> impl Strategy<Value = Vec<(World, Own)>> {
    let state = (world(), any::<(Kept, bool)>());
    proptest::collection::vec(state, 1..6).prop_map(|states| {
        let mut history: Vec<(World, Own)> = Vec::new();
        for (mut state, (kept, same)) in states {
            crowd(&mut state);
            if let Some(before) = history.last() {
                keep(before, &mut state, kept, same);
            }
            history.push(state);
        }
        history
    })
}

/// Gives some pods of the other node the same address: the master may know an old pod and a new one
/// with it.
fn crowd((world, _): &mut (World, Own)) {
    for pod in world.pods.get_or_insert_default().values_mut() {
        let shared = IpAddr::from([10, 1, 1, 3]);
        if pod.addresses.iter().any(|at| at.is_ipv4() && *at > shared) {
            Arc::make_mut(pod).addresses = vec![shared];
        }
    }
}

fn keep(
    (before, before_own): &(World, Own),
    (world, own): &mut (World, Own),
    (namespaces, policies, pods): Kept,
    same: bool,
) {
    if namespaces {
        world.namespaces.clone_from(&before.namespaces);
    }
    let old = before.policies.clone().unwrap().into_iter().zip(policies);
    for ((key, policy), _) in old.filter(|(_, keeps)| *keeps) {
        let policy = if same {
            policy
        } else {
            Arc::new((*policy).clone())
        };
        world.policies.get_or_insert_default().insert(key, policy);
    }
    let old = before.pods.clone().unwrap().into_iter().zip(pods);
    for ((uid, pod), _) in old.filter(|(_, keeps)| *keeps) {
        let pod = if same { pod } else { Arc::new((*pod).clone()) };
        let pods = world.pods.get_or_insert_default();
        let replaced = pods.insert(uid, Arc::clone(&pod));
        for at in replaced.iter().flat_map(|pod| &pod.addresses) {
            own.remove(at);
        }
        for at in &pod.addresses {
            if before_own.contains_key(at) {
                own.insert(*at, Arc::clone(&pod));
            }
        }
    }
}

/// A model of the kernel's tables; it refuses what the kernel refuses.
#[derive(Debug, Default, PartialEq)]
struct Model {
    chains: BTreeMap<String, Vec<Vec<Step>>>,
    /// Elements of sets and maps, and the first and last of ranges.
    sets: BTreeMap<String, BTreeMap<Vec<u8>, Option<Value>>>,
}

impl Model {
    /// Chains and sets that something refers to.
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "other steps refer to nothing by its name"
    )]
    fn in_use(&self) -> BTreeSet<String> {
        let steps = self.chains.values().flatten().flatten();
        let of_rules = steps.filter_map(|step| match step {
            Step::Verdict(Verdict::Jump(name)) | Step::In(_, name) | Step::NotIn(_, name) => {
                Some(name.to_string())
            }
            Step::Follow(_, map) => Some((*map).to_owned()),
            _ => None,
        });
        let values = self.sets.values().flat_map(BTreeMap::values).flatten();
        let of_maps = values.map(|value| match value {
            Value::Jump(name) => name.to_string(),
            other => panic!("policies have no such value: {other:?}"),
        });
        of_rules.chain(of_maps).collect()
    }

    fn add(&mut self, set: &str, key: Vec<u8>, value: Option<Value>) {
        let held = self.sets.get_mut(set).expect(set);
        assert_eq!(held.insert(key, value), None, "{set} has it already");
    }

    fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::AddTable(_) => {}
                Change::RemoveTable(_) => *self = Self::default(),
                Change::AddChain { name, .. } => {
                    assert_eq!(self.chains.insert(name.to_owned(), Vec::new()), None);
                }
                Change::AddBranch { name, .. } => {
                    assert_eq!(self.chains.insert(name.into_owned(), Vec::new()), None);
                }
                Change::ClearChain { name, .. } => self.chains.get_mut(&*name).unwrap().clear(),
                Change::RemoveChain { name, .. } => {
                    self.chains.remove(&*name).unwrap();
                    assert!(!self.in_use().contains(&*name), "{name} is in use");
                }
                Change::AddRule { chain, steps, .. } => {
                    self.chains.get_mut(&*chain).unwrap().push(steps);
                    let known = |name: &String| {
                        self.chains.contains_key(name) || self.sets.contains_key(name)
                    };
                    assert!(self.in_use().iter().all(known), "{chain} asks for more");
                }
                Change::AddMap { name, .. } => {
                    assert_eq!(self.sets.insert(name.to_owned(), BTreeMap::new()), None);
                }
                Change::AddSet { name, .. } => {
                    assert_eq!(self.sets.insert(name.into_owned(), BTreeMap::new()), None);
                }
                Change::AddRanges { name, ranges, .. } => {
                    let key = |range: AddressRange| {
                        ([octets(range.first), octets(range.last)].concat(), None)
                    };
                    let ranges = ranges.into_iter().map(key).collect();
                    assert_eq!(self.sets.insert(name.into_owned(), ranges), None);
                }
                Change::RemoveSet { name, .. } => {
                    self.sets.remove(&*name).unwrap();
                    assert!(!self.in_use().contains(&*name), "{name} is in use");
                }
                Change::AddEntries { map, entries, .. } => {
                    for (key, value) in entries {
                        self.add(map, key, Some(value));
                    }
                }
                Change::AddElements { set, keys, .. } => {
                    for key in keys {
                        self.add(&set, key, None);
                    }
                }
                Change::RemoveElements { set, keys, .. } => {
                    let held = self.sets.get_mut(&*set).unwrap();
                    assert!(keys.iter().all(|key| held.remove(key).is_some()));
                }
                Change::AddMemory { .. }
                | Change::AddMeter { .. }
                | Change::ClearTable(_)
                | Change::ClearSet { .. } => {
                    panic!("policies have no memory, and nothing to keep over a replacement")
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn step_by_step_and_at_once_give_the_same(history in history(), v4 in any::<bool>()) {
        let family = if v4 { Family::V4 } else { Family::V6 };
        let (mut model, mut planner, mut held) = (Model::default(), Planner::new(family), Table::default());
        model.apply(table::all(family, &held));
        for (world, own) in &history {
            let wanted = planner.table(world, own).unwrap();
            prop_assert_eq!(&wanted, &fresh(family, world, own));
            model.apply(table::difference(&held, &wanted));
            let mut whole = Model::default();
            whole.apply(table::all(family, &wanted));
            prop_assert_eq!(&model, &whole);
            prop_assert!(table::difference(&wanted, &wanted).is_empty());
            held = wanted;
        }
    }
}

/// A policy of a namespace for its pods, from some pods of all namespaces to a port.
fn policy(namespace: &str, port: u16) -> (Key, Arc<Policy>) {
    let object = serde_json::json!({
        "metadata": {"namespace": namespace, "name": "p"},
        "spec": {"podSelector": {}, "ingress": [{
            "from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}],
            "ports": [{"port": port}],
        }]},
    });
    let (key, policy) = Policy::keyed(serde_json::from_value(object).unwrap());
    (key, Arc::new(policy.unwrap()))
}

fn pod(namespace: &str, app: &str, address: IpAddr) -> Arc<Pod> {
    Arc::new(Pod {
        namespace: namespace.to_owned(),
        labels: [("app".to_owned(), app.to_owned())].into(),
        addresses: vec![address],
        ports: Vec::new(),
    })
}

#[test]
fn a_changed_policy_or_pod_leaves_the_rules_of_other_namespaces_untouched() {
    let names = ["m", "n"];
    let own: Own = names
        .into_iter()
        .zip(1..)
        .map(|(name, last)| {
            let at = IpAddr::from([10, 1, 0, last]);
            (at, pod(name, "db", at))
        })
        .collect();
    let away = IpAddr::from([10, 1, 1, 1]);
    let mut world = World {
        pods: Some([("away".to_owned(), pod("m", "db", away))].into()),
        namespaces: Some(names.map(|name| (name.to_owned(), Arc::default())).into()),
        policies: Some(names.map(|name| policy(name, 80)).into()),
    };
    let mut planner = Planner::new(Family::V4);
    let first = planner.table(&world, &own).unwrap();
    let (key, changed) = policy("m", 81);
    world.policies.get_or_insert_default().insert(key, changed);
    let second = planner.table(&world, &own).unwrap();
    let anew = |before: &Table, after: &Table| {
        let chains = after.chains.iter();
        let anew = chains.filter(|(name, rules)| {
            let held = before.chains.get(*name);
            held.is_none_or(|held| !Arc::ptr_eq(held, rules))
        });
        anew.count()
    };
    assert_eq!(anew(&first, &second), 2, "the policy's, and its pod's");
    let labelled = pod("m", "web", away);
    world.pods = Some([("away".to_owned(), labelled)].into());
    let third = planner.table(&world, &own).unwrap();
    assert_eq!(anew(&second, &third), 0);
    assert_eq!(
        table::difference(&second, &third).len(),
        2,
        "a key of each set"
    );
    assert_eq!(third, fresh(Family::V4, &world, &own));
}

/// The kernel's tables in a network namespace of its own, after these states were applied one after
/// the other.
fn kernel(family: Family, history: &[(World, Own)]) -> Held {
    in_new(&[Kind::Network], || {
        let mut filter = Filter::open(family)?;
        let (mut planner, mut held) = (Planner::new(family), Table::default());
        filter.apply(&table::all(family, &held))?;
        for (world, own) in history {
            let wanted = planner.table(world, own).unwrap();
            let changes = table::difference(&held, &wanted);
            if !changes.is_empty() {
                filter.apply(&changes)?;
            }
            held = wanted;
        }
        let changed = filter.held(table::TABLE)?;
        filter.apply(&table::all(family, &held))?;
        assert_eq!(filter.held(table::TABLE)?, changed, "as a whole");
        Ok(changed)
    })
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_kernel_holds_after_any_changes_of_policies_what_it_holds_after_a_fresh_start(
        history in history(),
        v4 in any::<bool>(),
    ) {
        let family = if v4 { Family::V4 } else { Family::V6 };
        let fresh = kernel(family, &history[history.len() - 1..]);
        prop_assert!(!fresh.chains.is_empty());
        prop_assert_eq!(kernel(family, &history), fresh);
    }
}
