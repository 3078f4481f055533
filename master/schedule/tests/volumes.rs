//! The nodes for a pod with claims, tested with objects as the API returns them.

use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use config_kube::k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass,
};
use master_claims::{Claim, Class, Volume};
use master_client::{Key, View};
use master_schedule::{Capacity, Driver, Limits, NodeInfo, PodRequest, Snapshot, choose};
use serde_json::{Value, json};

fn node(name: &str) -> NodeInfo {
    let labels = json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("zone-{name}")});
    let node = json!({
        "metadata": {"name": name, "labels": labels},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "10"},
        },
    });
    NodeInfo::of(&serde_json::from_value(node).expect("a node"))
}

fn pod(name: &str) -> PodRequest {
    let pod = json!({
        "metadata": {"namespace": "default", "name": name, "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "c"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
    });
    PodRequest::of(&serde_json::from_value(pod).expect("a pod"))
}

fn key() -> Key {
    Key::new("default", "data")
}

/// Two nodes, and a class that waits for the pod's node.
fn cluster(provisioner: &str) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for name in ["a", "b"] {
        snapshot.set_node(node(name));
    }
    let class: StorageClass = serde_json::from_value(json!({"metadata": {"name": "local"},
        "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}))
    .expect("a class");
    let storage = snapshot.storage_mut();
    storage.set_class("local".to_owned(), Class::read(class));
    snapshot
}

fn claim(snapshot: &mut Snapshot, change: impl FnOnce(&mut Value)) {
    let mut claim = json!({"metadata": {"name": "data", "uid": "u", "annotations": {}},
        "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Pending"}});
    change(&mut claim);
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).expect("a claim");
    snapshot.storage_mut().set_claim(key(), Claim::read(claim));
}

fn bound(snapshot: &mut Snapshot, change: impl FnOnce(&mut Value)) {
    claim(snapshot, |claim| {
        claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
        claim["spec"]["volumeName"] = json!("v");
        claim["status"]["phase"] = json!("Bound");
        change(claim);
    });
}

/// A volume that node `b` reaches.
fn volume(snapshot: &mut Snapshot, change: impl FnOnce(&mut Value)) {
    let need = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]});
    let mut volume = json!({"metadata": {"name": "v"}, "spec": {
            "storageClassName": "local", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [need]}]}},
        }, "status": {"phase": "Available"}});
    change(&mut volume);
    let volume: PersistentVolume = serde_json::from_value(volume).expect("a volume");
    let storage = snapshot.storage_mut();
    storage.set_volume("v".to_owned(), Volume::read(volume));
}

fn why(snapshot: &Snapshot) -> String {
    let refused = choose(&pod("p"), snapshot).expect_err("no node should do");
    refused.to_string()
}

fn chosen(snapshot: &Snapshot) -> String {
    choose(&pod("p"), snapshot).expect("a node should do").node
}

