//! Bounds of what one namespace's policies cost a node: rules of the packet filter, and memory of
//! the planner.

use super::tests::{Own, fresh, world as worlds};
use super::*;
use crate::model::{Pod, Policy, World};
use agent_sys::netlink::filter::{MAX_BATCH, encoded_length};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

fn pod(namespace: &str, ports: &Value) -> Arc<Pod> {
    let object = json!({
        "metadata": {"namespace": namespace, "name": "a", "uid": namespace},
        "spec": {"containers": [{"name": "c", "ports": ports}]},
    });
    Arc::new(Pod::read(serde_json::from_value(object).unwrap()).1)
}

/// Policies of ingress, by namespace.
fn world(rules: &[(&str, Value)]) -> World {
    let policies = rules.iter().map(|(namespace, ingress)| {
        let object = json!({
            "metadata": {"namespace": namespace, "name": "p"},
            "spec": {"podSelector": {}, "ingress": ingress},
        });
        let (key, policy) = Policy::keyed(serde_json::from_value(object).unwrap());
        (key, Arc::new(policy.unwrap()))
    });
    World {
        pods: Some(BTreeMap::new()),
        namespaces: Some(BTreeMap::new()),
        policies: Some(policies.collect()),
    }
}

/// A pod without ports of each namespace.
fn pods(namespaces: &[&str]) -> Own {
    let pods = namespaces.iter().zip(1..);
    pods.map(|(name, last)| (IpAddr::from([10, 1, 0, last]), pod(name, &json!([]))))
        .collect()
}

fn ports(count: u32) -> Value {
    json!([{"ports": (1..=count).map(|port| json!({"port": port})).collect::<Vec<_>>()}])
}

fn blocks(count: u32) -> Vec<Value> {
    let at = (0..count).map(|at| Ipv4Addr::from((203 << 24) + 4 * at));
    at.map(|at| json!({"ipBlock": {"cidr": format!("{at}/32")}}))
        .collect()
}

fn shop() -> Value {
    json!([{"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 80}]}])
}

fn rules(table: &Table) -> usize {
    table.chains.values().map(|rules| rules.len()).sum()
}

/// The chains and sets of a table are in another as they are.
fn has_all(of: &Table, table: &Table) -> bool {
    let chains = |name| table.chains.get(name);
    let sets = |name| table.sets.get(name);
    of.chains
        .iter()
        .all(|(name, all)| chains(name) == Some(all))
        && of.sets.iter().all(|(name, set)| sets(name) == Some(set))
}

#[test]
fn a_namespace_with_too_many_rules_is_closed_and_no_other() {
    let own = pods(&["shop", "flood"]);
    let alone = fresh(Family::V4, &world(&[("shop", shop())]), &own);
    let sizes = |flood: Value| {
        let table = fresh(
            Family::V4,
            &world(&[("shop", shop()), ("flood", flood)]),
            &own,
        );
        assert!(has_all(&alone, &table), "of the other namespace");
        (
            rules(&table) - rules(&alone),
            table.sets.len() - alone.sets.len(),
            table.ingress.len(),
        )
    };
    // The pod's own chain asks the policy's, and drops.
    assert_eq!(sizes(ports(9_000)), (9_002, 0, 2));
    assert_eq!(sizes(ports(30_000)), (1, 0, 2), "too many ports");
    let thrice = json!([ports(9_000)[0], ports(9_000)[0], ports(9_000)[0]]);
    assert_eq!(sizes(thrice), (9_002, 0, 2), "the same ports again");
    assert_eq!(
        sizes(json!([{"from": blocks(200_000)}])),
        (1, 0, 2),
        "too many ranges"
    );
}

#[test]
fn addresses_of_pods_count() {
    let own = pods(&["shop", "flood"]);
    let peers = |number: u32| json!({"from": [{"podSelector": {"matchExpressions": [{"key": number.to_string(), "operator": "DoesNotExist"}]}}]});
    let flood: Vec<Value> = (0..2_000).map(peers).collect();
    let mut world = world(&[("shop", shop()), ("flood", json!(flood))]);
    let away = (0..2_000_u32).map(|number| {
        let mut pod = Pod::clone(&pod("flood", &json!([])));
        pod.addresses = vec![Ipv4Addr::from((10 << 24) + (2 << 16) + number).into()];
        (number.to_string(), Arc::new(pod))
    });
    world.pods = Some(away.collect());
    let table = fresh(Family::V4, &world, &own);
    let bytes = encoded_length(Family::V4, &table::all(Family::V4, &table));
    assert!(bytes <= MAX_BATCH, "{bytes}");
    assert_eq!((table.sets.len(), table.ingress.len()), (1, 2));
}

#[test]
fn what_namespaces_take_together_fits_and_small_ones_stay_open() {
    let floods: Vec<String> = (0..12).map(|number| format!("flood-{number}")).collect();
    let mut names: Vec<&str> = floods.iter().map(String::as_str).collect();
    let mut policies: Vec<(&str, Value)> = (0..)
        .zip(&names)
        .map(|(at, name)| (*name, ports(9_500 - at)))
        .collect();
    names.push("shop");
    policies.push(("shop", shop()));
    let table = fresh(Family::V4, &world(&policies), &pods(&names));
    let bytes = encoded_length(Family::V4, &table::all(Family::V4, &table));
    assert!(bytes <= MAX_BATCH, "{bytes}");
    assert_eq!(table.ingress.len(), 13, "each pod has a chain");
    let alone = fresh(Family::V4, &world(&[("shop", shop())]), &pods(&names));
    assert!(has_all(&alone, &table));
    let open = table.chains.values().filter(|rules| rules.len() > 9_000);
    assert!(open.count() > 2, "as many as fit stay open");
    assert_eq!(table.chains["closed"].len(), 1);
}

proptest! {
    #[test]
    fn a_table_takes_no_more_than_is_counted((world, own) in worlds()) {
        for family in [Family::V4, Family::V6] {
            let table = fresh(family, &world, &own);
            let counted = table.chains.values().map(|rules| budget::of_chain(rules)).sum::<usize>()
                + table.sets.values().map(|set| budget::of_set(set)).sum::<usize>();
            let bytes = encoded_length(family, &table::all(family, &table));
            let left = MAX_BATCH - budget::Budget::new(table.known.len()).whole();
            prop_assert!(bytes <= left + counted, "{} of {} and {}", bytes, left, counted);
        }
    }
}

#[test]
fn ranges_that_chains_share_count_once() {
    let world = world(&[(
        "shop",
        json!([{"from": blocks(60_000), "ports": [{"port": "web"}]}]),
    )]);
    let pods = (1..=3).map(|last| {
        let ports = json!([{"name": "web", "containerPort": 8000 + u16::from(last)}]);
        (IpAddr::from([10, 1, 0, last]), pod("shop", &ports))
    });
    let table = fresh(Family::V4, &world, &pods.collect());
    assert_eq!(table.sets.len(), 1, "none is taken away");
}

#[test]
fn what_pods_asked_that_are_gone_is_forgotten() {
    let mut planner = Planner::new(Family::V4);
    let named = world(&[("shop", json!([{"ports": [{"port": "web"}]}]))]);
    for port in 1..=100 {
        let ports = json!([{"name": "web", "containerPort": port}]);
        let own: Own = [(IpAddr::from([10, 1, 0, 1]), pod("shop", &ports))].into();
        let table = planner.table(&named, &own).unwrap();
        assert_eq!(table, fresh(Family::V4, &named, &own));
        assert_eq!(planner.branches(), 1, "port {port}");
    }
}
