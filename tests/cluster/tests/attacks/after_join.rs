//! After joining: renewal, revocation, restarts, and what a node may not do with its certificate.

use crate::lab::{CONFIG, LIMIT, Lab, client_request, identity, serving_identity};
use crate::site::collection;
use crate::wire::Identity;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use config_kube::taints::{NO_SCHEDULE, SUSPECT};
use config_kube::{CertificatePolicy, Machine, MachineState};
use config_protocol::wire::RENEWALS_PATH;
use config_protocol::{Code, Purpose};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tests_machines::SoftMachine;

const PODS: &str = "/api/v1/namespaces/default/pods";
const EVENTS: &str = "/api/v1/namespaces/default/events";

pub(crate) async fn joined(lab: &Lab) -> (SoftMachine, Identity) {
    let mut machine = lab.machine().await;
    let certificates = lab.join(&machine).await.accepted();
    machine.clock.clock += 1000;
    let identity = identity(&machine, &certificates);
    (machine, identity)
}

/// A request with a node's certificate; the status, as of [`crate::wire::Connection::status`].
pub(crate) async fn ask(
    lab: &Lab,
    who: &Identity,
    method: Method,
    path: &str,
    body: Value,
) -> StatusCode {
    let body = if body.is_null() {
        Vec::new()
    } else {
        serde_json::to_vec(&body).unwrap()
    };
    lab.connect_as(who)
        .await
        .unwrap()
        .status(method, path, body)
        .await
}

pub(crate) fn own_node(machine: &SoftMachine) -> String {
    format!("{}/{}", collection::<Node>(), machine.node)
}

/// The records of a join: a Trusted Machine, a Node with its labels, requests with approval and
/// certificate.
pub(crate) async fn a_join_is_recorded_in_machine_node_and_requests(lab: &Lab) {
    let (machine, who) = joined(lab).await;
    let status = lab.status(&machine.node).await;
    assert_eq!(status.state, MachineState::Trusted);
    assert_eq!(status.bound_ek, Some(machine.ek_hash().to_text()));
    assert_eq!(
        status.image.map(|image| image.id).as_deref(),
        Some("worker-7")
    );
    let node: Node = lab.site.get(&machine.node).await;
    let labels = node.metadata.labels.unwrap_or_default();
    assert_eq!(
        labels.get("pratique.dev/image").map(String::as_str),
        Some("worker-7")
    );
    assert_eq!(
        labels.get("pratique.dev/role").map(String::as_str),
        Some("worker")
    );
    let requests: Vec<CertificateSigningRequest> = lab.site.list().await;
    let own: Vec<_> = requests
        .iter()
        .filter(|r| {
            r.metadata
                .name
                .as_deref()
                .is_some_and(|n| n.starts_with(&format!("{}-", machine.node)))
        })
        .collect();
    assert_eq!(own.len(), 2);
    for request in own {
        let status = request.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        assert!(
            conditions
                .iter()
                .any(|c| c.type_ == "Approved" && c.reason.as_deref() == Some("CloudVerified"))
        );
        assert!(status.certificate.is_some());
    }
    let parsed = master_ca::NodeExtension::of_certificate(&who.chain[0]).unwrap();
    assert_eq!(parsed.image_id, "worker-7");
    assert_eq!(
        ask(lab, &who, Method::GET, &own_node(&machine), json!(null)).await,
        StatusCode::OK
    );
}

pub(crate) async fn a_certificate_is_renewed_by_a_fresh_quote(lab: &Lab) {
    let (mut machine, who) = joined(lab).await;
    let certificates = lab.renew(&machine, &who).await.accepted();
    machine.clock.clock += 1000;
    let fresh = identity(&machine, &certificates);
    lab.renew(&machine, &fresh).await.accepted();
    assert_eq!(lab.status(&machine.node).await.state, MachineState::Trusted);
}

/// A renewal needs a fresh proof: earlier evidence is refused, and so is a certificate alone.
pub(crate) async fn a_renewal_without_a_fresh_quote_is_refused(lab: &Lab) {
    let (machine, who) = joined(lab).await;
    let connection = lab.connect_as(&who).await.unwrap();
    let stale = machine.sign(&machine.quote(&config_tpm::Digest::of(b"an earlier exchange")));
    let change = move |evidence: &mut config_protocol::wire::Evidence| evidence.proof.quote = stale;
    let outcome = lab
        .exchange(
            &machine,
            connection,
            RENEWALS_PATH,
            Purpose::Renew,
            |_| {},
            change,
        )
        .await;
    lab.refused(&outcome, Code::QuoteExtraData, false).await;
    // The exchange of a join does not serve as a renewal.
    let connection = lab.connect_as(&who).await.unwrap();
    let outcome = lab
        .exchange(
            &machine,
            connection,
            RENEWALS_PATH,
            Purpose::Join,
            |_| {},
            |_| {},
        )
        .await;
    lab.refused(&outcome, Code::CredentialNotActivated, false)
        .await;
    // Nor does a renewal without a certificate.
    let connection = lab.connect().await;
    let outcome = lab
        .exchange(
            &machine,
            connection,
            RENEWALS_PATH,
            Purpose::Renew,
            |_| {},
            |_| {},
        )
        .await;
    lab.refused(&outcome, Code::RenewalIdentity, false).await;
    lab.renew(&machine, &who).await.accepted();
}

