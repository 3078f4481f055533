//! The services that every cluster has: they and their addresses stay, whatever is done to them.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::allocation::{create, options};
use crate::common::Local;
use http::{Method, StatusCode};
use master_api::{ApiServer, Options};
use master_store::{EmbeddedStore, Store};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

const API: &str = "/api/v1/namespaces/default/services/kubernetes";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
const NAMES: &str = "/api/v1/namespaces/kube-system/services/kube-dns";
const RANGE: &str = "/apis/networking.k8s.io/v1/servicecidrs/kubernetes";
/// Time for what a server does, on a machine that is busy with others.
const LIMIT: Duration = Duration::from_secs(180);

/// A server, and its store for another one.
pub(crate) async fn over_a_store(options: Options) -> (Local, Arc<dyn Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
    let api = ApiServer::new(Arc::clone(&store), options);
    api.prepare().await.unwrap();
    (Local::of(api, folder), store)
}

async fn get(server: &Local, path: &str) -> (StatusCode, Value) {
    server.admin_ask(Method::GET, path, &Value::Null).await
}

/// What somebody wants of an object: all but its metadata, of which the labels.
fn meaning(object: &Value) -> Value {
    let mut meaning = object.clone();
    meaning["metadata"] = object["metadata"]["labels"].clone();
    meaning
}

/// Waits until an object is as it was.
async fn is_again(server: &Local, path: &str, before: &Value) {
    let begun = Instant::now();
    loop {
        let (_, found) = get(server, path).await;
        if meaning(&found) == meaning(before) {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{path}: {found}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn services_of_every_cluster_come_again_while_the_master_runs() {
    let server = Local::with(options(&["10.96.0.0/24"], 30000..=32767)).await;
    let api = server.api.clone();
    let keeping = tokio::spawn(async move { api.keep_services(Duration::from_millis(20)).await });
    for path in [API, ENDPOINTS, SLICE, NAMES] {
        let (status, before) = get(&server, path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {before}");
        let (status, gone) = server.admin_ask(Method::DELETE, path, &Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{path}: {gone}");
        is_again(&server, path, &before).await;
    }
    let elsewhere = json!([{"addresses": ["192.0.2.66"]}]);
    let changes = [
        (
            API,
            json!({"spec": {"ports": [{"name": "https", "port": 6443}]}}),
        ),
        (ENDPOINTS, json!({"subsets": []})),
        (SLICE, json!({"endpoints": elsewhere})),
        (
            SLICE,
            json!({"metadata": {"labels": {"kubernetes.io/service-name": null}}}),
        ),
    ];
    for (path, change) in changes {
        let (_, before) = get(&server, path).await;
        let (status, after) = server.admin_ask(Method::PATCH, path, &change).await;
        assert_eq!(status, StatusCode::OK, "{path}: {after}");
        assert_ne!(meaning(&after), meaning(&before), "{path}");
        is_again(&server, path, &before).await;
    }
    keeping.abort();
}

#[tokio::test]
async fn what_is_as_it_should_be_is_not_written() {
    let server = Local::with(options(&["10.96.0.0/24"], 30000..=32767)).await;
    let versions = async || {
        let mut versions = Vec::new();
        for path in [API, ENDPOINTS, SLICE, NAMES, RANGE] {
            let (status, found) = get(&server, path).await;
            assert_eq!(status, StatusCode::OK, "{path}");
            versions.push(found["metadata"]["resourceVersion"].clone());
        }
        versions
    };
    let before = versions().await;
    server.api.prepare().await.unwrap();
    assert_eq!(versions().await, before);
    // Somebody opens the API's at a port of nodes.
    let open = json!({"spec": {"type": "NodePort"}});
    let (status, opened) = server.admin_ask(Method::PATCH, API, &open).await;
    assert_eq!(status, StatusCode::OK, "{opened}");
    let before = versions().await;
    server.api.prepare().await.unwrap();
    assert_eq!(versions().await, before);
}

/// Also while those services are gone.
#[tokio::test]
async fn no_other_service_gets_an_address_of_these() {
    let server = Local::with(options(&["10.96.0.0/28", "fd00:96::/112"], 30000..=32767)).await;
    for path in [API, NAMES] {
        let (status, gone) = server.admin_ask(Method::DELETE, path, &Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{gone}");
    }
    for (address, keeper) in [
        ("10.96.0.1", "default/kubernetes"),
        ("10.96.0.10", "kube-system/kube-dns"),
        ("fd00:96::a", "kube-system/kube-dns"),
    ] {
        let asked = json!({"clusterIP": address, "ports": [{"port": 443}]});
        let (status, refusal) = create(&server, "taker", &asked).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{refusal}");
        let why = format!(
            "failed to allocate IP {address}: provided IP is kept for the service {keeper}"
        );
        let message = refusal["message"].as_str().unwrap();
        assert!(message.ends_with(&why), "{message}");
    }
    // Of 14 addresses the two are left when no service gets one any more.
    let mut given = BTreeSet::new();
    for number in 0..12 {
        let (status, made) = create(
            &server,
            &format!("s{number}"),
            &json!({"ports": [{"port": 80}]}),
        )
        .await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        given.insert(made["spec"]["clusterIP"].as_str().unwrap().to_owned());
    }
    let (status, refusal) = create(&server, "s12", &json!({"ports": [{"port": 80}]})).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{refusal}");
    assert!(
        !given.contains("10.96.0.1") && !given.contains("10.96.0.10"),
        "{given:?}"
    );
    server.api.prepare().await.unwrap();
    assert_eq!(get(&server, API).await.1["spec"]["clusterIP"], "10.96.0.1");
    let names = get(&server, NAMES).await.1;
    assert_eq!(
        names["spec"]["clusterIPs"],
        json!(["10.96.0.10", "fd00:96::a"])
    );
}

/// As where the cluster's range is configured anew, and the old service was deleted for it.
#[tokio::test]
async fn a_master_starts_where_another_service_has_the_address_of_the_apis() {
    let (server, store) = over_a_store(options(&["10.96.0.0/24"], 30000..=32767)).await;
    let taker = json!({"clusterIP": "10.96.0.129", "ports": [{"port": 80}]});
    let (status, made) = create(&server, "taker", &taker).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let (status, gone) = server.admin_ask(Method::DELETE, API, &Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{gone}");
    let next = ApiServer::new(store, options(&["10.96.0.128/25"], 30000..=32767));
    next.prepare().await.unwrap();
    assert_eq!(get(&server, API).await.0, StatusCode::NOT_FOUND);
    // The service keeps its address, whatever else of it changes, until it goes.
    let path = "/api/v1/namespaces/default/services/taker";
    let change = json!({"spec": {"sessionAffinity": "ClientIP"}});
    let mine = Local::of(next, tempfile::tempdir().unwrap());
    let (status, changed) = mine.admin_ask(Method::PATCH, path, &change).await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    let (status, gone) = mine.admin_ask(Method::DELETE, path, &Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{gone}");
    mine.api.prepare().await.unwrap();
    assert_eq!(get(&mine, API).await.1["spec"]["clusterIP"], "10.96.0.129");
}
