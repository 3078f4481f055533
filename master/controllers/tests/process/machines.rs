//! The controllers of Machines and certificate requests against the real API server and real keys,
//! in one process.

use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::policy::Ruling;
use config_kube::{CertificatePolicy, CertificatePolicySpec, Machine, identity, taints};
use master_api::{ApiServer, Options};
use master_ca::{Authority, FileKeeper};
use master_client::{Client, DeleteParams, Object, Patch, UserInfo};
use master_control::Controllers;
use master_control::options::Signing;
use master_control_nodes::csr_signing::CsrSigning;
use master_control_nodes::machine_nodes::MachineNodes;
use master_store::EmbeddedStore;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Time for what the controllers do.
const LIMIT: Duration = Duration::from_secs(180);

struct Cluster {
    admin: Client,
    controllers: JoinHandle<()>,
    _folder: TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.controllers.abort();
    }
}

/// As the policy of these tests: requests of kubelets' serving certificates are denied, those of
/// clients approved.
fn decide(_: &CertificatePolicySpec, signer: &str) -> Option<Ruling> {
    let ruling = |approved| Ruling {
        approved,
        reason: "Tested",
        message: String::new(),
    };
    match signer {
        "kubernetes.io/kubelet-serving" => Some(ruling(false)),
        "kubernetes.io/kube-apiserver-client" => Some(ruling(true)),
        _ => None,
    }
}

async fn cluster() -> Cluster {
    let folder = TempDir::new().expect("a folder");
    let engine = EmbeddedStore::open(&folder.path().join("store")).expect("an empty store opens");
    let options = Options {
        roles: master_control::roles(master_control_nodes::CONTROLLERS),
        ..Options::default()
    };
    let api = ApiServer::new(Arc::new(engine), options);
    api.prepare().await.expect("roles and namespaces are made");
    let (keeper, now) = (Arc::new(FileKeeper), SystemTime::now());
    let authority = Authority::open(&folder.path().join("ca"), "test", keeper, now);
    let signing = Signing {
        authority: Arc::new(authority.expect("new keys")),
        api_names: vec!["api.example".to_owned()],
        decide,
    };
    let options = master_control::Options {
        signing: Some(signing),
        ..master_control::Options::default()
    };
    let shared = UserInfo::authenticated(identity::CONTROLLER_MANAGER_USER, Vec::<String>::new());
    let controllers = Controllers::new(options)
        .with::<MachineNodes>()
        .with::<CsrSigning>()
        .run(api.client(shared), std::future::pending());
    Cluster {
        admin: api.client(UserInfo::admin("admin")),
        controllers: tokio::spawn(controllers),
        _folder: folder,
    }
}

impl Cluster {
    async fn make<T: Object + DeserializeOwned>(&self, object: Value) {
        let object: T = serde_json::from_value(object).expect("an object of the kind");
        self.admin.create(&object).await.expect("it is made");
    }

    async fn status<T: Object>(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let written = self.admin.patch_status::<T>(None, name, &patch).await;
        written.expect("its status is written");
    }

    async fn rule(&self, labels: Value) {
        let rule = json!({"name": "r", "policy": "cloud-verify", "node": {"labels": labels},
            "signers": ["pratique.dev/node-client", "pratique.dev/node-serving"],
            "ek": {"hashes": "inventory"}, "images": {"releaseKeys": ["k"]}, "certificate": {"roles": ["worker"]}});
        let patch = Patch::Merge(json!({"spec": {"rules": [rule]}}));
        let written = self
            .admin
            .patch::<CertificatePolicy>(None, "cluster", &patch)
            .await;
        written.expect("the policy is changed");
    }