pub(crate) async fn a_renewal_with_another_nodes_certificate_is_refused(lab: &Lab) {
    let (machine, who) = joined(lab).await;
    let (_, other) = joined(lab).await;
    let outcome = lab.renew(&machine, &other).await;
    lab.refused(&outcome, Code::RenewalIdentity, false).await;
    lab.renew(&machine, &who).await.accepted();
}

pub(crate) async fn a_tpm_whose_counters_went_back_is_refused(lab: &Lab) {
    let (mut machine, _) = joined(lab).await;
    let snapshot = machine.clock;
    machine.clock.reset_count += 3;
    lab.join(&machine).await.accepted();
    machine.clock = snapshot;
    lab.refused(&lab.join(&machine).await, Code::CountersWentBack, true)
        .await;
}

/// The machine reboots into a bad image while its certificate lives: it proves so itself, and the
/// certificate is denied at the next request, an open watch ends, and a restarted master denies it
/// still.
pub(crate) async fn a_valid_certificate_is_denied_once_its_machine_proves_a_bad_image() {
    let lab = Lab::start().await;
    let (mut machine, who) = joined(&lab).await;
    let mut watch = lab.connect_as(&who).await.unwrap();
    let path = format!(
        "{}?watch=true&fieldSelector=metadata.name={}",
        collection::<Node>(),
        machine.node
    );
    let mut events = watch
        .request(Method::GET, &path, "application/json", Vec::new())
        .await
        .unwrap()
        .into_body();
    let mut kept = lab.connect_as(&who).await.unwrap();
    assert_eq!(
        kept.send(Method::GET, &own_node(&machine), Vec::new())
            .await
            .status,
        StatusCode::OK
    );
    let mut bad = lab.image.clone();
    bad.kernel[0] ^= 1;
    machine.boot(&bad, "nocloud", CONFIG);
    let outcome = lab.join(&machine).await;
    assert_eq!(
        kept.status(Method::GET, &own_node(&machine), Vec::new())
            .await,
        StatusCode::UNAUTHORIZED
    );
    lab.refused(&outcome, Code::ImageLoader, true).await;
    let ended = async { while let Some(Ok(_)) = events.frame().await {} };
    tokio::time::timeout(LIMIT, ended)
        .await
        .expect("the open watch of a denied node ends");
    let start = Instant::now();
    loop {
        let node: Node = lab.site.get(&machine.node).await;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        if taints
            .iter()
            .any(|taint| taint.key == "pratique.dev/untrusted" && taint.effect == "NoExecute")
        {
            break;
        }
        assert!(start.elapsed() < LIMIT, "no taint: {taints:?}");
    }
    lab.site.cut_and_restart().await;
    let status = ask(&lab, &who, Method::GET, &own_node(&machine), json!(null)).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    // The control: a good machine's certificate lives through the same restart.
    let (good, fine) = joined(&lab).await;
    lab.site.cut_and_restart().await;
    assert_eq!(
        ask(&lab, &fine, Method::GET, &own_node(&good), json!(null)).await,
        StatusCode::OK
    );
    lab.site.stop();
}

