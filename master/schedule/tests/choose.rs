//! The decision, tested with objects as the API returns them.

use master_schedule::{
    NodeInfo, PodRequest, Point, Profile, Snapshot, Strategy, Unschedulable, choose,
};
use serde_json::{Value, json};
use std::sync::Arc;

fn node(name: &str, change: impl FnOnce(&mut Value)) -> NodeInfo {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "10", "ephemeral-storage": "10Gi"},
        },
    });
    change(&mut node);
    NodeInfo::of(&serde_json::from_value(node).expect("a node"))
}

fn plain(name: &str) -> NodeInfo {
    node(name, |_| ())
}

fn pod(name: &str, change: impl FnOnce(&mut Value)) -> PodRequest {
    let mut pod = json!({
        "metadata": {"namespace": "default", "name": name, "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
    });
    change(&mut pod);
    PodRequest::of(&serde_json::from_value(pod).expect("a pod"))
}

fn cluster(nodes: impl IntoIterator<Item = NodeInfo>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for node in nodes {
        snapshot.set_node(node);
    }
    snapshot
}

fn why(pod: &PodRequest, snapshot: &Snapshot) -> String {
    choose(pod, snapshot)
        .expect_err("no node should do")
        .to_string()
}

fn chosen(pod: &PodRequest, snapshot: &Snapshot) -> String {
    choose(pod, snapshot).expect("a node should do").node
}

#[test]
fn a_cluster_without_nodes_is_reported_in_upstreams_words() {
    assert_eq!(
        why(&pod("p", |_| ()), &Snapshot::default()),
        "no nodes available to schedule pods"
    );
}

#[test]
fn refusals_of_nodes_are_counted_by_reason_in_upstreams_words() {
    let snapshot = cluster([
        node("master", |n| {
            n["spec"]["taints"] =
                json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
        }),
        plain("worker"),
    ]);
    let pod = pod("big", |p| {
        p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("3");
    });
    assert_eq!(
        why(&pod, &snapshot),
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."
    );
}

#[test]
fn every_scarce_resource_of_a_node_is_named() {
    let snapshot = cluster([node("n", |n| {
        n["status"]["allocatable"] = json!({"pods": "0"});
    })]);
    let pod = pod("p", |p| {
        p["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = json!("1");
    });
    assert_eq!(
        why(&pod, &snapshot),
        "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/gpu, 1 Insufficient memory, 1 Too many pods."
    );
}

#[test]
fn a_node_that_is_not_ready_gets_no_pods() {
    let silent = node("silent", |n| {
        n["status"]["conditions"][0]["status"] = json!("Unknown");
    });
    let unready = node("unready", |n| {
        n["status"]["conditions"][0]["status"] = json!("False");
    });
    let young = node("young", |n| n["status"]["conditions"] = json!([]));
    assert_eq!(
        why(&pod("p", |_| ()), &cluster([silent, unready, young])),
        "0/3 nodes are available: 3 node(s) had untolerated taint(s)."
    );
}

#[test]
fn a_cordoned_node_gets_only_pods_that_tolerate_it() {
    let snapshot = cluster([node("n", |n| n["spec"]["unschedulable"] = json!(true))]);
    assert_eq!(
        why(&pod("p", |_| ()), &snapshot),
        "0/1 nodes are available: 1 node(s) were unschedulable."
    );
    let tolerant = pod("p", |p| {
        p["spec"]["tolerations"] =
            json!([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]);
    });
    assert_eq!(chosen(&tolerant, &snapshot), "n");
}

#[test]
fn a_node_selector_limits_the_nodes() {
    let snapshot = cluster([plain("a"), plain("b")]);
    let at_b = pod("p", |p| {
        p["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "b"});
    });
    assert_eq!(chosen(&at_b, &snapshot), "b");
    let at_c = pod("p", |p| {
        p["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "c"});
    });
    assert_eq!(
        why(&at_c, &snapshot),
        "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    );
}

#[test]
fn a_host_port_is_given_to_one_pod_of_a_node() {
    let mut snapshot = cluster([plain("n")]);
    let web = |name: &str, port: Value| {
        pod(name, move |p| {
            p["spec"]["containers"][0]["ports"] = json!([port]);
        })
    };
    snapshot.place(
        web(
            "first",
            json!({"containerPort": 80, "hostPort": 80, "hostIP": "192.168.77.11"}),
        ),
        "n",
    );
    let second = web("second", json!({"containerPort": 8080, "hostPort": 80}));
    assert_eq!(
        why(&second, &snapshot),
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    );
    for other in [
        json!({"containerPort": 80, "hostPort": 80, "hostIP": "192.168.77.12"}),
        json!({"containerPort": 80, "hostPort": 80, "protocol": "UDP"}),
        json!({"containerPort": 80}),
    ] {
        assert_eq!(chosen(&web("second", other), &snapshot), "n");
    }
}

#[test]
fn bound_and_assumed_pods_reduce_a_nodes_free_resources() {
    let mut snapshot = cluster([plain("n")]);
    for (index, name) in ["a", "b", "c", "d"].iter().enumerate() {
        let pod = pod(name, |_| ());
        assert_eq!(chosen(&pod, &snapshot), "n");
        if index % 2 == 0 {
            snapshot.assume(pod, "n");
        } else {
            snapshot.place(pod, "n");
        }
    }
    let last = pod("e", |_| ());
    assert_eq!(
        why(&last, &snapshot),
        "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."
    );
    let assumed = pod("a", |_| ());
    snapshot.forget(&assumed.key, &assumed.uid);
    assert_eq!(chosen(&last, &snapshot), "n");
    let placed = pod("b", |_| ());
    snapshot.forget(&placed.key, &placed.uid);
    snapshot.place(last, "n");
    assert!(
        choose(&pod("f", |_| ()), &snapshot).is_err(),
        "what the API showed is not forgotten"
    );
}

#[test]
fn the_node_with_more_free_resources_is_chosen() {
    let mut snapshot = cluster([plain("busy"), plain("idle")]);
    snapshot.place(pod("a", |_| ()), "busy");
    assert_eq!(chosen(&pod("b", |_| ()), &snapshot), "idle");
}

#[test]
fn spreading_replicas_outweighs_free_resources() {
    let replica = |name: &str| {
        pod(name, |p| {
            p["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": true}]);
        })
    };
    let mut snapshot = cluster([plain("a"), plain("b")]);
    snapshot.place(replica("web-1"), "a");
    snapshot.place(pod("x", |_| ()), "b");
    snapshot.place(pod("y", |_| ()), "b");
    assert_eq!(chosen(&replica("web-2"), &snapshot), "b");
    assert_eq!(chosen(&pod("z", |_| ()), &snapshot), "a");
}

#[test]
fn preferred_node_affinity_and_prefer_no_schedule_taints_are_scored() {
    let soft = node("soft", |n| {
        n["spec"]["taints"] = json!([{"key": "slow", "effect": "PreferNoSchedule"}]);
    });
    let snapshot = cluster([soft, plain("plain")]);
    assert_eq!(chosen(&pod("p", |_| ()), &snapshot), "plain");
    let wish = json!([{"weight": 1, "preference": {"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}}]);
    let wishing = pod("p", |p| {
        p["spec"]["affinity"] =
            json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish}});
    });
    assert_eq!(
        chosen(&wishing, &cluster([plain("a"), plain("b"), plain("c")])),
        "b"
    );
}

#[test]
fn an_unsupported_feature_of_a_pod_is_refused_by_name() {
    let pod = pod("p", |p| {
        p["spec"]["resourceClaims"] = json!([{"name": "gpu"}]);
    });
    let refusal = choose(&pod, &cluster([plain("n")])).expect_err("claims are not supported");
    assert_eq!(refusal, Unschedulable::NotYet(vec!["resource claims"]));
    assert!(
        refusal
            .to_string()
            .contains("resource claims, which this scheduler does not support yet")
    );
}

#[test]
fn a_node_that_is_deleted_and_created_again_still_counts_its_pods() {
    let mut snapshot = cluster([plain("n")]);
    for name in ["a", "b", "c", "d"] {
        snapshot.place(pod(name, |_| ()), "n");
    }
    snapshot.remove_node("n");
    assert_eq!(
        why(&pod("e", |_| ()), &snapshot),
        "no nodes available to schedule pods"
    );
    assert!(snapshot.set_node(plain("n")));
    assert!(choose(&pod("e", |_| ()), &snapshot).is_err());
    assert!(!snapshot.set_node(plain("n")), "nothing changed");
}

/// A pod whose profile has this strategy and these weights.
fn weighed(
    strategy: Strategy,
    weights: &[(&str, i64)],
    change: impl FnOnce(&mut Value),
) -> PodRequest {
    let weights = weights.iter();
    let profile = Profile {
        name: "packed".to_owned(),
        strategy,
        weights: weights
            .map(|(name, weight)| ((*name).to_owned(), *weight))
            .collect(),
    };
    let mut pod = pod("p", change);
    pod.profile = Arc::new(profile);
    pod
}

#[test]
fn a_profile_fills_nodes_one_after_another_or_spreads_pods() {
    let mut snapshot = cluster([plain("busy"), plain("free")]);
    snapshot.place(pod("a", |_| ()), "busy");
    let equal = [("cpu", 1), ("memory", 1)];
    let line = |points: [(i64, i64); 2]| {
        let point = |(utilization, score)| Point { utilization, score };
        Strategy::RequestedToCapacityRatio(points.map(point).into())
    };
    for (strategy, expected) in [
        (Strategy::LeastAllocated, "free"),
        (Strategy::MostAllocated, "busy"),
        (line([(0, 0), (100, 10)]), "busy"),
        (line([(0, 10), (100, 0)]), "free"),
    ] {
        let pod = weighed(strategy.clone(), &equal, |_| ());
        assert_eq!(chosen(&pod, &snapshot), expected, "{strategy:?}");
    }
}

#[test]
fn a_profile_weighs_a_device_that_the_pod_asks_for() {
    let device = |name: &str| {
        node(name, |n| {
            n["status"]["allocatable"]["example.com/device"] = json!("4");
        })
    };
    let asks = |p: &mut Value| {
        p["spec"]["containers"][0]["resources"]["requests"]["example.com/device"] = json!("1");
    };
    let mut snapshot = cluster([device("one-taken"), device("cpu-taken")]);
    snapshot.place(pod("a", asks), "one-taken");
    for name in ["b", "c"] {
        snapshot.place(pod(name, |_| ()), "cpu-taken");
    }
    let weights = [("cpu", 1), ("memory", 1), ("example.com/device", 10)];
    let with = weighed(Strategy::MostAllocated, &weights, asks);
    assert_eq!(chosen(&with, &snapshot), "one-taken");
    let without = weighed(Strategy::MostAllocated, &weights, |_| ());
    assert_eq!(
        chosen(&without, &snapshot),
        "cpu-taken",
        "what a pod does not ask for does not count"
    );
}
