//! Controllers with an old view of the cluster: they read from the API before they do anything that
//! cannot be undone.

use super::{Cluster, MAPS, cluster_without, make};
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod};
use config_kube::k8s_openapi::api::rbac::v1::ClusterRole;
use config_kube::taints::OUT_OF_SERVICE;
use master_client::{Change, Client, DeleteParams, Key, ListParams, Patch};
use master_control::controller::Now;
use master_control::options::Options;
use master_control::queue::Outcome;
use master_control::setup::{Setup, TestStores};
use master_control::views::node::NodeView;
use master_control::views::pod::PodView;
use master_control_cluster::garbage::Garbage;
use master_control_nodes::pod_gc::PodGc;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The path of ClusterRoles.
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
/// A UID that no object has.
const NOBODY: &str = "00000000-0000-4000-8000-000000000001";

async fn node(admin: &Client, name: &str) -> Node {
    let node = admin.get(None, name).await;
    node.expect("the node is there")
}

/// Someone marks a silent machine as out of service.
async fn put_out_of_service(cluster: &Cluster, name: &str) {
    let taint = json!({"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"});
    let patch = Patch::Merge(json!({"spec": {"taints": [taint]}}));
    let tainted = cluster.admin.patch::<Node>(None, name, &patch).await;
    tainted.expect("the taint is taken");
    let silent = json!({"type": "Ready", "status": "Unknown"});
    let patch = Patch::Strategic(json!({"status": {"conditions": [silent]}}));
    let said = cluster.admin.patch_status::<Node>(None, name, &patch).await;
    said.expect("the node is silent");
}

#[tokio::test]
async fn pods_that_end_on_a_machine_in_service_again_are_left_to_its_kubelet() {
    let cluster = cluster_without().await;
    cluster.node("off").await;
    cluster.running_pod("ends", "off", 300).await;
    let params = DeleteParams::default();
    let deleted = cluster
        .admin
        .delete::<Pod>(Some("default"), "ends", &params);
    deleted.await.expect("the pod begins to end");
    let pod: Option<Pod> = cluster
        .admin
        .get_opt(Some("default"), "ends")
        .await
        .expect("pods are served");
    put_out_of_service(&cluster, "off").await;

    let (pod_gc, mut stand) = Setup::for_test::<PodGc>(&Options::default());
    stand.see::<PodView>(pod.expect("its kubelet has not ended it"));
    stand.see::<NodeView>(node(&cluster.admin, "off").await);
    let in_service = Patch::Merge(json!({"spec": {"taints": null}}));
    let taken = cluster.admin.patch::<Node>(None, "off", &in_service).await;
    taken.expect("the taint is taken away");
    cluster.ready("off").await;
    let (key, own) = (Key::new("default", "ends"), &cluster.own);
    let is_there = async || {
        let found = cluster.admin.get_opt::<Pod>(Some("default"), "ends").await;
        found.expect("pods are served").is_some()
    };
    drop(stand.run(&pod_gc, &key, Now::read(), own).await);
    assert!(is_there().await, "the machine is in service again");

    put_out_of_service(&cluster, "off").await;
    drop(stand.run(&pod_gc, &key, Now::read(), own).await);
    assert!(!is_there().await, "no kubelet will end it");
}

/// The collector watches each kind separately: it can see the deletion of an owner before it sees
/// an object that it owns.
#[tokio::test]
async fn a_dependent_that_the_collector_has_not_seen_is_orphaned_with_the_others() {
    let cluster = cluster_without().await;
    let owner = make(&cluster, MAPS, json!({"metadata": {"name": "owner"}})).await;
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": owner["metadata"]["uid"]});
    let child = json!({"metadata": {"name": "child", "ownerReferences": [reference]}});
    make(&cluster, MAPS, child).await;
    let orphan = DeleteParams {
        propagation: Some("Orphan"),
        ..DeleteParams::default()
    };
    let deleted = cluster
        .admin
        .delete::<ConfigMap>(Some("default"), "owner", &orphan);
    deleted.await.expect("it waits for the collector");

    let (garbage, mut stand) = Setup::for_test::<Garbage>(&Options::default());
    let keys = listed(&cluster, &mut stand, "configmaps", &["owner"]).await;
    assert_eq!(keys.len(), 1, "the owner alone");
    let outcome = stand.run(&garbage, &keys[0], Now::read(), &cluster.own);
    drop(outcome.await);
    let owner = cluster
        .admin
        .get_opt::<ConfigMap>(Some("default"), "owner")
        .await;
    assert_eq!(owner.expect("maps are served"), None, "it is gone");
    let child: ConfigMap = cluster
        .admin
        .get(Some("default"), "child")
        .await
        .expect("it stays");
    assert_eq!(child.metadata.owner_references, None);
}

