//! Compares places that follow changes with those of a fresh start.

use super::*;
use crate::model::NamedPort;
use proptest::prelude::*;

/// A pod: its namespace, the last bytes of its addresses, and how many named ports it has.
type Spec = (String, Vec<u8>, usize);
/// Pods of the master that come or go, by uid, and pods of this node, by address.
type Step = (Vec<(u8, Option<Spec>)>, Vec<(u8, Option<Spec>)>);

fn spec() -> impl Strategy<Value = Spec> {
    let addresses = proptest::collection::btree_set(0_u8..12, 0..3);
    ("[mn]", addresses, 0_usize..3).prop_map(|(namespace, addresses, ports)| {
        let addresses: Vec<u8> = addresses.into_iter().collect();
        (namespace, addresses, ports)
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = |count: u8| (0..count, proptest::option::of(spec()));
    let away = proptest::collection::vec(change(10), 0..4);
    let own = proptest::collection::vec(change(3), 0..2);
    proptest::collection::vec((away, own), 1..12)
}

fn at(last: u8) -> IpAddr {
    // Some are of the other family.
    if last.is_multiple_of(5) {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)])
    } else {
        IpAddr::from([10, 1, 0, last])
    }
}

fn pod((namespace, addresses, ports): &Spec) -> Arc<Pod> {
    let port = NamedPort {
        name: "web".to_owned(),
        protocol: 6,
        port: 80,
    };
    Arc::new(Pod {
        namespace: namespace.clone(),
        addresses: addresses.iter().map(|last| at(*last)).collect(),
        ports: vec![port; *ports],
        ..Pod::default()
    })
}

fn change<K: Ord>(map: &mut BTreeMap<K, Arc<Pod>>, key: K, to: Option<&Spec>) {
    match to {
        Some(spec) => drop(map.insert(key, pod(spec))),
        None => drop(map.remove(&key)),
    }
}

/// Its places, whichever of two pods with one address is the first.
fn listed(places: &Places) -> Vec<String> {
    let mut all: Vec<String> = places.list.iter().map(|one| format!("{one:?}")).collect();
    all.sort();
    all
}

/// Whether namespaces and counts of ports are those of the list.
fn is_consistent(places: &Places) -> bool {
    let mut by_namespace: HashMap<String, NamespacePods> = HashMap::new();
    let mut ports = vec![0];
    for (place, (_, pod)) in places.list.iter().enumerate() {
        let own = by_namespace.entry(pod.namespace.clone()).or_default();
        own.places.push(place);
        own.ports += pod.ports.len();
        ports.push(ports[place] + pod.ports.len());
    }
    by_namespace == places.by_namespace
        && ports == places.ports
        && places.list.is_sorted_by_key(|(at, _)| *at)
}

proptest! {
    #[test]
    fn places_after_any_changes_are_those_of_a_fresh_start(steps in steps()) {
        let (mut pods, mut own) = (BTreeMap::new(), BTreeMap::new());
        let mut places = Places::new(Family::V4);
        for (away, here) in steps {
            for (uid, to) in away {
                change(&mut pods, uid.to_string(), to.as_ref());
            }
            for (last, to) in here {
                change(&mut own, at(last), to.as_ref());
            }
            let before = places.list.clone();
            let followed = places.follow(&pods, &own);
            prop_assert_eq!(listed(&places), listed(&Places::of(Family::V4, &pods, &own)));
            prop_assert!(is_consistent(&places), "{:?}", places);
            prop_assert!(followed.is_sorted(), "{:?}", followed);
            let differ = changed(&before, &places.list);
            prop_assert!(differ.iter().all(|at| followed.contains(at)), "{:?}", differ);
        }
    }
}

#[test]
fn a_pod_that_changes_is_followed_at_its_own_addresses_only() {
    let mut pods: BTreeMap<String, Arc<Pod>> = (1_u8..100)
        .map(|last| (last.to_string(), pod(&("m".to_owned(), vec![last], 1))))
        .collect();
    let (own, mut places) = (BTreeMap::new(), Places::new(Family::V4));
    places.follow(&pods, &own);
    assert!(places.follow(&pods, &own).is_empty());
    pods.insert("7".to_owned(), pod(&("n".to_owned(), vec![7], 2)));
    assert_eq!(places.follow(&pods, &own), [at(7)]);
    assert_eq!(places.of_namespace("n").map(|own| own.ports), Some(2));
    pods.remove("8");
    assert_eq!(places.follow(&pods, &own), [at(8)]);
    assert!(places.follow(&pods, &own).is_empty());
}
