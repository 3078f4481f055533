//! Lists that were stored longer than they may be now stay, and their objects can be changed.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::{Local, prepared};
use http::{Method, StatusCode};
use master_api::{ApiServer, Options};
use master_store::{Action, EmbeddedStore, Expect, Op, Store};
use serde_json::{Value, json};
use std::sync::Arc;

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";

/// A server and the store below it.
struct Cluster {
    server: Local,
    store: Arc<dyn Store>,
}

impl Cluster {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::default();
        prepared::fill(folder.path(), &options);
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
        let api = ApiServer::new(Arc::clone(&store), options);
        api.prepare().await.unwrap();
        let server = Local::of(api, folder);
        Self { server, store }
    }

    async fn create(&self, collection: &str, spec: &Value) {
        let object = json!({"metadata": {"name": "a"}, "spec": spec});
        let (status, answer) = self
            .server
            .admin_ask(Method::POST, collection, &object)
            .await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }

    /// Writes a part of a stored object, as a master without limits did.
    async fn put(&self, key: &str, pointer: &str, part: Value) {
        let entry = self.store.get(key).await.unwrap().entry.unwrap();
        let mut object: Value = serde_json::from_slice(&entry.value.bytes()).unwrap();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[field] = part;
        let put = Op {
            key: key.into(),
            expect: Expect::Any,
            action: Action::Put(serde_json::to_vec(&object).unwrap().into()),
        };
        self.store.commit(vec![put]).await.unwrap();
    }

    /// The status code of a merge patch, and the message of a refusal.
    async fn patch(&self, at: &str, patch: &Value) -> (StatusCode, String) {
        let (status, answer) = self.server.admin_ask(Method::PATCH, at, patch).await;
        let message = answer["message"].as_str().unwrap_or_default();
        (status, message.to_owned())
    }
}

/// So many different addresses.
fn addresses(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("10.1.{}.{}", number / 250, number % 250 + 1))
}

fn taken() -> (StatusCode, String) {
    (StatusCode::OK, String::new())
}

#[tokio::test]
async fn a_rule_before_one_with_too_many_peers_can_be_removed() {
    let cluster = Cluster::new().await;
    let peer = |address: String| json!({"ipBlock": {"cidr": format!("{address}/32")}});
    let rule = |count: usize| json!({"from": addresses(count).map(peer).collect::<Vec<_>>()});
    let spec = json!({"podSelector": {}, "ingress": [{}, rule(1)]});
    cluster.create(POLICIES, &spec).await;
    let (key, at) = (
        "networkpolicies.networking.k8s.io/default/a",
        format!("{POLICIES}/a"),
    );
    let stored = json!([rule(1), rule(1001)]);
    cluster.put(key, "/spec/ingress", stored).await;
    for refused in [json!([rule(1002)]), json!([rule(1001), rule(1001)])] {
        let (status, message) = cluster
            .patch(&at, &json!({"spec": {"ingress": refused}}))
            .await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{message}");
        assert!(
            message.contains("spec.ingress[0].from: Too many"),
            "{message}"
        );
    }
    let patch = json!({"spec": {"ingress": [rule(1001)]}});
    assert_eq!(cluster.patch(&at, &patch).await, taken());
}

#[tokio::test]
async fn a_pod_with_too_long_a_list_is_debugged_and_resized() {
    let cluster = Cluster::new().await;
    let container = |cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu}});
        json!({"name": "c", "image": "x:1", "resources": resources})
    };
    cluster
        .create(PODS, &json!({"containers": [container("1")]}))
        .await;
    let alias = |address: String| json!({"ip": address, "hostnames": ["h"]});
    let aliases = addresses(1001).map(alias).collect();
    cluster
        .put("pods/default/a", "/spec/hostAliases", aliases)
        .await;
    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "x:1"}]}});
    let at = format!("{PODS}/a/ephemeralcontainers");
    assert_eq!(cluster.patch(&at, &debugger).await, taken());
    let resized = json!({"spec": {"containers": [container("2")]}});
    let at = format!("{PODS}/a/resize");
    assert_eq!(cluster.patch(&at, &resized).await, taken());
}

#[tokio::test]
async fn the_points_of_a_load_balancer_stay_and_shrink() {
    let cluster = Cluster::new().await;
    let service = json!({"type": "LoadBalancer", "ports": [{"port": 1}]});
    let backend = json!({"service": {"name": "a", "port": {"number": 1}}});
    let ingress = json!({ "defaultBackend": backend });
    for (collection, key, spec) in [
        (SERVICES, "services/default/a", service),
        (INGRESSES, "ingresses.networking.k8s.io/default/a", ingress),
    ] {
        cluster.create(collection, &spec).await;
        let balancer = |count: usize| {
            let points = addresses(count).map(|address| json!({ "ip": address }));
            json!({"loadBalancer": {"ingress": points.collect::<Vec<_>>()}})
        };
        cluster.put(key, "/status", balancer(1002)).await;
        let at = format!("{collection}/a/status");
        let (status, message) = cluster.patch(&at, &json!({"status": balancer(1003)})).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{message}");
        let words = "Too many: 1003: must have at most 1000 items";
        assert!(message.contains(words), "{message}");
        let fewer = json!({"status": balancer(1001)});
        assert_eq!(cluster.patch(&at, &fewer).await, taken(), "{collection}");
    }
}
