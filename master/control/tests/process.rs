//! The controllers against the real API server over the real store, in one process.

use config_kube::identity::{CONTROLLER_MANAGER_USER, NODE_LEASE_NAMESPACE};
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{
    Binding, ConfigMap, Event, Namespace, Node, Pod, Secret, ServiceAccount,
};
use config_kube::taints::{NO_EXECUTE, NO_SCHEDULE, UNREACHABLE};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use jiff::Timestamp;
use master_api::{ApiServer, Client, DeleteParams, ListParams, Options, Patch, Peer, UserInfo};
use master_store::EmbeddedStore;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Silence that these tests wait for; the pure tests show the real one.
const GRACE: Duration = Duration::from_secs(2);

struct Cluster {
    api: ApiServer,
    admin: Client,
    controllers: JoinHandle<()>,
    _store: TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.controllers.abort();
    }
}

async fn cluster() -> Cluster {
    let store = TempDir::new().expect("a folder for the store");
    let engine = EmbeddedStore::open(store.path()).expect("an empty store opens");
    let api = ApiServer::new(Arc::new(engine), Options::default());
    api.prepare().await.expect("the system namespaces are made");
    let own = api.client(UserInfo::authenticated(CONTROLLER_MANAGER_USER, Vec::<String>::new()));
    let run = master_control::run(own, master_control::Options { node_grace: GRACE }, std::future::pending());
    Cluster { admin: api.client(UserInfo::admin("admin")), api, controllers: tokio::spawn(run), _store: store }
}

