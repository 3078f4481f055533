//! The controllers against the real API server over the real store, in one process.

mod garbage;
mod jobs;
mod kept;
mod late;
mod local_class;
mod machines;
mod nodes;
mod rights;

use config_kube::identity::{CONTROLLER_MANAGER_USER, NODE_LEASE_NAMESPACE};
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{Binding, Node, Pod};
use config_kube::taints::{NO_EXECUTE, UNREACHABLE};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use jiff::Timestamp;
use master_api::{ApiServer, Options};
use master_client::{Client, Patch, UserInfo};
use master_control::Controllers;
use master_controllers::all;
use master_listener::Peer;
use master_store::EmbeddedStore;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The grace period in these tests; the pure tests have the real one. Long enough for a renewal on
/// a busy machine, as a node that is marked silent by mistake would stay so.
const GRACE: Duration = Duration::from_secs(8);
/// How long to wait for what the controllers do; generous for a busy host.
const LIMIT: Duration = Duration::from_secs(180);

/// The text that is published as the root's certificate.
const ROOT: &str = "root";

/// The path of ConfigMaps.
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

struct Cluster {
    api: ApiServer,
    admin: Client,
    /// The controllers' own client.
    own: Client,
    /// When the good node last renewed its lease, and the longest time between two renewals.
    heard: Mutex<(Instant, Duration)>,
    controllers: Option<JoinHandle<()>>,
    _store: TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(controllers) = &self.controllers {
            controllers.abort();
        }
    }
}

async fn cluster() -> Cluster {
    let mut cluster = cluster_without().await;
    let options = master_control::Options {
        node_grace: GRACE,
        root_ca: Some(watch::channel(ROOT.to_owned()).1),
        ..master_control::Options::default()
    };
    let run = Controllers::of(&all(), options).run(cluster.own.clone(), std::future::pending());
    cluster.controllers = Some(tokio::spawn(run));
    cluster
}

/// An API, and no controllers.
async fn cluster_without() -> Cluster {
    let store = TempDir::new().expect("a folder for the store");
    let engine = EmbeddedStore::open(store.path()).expect("an empty store opens");
    let api = ApiServer::new(
        Arc::new(engine),
        Options {
            roles: master_control::roles(&all()),
            ..Options::default()
        },
    );
    api.prepare().await.expect("the system namespaces are made");
    let own = api.client(UserInfo::authenticated(
        CONTROLLER_MANAGER_USER,
        Vec::<String>::new(),
    ));
    let heard = Mutex::new((Instant::now(), Duration::ZERO));
    Cluster {
        admin: api.client(UserInfo::admin("admin")),
        own,
        api,
        heard,
        controllers: None,
        _store: store,
    }
}

