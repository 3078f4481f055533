//! Pod affinity and topology spread, tested with objects as the API returns them: upstream's
//! documented rules and formulas, and that a snapshot which follows changes decides like a fresh
//! one.

#![allow(clippy::needless_pass_by_value, reason = "cases are written in place")]

use master_schedule::{NodeInfo, PodRequest, Snapshot, choose};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

/// A node in a zone; none where that is empty.
fn node(name: &str, zone: &str) -> NodeInfo {
    let mut labels = json!({HOST: name});
    if !zone.is_empty() {
        labels[ZONE] = zone.into();
    }
    let node = json!({"metadata": {"name": name, "labels": labels}, "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"},
    }});
    NodeInfo::of(&serde_json::from_value(node).expect("a node"))
}

fn pod(name: &str, app: &str, change: impl FnOnce(&mut Value)) -> PodRequest {
    let mut pod = json!({
        "metadata": {"namespace": "default", "name": name, "uid": name, "labels": {"app": app}},
        "spec": {"containers": [{"name": "c"}]},
    });
    change(&mut pod);
    PodRequest::of(&serde_json::from_value(pod).expect("a pod"))
}

fn plain(name: &str, app: &str) -> PodRequest {
    pod(name, app, |_| ())
}

fn term(app: &str, topology: &str) -> Value {
    json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": topology})
}

/// A pod with required terms: `podAffinity` or `podAntiAffinity`.
fn asking(name: &str, app: &str, what: &str, term: Value) -> PodRequest {
    pod(name, app, |pod| {
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
        pod["spec"]["affinity"] = json!({what: required});
    })
}

fn near(name: &str, app: &str, term: Value) -> PodRequest {
    asking(name, app, "podAffinity", term)
}

fn far(name: &str, app: &str, term: Value) -> PodRequest {
    asking(name, app, "podAntiAffinity", term)
}

fn preferring(name: &str, what: &str, weight: i32, term: Value) -> PodRequest {
    pod(name, name, |pod| {
        let wish = json!([{"weight": weight, "podAffinityTerm": term}]);
        let preferred = json!({"preferredDuringSchedulingIgnoredDuringExecution": wish});
        pod["spec"]["affinity"] = json!({what: preferred});
    })
}

fn spread(name: &str, skew: i32, topology: &str, when: &str, more: Value) -> PodRequest {
    pod(name, "web", |pod| {
        let mut constraint = json!({"maxSkew": skew, "topologyKey": topology, "whenUnsatisfiable": when,
            "labelSelector": {"matchLabels": {"app": "web"}}});
        for (field, value) in more.as_object().expect("fields") {
            constraint[field] = value.clone();
        }
        pod["spec"]["topologySpreadConstraints"] = json!([constraint]);
    })
}

/// Two nodes in zone a, one in zone b, one in none.
fn cluster() -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("x", "")] {
        snapshot.set_node(node(name, zone));
    }
    snapshot
}

fn chosen(pod: &PodRequest, snapshot: &Snapshot) -> String {
    choose(pod, snapshot).expect("a node should do").node
}

fn feasible(pod: &PodRequest, snapshot: &Snapshot) -> usize {
    choose(pod, snapshot).map_or(0, |placement| placement.feasible)
}

fn why(pod: &PodRequest, snapshot: &Snapshot) -> String {
    let refusal = choose(pod, snapshot).expect_err("no node should do");
    refusal.to_string()
}

#[test]
fn required_pod_affinity_matches_pods_of_the_same_topology_domain() {
    let mut snapshot = cluster();
    assert_eq!(
        why(&near("p", "web", term("db", ZONE)), &snapshot),
        "0/4 nodes are available: 4 node(s) didn't match pod affinity rules."
    );
    snapshot.place(plain("db", "db"), "b1");
    assert_eq!(chosen(&near("p", "web", term("db", ZONE)), &snapshot), "b1");
    snapshot.place(plain("db", "db"), "a1");
    assert_eq!(feasible(&near("p", "web", term("db", ZONE)), &snapshot), 2);
    assert_eq!(feasible(&near("p", "web", term("db", HOST)), &snapshot), 1);
}

