//! Tests limits of what one namespace's policies cost a node: nftables rules, and the planner's
//! memory.

use super::tests::{Own, fresh, read, world as worlds};
use super::*;
use crate::model::{Pod, Policy, PolicyPeer, Ports, Rule, Selector, Wants, World};
use crate::table::Set;
use agent_proxy::Key;
use agent_sys::netlink::filter::{MAX_BATCH, encoded_length};
use agent_sys::netlink::weight::of_rule;
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

/// Rules with the given numbers of entries.
fn rules_of(entries: &[Value], rule: impl Fn(&[Value]) -> Value) -> Value {
    entries.chunks(1000).map(rule).collect()
}

fn ports(count: u32) -> Value {
    let ports: Vec<Value> = (1..=count).map(|port| json!({"port": port})).collect();
    rules_of(&ports, |ports| json!({"ports": ports}))
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

/// Whether all chains and sets of a table are in another.
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
    let once = ports(9_000).as_array().unwrap().clone();
    let thrice = Value::Array([once.clone(), once.clone(), once].concat());
    assert_eq!(sizes(thrice), (9_002, 0, 2), "the same ports again");
    let from = rules_of(&blocks(200_000), |from| json!({"from": from}));
    assert_eq!(sizes(from), (1, 0, 2), "too many ranges");
}

#[test]
fn addresses_of_pods_count() {
    let own = pods(&["shop", "flood"]);
    let peers = |number: u32| json!({"from": [{"podSelector": {"matchExpressions": [{"key": number.to_string(), "operator": "DoesNotExist"}]}}]});
    let flood: Vec<Value> = (0..1_000).map(peers).collect();
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
    let web = json!([{"port": "web"}]);
    let rules = rules_of(&blocks(60_000), |from| json!({"from": from, "ports": web}));
    let world = world(&[("shop", rules)]);
    let pods = (1..=3).map(|last| {
        let ports = json!([{"name": "web", "containerPort": 8000 + u16::from(last)}]);
        (IpAddr::from([10, 1, 0, last]), pod("shop", &ports))
    });
    let table = fresh(Family::V4, &world, &pods.collect());
    assert_eq!(table.sets.len(), 60, "none is taken away");
}