#[test]
fn faults_of_claims_are_reported_for_all_nodes_in_upstreams_words() {
    let mut snapshot = cluster("example.com/p");
    let none = "0/2 nodes are available: persistentvolumeclaim \"data\" not found.";
    assert_eq!(why(&snapshot), none);
    claim(&mut snapshot, |claim| {
        claim["spec"]["storageClassName"] = json!("other");
    });
    let immediate = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    assert_eq!(why(&snapshot), immediate);
    claim(&mut snapshot, |claim| {
        claim["spec"]["volumeName"] = json!("v");
    });
    assert_eq!(
        why(&snapshot),
        immediate,
        "a claim that names its volume is the binder's"
    );
    claim(&mut snapshot, |claim| {
        claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    assert!(why(&snapshot).contains("persistentvolumeclaim \"data\" is being deleted"));
    bound(&mut snapshot, |claim| {
        claim["status"]["phase"] = json!("Lost");
    });
    let lost = "persistentvolumeclaim \"data\" bound to non-existent persistentvolume \"v\"";
    assert!(why(&snapshot).contains(lost));
}

#[test]
fn a_pod_goes_to_a_node_that_the_volumes_node_affinity_allows() {
    let mut snapshot = cluster("example.com/p");
    bound(&mut snapshot, |_| {});
    let gone = "2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
    assert!(why(&snapshot).contains(gone));
    volume(&mut snapshot, |_| {});
    assert_eq!(chosen(&snapshot), "b");
    volume(&mut snapshot, |volume| {
        let terms = &mut volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
        terms[0]["matchExpressions"][0]["values"] = json!(["c"]);
    });
    let conflict = "0/2 nodes are available: 2 node(s) had volume node affinity conflict.";
    assert_eq!(why(&snapshot), conflict);
}

#[test]
fn an_unbound_claim_gets_an_available_volume_or_a_provisioned_one() {
    let mut snapshot = cluster("kubernetes.io/no-provisioner");
    claim(&mut snapshot, |_| {});
    let none =
        "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind.";
    assert_eq!(why(&snapshot), none);
    volume(&mut snapshot, |_| {});
    assert_eq!(chosen(&snapshot), "b", "the node that reaches the volume");
    volume(&mut snapshot, |volume| {
        volume["spec"]["capacity"]["storage"] = json!("1Mi");
    });
    assert_eq!(why(&snapshot), none);

    let mut snapshot = cluster("example.com/p");
    claim(&mut snapshot, |_| {});
    assert!(["a", "b"].contains(&chosen(&snapshot).as_str()));
    for name in ["a", "b"] {
        claim(&mut snapshot, |claim| {
            claim["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": name});
        });
        assert_eq!(chosen(&snapshot), name, "what was chosen before stays");
    }
}

#[test]
fn a_class_provisions_where_its_topologies_allow() {
    let mut snapshot = cluster("example.com/p");
    claim(&mut snapshot, |_| {});
    let class: StorageClass = serde_json::from_value(json!({"metadata": {"name": "local"},
        "provisioner": "example.com/p", "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["zone-a"]}]}]}))
    .expect("a class");
    let storage = snapshot.storage_mut();
    storage.set_class("local".to_owned(), Class::read(class));
    assert_eq!(chosen(&snapshot), "a");
}

/// The driver of the class says whether it reports its room.
fn driver(snapshot: &mut Snapshot, reports: bool) {
    let driver =
        json!({"metadata": {"name": "example.com/p"}, "spec": {"storageCapacity": reports}});
    let driver: CSIDriver = serde_json::from_value(driver).expect("a driver");
    let storage = snapshot.storage_mut();
    storage.set_driver("example.com/p".to_owned(), Driver::read(driver));
}

/// The driver reports room for the class on a node.
fn room(snapshot: &mut Snapshot, node: &str, class: &str, sizes: &Value) {
    let mut report = json!({"metadata": {"namespace": "csi", "name": node}, "storageClassName": class,
        "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": node}}});
    for (field, size) in sizes.as_object().expect("sizes by their fields") {
        report[field] = size.clone();
    }
    let report: CSIStorageCapacity = serde_json::from_value(report).expect("a report");
    let storage = snapshot.storage_mut();
    storage.set_capacity(Key::new("csi", node), Capacity::read(report));
}

#[test]
fn a_volume_is_provisioned_where_its_driver_reports_room_for_it() {
    let none = "0/2 nodes are available: 2 node(s) did not have enough free storage.";
    let mut snapshot = cluster("example.com/p");
    claim(&mut snapshot, |_| {});
    driver(&mut snapshot, true);
    assert_eq!(why(&snapshot), none, "nothing is reported");
    room(&mut snapshot, "a", "local", &json!({"capacity": "1000Mi"}));
    room(&mut snapshot, "b", "other", &json!({"capacity": "2Gi"}));
    assert_eq!(why(&snapshot), none, "too little, and for another class");
    room(&mut snapshot, "a", "local", &json!({"capacity": "1Gi"}));
    assert_eq!(chosen(&snapshot), "a");
    room(
        &mut snapshot,
        "a",
        "local",
        &json!({"capacity": "9Gi", "maximumVolumeSize": "1Mi"}),
    );
    assert_eq!(why(&snapshot), none, "no volume may be so large");
    room(
        &mut snapshot,
        "b",
        "local",
        &json!({"maximumVolumeSize": "1Gi"}),
    );
    assert_eq!(chosen(&snapshot), "b");
    driver(&mut snapshot, false);
    room(&mut snapshot, "b", "local", &json!({"capacity": "1Mi"}));
    assert!(
        ["a", "b"].contains(&chosen(&snapshot).as_str()),
        "it is not asked"
    );
}

#[test]
fn a_pod_goes_to_the_zone_of_its_volumes_label() {
    let mut snapshot = cluster("example.com/p");
    bound(&mut snapshot, |_| {});
    let zoned = |snapshot: &mut Snapshot, zones: &str| {
        volume(snapshot, |volume| {
            volume["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": zones});
            volume["spec"]["nodeAffinity"] = Value::Null;
        });
    };
    zoned(&mut snapshot, "zone-a");
    assert_eq!(chosen(&snapshot), "a");
    zoned(&mut snapshot, "zone-x__zone-b");
    assert_eq!(chosen(&snapshot), "b");
    zoned(&mut snapshot, "zone-x");
    assert!(why(&snapshot).contains("2 node(s) had no available volume zone"));
}

#[test]
fn a_read_write_once_pod_claim_is_used_by_one_pod() {
    let mut snapshot = cluster("example.com/p");
    bound(&mut snapshot, |claim| {
        claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    });
    volume(&mut snapshot, |_| {});
    assert_eq!(chosen(&snapshot), "b");
    let first = pod("first");
    let at = first.key.clone();
    snapshot.place(first, "b");
    let taken = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
    assert!(why(&snapshot).contains(taken), "{}", why(&snapshot));
    snapshot.remove(&at);
    assert_eq!(chosen(&snapshot), "b");
    bound(&mut snapshot, |_| {});
    snapshot.place(pod("first"), "b");
    assert_eq!(chosen(&snapshot), "b", "ReadWriteOnce is of a node");
}

/// How many volumes of a driver a node takes.
fn limit(snapshot: &mut Snapshot, node: &str, most: Option<i32>) {
    let allocatable = most.map(|most| json!({"count": most}));
    let driver = json!({"name": "csi.example", "nodeID": node, "allocatable": allocatable});
    let csi = json!({"metadata": {"name": node}, "spec": {"drivers": [driver]}});
    let csi: CSINode = serde_json::from_value(csi).expect("a CSINode");
    let storage = snapshot.storage_mut();
    storage.set_limits(node.to_owned(), Limits::read(csi));
}

/// A claim that is bound to a volume of the driver, which every node reaches.
fn attached(snapshot: &mut Snapshot, name: &str) {
    let claim = json!({"metadata": {"name": name, "uid": "u", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": name, "accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Bound"}});
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).expect("a claim");
    let volume = json!({"metadata": {"name": name}, "spec": {
        "csi": {"driver": "csi.example", "volumeHandle": name}}, "status": {"phase": "Bound"}});
    let volume: PersistentVolume = serde_json::from_value(volume).expect("a volume");
    let storage = snapshot.storage_mut();
    storage.set_claim(Key::new("default", name), Claim::read(claim));
    storage.set_volume(name.to_owned(), Volume::read(volume));
}

fn user(name: &str, claim: &str) -> PodRequest {
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
    let pod = json!({"metadata": {"namespace": "default", "name": name, "uid": name},
        "spec": {"containers": [{"name": "c"}], "volumes": [volume]}});
    PodRequest::of(&serde_json::from_value(pod).expect("a pod"))
}

#[test]
fn a_node_gets_no_more_volumes_of_a_driver_than_its_csi_node_allows() {
    let mut snapshot = cluster("csi.example");
    for name in ["one", "two"] {
        attached(&mut snapshot, name);
    }
    limit(&mut snapshot, "a", Some(1));
    limit(&mut snapshot, "b", Some(0));
    snapshot.place(user("p1", "one"), "a");
    let full = "0/2 nodes are available: 2 node(s) exceed max volume count.";
    let refused = choose(&user("p2", "two"), &snapshot).expect_err("all are full");
    assert!(refused.to_string().starts_with(full), "{refused}");
    let shared = choose(&user("p3", "one"), &snapshot).expect("the node has the volume");
    assert_eq!(shared.node, "a");
    // A claim whose volume the driver is yet to make counts as well.
    claim(&mut snapshot, |_| {});
    assert!(why(&snapshot).starts_with(full));
    limit(&mut snapshot, "b", None);
    assert_eq!(
        chosen(&snapshot),
        "b",
        "a driver without a number takes any"
    );
}