#[test]
fn the_first_pod_with_affinity_to_itself_fits_every_node_with_the_topology_key() {
    let mut snapshot = cluster();
    let first = near("p1", "web", term("web", ZONE));
    assert_eq!(
        feasible(&first, &snapshot),
        3,
        "the node without a zone is no place"
    );
    snapshot.place(first, "b1");
    assert_eq!(
        chosen(&near("p2", "web", term("web", ZONE)), &snapshot),
        "b1"
    );
}

#[test]
fn one_pod_must_match_all_required_affinity_terms() {
    let mut snapshot = cluster();
    let both = pod("p", "web", |pod| {
        let terms = [term("db", ZONE), term("cache", ZONE)];
        pod["spec"]["affinity"] =
            json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
    });
    snapshot.place(plain("db", "db"), "b1");
    snapshot.place(plain("cache", "cache"), "b1");
    assert!(
        choose(&both, &snapshot).is_err(),
        "as upstream, which counts pods that all terms mean"
    );
}

/// All other pods wait for each decision. If it compared each term with each, for every existing
/// pod, it would take hours.
#[test]
fn terms_of_a_pod_are_not_multiplied_with_each_other() {
    let mut snapshot = cluster();
    for number in 0..20 {
        let there = pod(&format!("there-{number}"), "db", |pod| {
            pod["metadata"]["labels"]["own"] = number.to_string().into();
        });
        snapshot.place(there, "b1");
    }
    let terms = (0..20_000).map(|number| {
        let need = json!({"key": "app", "operator": "NotIn", "values": [number.to_string()]});
        json!({"topologyKey": ZONE, "labelSelector": {"matchExpressions": [need]}})
    });
    let terms: Vec<Value> = terms.collect();
    let asking = pod("p", "web", |pod| {
        pod["spec"]["affinity"] =
            json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
    });
    assert_eq!(chosen(&asking, &snapshot), "b1");
}

/// The same for constraints and nodes.
#[test]
fn constraints_of_a_pod_are_not_multiplied_with_each_other() {
    const COUNT: usize = 20_000;
    let mut snapshot = Snapshot::default();
    let labels = (0..COUNT).map(|number| (format!("t{number}"), Value::from("x")));
    let labels: serde_json::Map<String, Value> = labels.collect();
    for number in 0..20 {
        let node = json!({"metadata": {"name": format!("n{number}"), "labels": labels}, "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"},
        }});
        let node = serde_json::from_value(node).expect("a node");
        snapshot.set_node(NodeInfo::of(&node));
    }
    for when in ["DoNotSchedule", "ScheduleAnyway"] {
        let all = (0..COUNT).map(|number| {
            json!({"topologyKey": format!("t{number}"), "maxSkew": 1, "whenUnsatisfiable": when,
                "nodeTaintsPolicy": "Honor", "labelSelector": {"matchLabels": {"app": "web"}}})
        });
        let all: Vec<Value> = all.collect();
        let spread = pod("p", "web", |pod| {
            pod["spec"]["topologySpreadConstraints"] = all.into();
        });
        assert_eq!(feasible(&spread, &snapshot), 20, "{when}");
    }
}

#[test]
fn pods_with_anti_affinity_share_no_topology_domain_in_either_order() {
    let mut snapshot = cluster();
    snapshot.place(far("p1", "web", term("web", ZONE)), "a1");
    let second = far("p2", "web", term("web", ZONE));
    assert_eq!(
        feasible(&second, &snapshot),
        2,
        "zone b, and the node in no zone"
    );
    snapshot.place(second, "b1");
    let third = plain("p3", "web");
    assert_eq!(
        chosen(&third, &snapshot),
        "x",
        "it refuses none, and is refused"
    );
    snapshot.remove_node("x");
    assert_eq!(
        why(&third, &snapshot),
        "0/3 nodes are available: 3 node(s) didn't satisfy existing pods anti-affinity rules."
    );
    assert_eq!(
        why(&far("p4", "web", term("web", HOST)), &{
            let mut snapshot = Snapshot::default();
            snapshot.set_node(node("n", ""));
            snapshot.place(plain("p", "web"), "n");
            snapshot
        }),
        "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."
    );
    assert_eq!(feasible(&plain("other", "db"), &snapshot), 3);
}