impl Cluster {
    async fn node(&self, name: &str) {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": name}})).expect("a node");
        self.admin.create(&node).await.expect("the node is made");
        self.ready(name).await;
        let metadata = json!({"namespace": NODE_LEASE_NAMESPACE, "name": name});
        let lease = json!({"metadata": metadata, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}});
        let lease: Lease = serde_json::from_value(lease).expect("a lease");
        self.admin.create(&lease).await.expect("the lease is made");
    }

    /// Reports a Node as ready, as its kubelet does.
    async fn ready(&self, name: &str) {
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready",
            "lastHeartbeatTime": now(), "lastTransitionTime": now()});
        let patch = Patch::Strategic(json!({"status": {"conditions": [ready]}}));
        self.admin
            .patch_status::<Node>(None, name, &patch)
            .await
            .expect("the node says that it is ready");
    }

    /// Renews a node's lease, as its kubelet does.
    async fn renew(&self, name: &str) {
        let time = Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
            .to_string();
        let patch = Patch::Merge(json!({"spec": {"renewTime": time}}));
        self.admin
            .patch::<Lease>(Some(NODE_LEASE_NAMESPACE), name, &patch)
            .await
            .expect("the lease is renewed");
        if name == "good" {
            let mut heard = self.heard.lock().expect("nobody panics");
            *heard = (Instant::now(), heard.1.max(heard.0.elapsed()));
        }
    }

    /// Whether the test's machine stalled for so long that the controllers may have taken it for a
    /// silent node.
    fn stood_still(&self) -> bool {
        let (last, longest) = *self.heard.lock().expect("nobody panics");
        longest.max(last.elapsed()) >= GRACE / 2
    }

    async fn read(&self, name: &str) -> Node {
        self.admin.get(None, name).await.expect("the node is there")
    }

    /// Status and reason of a node's condition `Ready`.
    async fn state(&self, name: &str) -> (String, String) {
        let conditions = self
            .read(name)
            .await
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        let ready = conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready");
        ready
            .map(|ready| (ready.status, ready.reason.unwrap_or_default()))
            .unwrap_or_default()
    }

    async fn taints(&self, name: &str) -> Vec<(String, String)> {
        let taints = self
            .read(name)
            .await
            .spec
            .and_then(|spec| spec.taints)
            .unwrap_or_default();
        taints
            .into_iter()
            .map(|taint| (taint.key, taint.effect))
            .collect()
    }

    async fn running_pod(&self, name: &str, node: &str, tolerated: i64) {
        let toleration = json!({"key": UNREACHABLE, "operator": "Exists", "effect": NO_EXECUTE, "tolerationSeconds": tolerated});
        let pod = json!({"metadata": {"namespace": "default", "name": name}, "spec": {
            "hostNetwork": true, "tolerations": [toleration],
            "containers": [{"name": "c", "image": "registry.example/c:1"}],
        }});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        self.admin.create(&pod).await.expect("the pod is made");
        let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
        let binding: Binding = serde_json::from_value(binding).expect("a binding");
        self.admin
            .create_subresource::<Pod>(Some("default"), name, "binding", &binding)
            .await
            .expect("it is bound");
        let status = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": now()}]}});
        let patch = Patch::Strategic(status);
        self.admin
            .patch_status::<Pod>(Some("default"), name, &patch)
            .await
            .expect("it runs");
    }

    async fn pod_ready(&self, name: &str) -> (String, String) {
        let pod: Pod = self
            .admin
            .get(Some("default"), name)
            .await
            .expect("the pod is there");
        let conditions = pod
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        let ready = conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready");
        ready
            .map(|ready| (ready.status, ready.reason.unwrap_or_default()))
            .unwrap_or_default()
    }

    async fn get(&self, path: &str) -> Value {
        let request = http::Request::get(path)
            .body(master_client::body(""))
            .expect("a path");
        let answer = self
            .api
            .handle_as(request, UserInfo::admin("admin"), Peer::default())
            .await;
        let body = answer
            .into_body()
            .collect()
            .await
            .expect("an answer")
            .to_bytes();
        serde_json::from_slice(&body).expect("JSON")
    }
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Repeats a query until it returns true.
async fn eventually<'a>(what: &str, mut ask: impl FnMut() -> BoxFuture<'a, bool>) {
    let limit = Instant::now() + LIMIT;
    while !ask().await {
        assert!(Instant::now() < limit, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Creates an object from JSON at a path.
async fn make(cluster: &Cluster, path: &str, object: Value) -> Value {
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request
        .body(master_client::body(object.to_string()))
        .expect("a request");
    let answer = cluster
        .api
        .handle_as(request, UserInfo::admin("admin"), Peer::default())
        .await;
    let status = answer.status();
    let body = answer
        .into_body()
        .collect()
        .await
        .expect("an answer")
        .to_bytes();
    let made: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(status.as_u16(), 201, "{path}: {made}");
    made
}

async fn exists(cluster: &Cluster, path: &str) -> bool {
    cluster.get(path).await["kind"] != "Status"
}