#[test]
fn chains_of_pods_that_are_gone_are_forgotten() {
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

fn everywhere(number: u32) -> PolicyPeer {
    let selector = |name: &str| {
        let wants = Wants::NotIn(vec![number.to_string()]);
        Selector(vec![(name.to_owned(), wants)])
    };
    PolicyPeer::Pods {
        namespaces: Some(selector("team")),
        pods: selector("app"),
    }
}

fn key(namespace: &str) -> Key {
    Key {
        namespace: namespace.to_owned(),
        name: "p".to_owned(),
    }
}

/// A world with this egress rule for pods of `flood`, and with as many pods on other nodes; pods of
/// `shop` may be called from a range.
fn flooded(rule: Rule, elsewhere: u32) -> World {
    let mut world = world(&[("shop", shop())]);
    let flood = Policy {
        namespace: "flood".to_owned(),
        egress: Some(vec![rule]),
        ..Policy::default()
    };
    let policies = world.policies.get_or_insert_default();
    policies.insert(key("flood"), Arc::new(flood));
    let away = (0..elsewhere).map(|number| {
        let mut pod = Pod::clone(&pod("away", &json!([{"name": "p0", "containerPort": 80}])));
        pod.addresses = vec![Ipv4Addr::from((10 << 24) + (2 << 16) + number).into()];
        (number.to_string(), Arc::new(pod))
    });
    world.pods = Some(away.collect());
    let namespaces = ["away", "flood", "shop"].map(|name| (name.to_owned(), Arc::default()));
    world.namespaces = Some(namespaces.into());
    world
}

fn named_ports(count: u32) -> Vec<(u8, Ports)> {
    let names = (0..count).map(|number| format!("p{number}"));
    names.map(|name| (6, Ports::Named(name))).collect()
}

#[test]
fn peers_and_named_ports_of_a_rule_are_not_multiplied() {
    let own = pods(&["shop", "flood"]);
    let rule = |peers: u32, ports: u32| Rule {
        peers: (0..peers).map(everywhere).collect(),
        ports: named_ports(ports),
    };
    // Each port has a set, and all sets have one list of peers.
    let mut planner = Planner::new(Family::V4);
    let table = planner.table(&flooded(rule(1000, 1000), 5), &own).unwrap();
    assert_eq!((table.ingress.len(), table.egress.len()), (1, 1));
    assert!(!table.chains.contains_key("closed"));
    let (sets, lists) = planner.asked();
    assert_eq!((sets, lists), (1001, 1), "and a set of ranges of the other");

    // More ports than the API takes: no more sets are made than a table has room for.
    let most = budget::MAX_BYTES / of_rule(&[]);
    assert!(most < 60_000, "{most} would fit");
    let table = planner
        .table(&flooded(rule(15_000, 60_000), 5), &own)
        .unwrap();
    assert_eq!(table.chains["closed"].len(), 1);
    assert_eq!(table.sets.len(), 1, "that of the other");
    let (sets, lists) = planner.asked();
    assert!(sets <= most, "{sets} sets");
    assert_eq!(lists, 1, "lists of peers");
}

#[test]
fn a_namespace_whose_peers_are_too_many_for_the_pods_of_all_is_closed_and_no_other() {
    let own = pods(&["shop", "flood"]);
    let alone = fresh(Family::V4, &world(&[("shop", shop())]), &own);
    let table = |peers: u32, elsewhere: u32| {
        let rule = Rule {
            peers: (0..peers).map(everywhere).collect(),
            ports: Vec::new(),
        };
        let table = fresh(Family::V4, &flooded(rule, elsewhere), &own);
        assert!(has_all(&alone, &table), "of the other namespace");
        assert_eq!(table.ingress, alone.ingress);
        assert_eq!(table.egress.len(), 1);
        (table.chains.contains_key("closed"), table.sets.len())
    };
    assert_eq!(table(1000, 2000), (false, 2));
    assert_eq!(table(1000, 8000), (true, 1), "too many comparisons");
    assert_eq!(table(15_000, 8000), (true, 1), "they are not counted on");
}

/// A selector of this label with this value.
fn labelled(name: &str, value: &str) -> Selector {
    Selector(vec![(name.to_owned(), Wants::In(vec![value.to_owned()]))])
}

fn in_namespace(name: &str, pods: Selector) -> PolicyPeer {
    PolicyPeer::Pods {
        namespaces: Some(labelled("name", name)),
        pods,
    }
}

#[test]
fn pods_of_others_close_no_namespace_that_does_not_select_them() {
    let own = pods(&["shop", "flood"]);
    for (name, is_closed) in [("shop", false), ("away", true)] {
        let peer = |number: u32| in_namespace(name, labelled("app", &number.to_string()));
        let rule = Rule {
            peers: (0..1000).map(peer).collect(),
            ports: named_ports(1),
        };
        let mut world = flooded(rule, 20_000);
        let names = ["away", "flood", "shop"].map(|name| {
            let labels = BTreeMap::from([("name".to_owned(), name.to_owned())]);
            (name.to_owned(), Arc::new(labels))
        });
        world.namespaces = Some(names.into());
        let table = fresh(Family::V4, &world, &own);
        assert_eq!(table.chains.contains_key("closed"), is_closed, "{name}");
    }
}

#[test]
fn named_ports_of_a_block_are_looked_up_and_counted_only_for_the_pods_in_it() {
    let own = pods(&["shop", "flood"]);
    for (block, is_closed) in [("10.2.0.0/24", false), ("10.0.0.0/8", true)] {
        let peer = PolicyPeer::Block {
            cidr: block.parse().unwrap(),
            except: Vec::new(),
        };
        let rule = Rule {
            peers: [peer].into(),
            ports: named_ports(1000),
        };
        let table = fresh(Family::V4, &flooded(rule, 20_000), &own);
        assert_eq!(table.chains.contains_key("closed"), is_closed, "{block}");
        // Each pod in the small block has the first of the names.
        let keys = |set: &Arc<Set>| match &**set {
            Set::Keys(_, keys) => keys.len(),
            Set::Ranges(_) => 0,
        };
        let found: usize = table.sets.values().map(keys).sum();
        assert_eq!(found, if is_closed { 0 } else { 256 }, "{block}");
    }
}

/// A cluster of 1,000 namespaces of 50 pods each.
fn large() -> World {
    let names: Vec<String> = (0..1000).map(|number| format!("team-{number}")).collect();
    let labels = |name: &String| {
        let labels = BTreeMap::from([("name".to_owned(), name.clone())]);
        (name.clone(), Arc::new(labels))
    };
    let pods = (0..50_000_u32).zip(names.iter().cycle()).map(|(at, name)| {
        let pod = Pod {
            namespace: name.clone(),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            addresses: vec![Ipv4Addr::from((10 << 24) + (2 << 16) + at).into()],
            ports: Vec::new(),
        };
        (at.to_string(), Arc::new(pod))
    });
    World {
        pods: Some(pods.collect()),
        namespaces: Some(names.iter().map(labels).collect()),
        policies: Some(BTreeMap::new()),
    }
}

#[test]
fn usual_policies_of_a_large_cluster_are_in_force() {
    let mut world = large();
    let web = || labelled("app", "web");
    let near = PolicyPeer::Pods {
        namespaces: None,
        pods: Selector::default(),
    };
    let usual = [
        vec![near],
        vec![in_namespace("team-1", web())],
        vec![
            in_namespace("team-2", web()),
            in_namespace("team-3", Selector::default()),
        ],
    ];
    let gateway = (0..80).map(|number| in_namespace(&format!("team-{number}"), web()));
    let gateway = gateway.collect::<Vec<_>>();
    let policies = world.policies.get_or_insert_default();
    let names: Vec<String> = (0..100).map(|number| format!("team-{number}")).collect();
    for namespace in &names {
        let lists = usual
            .iter()
            .chain(Some(&gateway).filter(|_| namespace == "team-0"));
        for (number, peers) in lists.enumerate() {
            let rule = Rule {
                peers: peers.iter().cloned().collect(),
                ports: Vec::new(),
            };
            let policy = Policy {
                namespace: namespace.clone(),
                ingress: Some(vec![rule]),
                ..Policy::default()
            };
            let key = Key {
                name: number.to_string(),
                ..key(namespace)
            };
            policies.insert(key, Arc::new(policy));
        }
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let table = fresh(Family::V4, &world, &pods(&names));
    assert_eq!(table.ingress.len(), 100);
    assert!(!table.chains.contains_key("closed"));
}

#[test]
fn a_closed_namespace_whose_selectors_are_not_evaluated_is_closed_in_both_directions() {
    let own = pods(&["shop", "flood"]);
    let values: Vec<String> = (0..MAX_SELECTOR).map(|number| number.to_string()).collect();
    let mut world = flooded(Rule::default(), 0);
    let policies = world.policies.get_or_insert_default();
    let flood = Arc::new(Policy {
        namespace: "flood".to_owned(),
        selects: Selector(vec![("app".to_owned(), Wants::In(values))]),
        ingress: Some(vec![Rule::default()]),
        egress: Some(vec![Rule::default()]),
        left_out: false,
    });
    for number in 0..7 {
        let name = number.to_string();
        policies.insert(
            Key {
                name,
                ..key("flood")
            },
            Arc::clone(&flood),
        );
    }
    let table = fresh(Family::V4, &world, &own);
    let closed = |chains: &BTreeMap<IpAddr, Arc<str>>| {
        let own = chains.values().filter(|name| &***name == "closed");
        own.count()
    };
    assert_eq!((closed(&table.ingress), closed(&table.egress)), (1, 1));
}

#[test]
fn a_namespace_with_too_many_peers_is_closed_only_for_pods_that_its_policies_select() {
    let mut own = pods(&["shop", "flood"]);
    let mut selected = Pod::clone(&pod("flood", &json!([])));
    selected.labels = [("app".to_owned(), "web".to_owned())].into();
    let address = IpAddr::from([10, 1, 0, 9]);
    own.insert(address, Arc::new(selected));
    let rule = Rule {
        peers: (0..15_000).map(everywhere).collect(),
        ports: Vec::new(),
    };
    let mut world = flooded(rule, 2_000);
    let policies = world.policies.get_or_insert_default();
    let flood = policies.get_mut(&key("flood")).unwrap();
    Arc::make_mut(flood).selects =
        Selector(vec![("app".to_owned(), Wants::In(vec!["web".to_owned()]))]);
    let table = fresh(Family::V4, &world, &own);
    assert_eq!(table.egress.keys().collect::<Vec<_>>(), [&address]);
    assert_eq!(&*table.egress[&address], "closed");
}

/// A selector of this many values takes a sixth of the comparisons that a namespace may take.
const MAX_SELECTOR: usize = budget::MAX_EFFORT / (4 * 6);

#[test]
fn sets_that_are_made_anew_after_many_changes_are_those_of_a_fresh_start() {
    let own = pods(&["shop", "flood"]);
    let rule = Rule {
        peers: (0..2).map(everywhere).collect(),
        ports: named_ports(2),
    };
    let mut planner = Planner::new(Family::V4);
    for elsewhere in [0, 1, 64, 200, 500, 130, 129] {
        let world = flooded(rule.clone(), elsewhere);
        let table = planner.table(&world, &own).unwrap();
        assert_eq!(table, fresh(Family::V4, &world, &own), "{elsewhere}");
    }
}

#[test]
fn a_namespace_that_pods_elsewhere_close_and_open_again_has_the_rules_of_a_fresh_start() {
    let own = pods(&["shop", "flood"]);
    let rule = Rule {
        peers: (0..1000).map(everywhere).collect(),
        ports: Vec::new(),
    };
    let mut planner = Planner::new(Family::V4);
    for (elsewhere, is_closed) in [(2000, false), (8000, true), (8001, true), (1999, false)] {
        let world = flooded(rule.clone(), elsewhere);
        let table = planner.table(&world, &own).unwrap();
        assert_eq!(table, fresh(Family::V4, &world, &own), "{elsewhere}");
        assert_eq!(
            table.chains.contains_key("closed"),
            is_closed,
            "{elsewhere}"
        );
    }
}

#[test]
fn a_policy_with_longer_lists_than_the_api_takes_closes_its_namespace() {
    let closed = Policy {
        left_out: true,
        ..read(&json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))
    };
    let lists = |count: usize| {
        let (peer, port) = (json!({"podSelector": {}}), json!({"port": 80}));
        let rule = json!({"from": vec![peer.clone(); count]});
        let of_ports = json!({"ports": vec![port; count]});
        let policy = |side: &str, rules: Value| json!({"podSelector": {}, side: rules});
        [
            policy("ingress", json!([rule])),
            policy("ingress", json!([of_ports])),
            policy("egress", json!([{"to": vec![peer; count]}])),
            policy("egress", json!([of_ports])),
            policy("ingress", json!(vec![json!({}); count])),
            policy("egress", json!(vec![json!({}); count])),
        ]
    };
    for [most, more] in lists(1000)
        .into_iter()
        .zip(lists(1001))
        .map(|(a, b)| [a, b])
    {
        assert_ne!(read(&most), closed);
        assert_eq!(read(&more), closed);
    }
}

#[test]
fn a_pod_has_no_more_named_ports_than_rules_by_name_are_looked_up_for() {
    let ports = (0..5000).map(|number| json!({"name": format!("p{number}"), "containerPort": 80}));
    let pod = pod("shop", &ports.collect());
    assert_eq!(pod.ports.len(), 1000);
}

#[test]
fn a_policy_whose_rules_are_not_kept_isolates_all_pods_of_its_namespace() {
    let rules = json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{}]});
    let policy = read(&rules).without_content();
    assert!(policy.left_out);
    let world = World {
        pods: Some(BTreeMap::new()),
        namespaces: Some(BTreeMap::new()),
        policies: Some([(key("shop"), Arc::new(policy))].into()),
    };
    let table = fresh(Family::V4, &world, &pods(&["shop", "other"]));
    // A chain that drops, and nothing before that.
    let lengths: Vec<usize> = table.chains.values().map(|rules| rules.len()).collect();
    assert_eq!((table.ingress.len(), table.egress.len()), (1, 1));
    assert_eq!(lengths.iter().filter(|length| **length > 0).count(), 2);
    assert!(table.sets.is_empty());
}