    /// Waits until an object is as it should be.
    async fn until<T: Object>(&self, what: &str, name: &str, holds: impl Fn(&T) -> bool) {
        let limit = Instant::now() + LIMIT;
        loop {
            let object = self
                .admin
                .get_opt::<T>(None, name)
                .await
                .expect("the API answers");
            if object.as_ref().is_some_and(&holds) {
                return;
            }
            assert!(Instant::now() < limit, "not within {LIMIT:?}: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let labels = node.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(key))
        .map(String::as_str)
}

fn has_taint(node: &Node, key: &str) -> bool {
    let taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    taints.map(|taint| &taint.key).any(|own| own == key)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machines_node_follows_its_state_and_the_policys_rule() {
    let cluster = cluster().await;
    let policy = json!({"metadata": {"name": "cluster"}, "spec": {"rules": []}});
    cluster.make::<CertificatePolicy>(policy).await;
    let machine = json!({"metadata": {"name": "m"}, "spec": {"role": "worker", "nodeName": "n"}});
    cluster.make::<Machine>(machine).await;
    let admitted =
        json!({"state": "Trusted", "admission": {"policy": "cloud-verify", "rule": "r"}});
    cluster.status::<Machine>("m", admitted).await;
    let node = json!({"metadata": {"name": "n", "labels": {"own": "1", "zone": "z"}}});
    cluster.make::<Node>(node).await;

    cluster.rule(json!({"pool": "a", "zone": "z"})).await;
    let pool = |node: &Node| label(node, "pool") == Some("a");
    cluster.until("the rule's label is set", "n", pool).await;
    let noted = |machine: &Machine| {
        let marks = machine
            .status
            .as_ref()
            .and_then(|status| status.node.as_ref());
        marks.is_some_and(|marks| {
            marks.labels.contains_key("pool") && !marks.labels.contains_key("zone")
        })
    };
    cluster
        .until("the status says what is the rule's", "m", noted)
        .await;

    let gone = Patch::Merge(json!({"metadata": {"labels": {"pool": null}}}));
    cluster
        .admin
        .patch::<Node>(None, "n", &gone)
        .await
        .expect("the label is removed");
    cluster.until("it comes back", "n", pool).await;

    cluster
        .status::<Machine>("m", json!({"state": "Suspect"}))
        .await;
    let suspect = |node: &Node| has_taint(node, taints::SUSPECT);
    cluster
        .until("a suspect machine's Node is tainted", "n", suspect)
        .await;
    let retired = Patch::Merge(json!({"spec": {"retired": true}}));
    cluster
        .admin
        .patch::<Machine>(None, "m", &retired)
        .await
        .expect("it is retired");
    let untrusted = |node: &Node| has_taint(node, taints::UNTRUSTED) && !suspect(node);
    cluster
        .until("a retired machine's Node is tainted", "n", untrusted)
        .await;

    cluster.rule(json!({})).await;
    let bare = |node: &Node| {
        label(node, "pool").is_none()
            && label(node, "own").is_some()
            && label(node, "zone").is_some()
    };
    cluster
        .until("the rule's label goes, an admin's stay", "n", bare)
        .await;
}

/// The API denies such a machine at once. Other machines go by the taint, and would let it into
/// the pod network until its certificate ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_tainted_once_its_machine_is_replaced_another_node_or_gone() {
    let cluster = cluster().await;
    let hash = |byte: &str| format!("sha256:{}", byte.repeat(32));
    let (board, other) = (hash("01"), hash("02"));
    let machine = |name: &str| json!({"metadata": {"name": name}, "spec": {"role": "worker", "ek": {"hashes": [board]}}});
    let proved = |ek: &str| json!({"state": "Trusted", "boundEk": ek});
    for name in ["replaced", "renamed", "gone"] {
        cluster.make::<Machine>(machine(name)).await;
        cluster.status::<Machine>(name, proved(&board)).await;
        let labels = json!({"pratique.dev/role": "worker"});
        let node = json!({"metadata": {"name": name, "labels": labels}});
        cluster.make::<Node>(node).await;
    }
    let tainted = |node: &Node| has_taint(node, taints::UNTRUSTED);
    let admin = &cluster.admin;

    let replaced = Patch::Merge(json!({"spec": {"ek": {"hashes": [other]}}}));
    let written = admin.patch::<Machine>(None, "replaced", &replaced).await;
    written.expect("another board is named");
    cluster.until("its board went", "replaced", tainted).await;
    cluster.status::<Machine>("replaced", proved(&other)).await;
    let free = |node: &Node| !tainted(node);
    cluster.until("the other came", "replaced", free).await;

    let renamed = Patch::Merge(json!({"spec": {"nodeName": "another"}}));
    let written = admin.patch::<Machine>(None, "renamed", &renamed).await;
    written.expect("it becomes another node");
    cluster.until("its Machine left", "renamed", tainted).await;

    let params = DeleteParams::default();
    let deleted = admin.delete::<Machine>(None, "gone", &params).await;
    deleted.expect("it is deleted");
    cluster.until("its Machine is gone", "gone", tainted).await;
    cluster.make::<Machine>(machine("gone")).await;
    cluster.status::<Machine>("gone", proved(&board)).await;
    cluster.until("another proved itself", "gone", free).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_machine_has_a_node_once_it_has_a_certificate() {
    let cluster = cluster().await;
    for name in ["with", "without"] {
        let machine =
            json!({"metadata": {"name": name}, "spec": {"role": "worker", "static": true}});
        cluster.make::<Machine>(machine).await;
    }
    let certificate = json!({"serial": "01", "notAfter": "2100-01-01T00:00:00Z"});
    cluster
        .status::<Machine>("with", json!({"certificate": certificate}))
        .await;
    let is_static = |node: &Node| label(node, identity::JOIN_LABEL) == Some("static");
    cluster.until("it has a Node", "with", is_static).await;
    let other = cluster.admin.get_opt::<Node>(None, "without").await;
    assert!(other.expect("the API answers").is_none());
}

/// A request of a client certificate.
fn request(name: &str, user: &str, signer: &str) -> Value {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, user);
    let key = rcgen::KeyPair::generate().expect("a key");
    let request = params.serialize_request(&key);
    let pem = request
        .and_then(|request| request.pem())
        .expect("a request");
    json!({"metadata": {"name": name}, "spec": {"signerName": signer,
        "usages": ["client auth", "digital signature"], "request": ByteString(pem.into_bytes())}})
}

fn condition(request: &CertificateSigningRequest, kind: &str) -> Option<String> {
    let conditions = request.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|condition| condition.type_ == kind)?;
    Some(found.message.clone().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_decided_by_the_policy_and_signed_but_for_the_nodes_of_machines() {
    let cluster = cluster().await;
    let machine = json!({"metadata": {"name": "m"}, "spec": {"role": "worker", "nodeName": "n"}});
    cluster.make::<Machine>(machine).await;
    let (clients, serving) = (
        "kubernetes.io/kube-apiserver-client",
        "kubernetes.io/kubelet-serving",
    );
    for (name, user, signer) in [
        ("jane", "jane", clients),
        ("impostor", "system:node:n", clients),
        ("serving", "system:node:x", serving),
    ] {
        cluster
            .make::<CertificateSigningRequest>(request(name, user, signer))
            .await;
    }
    // Waiting requests are decided when the policy is created.
    let policy = json!({"metadata": {"name": "cluster"}, "spec": {"rules": []}});
    cluster.make::<CertificatePolicy>(policy).await;
    let certificates = |request: &CertificateSigningRequest| {
        let status = request.status.as_ref();
        let pem = status.and_then(|status| status.certificate.clone());
        pem.map(|pem| {
            let pem = String::from_utf8(pem.0).unwrap();
            pem.matches("BEGIN CERTIFICATE").count()
        })
    };
    let signed = |request: &CertificateSigningRequest| certificates(request).is_some();
    cluster
        .until(
            "jane has a certificate and nothing else",
            "jane",
            |request| certificates(request) == Some(1),
        )
        .await;
    let refused = |request: &CertificateSigningRequest| {
        let why = condition(request, "Failed");
        why.is_some_and(|why| why.contains("node n belongs to a Machine")) && !signed(request)
    };
    cluster
        .until("a Machine's node gets none", "impostor", refused)
        .await;
    let denied = |request: &CertificateSigningRequest| condition(request, "Denied").is_some();
    cluster.until("the rule denies", "serving", denied).await;
}