/// An admin retires a machine, or deletes it: its certificate is denied.
pub(crate) async fn certificates_of_retired_and_deleted_machines_are_denied(lab: &Lab) {
    let (machine, who) = joined(lab).await;
    let (other, second) = joined(lab).await;
    lab.site
        .patch::<Machine>(&machine.node, &json!({ "spec": { "retired": true } }))
        .await;
    let path = format!("{}/{}", collection::<Machine>(), other.node);
    assert!(
        lab.site
            .api(Method::DELETE, &path, Vec::new())
            .await
            .status
            .is_success()
    );
    for (machine, who) in [(&machine, &who), (&other, &second)] {
        let start = Instant::now();
        while ask(lab, who, Method::GET, &own_node(machine), json!(null)).await
            != StatusCode::UNAUTHORIZED
        {
            assert!(start.elapsed() < LIMIT, "{} is not denied", machine.node);
        }
    }
    // Its pods are evicted like an Untrusted one's, and its Node is as before when the admin takes
    // that back.
    for retired in [true, false] {
        lab.site
            .patch::<Machine>(&machine.node, &json!({ "spec": { "retired": retired } }))
            .await;
        let start = Instant::now();
        while evicts(lab, &machine.node).await != retired {
            assert!(
                start.elapsed() < LIMIT,
                "retired is {retired}, and the taint is not so"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Whether a Node's pods have to go.
async fn evicts(lab: &Lab, node: &str) -> bool {
    let node: Node = lab.site.get(node).await;
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    taints
        .iter()
        .any(|taint| taint.key == "pratique.dev/untrusted" && taint.effect == "NoExecute")
}

/// A pod on a node with a secret of its own; the secret's path.
async fn secret_of_a_pod(lab: &Lab, node: &str) -> String {
    let name = format!("{node}-keeps");
    let post = async |path: &str, body: Value| {
        let answer = lab
            .site
            .api(Method::POST, path, serde_json::to_vec(&body).unwrap())
            .await;
        assert!(answer.status.is_success(), "{:?}", answer.json);
    };
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": { "a": "b" } });
    post("/api/v1/namespaces/default/secrets", secret).await;
    let volumes = json!([{ "name": "keeps", "secret": { "secretName": name } }]);
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "nodeName": node, "automountServiceAccountToken": false, "volumes": volumes,
            "containers": [{ "name": "a", "image": "a" }] } });
    crate::drift::account(lab).await;
    post(PODS, pod).await;
    format!("/api/v1/namespaces/default/secrets/{name}")
}

/// A forbidden action of a node: a description, and the request.
type Forbidden = (&'static str, Method, String, Value);

fn path_of_node(name: &str) -> String {
    format!("{}/{name}", collection::<Node>())
}

fn relabelled() -> Value {
    json!({ "metadata": { "labels": { "pratique.dev/role": "master" } } })
}

/// To another node, its pods and their secrets.
fn of_others(other: &str, others: String) -> Vec<Forbidden> {
    let theirs = path_of_node(other);
    vec![
        (
            "read a secret of another node's pod",
            Method::GET,
            others,
            json!(null),
        ),
        (
            "read another node's pod",
            Method::GET,
            format!("{PODS}/{other}-keeps"),
            json!(null),
        ),
        ("change another node", Method::PATCH, theirs, relabelled()),
    ]
}

/// An event of another node about itself.
async fn event_of(lab: &Lab, node: &str) -> String {
    let name = format!("{node}-event");
    let event = node_event(&name, node, node);
    let body = serde_json::to_vec(&event).unwrap();
    let answer = lab.site.api(Method::POST, EVENTS, body).await;
    assert!(answer.status.is_success(), "{:?}", answer.json);
    format!("{EVENTS}/{name}")
}

fn node_event(name: &str, by: &str, about: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Event", "metadata": { "name": name, "namespace": "default" },
        "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": about }, "reason": "Tested", "message": "m",
        "source": { "component": "kubelet", "host": by }, "reportingInstance": by })
}

/// What people and policies rest on: events, requests for certificates, addresses of pods.
fn of_what_others_rely_on(own: &str, other: &str, event: String) -> Vec<Forbidden> {
    let requests = collection::<CertificateSigningRequest>();
    let elsewhere = json!({ "status": { "podIP": "10.9.9.9", "podIPs": [{ "ip": "10.9.9.9" }] } });
    let may = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": { "user": "jane",
        "resourceAttributes": { "verb": "get", "resource": "secrets" } } });
    vec![
        (
            "change the event of another node",
            Method::PATCH,
            event,
            json!({ "message": "all is well" }),
        ),
        (
            "tell of another node",
            Method::POST,
            EVENTS.to_owned(),
            node_event("forged", own, other),
        ),
        (
            "tell in another node's name",
            Method::POST,
            EVENTS.to_owned(),
            node_event("forged", other, own),
        ),
        (
            "list requests for certificates",
            Method::GET,
            requests.clone(),
            json!(null),
        ),
        (
            "watch requests for certificates",
            Method::GET,
            format!("{requests}?watch=true"),
            json!(null),
        ),
        (
            "give its pod an address elsewhere",
            Method::PATCH,
            format!("{PODS}/{own}-keeps/status"),
            elsewhere,
        ),
        (
            "ask what somebody may",
            Method::POST,
            "/apis/authorization.k8s.io/v1/subjectaccessreviews".to_owned(),
            may,
        ),
    ]
}

