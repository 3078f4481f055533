//! Tests of mirrored EndpointSlices: which Endpoints are mirrored, and what their slices show.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn endpoints(subsets: &Value) -> EndpointsView {
    let object = json!({
        "metadata": {"name": "db", "namespace": "shop", "uid": "e", "labels": {"own": "yes"},
            "annotations": {"kept": "yes", (TRIGGER): "t", (LAST_APPLIED): "{}"}},
        "subsets": subsets,
    });
    View::read(serde_json::from_value(object).unwrap())
}

fn facts(endpoints: Option<EndpointsView>) -> Facts {
    Facts {
        key: Key::new("shop", "db"),
        endpoints: endpoints.map(Arc::new),
        slices: Vec::new(),
    }
}

/// The slices after these actions, as the API would hold them.
fn after(
    facts: &Facts,
    actions: Vec<Action>,
    made: &mut usize,
) -> Vec<(Arc<Key>, Arc<MirrorView>)> {
    let mut slices: BTreeMap<Key, Arc<MirrorView>> = facts
        .slices
        .iter()
        .map(|(key, slice)| ((**key).clone(), Arc::clone(slice)))
        .collect();
    for action in actions {
        match action {
            Action::Create(mut slice) => {
                *made += 1;
                assert_eq!(slice.metadata.generate_name.as_deref(), Some("db-"));
                slice.metadata.name = Some(format!("db-{made:05}"));
                slices.insert(Key::of(&slice.metadata), Arc::new(View::read(*slice)));
            }
            Action::Update(slice) => {
                let key = Key::of(&slice.metadata);
                assert!(slices.insert(key, Arc::new(View::read(*slice))).is_some());
            }
            Action::Delete { key, .. } => assert!(slices.remove(&key).is_some()),
        }
    }
    let shared = |(key, slice)| (Arc::new(key), slice);
    slices.into_iter().map(shared).collect()
}

#[test]
fn slices_have_upstreams_labels_and_what_the_endpoints_say() {
    let subsets = json!([{
        "addresses": [{"ip": "192.0.2.1", "hostname": "a"}, {"ip": "2001:db8::1"}],
        "notReadyAddresses": [{"ip": "192.0.2.2"}],
        "ports": [{"name": "sql", "port": 5432}],
    }]);
    let mut facts = facts(Some(endpoints(&subsets)));
    let mut made = 0;
    facts.slices = after(&facts, reconcile(&facts), &mut made);
    assert_eq!(reconcile(&facts), [], "it settles in one round");
    let [(_, v4), (_, v6)] = facts.slices.as_slice() else {
        panic!("{:?}", facts.slices)
    };
    assert_eq!((v4.family.as_str(), v6.family.as_str()), ("IPv4", "IPv6"));
    assert_eq!(
        json!(v4.labels),
        json!({"own": "yes", "kubernetes.io/service-name": "db",
            "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io"})
    );
    assert_eq!(json!(v4.annotations), json!({"kept": "yes"}));
    let ready = |endpoint: &Endpoint| endpoint.conditions.as_ref().unwrap().ready;
    let seen: Vec<_> = v4.endpoints.iter().map(ready).collect();
    assert_eq!(seen, [Some(true), Some(false)]);
    assert_eq!(v4.endpoints[0].hostname.as_deref(), Some("a"));
    // The Endpoints were deleted, or are no longer to be mirrored.
    facts.endpoints = None;
    facts.slices = after(&facts, reconcile(&facts), &mut made);
    assert!(facts.slices.is_empty());
}

/// Subsets with one address each, whose ports differ only in the last: comparing them with each
/// other would take longer than any test may run.
#[test]
fn subsets_are_not_compared_with_each_other() {
    let ports = |last: usize| -> Vec<Value> {
        let port = |number: usize| json!({"name": format!("p{number}"), "port": number});
        (1..100).chain([1000 + last]).map(port).collect()
    };
    let subset = |number: usize| {
        let ip = format!("10.0.{}.{}", number / 250, number % 250);
        json!({"addresses": [{"ip": ip}], "ports": ports(number)})
    };
    let subsets: Vec<Value> = (0..5_000).map(subset).collect();
    let mut facts = facts(Some(endpoints(&json!(subsets))));
    facts.slices = after(&facts, reconcile(&facts), &mut 0);
    assert_eq!(facts.slices.len(), 5_000);
    assert_eq!(reconcile(&facts), [], "each slice is found by its ports");
}

#[test]
fn only_endpoints_that_others_keep_are_mirrored() {
    let plain = ServiceView::default();
    let selects = ServiceView {
        selector: [("a".to_owned(), "b".to_owned())].into(),
        ..ServiceView::default()
    };
    let own = endpoints(&json!([]));
    assert!(is_mirrored(&own, Some(&plain)));
    assert!(!is_mirrored(&own, Some(&selects)));
    assert!(!is_mirrored(&own, None));
    let mut skipped = own.clone();
    let labels = skipped.meta.labels.get_or_insert_default();
    labels.insert(SKIP.to_owned(), "true".to_owned());
    assert!(!is_mirrored(&skipped, Some(&plain)));
    let mut elects = own;
    let annotations = elects.meta.annotations.get_or_insert_default();
    annotations.insert(LEADER.to_owned(), "{}".to_owned());
    assert!(!is_mirrored(&elects, Some(&plain)));
}

fn subset() -> impl Strategy<Value = Value> {
    let ips = || proptest::collection::btree_set(1_u8..6, 0..4);
    (ips(), ips(), 80_u16..82).prop_map(|(ready, others, port)| {
        let list = |ips: BTreeSet<u8>| -> Vec<Value> {
            let ip = |last: u8| json!({"ip": format!("192.0.2.{last}")});
            ips.into_iter().map(ip).collect()
        };
        json!({"addresses": list(ready), "notReadyAddresses": list(others), "ports": [{"port": port}]})
    })
}

proptest! {
    #[test]
    fn mirrored_slices_show_each_address_once_and_settle(
        rounds in proptest::collection::vec(proptest::collection::vec(subset(), 0..4), 1..5),
    ) {
        let (mut facts, mut made) = (facts(None), 0);
        for subsets in rounds {
            facts.endpoints = Some(Arc::new(endpoints(&json!(subsets))));
            facts.slices = after(&facts, reconcile(&facts), &mut made);
            prop_assert_eq!(reconcile(&facts), []);
            let mut wanted = BTreeSet::new();
            for subset in &subsets {
                for list in ["addresses", "notReadyAddresses"] {
                    for one in subset[list].as_array().unwrap() {
                        wanted.insert((one["ip"].as_str().unwrap().to_owned(), subset["ports"][0]["port"].as_i64()));
                    }
                }
            }
            let shown = facts.slices.iter().flat_map(|(_, slice)| {
                let port = slice.ports[0].port.map(i64::from);
                slice.endpoints.iter().map(move |one| (one.addresses[0].clone(), port))
            });
            let shown: Vec<_> = shown.collect();
            prop_assert_eq!(shown.len(), wanted.len());
            prop_assert_eq!(shown.into_iter().collect::<BTreeSet<_>>(), wanted);
        }
    }
}
