//! Deletion: namespaces with their content, and objects without owners.

use super::{Cluster, MAPS, cluster, cluster_without, eventually, exists, make};
use config_kube::k8s_openapi::api::core::v1::{
    ConfigMap, Event, Namespace, Pod, Secret, ServiceAccount,
};
use master_client::{DeleteParams, Key, ListParams, Patch};
use master_control::controller::Now;
use master_control::queue::Outcome;
use master_control::setup::Setup;
use master_control::views::namespace::NamespaceView;
use master_control_cluster::namespace::Namespaces;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_namespace_is_removed_with_its_content() {
    let cluster = cluster().await;
    let admin = &cluster.admin;
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": "team"}})).expect("a namespace");
    admin
        .create(&namespace)
        .await
        .expect("the namespace is made");
    eventually("it gets its account", || {
        Box::pin(async {
            admin
                .get_opt::<ServiceAccount>(Some("team"), "default")
                .await
                .expect("served")
                .is_some()
        })
    })
    .await;
    let held = json!({"metadata": {"namespace": "team", "name": "held", "finalizers": ["example.com/hold"]}});
    admin
        .create(&serde_json::from_value::<ConfigMap>(held).expect("a map"))
        .await
        .expect("the map is made");
    let secret = json!({"metadata": {"namespace": "team", "name": "s"}, "stringData": {"a": "b"}});
    admin
        .create(&serde_json::from_value::<Secret>(secret).expect("a secret"))
        .await
        .expect("the secret is made");
    let pod = json!({"metadata": {"namespace": "team", "name": "p"},
        "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]}});
    admin
        .create(&serde_json::from_value::<Pod>(pod).expect("a pod"))
        .await
        .expect("the pod is made");
    admin
        .delete::<Namespace>(None, "team", &DeleteParams::default())
        .await
        .expect("it is to be deleted");
    eventually("it says what holds it", || {
        Box::pin(async {
            let namespace: Namespace = admin.get(None, "team").await.expect("it is held");
            let conditions = namespace
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let says = |kind: &str, text: &str| {
                conditions.iter().any(|condition| {
                    condition.type_ == kind
                        && condition
                            .message
                            .as_deref()
                            .is_some_and(|message| message.contains(text))
                })
            };
            says(
                "NamespaceFinalizersRemaining",
                "example.com/hold in 1 resource instances",
            ) && says(
                "NamespaceContentRemaining",
                "configmaps. has 1 resource instances",
            )
        })
    })
    .await;
    assert!(
        admin
            .get_opt::<Secret>(Some("team"), "s")
            .await
            .expect("served")
            .is_none()
    );
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    admin
        .patch::<ConfigMap>(Some("team"), "held", &free)
        .await
        .expect("it is let go");
    eventually("it is gone", || {
        Box::pin(async {
            admin
                .get_opt::<Namespace>(None, "team")
                .await
                .expect("served")
                .is_none()
        })
    })
    .await;
}

fn owned(name: &str, owner: &Value, block: bool) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap",
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "blockOwnerDeletion": block}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_from_under_the_pods_of_a_namespace_that_goes() {
    let cluster = cluster().await;
    make(
        &cluster,
        "/api/v1/namespaces",
        json!({"metadata": {"name": "team"}}),
    )
    .await;
    let policies = "/apis/networking.k8s.io/v1/namespaces/team/networkpolicies";
    make(
        &cluster,
        policies,
        json!({"metadata": {"name": "deny"}, "spec": {"podSelector": {}}}),
    )
    .await;
    let account = "/api/v1/namespaces/team/serviceaccounts/default";
    eventually("it has its account", || Box::pin(exists(&cluster, account))).await;
    let pod = json!({"metadata": {"name": "p", "finalizers": ["example.com/hold"]},
        "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]}});
    make(&cluster, "/api/v1/namespaces/team/pods", pod).await;
    let params = DeleteParams::default();
    let deleted = cluster.admin.delete::<Namespace>(None, "team", &params);
    deleted.await.expect("it is to be deleted");
    eventually("it says that a pod remains", || {
        Box::pin(async {
            let namespace = cluster.get("/api/v1/namespaces/team").await;
            let text = namespace["status"]["conditions"].to_string();
            text.contains("Some resources are remaining: pods. has 1 resource instances")
        })
    })
    .await;
    let policy = cluster.get(&format!("{policies}/deny")).await;
    assert_eq!(policy["kind"], "NetworkPolicy", "{policy}");
    assert_eq!(policy["metadata"].get("deletionTimestamp"), None);
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let freed = cluster.admin.patch::<Pod>(Some("team"), "p", &free);
    freed.await.expect("the pod may go");
    eventually("the namespace is gone", || {
        Box::pin(async { !exists(&cluster, "/api/v1/namespaces/team").await })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_objects_that_are_held_hides_none_behind_it_from_a_namespaces_deletion() {
    let cluster = cluster().await;
    let team = json!({"metadata": {"name": "team"}});
    make(&cluster, "/api/v1/namespaces", team).await;
    let secrets = "/api/v1/namespaces/team/secrets";
    // As many as the controller lists at once.
    for number in 0..500 {
        let held = json!({"metadata": {"name": format!("held-{number:03}"), "finalizers": ["example.com/hold"]}});
        make(&cluster, secrets, held).await;
    }
    make(&cluster, secrets, json!({"metadata": {"name": "last"}})).await;
    let params = DeleteParams::default();
    let deleted = cluster.admin.delete::<Namespace>(None, "team", &params);
    deleted.await.expect("it is to be deleted");
    let last = format!("{secrets}/last");
    eventually("the last one goes", || {
        Box::pin(async { !exists(&cluster, &last).await })
    })
    .await;
    assert!(exists(&cluster, &format!("{secrets}/held-000")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_whose_objects_are_held_is_looked_at_more_and_more_seldom() {
    // The controller of this test goes round by round.
    let cluster = cluster_without().await;
    let team = json!({"metadata": {"name": "team"}});
    make(&cluster, "/api/v1/namespaces", team).await;
    // More than the controller lists at once.
    for number in 0..501 {
        let held = json!({"metadata": {"name": format!("held-{number:03}"), "finalizers": ["example.com/hold"]}});
        make(&cluster, "/api/v1/namespaces/team/secrets", held).await;
    }
    let params = DeleteParams::default();
    let deleted = cluster
        .admin
        .delete::<Namespace>(None, "team", &params)
        .await;
    deleted.expect("it is to be deleted");
    let going: Namespace = cluster.admin.get(None, "team").await.expect("it is there");
    let (controller, mut stand) =
        Setup::for_test::<Namespaces>(&master_control::Options::default());
    stand.see::<NamespaceView>(going);
    let (key, mut pauses) = (Key::cluster("team"), Vec::new());
    for _ in 0..8 {
        let round = stand.run(&controller, &key, Now::read(), &cluster.admin);
        match round.await {
            Outcome::Done { requeue, .. } => pauses.extend(requeue.map(|pause| pause.as_secs())),
            failed @ Outcome::Retry { .. } => panic!("{failed:?}"),
        }
    }
    // The first round deletes them all, and the others find nothing to delete.
    assert_eq!(pauses, [1, 1, 2, 4, 8, 16, 16, 16]);
}

async fn delete(cluster: &Cluster, name: &str, policy: &'static str) {
    let params = DeleteParams {
        propagation: Some(policy),
        ..DeleteParams::default()
    };
    cluster
        .admin
        .delete::<ConfigMap>(Some("default"), name, &params)
        .await
        .expect("it is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_without_owners_are_deleted_and_orphaned_ones_stay() {
    let cluster = cluster().await;
    let owner = make(&cluster, MAPS, json!({"metadata": {"name": "owner"}})).await;
    let child = make(&cluster, MAPS, owned("child", &owner, false)).await;
    make(&cluster, MAPS, owned("grandchild", &child, false)).await;
    let patron = make(&cluster, MAPS, json!({"metadata": {"name": "patron"}})).await;
    make(&cluster, MAPS, owned("orphan", &patron, true)).await;
    delete(&cluster, "patron", "Orphan").await;
    eventually("the orphan has no owner", || {
        Box::pin(async {
            let orphan = cluster.get(&format!("{MAPS}/orphan")).await;
            orphan["metadata"].get("ownerReferences").is_none()
                && !exists(&cluster, &format!("{MAPS}/patron")).await
        })
    })
    .await;
    delete(&cluster, "owner", "Background").await;
    eventually("all that it owned is gone", || {
        Box::pin(async {
            !exists(&cluster, &format!("{MAPS}/child")).await
                && !exists(&cluster, &format!("{MAPS}/grandchild")).await
        })
    })
    .await;
    assert!(exists(&cluster, &format!("{MAPS}/orphan")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn foreground_deletion_waits_for_blocking_dependents() {
    let cluster = cluster().await;
    let owner = make(&cluster, MAPS, json!({"metadata": {"name": "owner"}})).await;
    let mut child = owned("child", &owner, true);
    child["metadata"]["finalizers"] = json!(["example.com/hold"]);
    make(&cluster, MAPS, child).await;
    delete(&cluster, "owner", "Foreground").await;
    eventually("the child is being deleted", || {
        Box::pin(async {
            let child = cluster.get(&format!("{MAPS}/child")).await;
            child["metadata"].get("deletionTimestamp").is_some()
        })
    })
    .await;
    assert!(
        exists(&cluster, &format!("{MAPS}/owner")).await,
        "it waits for the child"
    );
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    cluster
        .admin
        .patch::<ConfigMap>(Some("default"), "child", &free)
        .await
        .expect("it is let go");
    eventually("both are gone", || {
        Box::pin(async {
            !exists(&cluster, &format!("{MAPS}/child")).await
                && !exists(&cluster, &format!("{MAPS}/owner")).await
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_in_another_namespace_is_ignored_with_an_event() {
    let cluster = cluster().await;
    let elsewhere = "/api/v1/namespaces/kube-system/configmaps";
    let owner = make(&cluster, elsewhere, json!({"metadata": {"name": "owner"}})).await;
    make(&cluster, MAPS, owned("child", &owner, false)).await;
    eventually("it goes, and an event says why", || {
        Box::pin(async {
            let events = cluster
                .admin
                .list::<Event>(Some("default"), &ListParams::default())
                .await
                .expect("served");
            let reported =
                |event: &Event| event.reason.as_deref() == Some("OwnerRefInvalidNamespace");
            !exists(&cluster, &format!("{MAPS}/child")).await && events.items.iter().any(reported)
        })
    })
    .await;
    assert!(exists(&cluster, &format!("{elsewhere}/owner")).await);
}