/// To what is the cluster's.
fn of_the_cluster() -> Vec<Forbidden> {
    let secret = collection::<Secret>().replace("/v1/", "/v1/namespaces/default/");
    let config_map = collection::<ConfigMap>().replace("/v1/", "/v1/namespaces/default/");
    let policy = format!("{}/cluster", collection::<CertificatePolicy>());
    let fresh = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "worker-new" } });
    let listed = json!({ "apiVersion": "pratique.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "worker-new" },
        "spec": { "role": "worker" } });
    vec![
        (
            "put a machine into the inventory",
            Method::POST,
            collection::<Machine>(),
            listed,
        ),
        ("create a Node", Method::POST, collection::<Node>(), fresh),
        (
            "list all secrets",
            Method::GET,
            collection::<Secret>(),
            json!(null),
        ),
        (
            "read a secret of no pod of its own",
            Method::GET,
            format!("{secret}/any"),
            json!(null),
        ),
        (
            "read a config map of no pod of its own",
            Method::GET,
            format!("{config_map}/any"),
            json!(null),
        ),
        (
            "list the pods of a namespace, whole",
            Method::GET,
            "/api/v1/namespaces/default/pods".to_owned(),
            json!(null),
        ),
        (
            "search all pods by what is in them",
            Method::GET,
            "/api/v1/pods?fieldSelector=spec.serviceAccountName%3Ddefault".to_owned(),
            json!(null),
        ),
        ("read the policy", Method::GET, policy.clone(), json!(null)),
        (
            "edit the policy",
            Method::PATCH,
            policy,
            json!({ "spec": { "rules": [] } }),
        ),
        (
            "release an image",
            Method::POST,
            "/apis/pratique.dev/v1alpha1/imagereleases".to_owned(),
            json!({}),
        ),
    ]
}

/// To its own Node and Machine.
fn of_its_own(name: &str) -> Vec<Forbidden> {
    let node = path_of_node(name);
    let own_machine = format!("{}/{name}", collection::<Machine>());
    let untaint = json!({ "spec": { "taints": [] } });
    let pinned = json!({ "metadata": { "labels": { "kubernetes.io/hostname": "another" } } });
    vec![
        (
            "draw pods that are pinned to another node",
            Method::PATCH,
            node.clone(),
            pinned,
        ),
        (
            "take its Machine out of the inventory",
            Method::DELETE,
            own_machine.clone(),
            json!(null),
        ),
        ("delete itself", Method::DELETE, node.clone(), json!(null)),
        ("relabel itself", Method::PATCH, node.clone(), relabelled()),
        ("untaint itself", Method::PATCH, node.clone(), untaint),
        (
            "edit its Machine",
            Method::PATCH,
            own_machine,
            json!({ "spec": { "retired": false } }),
        ),
    ]
}

/// A node may change its own objects as far as upstream allows, and no others.
pub(crate) async fn a_node_stays_within_its_rights(lab: &Lab) {
    let (machine, who) = joined(lab).await;
    let (other, _) = joined(lab).await;
    let node = own_node(&machine);
    let (mine, others) = (
        secret_of_a_pod(lab, &machine.node).await,
        secret_of_a_pod(lab, &other.node).await,
    );
    assert_eq!(
        ask(lab, &who, Method::GET, &mine, json!(null)).await,
        StatusCode::OK,
        "a secret of its own pod"
    );
    let event = event_of(lab, &other.node).await;
    let relied_on = of_what_others_rely_on(&machine.node, &other.node, event);
    let forbidden = of_others(&other.node, others)
        .into_iter()
        .chain(relied_on)
        .chain(of_the_cluster())
        .chain(of_its_own(&machine.node));
    for (what, method, path, body) in forbidden {
        assert_eq!(
            ask(lab, &who, method, &path, body).await,
            StatusCode::FORBIDDEN,
            "a node may {what}"
        );
    }
    assert_eq!(
        ask(lab, &who, Method::GET, &node, json!(null)).await,
        StatusCode::OK
    );
    let own = node_event("own", &machine.node, &machine.node);
    assert_eq!(
        ask(lab, &who, Method::POST, EVENTS, own).await,
        StatusCode::CREATED
    );
    let ready = json!({ "metadata": { "annotations": { "test": "own" } } });
    assert_eq!(
        ask(lab, &who, Method::PATCH, &format!("{node}/status"), ready).await,
        StatusCode::OK
    );
}

