//! The controllers against the real API server over the real store, in one process.

use config_kube::identity::{CONTROLLER_MANAGER_USER, NODE_LEASE_NAMESPACE};
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{
    Binding, ConfigMap, Event, Namespace, Node, Pod, Secret, Service, ServiceAccount,
};
use config_kube::k8s_openapi::api::networking::v1::ServiceCIDR;
use config_kube::taints::{NO_EXECUTE, NO_SCHEDULE, UNREACHABLE};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use jiff::Timestamp;
use master_api::{ApiServer, Options};
use master_client::{Client, DeleteParams, ListParams, Patch, UserInfo};
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

/// Silence that these tests wait for; the pure tests show the real one. Long enough for a busy machine to renew in: a node
/// that once fell silent by mistake would stay so.
const GRACE: Duration = Duration::from_secs(8);
/// Time for what the controllers do. They rest for a multiple of what a plan took, also where it only waited for a processor.
const LIMIT: Duration = Duration::from_secs(180);

/// What is published as the certificate of the root.
const ROOT: &str = "root";

struct Cluster {
    api: ApiServer,
    admin: Client,
    /// When the good node was last heard, and the longest time between two of its signs of life.
    heard: Mutex<(Instant, Duration)>,
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
    let options = master_control::Options {
        node_grace: GRACE,
        root_ca: Some(watch::channel(ROOT.to_owned()).1),
        ..master_control::Options::default()
    };
    let run = Controllers::of(&all(), options).run(own, std::future::pending());
    let heard = Mutex::new((Instant::now(), Duration::ZERO));
    Cluster {
        admin: api.client(UserInfo::admin("admin")),
        api,
        heard,
        controllers: tokio::spawn(run),
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

    /// What a kubelet says of itself.
    async fn ready(&self, name: &str) {
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready",
            "lastHeartbeatTime": now(), "lastTransitionTime": now()});
        let patch = Patch::Strategic(json!({"status": {"conditions": [ready]}}));
        self.admin
            .patch_status::<Node>(None, name, &patch)
            .await
            .expect("the node says that it is ready");
    }

    /// The sign of life of a kubelet.
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

    /// Whether the machine, and not a kubelet, was silent for so long that the controllers may have taken it for a silence.
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

