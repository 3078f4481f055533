//! The StorageClass `local`, whose volumes are folders of machines.

use super::{cluster_without, make};
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::k8s_openapi::api::storage::v1::StorageClass;
use master_client::{DeleteParams, Key, Patch};
use master_control::Options;
use master_control::controller::Now;
use master_control::setup::{Setup, TestStores};
use master_control::views::node::NodeView;
use master_control_cluster::local_class::LocalClass;
use serde_json::{Value, json};

const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const MARK: &str = "storageclass.kubernetes.io/is-default-class";

fn node(name: &str, labels: &Value) -> Node {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).expect("a node")
}

fn machine(name: &str) -> Node {
    node(name, &json!({"pratique.dev/role": "worker"}))
}

fn start() -> (LocalClass, TestStores) {
    Setup::for_test(&Options::default())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_class_comes_with_the_first_machine_and_once_in_a_process() {
    let cluster = cluster_without().await;
    let names = || async {
        let list = cluster.get(CLASSES).await;
        let items = list["items"].as_array().expect("a list").clone();
        let name = |item: &Value| item["metadata"]["name"].as_str().unwrap_or("").to_owned();
        items.iter().map(name).collect::<Vec<_>>()
    };
    let run = async |(controller, stand): &(LocalClass, TestStores), keys: Vec<Key>| {
        for key in keys {
            stand.run(controller, &key, Now::read(), &cluster.own).await;
        }
    };
    let mut first = start();
    let written = first.1.see::<NodeView>(node("written", &json!({})));
    run(&first, written).await;
    assert_eq!(names().await, [""; 0], "no machine has folders");
    let keys = first.1.see::<NodeView>(machine("one"));
    run(&first, keys).await;
    assert_eq!(names().await, ["local"]);
    let class = cluster.get(&format!("{CLASSES}/local")).await;
    assert_eq!(class["metadata"]["annotations"], json!({MARK: "true"}));
    assert_eq!(class["volumeBindingMode"], "WaitForFirstConsumer");

    let admin = &cluster.admin;
    let params = DeleteParams::default();
    let gone = admin.delete::<StorageClass>(None, "local", &params).await;
    gone.expect("an admin deletes it");
    let keys = first.1.see::<NodeView>(machine("two"));
    run(&first, keys).await;
    assert_eq!(names().await, [""; 0], "it stays deleted");

    let mut next = start();
    let keys = next
        .1
        .list::<NodeView>(vec![machine("one"), machine("two")], 9);
    run(&next, keys).await;
    assert_eq!(names().await, ["local"], "until the next start");
    let patch = Patch::Merge(json!({"metadata": {"annotations": {MARK: "false"}}}));
    let changed = admin.patch::<StorageClass>(None, "local", &patch).await;
    changed.expect("an admin changes it");
    let other = json!({"metadata": {"name": "own"}, "provisioner": "example.com/p"});
    make(&cluster, CLASSES, other).await;
    let mut last = start();
    let keys = last.1.list::<NodeView>(vec![machine("one")], 9);
    run(&last, keys).await;
    assert_eq!(names().await, ["local", "own"]);
    let class = cluster.get(&format!("{CLASSES}/local")).await;
    assert_eq!(class["metadata"]["annotations"], json!({MARK: "false"}));
}