/// A Suspect node, which is not denied, can't remove the taint that keeps new pods away from it; an
/// honest proof does.
pub(crate) async fn a_suspect_node_keeps_its_taint_until_it_proves_itself(lab: &Lab) {
    let (machine, who) = joined(lab).await;
    let path = own_node(&machine);
    let suspected = async || {
        let node: Node = lab.site.get(&machine.node).await;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints
            .iter()
            .any(|taint| taint.key == SUSPECT && taint.effect == NO_SCHEDULE)
    };
    let until = async |wanted: bool| {
        let start = Instant::now();
        while suspected().await != wanted {
            assert!(
                start.elapsed() < LIMIT,
                "the taint does not become {wanted}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(!suspected().await);
    let change = |evidence: &mut config_protocol::wire::Evidence| {
        evidence.proof.pcrs.insert(11, config_tpm::Digest::ZERO);
    };
    lab.refused(
        &lab.join_with(&machine, change).await,
        Code::PcrDigest,
        true,
    )
    .await;
    until(true).await;
    let untaint = json!({ "spec": { "taints": [] } });
    let mut whole = serde_json::to_value(lab.site.get::<Node>(&machine.node).await).unwrap();
    whole["spec"] = json!({});
    for (method, body) in [
        (Method::PATCH, untaint.clone()),
        (Method::PUT, whole.clone()),
    ] {
        assert_eq!(
            ask(lab, &who, method, &path, body).await,
            StatusCode::FORBIDDEN,
            "a Suspect may untaint itself"
        );
    }
    // It may write its own status, which does not affect its taints.
    let status = format!("{path}/status");
    for (method, body) in [(Method::PATCH, untaint), (Method::PUT, whole)] {
        assert_eq!(ask(lab, &who, method, &status, body).await, StatusCode::OK);
        assert!(
            suspected().await,
            "a Suspect untainted itself by its status"
        );
    }
    lab.join(&machine).await.accepted();
    until(false).await;
}

/// A serving certificate authenticates no client, and an anonymous caller gets health only.
pub(crate) async fn a_serving_certificate_is_no_client_certificate(lab: &Lab) {
    let machine = lab.machine().await;
    let certificates = lab.join(&machine).await.accepted();
    let serving = serving_identity(&machine, &certificates);
    // TLS 1.3 tells a refused client at its first read.
    let refused = match lab.connect_as(&serving).await {
        Err(_) => true,
        Ok(mut connection) => connection
            .request(Method::GET, "/api/v1/nodes", "application/json", Vec::new())
            .await
            .is_err(),
    };
    assert!(refused, "a serving certificate was taken as a client's");
    let mut anonymous = lab.connect().await;
    assert_eq!(
        anonymous
            .send(Method::GET, "/livez", Vec::new())
            .await
            .status,
        StatusCode::OK
    );
    for path in [
        "/api/v1/nodes",
        "/apis/pratique.dev/v1alpha1/machines",
        "/api/v1/secrets",
    ] {
        let status = anonymous.send(Method::GET, path, Vec::new()).await.status;
        assert!(
            [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status),
            "{path}: {status}"
        );
    }
    let who = identity(&machine, &certificates);
    assert_eq!(
        ask(lab, &who, Method::GET, &own_node(&machine), json!(null)).await,
        StatusCode::OK
    );
}

/// A person approves a request of upstream's client signer: it is signed for its key, and a denied
/// or unapproved one is not.
pub(crate) async fn a_client_certificate_request_is_signed_once_approved(lab: &Lab) {
    for (name, condition) in [("jane-approved", "Approved"), ("jane-denied", "Denied")] {
        lab.site.create(&client_request(name, "jane", &[])).await;
        let mut decided: CertificateSigningRequest = lab.site.get(name).await;
        let said = json!([{ "type": condition, "status": "True", "reason": "Person", "message": "by hand" }]);
        decided.status.get_or_insert_default().conditions = serde_json::from_value(said).unwrap();
        let path = format!(
            "{}/{name}/approval",
            collection::<CertificateSigningRequest>()
        );
        let answer = lab
            .site
            .api(Method::PUT, &path, serde_json::to_vec(&decided).unwrap())
            .await;
        assert!(answer.status.is_success(), "{:?}", answer.json);
    }
    let start = Instant::now();
    loop {
        let approved: CertificateSigningRequest = lab.site.get("jane-approved").await;
        if let Some(certificate) = approved.status.unwrap_or_default().certificate {
            let chain = crate::lab::chain(&String::from_utf8(certificate.0).unwrap());
            assert_eq!(chain.len(), 1, "the leaf alone");
            break;
        }
        assert!(start.elapsed() < LIMIT, "not signed:\n{}", lab.site.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let denied: CertificateSigningRequest = lab.site.get("jane-denied").await;
    assert!(denied.status.unwrap_or_default().certificate.is_none());
}