/// Asks until the answer is there.
async fn eventually<'a>(what: &str, mut ask: impl FnMut() -> BoxFuture<'a, bool>) {
    let limit = Instant::now() + LIMIT;
    while !ask().await {
        assert!(Instant::now() < limit, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Tries, where the machine itself stands still for seconds.
const TRIES: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_becomes_not_ready_and_comes_back() {
    for _ in 0..TRIES {
        if falls_silent().await {
            return;
        }
    }
    panic!("in each try the machine stood still for {:?}", GRACE / 2);
}

/// The story; false: the machine stood still, and nothing was learned.
async fn falls_silent() -> bool {
    let cluster = cluster().await;
    cluster.node("silent").await;
    cluster.node("good").await;
    cluster.renew("good").await;
    cluster.heard.lock().expect("nobody panics").1 = Duration::ZERO;
    cluster.running_pod("patient", "silent", 300).await;
    cluster.running_pod("impatient", "silent", 0).await;
    // Both live for longer than the grace: nothing happens. Then one falls silent.
    let speaks = Instant::now() + GRACE * 3 / 2;
    let mut last = Instant::now();
    while Instant::now() < speaks {
        cluster.renew("good").await;
        // Before the renewal: the controllers can't have seen it earlier.
        last = Instant::now();
        cluster.renew("silent").await;
        let state = cluster.state("silent").await.0;
        if cluster.stood_still() {
            return false;
        }
        assert_eq!(state, "True");
        tokio::time::sleep(GRACE / 10).await;
    }
    eventually("the silent node is Unknown", || {
        Box::pin(async {
            cluster.renew("good").await;
            cluster.state("silent").await == ("Unknown".to_owned(), "NodeStatusUnknown".to_owned())
        })
    })
    .await;
    assert!(last.elapsed() >= GRACE / 2, "not before its time");
    let state = cluster.state("good").await.0;
    if cluster.stood_still() {
        return false;
    }
    assert_eq!(state, "True");
    a_silence_has_its_consequences(&cluster).await;
    true
}

/// Taints, an eviction, a pod that is not ready, an event; and all is well when the node speaks again.
async fn a_silence_has_its_consequences(cluster: &Cluster) {
    for effect in [NO_SCHEDULE, NO_EXECUTE] {
        eventually("it is tainted", || {
            Box::pin(async {
                cluster.renew("good").await;
                cluster
                    .taints("silent")
                    .await
                    .contains(&(UNREACHABLE.to_owned(), effect.to_owned()))
            })
        })
        .await;
    }
    eventually("the pod without patience is being deleted", || {
        Box::pin(async {
            cluster.renew("good").await;
            let pod = cluster
                .admin
                .get_opt::<Pod>(Some("default"), "impatient")
                .await
                .expect("pods are served");
            pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
        })
    })
    .await;
    eventually("the other is not known to be ready", || {
        Box::pin(async {
            cluster.renew("good").await;
            cluster.pod_ready("patient").await == ("False".to_owned(), "NodeNotReady".to_owned())
        })
    })
    .await;
    eventually("people are told", || {
        Box::pin(async {
            cluster.renew("good").await;
            let events = cluster
                .admin
                .list::<Event>(None, &ListParams::default())
                .await
                .expect("events are served");
            events
                .items
                .iter()
                .any(|event| event.reason.as_deref() == Some("NodeNotReady"))
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
    let patient: Pod = cluster
        .admin
        .get(Some("default"), "patient")
        .await
        .expect("it outlived the silence");
    assert!(patient.metadata.deletion_timestamp.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_namespace_goes_with_all_that_is_in_it() {
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

/// Objects of a kind that only path and JSON know.
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

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn owned(name: &str, owner: &Value, block: bool) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap",
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "blockOwnerDeletion": block}]}})
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
async fn what_nobody_owns_any_more_goes_and_what_is_orphaned_stays() {
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
async fn in_the_foreground_owners_go_after_those_that_block_them() {
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
async fn an_owner_in_another_namespace_is_none_and_people_are_told() {
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
            let told = |event: &Event| event.reason.as_deref() == Some("OwnerRefInvalidNamespace");
            !exists(&cluster, &format!("{MAPS}/child")).await && events.items.iter().any(told)
        })
    })
    .await;
    assert!(exists(&cluster, &format!("{elsewhere}/owner")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_namespace_has_the_roots_certificate_and_it_is_kept_right() {
    let cluster = cluster().await;
    let path = format!("{MAPS}/kube-root-ca.crt");
    let right = || async { cluster.get(&path).await["data"] == json!({"ca.crt": ROOT}) };
    eventually("it is published", || Box::pin(async { right().await })).await;
    let wrong = Patch::Merge(json!({"data": {"ca.crt": "other", "more": "x"}}));
    let name = "kube-root-ca.crt";
    cluster
        .admin
        .patch::<ConfigMap>(Some("default"), name, &wrong)
        .await
        .expect("it is spoiled");
    eventually("it is set right", || Box::pin(async { right().await })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_counted_and_counted_anew_when_something_goes() {
    let cluster = cluster().await;
    make(&cluster, MAPS, json!({"metadata": {"name": "a"}})).await;
    let root = format!("{MAPS}/kube-root-ca.crt");
    eventually("the root's certificate is there", || {
        Box::pin(async { cluster.get(&root).await.pointer("/data").is_some() })
    })
    .await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "3", "pods": "1"}}});
    make(&cluster, quotas, quota).await;
    let used = |number: &'static str| {
        let cluster = &cluster;
        move || -> BoxFuture<'_, bool> {
            Box::pin(async move {
                let quota = cluster.get(&format!("{quotas}/q")).await;
                quota["status"]["used"] == json!({"count/configmaps": number, "pods": "0"})
            })
        }
    };
    // The root's certificate is the second one.
    eventually("it is counted", used("2")).await;
    make(&cluster, MAPS, json!({"metadata": {"name": "b"}})).await;
    eventually("what is made is counted at once", used("3")).await;
    cluster
        .admin
        .delete::<ConfigMap>(Some("default"), "a", &DeleteParams::default())
        .await
        .expect("it goes");
    eventually("what goes is free again", used("2")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_of_addresses_goes_once_no_address_is_of_it() {
    let cluster = cluster().await;
    let ranges = "/apis/networking.k8s.io/v1/servicecidrs";
    make(
        &cluster,
        ranges,
        json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.222.0.0/24"]}}),
    )
    .await;
    let services = "/api/v1/namespaces/default/services";
    make(
        &cluster,
        services,
        json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "10.222.0.9", "ports": [{"port": 1}]}}),
    )
    .await;
    let params = DeleteParams::default();
    cluster
        .admin
        .delete::<ServiceCIDR>(None, "more", &params)
        .await
        .expect("it begins to go");
    let path = format!("{ranges}/more");
    eventually("it says that it waits", || {
        Box::pin(async {
            let range = cluster.get(&path).await;
            let condition = &range["status"]["conditions"][0];
            condition["status"] == "False" && condition["reason"] == "Terminating"
        })
    })
    .await;
    cluster
        .admin
        .delete::<Service>(Some("default"), "s", &params)
        .await
        .expect("it goes");
    eventually("the range is gone", || {
        Box::pin(async { cluster.get(&path).await["code"] == 404 })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_public_kubeconfig_gets_the_signatures_of_tokens() {
    let cluster = cluster().await;
    let token = json!({
        "metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"},
    });
    make(&cluster, "/api/v1/namespaces/kube-system/secrets", token).await;
    let maps = "/api/v1/namespaces/kube-public/configmaps";
    make(
        &cluster,
        maps,
        json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "a", "jws-kubeconfig-gone00": "x"}}),
    )
    .await;
    let path = format!("{maps}/cluster-info");
    eventually("it is signed", || {
        Box::pin(async {
            let data = cluster.get(&path).await["data"].clone();
            data["jws-kubeconfig-abcdef"].is_string() && data.get("jws-kubeconfig-gone00").is_none()
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_that_gather_get_what_is_labelled_for_them() {
    let cluster = cluster().await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    let rule = json!({"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]});
    make(
        &cluster,
        roles,
        json!({"metadata": {"name": "things", "labels": labels}, "rules": [rule]}),
    )
    .await;
    eventually("`view` has the rule", || {
        Box::pin(async {
            let view = cluster.get(&format!("{roles}/view")).await;
            view["rules"]
                .as_array()
                .is_some_and(|rules| rules.contains(&rule))
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelets_request_is_approved_if_its_sender_may() {
    let cluster = cluster().await;
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "system:node:new");
    let key = rcgen::KeyPair::generate().expect("a key");
    let pem = params
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .expect("a request");
    let object = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["client auth", "digital signature"],
            "request": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &pem)}})
    };
    // The admin may everything, so he may have a node's certificate too.
    make(&cluster, requests, object("good")).await;
    eventually("it is approved", || {
        Box::pin(async {
            let request = cluster.get(&format!("{requests}/good")).await;
            request.pointer("/status/conditions/0/reason") == Some(&json!("AutoApproved"))
        })
    })
    .await;
}