/// Passes a list of a kind to a collector that follows all kinds; returns the keys that this
/// concerns.
async fn listed(
    cluster: &Cluster,
    stand: &mut TestStores,
    plural: &str,
    names: &[&str],
) -> Vec<Key> {
    let resources = cluster.admin.resources();
    stand.serve(&resources);
    let kind = resources.iter().find(|kind| kind.plural == plural);
    let kind = kind.expect("the kind is served");
    let namespace = if kind.namespaced { "default" } else { "" };
    let params = ListParams::default();
    let all = cluster.admin.partials(kind, namespace, &params).await;
    let mut all = all.expect("they are listed").items;
    all.retain(|object| names.contains(&object.metadata.name.as_str()));
    stand.meet(&kind.group, &kind.kind, &Change::Listed(all))
}

/// Nothing is tried again.
fn assert_idle(outcome: &Outcome) {
    let idle =
        matches!(outcome, Outcome::Done { requeue: None, expectations } if expectations.is_empty());
    assert!(idle, "{outcome:?}");
}

/// An owner's kind may be added later: until then nothing is tried again.
#[tokio::test]
async fn an_object_with_an_owner_of_a_kind_that_nobody_serves_waits_for_further_kinds() {
    let cluster = cluster_without().await;
    let reference =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "name": "owner", "uid": NOBODY});
    let kept = json!({"metadata": {"name": "kept", "ownerReferences": [reference]}});
    make(&cluster, MAPS, kept).await;

    let (garbage, mut stand) = Setup::for_test::<Garbage>(&Options::default());
    let keys = listed(&cluster, &mut stand, "configmaps", &["kept"]).await;
    assert_eq!(keys.len(), 1, "its owner seems to be gone");
    let outcome = stand.run(&garbage, &keys[0], Now::read(), &cluster.own);
    assert_idle(&outcome.await);
    let kept = cluster.admin.get::<ConfigMap>(Some("default"), "kept");
    kept.await.expect("it stays");

    let again = stand.meet("", "Secret", &Change::Listed(Vec::new()));
    assert_eq!(again, keys, "a further kind is listed");
    let again = stand.meet("", "Secret", &Change::Listed(Vec::new()));
    assert!(again.is_empty(), "{again:?}: it is the same kind");
}

/// A ClusterRole that names a ConfigMap as its owner.
async fn owned_role(cluster: &Cluster, name: &str, owner: &Value) {
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner});
    let role = json!({"metadata": {"name": name, "ownerReferences": [reference]}, "rules": []});
    make(cluster, ROLES, role).await;
}

/// The numbers of events with a reason, by the names of their objects.
async fn reported(cluster: &Cluster, reason: &str) -> BTreeMap<String, usize> {
    let params = ListParams::default();
    let all = cluster.admin.list::<Event>(Some("default"), &params).await;
    let all = all.expect("events are served").items.into_iter();
    let mut found = BTreeMap::new();
    for event in all.filter(|event| event.reason.as_deref() == Some(reason)) {
        let name = event.involved_object.name.unwrap_or_default();
        *found.entry(name).or_default() += 1;
    }
    found
}

/// A cluster-scoped object cannot have a namespaced owner: it stays whatever happens to that
/// (upstream's rule).
#[tokio::test]
async fn a_cluster_scoped_object_with_an_owner_of_a_namespaced_kind_stays_with_one_event() {
    let cluster = cluster_without().await;
    let owner = make(&cluster, MAPS, json!({"metadata": {"name": "owner"}})).await;
    owned_role(&cluster, "owned", &owner["metadata"]["uid"]).await;
    owned_role(&cluster, "left", &json!(NOBODY)).await;
    let names = ["left", "owned"];

    let (garbage, mut stand) = Setup::for_test::<Garbage>(&Options::default());
    listed(&cluster, &mut stand, "configmaps", &["owner"]).await;
    for _ in 0..3 {
        let keys = listed(&cluster, &mut stand, "clusterroles", &names).await;
        assert_eq!(keys.len(), 2, "whether their owner is there or not");
        for key in &keys {
            let outcome = stand.run(&garbage, key, Now::read(), &cluster.own);
            assert_idle(&outcome.await);
        }
    }
    let once: BTreeMap<String, usize> = names.map(|name| (name.to_owned(), 1)).into();
    assert_eq!(reported(&cluster, "OwnerRefInvalidNamespace").await, once);
    for name in names {
        let found = cluster.admin.get::<ClusterRole>(None, name).await;
        found.expect("it stays");
    }

    // An owner of a cluster-scoped kind that does not exist.
    let reference = json!({"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": NOBODY});
    let change = Patch::Merge(json!({"metadata": {"ownerReferences": [reference]}}));
    let changed = cluster.admin.patch::<ClusterRole>(None, "left", &change);
    changed.await.expect("it has another owner");
    for key in listed(&cluster, &mut stand, "clusterroles", &names).await {
        let outcome = stand.run(&garbage, &key, Now::read(), &cluster.own);
        drop(outcome.await);
    }
    let left = cluster.admin.get_opt::<ClusterRole>(None, "left").await;
    assert_eq!(left.expect("roles are served"), None, "it is collected");
    assert_eq!(reported(&cluster, "OwnerRefInvalidNamespace").await, once);
}
