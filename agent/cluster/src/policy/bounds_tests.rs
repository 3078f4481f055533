//! What one namespace's policies can take of a node: rules of the packet filter, and memory of the planner.

use super::model::{Pod, Policy, World};
use super::tests::{Own, fresh};
use super::*;
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

#[test]
fn a_namespace_with_too_many_rules_is_closed_and_no_other() {
    let own: Own = [("shop", 1), ("flood", 2)]
        .map(|(name, last)| (IpAddr::from([10, 1, 0, last]), pod(name, &json!([]))))
        .into();
    let shop = json!([{"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 80}]}]);
    let ports = |count: u32| json!([{"ports": (1..=count).map(|port| json!({"port": port})).collect::<Vec<_>>()}]);
    let blocks: Vec<Value> = (0..20_000_u32)
        .map(|at| Ipv4Addr::from((203 << 24) + 4 * at))
        .map(|at| json!({"ipBlock": {"cidr": format!("{at}/32")}}))
        .collect();
    let alone = fresh(Family::V4, &world(&[("shop", shop.clone())]), &own);
    let sizes = |flood: Value| {
        let table = fresh(
            Family::V4,
            &world(&[("shop", shop.clone()), ("flood", flood)]),
            &own,
        );
        let rules: usize = table.chains.values().map(|rules| rules.len()).sum();
        for (name, rules) in &alone.chains {
            assert_eq!(
                table.chains.get(name),
                Some(rules),
                "of the other namespace"
            );
        }
        let left = alone
            .chains
            .values()
            .map(|rules| rules.len())
            .sum::<usize>();
        (
            rules - left,
            table.sets.len() - alone.sets.len(),
            table.ingress.len(),
        )
    };
    // The pod's own chain asks the policy's, and drops.
    assert_eq!(sizes(ports(9_000)), (9_002, 0, 2));
    assert_eq!(sizes(ports(20_000)), (2, 0, 2), "too many ports");
    assert_eq!(
        sizes(json!([{"from": blocks}])),
        (2, 0, 2),
        "too many ranges"
    );
}

#[test]
fn ranges_that_chains_share_count_once() {
    let blocks: Vec<Value> = (0..4_000_u32)
        .map(|at| Ipv4Addr::from((203 << 24) + 4 * at))
        .map(|at| json!({"ipBlock": {"cidr": format!("{at}/32")}}))
        .collect();
    let world = world(&[(
        "shop",
        json!([{"from": blocks, "ports": [{"port": "web"}]}]),
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
