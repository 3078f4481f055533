//! The default spread of pods without constraints: replicas of one owner, and pods of one Service,
//! over nodes and zones (upstream: the default constraints of `PodTopologySpread`).

use master_client::{Key, View};
use master_schedule::{NodeInfo, PodRequest, ServiceSelector, Snapshot, choose};
use serde_json::{Value, json};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

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

/// Two nodes in zone a, one in zone b.
fn cluster() -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        let node = json!({"metadata": {"name": name, "labels": {HOST: name, ZONE: zone}}, "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"},
        }});
        let node = serde_json::from_value(node).expect("a node");
        snapshot.set_node(NodeInfo::of(&node));
    }
    snapshot
}

fn chosen(pod: &PodRequest, snapshot: &Snapshot) -> String {
    choose(pod, snapshot).expect("a node should do").node
}

/// A pod of a controller.
fn owned(name: &str, kind: &str, change: impl FnOnce(&mut Value)) -> PodRequest {
    pod(name, "web", |pod| {
        let version = match kind {
            "ReplicationController" => "v1",
            _ => "apps/v1",
        };
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": version, "kind": kind,
            "name": "web", "uid": "owner", "controller": true}]);
        change(pod);
    })
}

/// As in a rollout: the old pod's node may be the best one for its successor.
#[test]
fn a_terminating_replica_does_not_count_for_default_spreading() {
    let mut snapshot = cluster();
    let leaves = |pod: &mut Value| {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    };
    snapshot.place(owned("p1", "ReplicaSet", leaves), "b1");
    snapshot.place(owned("p2", "ReplicaSet", |_| ()), "a1");
    let next = owned("p3", "ReplicaSet", |_| ());
    assert_eq!(chosen(&next, &snapshot), "b1");
}

/// Of the nodes in zones, one is the emptiest by what is requested.
fn where_a1_is_emptiest() -> Snapshot {
    let mut snapshot = cluster();
    for (number, node) in ["a2", "b1"].into_iter().enumerate() {
        let busy = pod(&format!("busy{number}"), "busy", |pod| {
            let requests = json!({"cpu": "8", "memory": "8Gi"});
            pod["spec"]["containers"][0]["resources"] = json!({"requests": requests});
        });
        snapshot.place(busy, node);
    }
    snapshot
}

#[test]
fn only_pods_of_replicated_workloads_are_spread_by_default() {
    for (kind, expected) in [
        ("ReplicaSet", "b1"),
        ("ReplicationController", "b1"),
        ("StatefulSet", "b1"),
        ("Job", "a1"),
    ] {
        let mut snapshot = where_a1_is_emptiest();
        snapshot.place(owned("p1", kind, |_| ()), "a1");
        let next = owned("p2", kind, |_| ());
        assert_eq!(chosen(&next, &snapshot), expected, "{kind}");
    }
}

#[test]
fn replicas_without_constraints_are_spread_over_zones_and_nodes() {
    let mut snapshot = cluster();
    let replica = |name: &str| owned(name, "ReplicaSet", |_| ());
    snapshot.place(replica("p1"), "a1");
    assert_eq!(chosen(&replica("p2"), &snapshot), "b1");
    snapshot.place(replica("p2"), "b1");
    assert_eq!(chosen(&replica("p3"), &snapshot), "a2");
}

/// Pods of a StatefulSet have labels of their own: each counts, and of those that their Services
/// select only these.
#[test]
fn replicas_are_counted_by_their_owner_and_their_services() {
    let with = |name: &str, role: &str| {
        owned(name, "StatefulSet", |pod| {
            let labels = json!({"app": "db", "pod-name": name, "role": role});
            pod["metadata"]["labels"] = labels;
        })
    };
    let mut snapshot = where_a1_is_emptiest();
    snapshot.place(with("p0", "leader"), "a1");
    assert_eq!(chosen(&with("p1", "follower"), &snapshot), "b1");
    snapshot.place(with("p1", "follower"), "b1");
    assert_eq!(chosen(&with("p2", "follower"), &snapshot), "a2");
    serve(&mut snapshot, "db", Some(json!({"app": "db"})));
    serve(
        &mut snapshot,
        "followers",
        Some(json!({"role": "follower"})),
    );
    assert_eq!(chosen(&with("p2", "follower"), &snapshot), "a1");
    snapshot.place(plain("other", "db"), "a1");
    assert_eq!(
        chosen(&with("p2", "follower"), &snapshot),
        "a1",
        "that is no replica"
    );
}

/// As upstream's default constraints have it: `nodeAffinityPolicy` is `Honor`.
#[test]
fn pods_on_nodes_that_node_affinity_excludes_do_not_count_for_default_spreading() {
    let mut snapshot = where_a1_is_emptiest();
    serve(&mut snapshot, "web", Some(json!({"app": "web"})));
    for name in ["p1", "p2"] {
        snapshot.place(plain(name, "web"), "a2");
    }
    let choosy = pod("p3", "web", |pod| {
        let hosts = json!([{"matchExpressions": [{"key": HOST, "operator": "In", "values": ["a1", "b1"]}]}]);
        pod["spec"]["affinity"] = json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": hosts}}});
    });
    assert_eq!(chosen(&choosy, &snapshot), "a1");
    assert_eq!(chosen(&plain("p3", "web"), &snapshot), "b1");
}

/// Adds a Service that selects by a label, or removes it.
fn serve(snapshot: &mut Snapshot, name: &str, selector: Option<Value>) {
    let key = Key::new("default", name);
    let Some(selector) = selector else {
        return snapshot.remove_service(&key);
    };
    let service = json!({"metadata": {"name": name}, "spec": {"selector": selector}});
    let service = serde_json::from_value(service).expect("a Service");
    snapshot.set_service(key, ServiceSelector::read(service));
}

#[test]
fn pods_of_a_service_are_spread_over_zones_and_nodes_without_a_workload() {
    let of_a_job = |name: &str, _: &str| owned(name, "Job", |_| ());
    for made in [plain as fn(&str, &str) -> PodRequest, of_a_job] {
        let mut snapshot = where_a1_is_emptiest();
        serve(&mut snapshot, "web", Some(json!({"app": "web"})));
        snapshot.place(made("p1", "web"), "a1");
        assert_eq!(chosen(&made("p2", "web"), &snapshot), "b1");
        snapshot.place(made("p2", "web"), "b1");
        assert_eq!(chosen(&made("p3", "web"), &snapshot), "a2");
        serve(&mut snapshot, "web", None);
        assert_eq!(chosen(&made("p3", "web"), &snapshot), "a1");
    }
}