impl Cluster {
    async fn node(&self, name: &str) {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a node");
        self.admin.create(&node).await.expect("the node is made");
        self.ready(name).await;
        let metadata = json!({"namespace": NODE_LEASE_NAMESPACE, "name": name});
        let lease = json!({"metadata": metadata, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}});
        let lease: Lease = serde_json::from_value(lease).expect("a lease");
        self.admin.create(&lease).await.expect("the lease is made");
    }

    /// What a kubelet says of itself.
    async fn ready(&self, name: &str) {
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready",
            "lastHeartbeatTime": now(), "lastTransitionTime": now()});
        let patch = Patch::Strategic(json!({"status": {"conditions": [ready]}}));
        self.admin.patch_status::<Node>(None, name, &patch).await.expect("the node says that it is ready");
    }

    /// The sign of life of a kubelet.
    async fn renew(&self, name: &str) {
        let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        let patch = Patch::Merge(json!({"spec": {"renewTime": time}}));
        self.admin.patch::<Lease>(Some(NODE_LEASE_NAMESPACE), name, &patch).await.expect("the lease is renewed");
    }

    async fn read(&self, name: &str) -> Node {
        self.admin.get(None, name).await.expect("the node is there")
    }

    /// Status and reason of a node's condition `Ready`.
    async fn state(&self, name: &str) -> (String, String) {
        let conditions = self.read(name).await.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        ready.map(|ready| (ready.status, ready.reason.unwrap_or_default())).unwrap_or_default()
    }

    async fn taints(&self, name: &str) -> Vec<(String, String)> {
        let taints = self.read(name).await.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.into_iter().map(|taint| (taint.key, taint.effect)).collect()
    }

    async fn running_pod(&self, name: &str, node: &str, tolerated: i64) {
        let toleration =
            json!({"key": UNREACHABLE, "operator": "Exists", "effect": NO_EXECUTE, "tolerationSeconds": tolerated});
        let pod = json!({"metadata": {"namespace": "default", "name": name}, "spec": {
            "hostNetwork": true, "tolerations": [toleration],
            "containers": [{"name": "c", "image": "registry.example/c:1"}],
        }});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        self.admin.create(&pod).await.expect("the pod is made");
        let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
        let binding: Binding = serde_json::from_value(binding).expect("a binding");
        self.admin.create_subresource::<Pod>(Some("default"), name, "binding", &binding).await.expect("it is bound");
        let status = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": now()}]}});
        let patch = Patch::Strategic(status);
        self.admin.patch_status::<Pod>(Some("default"), name, &patch).await.expect("it runs");
    }

    async fn pod_ready(&self, name: &str) -> (String, String) {
        let pod: Pod = self.admin.get(Some("default"), name).await.expect("the pod is there");
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        ready.map(|ready| (ready.status, ready.reason.unwrap_or_default())).unwrap_or_default()
    }

    async fn get(&self, path: &str) -> Value {
        let request = http::Request::get(path).body(master_api::body("")).expect("a path");
        let answer = self.api.handle_as(request, UserInfo::admin("admin"), Peer::default()).await;
        let body = answer.into_body().collect().await.expect("an answer").to_bytes();
        serde_json::from_slice(&body).expect("JSON")
    }
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Asks until the answer is there.
async fn eventually<'a>(what: &str, mut ask: impl FnMut() -> BoxFuture<'a, bool>) {
    let limit = Instant::now() + Duration::from_secs(30);
    while !ask().await {
        assert!(Instant::now() < limit, "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_becomes_not_ready_and_comes_back() {
    let cluster = cluster().await;
    cluster.node("good").await;
    cluster.node("silent").await;
    cluster.running_pod("patient", "silent", 300).await;
    cluster.running_pod("impatient", "silent", 0).await;
    // Both live for longer than the grace: nothing happens. Then one falls silent.
    let speaks = Instant::now() + GRACE * 2;
    while Instant::now() < speaks {
        cluster.renew("good").await;
        cluster.renew("silent").await;
        assert_eq!(cluster.state("silent").await.0, "True");
        tokio::time::sleep(GRACE / 10).await;
    }
    let fell_silent = Instant::now();
    eventually("the silent node is Unknown", || {
        Box::pin(async {
            cluster.renew("good").await;
            cluster.state("silent").await == ("Unknown".to_owned(), "NodeStatusUnknown".to_owned())
        })
    })
    .await;
    assert!(fell_silent.elapsed() >= GRACE / 2, "not before its time");
    assert_eq!(cluster.state("good").await.0, "True");
    for effect in [NO_SCHEDULE, NO_EXECUTE] {
        eventually("it is tainted", || {
            Box::pin(async {
                cluster.renew("good").await;
                cluster.taints("silent").await.contains(&(UNREACHABLE.to_owned(), effect.to_owned()))
            })
        })
        .await;
    }
    eventually("the pod without patience is being deleted", || {
        Box::pin(async {
            cluster.renew("good").await;
            let pod = cluster.admin.get_opt::<Pod>(Some("default"), "impatient").await.expect("pods are served");
            pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
        })
    })
    .await;
    eventually("the other is not known to be ready", || {
        Box::pin(async { cluster.pod_ready("patient").await == ("False".to_owned(), "NodeNotReady".to_owned()) })
    })
    .await;
    eventually("people are told", || {
        Box::pin(async {
            let events = cluster.admin.list::<Event>(None, &ListParams::default()).await.expect("events are served");
            events.items.iter().any(|event| event.reason.as_deref() == Some("NodeNotReady"))
        })
    })
    .await;
    eventually("it comes back", || {
        Box::pin(async {
            cluster.renew("good").await;
            cluster.renew("silent").await;
            cluster.ready("silent").await;
            cluster.taints("silent").await.is_empty() && cluster.state("silent").await.0 == "True"
        })
    })
    .await;
    let patient: Pod = cluster.admin.get(Some("default"), "patient").await.expect("it outlived the silence");
    assert!(patient.metadata.deletion_timestamp.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_namespace_goes_with_all_that_is_in_it() {
    let cluster = cluster().await;
    let admin = &cluster.admin;
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "team"}})).expect("a namespace");
    admin.create(&namespace).await.expect("the namespace is made");
    eventually("it gets its account", || {
        Box::pin(async { admin.get_opt::<ServiceAccount>(Some("team"), "default").await.expect("served").is_some() })
    })
    .await;
    let held = json!({"metadata": {"namespace": "team", "name": "held", "finalizers": ["example.com/hold"]}});
    admin.create(&serde_json::from_value::<ConfigMap>(held).expect("a map")).await.expect("the map is made");
    let secret = json!({"metadata": {"namespace": "team", "name": "s"}, "stringData": {"a": "b"}});
    admin.create(&serde_json::from_value::<Secret>(secret).expect("a secret")).await.expect("the secret is made");
    let pod = json!({"metadata": {"namespace": "team", "name": "p"},
        "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]}});
    admin.create(&serde_json::from_value::<Pod>(pod).expect("a pod")).await.expect("the pod is made");
    admin.delete::<Namespace>(None, "team", &DeleteParams::default()).await.expect("it is to be deleted");
    eventually("it says what holds it", || {
        Box::pin(async {
            let namespace: Namespace = admin.get(None, "team").await.expect("it is held");
            let conditions = namespace.status.and_then(|status| status.conditions).unwrap_or_default();
            let says = |kind: &str, text: &str| {
                conditions.iter().any(|condition| {
                    condition.type_ == kind
                        && condition.message.as_deref().is_some_and(|message| message.contains(text))
                })
            };
            says("NamespaceFinalizersRemaining", "example.com/hold in 1 resource instances")
                && says("NamespaceContentRemaining", "configmaps. has 1 resource instances")
        })
    })
    .await;
    assert!(admin.get_opt::<Secret>(Some("team"), "s").await.expect("served").is_none());
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    admin.patch::<ConfigMap>(Some("team"), "held", &free).await.expect("it is let go");
    eventually("it is gone", || {
        Box::pin(async { admin.get_opt::<Namespace>(None, "team").await.expect("served").is_none() })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_that_lives_in_namespaces_is_deleted_with_them() {
    let cluster = cluster().await;
    let groups = cluster.get("/apis").await;
    let groups = groups["groups"].as_array().expect("groups").clone();
    let versions = groups.iter().filter_map(|group| group["preferredVersion"]["groupVersion"].as_str());
    let paths: Vec<String> = versions.map(|version| format!("/apis/{version}")).chain(["/api/v1".to_owned()]).collect();
    let mut served = BTreeSet::new();
    for path in paths {
        let list = cluster.get(&path).await;
        for resource in list["resources"].as_array().expect("resources") {
            let deletable = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("delete")));
            if resource["namespaced"] == json!(true) && deletable {
                served.insert(resource["name"].as_str().expect("a name").to_owned());
            }
        }
    }
    let cleared: BTreeSet<String> = master_control::cleared().into_iter().map(str::to_owned).collect();
    assert_eq!(served, cleared, "add the missing kind to `kinds!` in namespace.rs");
}