#[test]
fn affinity_terms_select_namespaces_by_name_by_label_or_the_pods_own() {
    let mut snapshot = cluster();
    let team = BTreeMap::from([("team".to_owned(), "one".to_owned())]);
    snapshot.set_namespace("theirs".to_owned(), team);
    snapshot.set_namespace("default".to_owned(), BTreeMap::new());
    let theirs = pod("db", "db", |pod| {
        pod["metadata"]["namespace"] = "theirs".into();
    });
    snapshot.place(theirs, "b1");
    let with = |field: &str, value: Value| {
        let mut asked = term("db", ZONE);
        if !field.is_empty() {
            asked[field] = value;
        }
        feasible(&near("p", "web", asked), &snapshot)
    };
    assert_eq!(with("", json!(null)), 0, "its own namespace alone");
    assert_eq!(with("namespaces", json!(["theirs"])), 1);
    assert_eq!(with("namespaces", json!(["default"])), 0);
    assert_eq!(with("namespaceSelector", json!({})), 1, "all");
    assert_eq!(
        with("namespaceSelector", json!({"matchLabels": {"team": "one"}})),
        1
    );
    assert_eq!(
        with("namespaceSelector", json!({"matchLabels": {"team": "two"}})),
        0
    );
}

#[test]
fn match_label_keys_narrow_an_affinity_term_to_pods_of_the_same_revision() {
    let mut snapshot = cluster();
    let revision = |name: &str, hash: &str, keys: &str| {
        pod(name, "web", |pod| {
            pod["metadata"]["labels"]["hash"] = hash.into();
            let mut term = term("web", HOST);
            term[keys] = json!(["hash"]);
            pod["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        })
    };
    snapshot.place(revision("old", "1", "matchLabelKeys"), "a1");
    assert_eq!(
        feasible(&revision("same", "1", "matchLabelKeys"), &snapshot),
        3
    );
    assert_eq!(
        feasible(&revision("new", "2", "matchLabelKeys"), &snapshot),
        4
    );
    // Its own term means the other revision; the older pod's does not mean it.
    assert_eq!(
        feasible(&revision("new", "2", "mismatchLabelKeys"), &snapshot),
        3
    );
}

#[test]
fn preferred_affinity_of_the_pod_and_of_existing_pods_is_scored() {
    let mut snapshot = cluster();
    snapshot.place(plain("db", "db"), "b1");
    let wish = |what: &str| chosen(&preferring("p", what, 100, term("db", HOST)), &snapshot);
    assert_eq!(wish("podAffinity"), "b1");
    assert_ne!(wish("podAntiAffinity"), "b1");
    // Existing pods have preferences about a pod that has none itself.
    snapshot.place(preferring("q", "podAffinity", 100, term("web", HOST)), "a2");
    assert_eq!(chosen(&plain("p", "web"), &snapshot), "a2");
    snapshot.remove(&preferring("q", "podAffinity", 1, term("web", HOST)).key);
    // One that must be near it draws it, too.
    snapshot.place(near("r", "r", term("web", HOST)), "a1");
    assert_eq!(chosen(&plain("p", "web"), &snapshot), "a1");
}

#[test]
fn a_topology_spread_constraint_with_do_not_schedule_bounds_the_skew() {
    let mut snapshot = cluster();
    let web = |name: &str| spread(name, 1, ZONE, "DoNotSchedule", json!({}));
    assert_eq!(
        feasible(&web("p"), &snapshot),
        3,
        "the node without a zone is no place"
    );
    snapshot.place(web("p1"), "a1");
    assert_eq!(chosen(&web("p2"), &snapshot), "b1");
    snapshot.place(web("p2"), "b1");
    snapshot.place(web("p3"), "a1");
    snapshot.remove_node("b1");
    assert_eq!(
        why(&web("p4"), &{
            let mut alone = cluster();
            for name in ["a2", "b1"] {
                alone.remove_node(name);
            }
            alone.set_node(NodeInfo::of(
                &serde_json::from_value(json!({"metadata": {"name": "b2", "labels": {ZONE: "b"}},
                "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "9"}}}))
                .expect("a node"),
            ));
            alone.place(web("p1"), "a1");
            alone
        }),
        "0/3 nodes are available: 1 node(s) didn't match pod topology spread constraints, 1 node(s) didn't match pod \
         topology spread constraints (missing required label), 1 node(s) were unschedulable."
    );
    // Zone b is gone, and with it the emptiest place.
    assert_eq!(feasible(&web("p4"), &snapshot), 2);
}

#[test]
fn fewer_topology_domains_than_min_domains_count_as_an_empty_one() {
    let mut snapshot = cluster();
    let web = |name: &str| spread(name, 1, ZONE, "DoNotSchedule", json!({"minDomains": 3}));
    snapshot.place(web("p1"), "a1");
    snapshot.place(web("p2"), "b1");
    assert_eq!(feasible(&web("p3"), &snapshot), 0);
    snapshot.set_node(node("c1", "c"));
    assert_eq!(chosen(&web("p3"), &snapshot), "c1");
}

#[test]
fn a_node_affinity_policy_sets_which_nodes_count_for_topology_spread() {
    let mut snapshot = cluster();
    snapshot.place(plain("p1", "web"), "a1");
    // Zone b is no choice, and so no emptier place either.
    let in_a = |policy: &str| {
        let constraint = json!([{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
            "nodeAffinityPolicy": policy, "labelSelector": {"matchLabels": {"app": "web"}}}]);
        let pod = pod("p2", "web", |pod| {
            pod["spec"]["nodeSelector"] = json!({ZONE: "a"});
            pod["spec"]["topologySpreadConstraints"] = constraint;
        });
        feasible(&pod, &snapshot)
    };
    assert_eq!(in_a("Honor"), 2);
    assert_eq!(in_a("Ignore"), 0);
}

#[test]
fn terminating_pods_and_other_namespaces_do_not_count_for_topology_spread() {
    let mut snapshot = cluster();
    let going = pod("p1", "web", |pod| {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
    snapshot.place(going, "a1");
    let foreign = pod("p2", "web", |pod| {
        pod["metadata"]["namespace"] = "other".into();
    });
    snapshot.place(foreign, "a1");
    let web = spread("p", 1, ZONE, "DoNotSchedule", json!({}));
    assert_eq!(feasible(&web, &snapshot), 3);
}

#[test]
fn a_topology_spread_constraint_with_schedule_anyway_is_scored() {
    let mut snapshot = cluster();
    let web = |name: &str| spread(name, 1, ZONE, "ScheduleAnyway", json!({}));
    snapshot.place(web("p1"), "a1");
    assert_eq!(chosen(&web("p2"), &snapshot), "b1");
    snapshot.place(web("p2"), "b1");
    snapshot.place(web("p3"), "b1");
    let next = chosen(&web("p4"), &snapshot);
    assert!(
        next == "a1" || next == "a2",
        "{next}: the node in no zone scores nothing"
    );
}

#[test]
fn a_node_that_has_the_image_is_chosen_among_equal_ones() {
    let with = |name: &str, bytes: i64| {
        let images = json!([{"names": ["registry.example/big:1"], "sizeBytes": bytes}]);
        NodeInfo::of(
            &serde_json::from_value(
                json!({"metadata": {"name": name}, "status": {"images": images,
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"}}}),
            )
            .expect("a node"),
        )
    };
    for holder in ["n0", "n1", "n2"] {
        let mut snapshot = Snapshot::default();
        for name in ["n0", "n1", "n2"] {
            let bytes = if name == holder { 900 << 20 } else { 1 << 20 };
            snapshot.set_node(with(name, bytes));
        }
        let pod = pod("p", "web", |pod| {
            pod["spec"]["containers"][0]["image"] = "registry.example/big:1".into();
        });
        assert_eq!(chosen(&pod, &snapshot), holder);
    }
}

/// What may happen to a cluster: to which node or pod, and how.
#[derive(Debug, Clone)]
enum Step {
    Node(usize, usize),
    NodeGone(usize),
    Pod(usize, usize, usize, bool),
    Assumed(usize, usize, usize),
    PodGone(usize),
    Namespace(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..5_usize, 0..3_usize).prop_map(|(node, zone)| Step::Node(node, zone)),
        (0..5_usize).prop_map(Step::NodeGone),
        (0..8_usize, 0..7_usize, 0..5_usize, any::<bool>())
            .prop_map(|(pod, kind, node, leaving)| Step::Pod(pod, kind, node, leaving)),
        (0..8_usize, 0..7_usize, 0..5_usize)
            .prop_map(|(pod, kind, node)| Step::Assumed(pod, kind, node)),
        (0..8_usize).prop_map(Step::PodGone),
        (0..2_usize, any::<bool>()).prop_map(|(name, labelled)| Step::Namespace(name, labelled)),
    ]
}

/// A pod that asks, by number, for one of several things.
fn of_kind(name: &str, kind: usize, leaving: bool) -> PodRequest {
    let mut by_team = term("web", ZONE);
    by_team["namespaceSelector"] = json!({"matchLabels": {"team": "one"}});
    pod(
        name,
        if kind.is_multiple_of(2) { "web" } else { "db" },
        |pod| {
            if leaving {
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            if kind == 3 {
                pod["metadata"]["namespace"] = "theirs".into();
            }
            let required =
                |term: Value| json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
            match kind {
                1 => pod["spec"]["affinity"] = json!({"podAffinity": required(term("web", ZONE))}),
                2 => {
                    pod["spec"]["affinity"] =
                        json!({"podAntiAffinity": required(term("web", HOST))});
                }
                4 => pod["spec"]["affinity"] = json!({"podAntiAffinity": required(by_team)}),
                5 => {
                    let wish = json!([{"weight": 7, "podAffinityTerm": term("web", ZONE)}]);
                    pod["spec"]["affinity"] = json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish}});
                }
                6 => {
                    pod["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": ZONE,
                    "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}]);
                }
                _ => {}
            }
        },
    )
}

proptest! {
    /// A snapshot that followed any history decides like one that is built from the final objects.
    #[test]
    fn an_incremental_snapshot_decides_as_a_fresh_one(steps in proptest::collection::vec(step(), 0..60)) {
        let mut followed = Snapshot::default();
        let mut nodes = BTreeMap::new();
        let mut pods = BTreeMap::new();
        let mut namespaces = BTreeMap::new();
        for step in steps {
            match step {
                Step::Node(name, zone) => {
                    let (name, zone) = (format!("n{name}"), ["", "a", "b"][zone]);
                    followed.set_node(node(&name, zone));
                    nodes.insert(name, zone);
                }
                Step::NodeGone(name) => {
                    followed.remove_node(&format!("n{name}"));
                    nodes.remove(&format!("n{name}"));
                }
                Step::Pod(name, kind, node, leaving) => {
                    let pod = of_kind(&format!("p{name}"), kind, leaving);
                    followed.place(pod.clone(), &format!("n{node}"));
                    pods.insert(pod.key.clone(), (pod, format!("n{node}")));
                }
                Step::Assumed(name, kind, node) => {
                    let pod = of_kind(&format!("p{name}"), kind, false);
                    followed.assume(pod.clone(), &format!("n{node}"));
                    if name % 2 == 0 {
                        followed.forget(&pod.key, &pod.uid);
                        pods.remove(&pod.key);
                    } else {
                        pods.insert(pod.key.clone(), (pod, format!("n{node}")));
                    }
                }
                Step::PodGone(name) => {
                    for namespace in ["default", "theirs"] {
                        let mut key = of_kind(&format!("p{name}"), 0, false).key;
                        namespace.clone_into(&mut key.namespace);
                        followed.remove(&key);
                        pods.remove(&key);
                    }
                }
                Step::Namespace(name, labelled) => {
                    let name = ["default", "theirs"][name].to_owned();
                    let labels: BTreeMap<_, _> =
                        labelled.then(|| ("team".to_owned(), "one".to_owned())).into_iter().collect();
                    followed.set_namespace(name.clone(), labels.clone());
                    namespaces.insert(name, labels);
                }
            }
        }
        let mut fresh = Snapshot::default();
        for (name, zone) in &nodes {
            fresh.set_node(node(name, zone));
        }
        for (name, labels) in namespaces {
            fresh.set_namespace(name, labels);
        }
        for (pod, node) in pods.into_values() {
            fresh.place(pod, &node);
        }
        for kind in 0..7 {
            let probe = of_kind("probe", kind, false);
            prop_assert_eq!(choose(&probe, &followed), choose(&probe, &fresh));
        }
    }

    /// However pods that refuse each other, and pods under a hard constraint, come and go: none
    /// share a place, and no place has more than the skew above the emptiest one when a pod is
    /// placed.
    #[test]
    fn anti_affinity_and_maximum_skew_hold_after_every_decision(
        zones in proptest::collection::vec(0..3_usize, 1..7),
        steps in proptest::collection::vec((any::<bool>(), 0..12_usize), 1..40),
        skew in 1..4_i32,
    ) {
        let mut snapshot = Snapshot::default();
        let zone_of: BTreeMap<String, usize> =
            zones.iter().enumerate().map(|(at, zone)| (format!("n{at}"), *zone)).collect();
        for (name, zone) in &zone_of {
            snapshot.set_node(node(name, ["a", "b", "c"][*zone]));
        }
        let places: BTreeSet<usize> = zone_of.values().copied().collect();
        let mut lone: BTreeMap<String, usize> = BTreeMap::new();
        let mut even: BTreeMap<String, usize> = BTreeMap::new();
        for (at, (alone, gone)) in steps.into_iter().enumerate() {
            let name = format!("p{at}");
            let pod = if alone {
                far(&name, "lone", term("lone", ZONE))
            } else {
                spread(&name, skew, ZONE, "DoNotSchedule", json!({}))
            };
            if let Ok(placement) = choose(&pod, &snapshot) {
                let zone = zone_of[&placement.node];
                if alone {
                    prop_assert!(!lone.values().any(|taken| *taken == zone));
                    lone.insert(name, zone);
                } else {
                    even.insert(name, zone);
                    let count = |zone: &usize| even.values().filter(|own| *own == zone).count();
                    let least = places.iter().map(count).min().expect("a place");
                    prop_assert!(count(&zone) <= least + usize::try_from(skew).expect("a number") );
                }
                snapshot.assume(pod, &placement.node);
            } else if alone {
                prop_assert_eq!(lone.values().collect::<BTreeSet<_>>().len(), places.len());
            }
            let gone = format!("p{gone}");
            if lone.remove(&gone).is_some() || even.remove(&gone).is_some() {
                snapshot.remove(&plain(&gone, "").key);
            }
        }
    }
}

#[test]
fn an_image_size_of_any_value_in_a_nodes_status_is_scored_without_overflow() {
    let images = ["a:1", "b:1"].map(|name| json!({"names": [name], "sizeBytes": i64::MAX}));
    let node = json!({"metadata": {"name": "liar"}, "status": {"images": images,
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"}}});
    let mut snapshot = Snapshot::default();
    for name in ["liar", "other"] {
        let mut node = node.clone();
        node["metadata"]["name"] = name.into();
        snapshot.set_node(NodeInfo::of(&serde_json::from_value(node).expect("a node")));
    }
    let pod = pod("p", "web", |pod| {
        let containers = ["a:1", "b:1"].map(|image| json!({"name": image[..1], "image": image}));
        pod["spec"]["containers"] = json!(containers);
    });
    chosen(&pod, &snapshot);
}
