//! How objects go: at once, with grace, after finalizers, with what depends on them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use crate::retired;
use crate::verbs::{MAPS, PODS, one_container, pod};
use config_kube::k8s_openapi::api::core::v1::ConfigMap;
use futures_util::FutureExt as _;
use http::{Method, StatusCode};
use master_client::UserInfo;
use master_store::{Op, Store as _};
use serde_json::{Value, json};

#[tokio::test]
async fn a_pod_is_bound_once_and_goes_when_its_kubelet_says_so() {
    let server = Local::new().await;
    server
        .admin_ask(Method::POST, PODS, &pod("p", &one_container()))
        .await;
    let binding =
        |node: &str| json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}});
    let path = format!("{PODS}/p/binding");
    assert_eq!(
        server
            .admin_ask(Method::POST, &path, &binding("n1"))
            .await
            .0,
        StatusCode::CREATED
    );
    assert_eq!(
        server
            .admin_ask(Method::POST, &path, &binding("n2"))
            .await
            .0,
        StatusCode::CONFLICT
    );
    let (_, bound) = server
        .admin_ask(Method::GET, &format!("{PODS}/p"), &Value::Null)
        .await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    let scheduled = &bound["status"]["conditions"][0];
    assert_eq!(scheduled["type"], "PodScheduled");
    assert_eq!(
        scheduled["observedGeneration"],
        bound["metadata"]["generation"]
    );
    let (_, going) = server
        .admin_ask(Method::DELETE, &format!("{PODS}/p"), &Value::Null)
        .await;
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    let now = json!({"gracePeriodSeconds": 0});
    let (status, gone) = server
        .admin_ask(Method::DELETE, &format!("{PODS}/p"), &now)
        .await;
    assert_eq!(
        (status, &gone["kind"]),
        (StatusCode::OK, &json!("Pod")),
        "a pod's deletion answers with the pod"
    );
    server
        .admin_ask(Method::POST, PODS, &pod("q", &one_container()))
        .await;
    let (_, gone) = server
        .admin_ask(Method::DELETE, &format!("{PODS}/q"), &Value::Null)
        .await;
    assert_eq!(
        gone["metadata"]["deletionGracePeriodSeconds"], 0,
        "no kubelet has it, so it goes at once"
    );
    assert_eq!(
        server
            .admin_ask(Method::GET, &format!("{PODS}/q"), &Value::Null)
            .await
            .0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn finalizers_hold_an_object_until_they_are_taken_away() {
    let server = Local::new().await;
    let held = json!({"metadata": {"name": "h", "finalizers": ["example.com/hold"]}});
    server.admin_ask(Method::POST, MAPS, &held).await;
    let path = format!("{MAPS}/h");
    let (_, going) = server.admin_ask(Method::DELETE, &path, &Value::Null).await;
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    assert_eq!(
        server.admin_ask(Method::PATCH, &path, &more).await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    server
        .admin_ask(
            Method::PATCH,
            &path,
            &json!({"metadata": {"finalizers": null}}),
        )
        .await;
    assert_eq!(
        server.admin_ask(Method::GET, &path, &Value::Null).await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn a_namespace_goes_when_it_is_finalized_and_takes_nothing_new_before() {
    let server = Local::new().await;
    let spaces = "/api/v1/namespaces";
    server
        .admin_ask(Method::POST, spaces, &json!({"metadata": {"name": "n"}}))
        .await;
    let (_, going) = server
        .admin_ask(Method::DELETE, &format!("{spaces}/n"), &Value::Null)
        .await;
    assert_eq!(going["status"]["phase"], "Terminating");
    let map = json!({"metadata": {"name": "a"}});
    let (status, error) = server
        .admin_ask(Method::POST, "/api/v1/namespaces/n/configmaps", &map)
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{error}");
    let mut done = going;
    done["spec"]["finalizers"] = json!([]);
    let (status, _) = server
        .admin_ask(Method::PUT, &format!("{spaces}/n/finalize"), &done)
        .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        server
            .admin_ask(Method::GET, &format!("{spaces}/n"), &Value::Null)
            .await
            .0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        server
            .admin_ask(Method::DELETE, &format!("{spaces}/default"), &Value::Null)
            .await
            .0,
        StatusCode::FORBIDDEN
    );
}

#[tokio::test]
async fn dependents_are_orphaned_or_deleted_first_by_a_finalizer() {
    let server = Local::new().await;
    for (name, body) in [
        ("f", json!({"propagationPolicy": "Foreground"})),
        ("o", json!({"propagationPolicy": "Orphan"})),
        ("d", json!({"orphanDependents": true})),
    ] {
        server
            .admin_ask(Method::POST, MAPS, &json!({"metadata": {"name": name}}))
            .await;
        let (status, going) = server
            .admin_ask(Method::DELETE, &format!("{MAPS}/{name}"), &body)
            .await;
        assert_eq!(status, StatusCode::OK, "{going}");
        let expected = if name == "f" {
            "foregroundDeletion"
        } else {
            "orphan"
        };
        assert_eq!(going["metadata"]["finalizers"], json!([expected]));
        assert!(going["metadata"]["deletionTimestamp"].is_string());
        let done = json!({"metadata": {"finalizers": null}});
        server
            .admin_ask(Method::PATCH, &format!("{MAPS}/{name}"), &done)
            .await;
        assert_eq!(
            server
                .admin_ask(Method::GET, &format!("{MAPS}/{name}"), &Value::Null)
                .await
                .0
                .as_u16(),
            404
        );
    }
    let both = json!({"orphanDependents": true, "propagationPolicy": "Orphan"});
    assert_eq!(
        server
            .admin_ask(Method::DELETE, &format!("{MAPS}/x"), &both)
            .await
            .0
            .as_u16(),
        422
    );
}

#[tokio::test]
async fn thousands_go_at_once() {
    let server = Local::new().await;
    let mut writers = tokio::task::JoinSet::new();
    for task in 0..8 {
        let client = server.admin();
        writers.spawn(async move {
            for number in 0..64 {
                let object = json!({"metadata": {"name": format!("m{task}-{number}"), "namespace": "default"}});
                client.create::<ConfigMap>(&serde_json::from_value(object).unwrap()).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    let (status, deleted) = server.admin_ask(Method::DELETE, MAPS, &Value::Null).await;
    assert_eq!(
        (status, deleted["items"].as_array().unwrap().len()),
        (StatusCode::OK, 512)
    );
    let (_, left) = server.admin_ask(Method::GET, MAPS, &Value::Null).await;
    assert_eq!(left["items"], json!([]));
}

#[tokio::test]
async fn services_that_free_more_ports_than_a_transaction_has_room_for_go_at_once() {
    let server = Local::new().await;
    let services = "/api/v1/namespaces/default/services";
    let ports: Vec<Value> = (1..=600)
        .map(|port| json!({"name": format!("p{port}"), "port": port}))
        .collect();
    for name in ["a", "b"] {
        let metadata = json!({"name": name, "labels": {"app": "web"}});
        let service = json!({"metadata": metadata, "spec": {"type": "NodePort", "ports": ports}});
        let (status, made) = server.admin_ask(Method::POST, services, &service).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
    }
    let both = format!("{services}?labelSelector=app%3Dweb");
    let (status, deleted) = server.admin_ask(Method::DELETE, &both, &Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{deleted}");
    let (_, left) = server.admin_ask(Method::GET, &both, &Value::Null).await;
    assert_eq!(left["items"], json!([]));
}

#[tokio::test]
async fn large_objects_whose_deletion_waits_are_deleted_together() {
    let server = Local::new().await;
    let large = "x".repeat(1_000_000);
    // More bytes than the store takes in one transaction.
    for number in 0..18 {
        let map = json!({"metadata": {"name": format!("m{number}")}, "data": {"a": large}});
        let (status, made) = server.admin_ask(Method::POST, MAPS, &map).await;
        assert_eq!(status, StatusCode::CREATED, "{}", made["message"]);
    }
    let waits = json!({"propagationPolicy": "Foreground"});
    let (status, deleted) = server.admin_ask(Method::DELETE, MAPS, &waits).await;
    assert_eq!(status, StatusCode::OK, "{}", deleted["message"]);
    for number in 0..18 {
        let path = format!("{MAPS}/m{number}");
        let (_, going) = server.admin_ask(Method::GET, &path, &Value::Null).await;
        assert!(
            going["metadata"]["deletionTimestamp"].is_string(),
            "{number}"
        );
    }
}

#[tokio::test]
async fn a_jobs_deletion_says_that_its_pods_stay_also_where_another_writer_was_first() {
    let (server, stepped, _list) = retired::server().await;
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": template}});
    let (status, made) = server.admin_ask(Method::POST, jobs, &job).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let stop = stepped.commits.turn.clone().lock_owned().await;
    // Those who came before are forgotten.
    let _ = stepped.commits.came.notified().now_or_never();
    let (admin, path) = (UserInfo::admin("admin"), format!("{jobs}/j"));
    let mut deletion = retired::send(&server, &admin, Method::DELETE, &path, &json!({}));
    retired::until(&stepped.commits.came, &mut deletion).await;
    let listing = stepped.store.everything().await.unwrap();
    let stored = listing.entries.iter();
    let stored = stored.filter(|entry| entry.key.ends_with("/default/j"));
    for entry in stored {
        let same = Op::update(&entry.key, entry.modified, entry.value.bytes());
        stepped.store.commit(vec![same]).await.unwrap();
    }
    drop(stop);
    let answer = deletion.await;
    assert_eq!(answer.status(), StatusCode::OK);
    let (_, stored) = server.admin_ask(Method::GET, &path, &Value::Null).await;
    assert_eq!(stored["metadata"]["finalizers"], json!(["orphan"]));
    let warning = answer.headers().get("warning").unwrap().to_str().unwrap();
    assert!(
        warning.contains("child pods are preserved by default"),
        "{warning}"
    );
}
