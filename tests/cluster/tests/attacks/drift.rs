//! Drift: a machine that proves a bad state is denied at once, on every connection that it or its
//! pods could use.

use crate::lab::{CONFIG, LIMIT, Lab, identity};
use crate::site::collection;
use crate::wire::{Connection, Identity, config};
use config_kube::k8s_openapi::api::core::v1::{Event, Node};
use config_protocol::Code;
use config_tpm::Digest;
use config_verdicts::{Kind, LogFile, verify};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests_machines::SoftMachine;

const PODS: &str = "/api/v1/namespaces/default/pods";
const ACCOUNT: &str = "/api/v1/namespaces/default/serviceaccounts/default";

/// All connections of a node and its pods to the master, and of the master to the node.
struct Voices {
    machine: SoftMachine,
    node: String,
    tls: Arc<rustls::ClientConfig>,
    kept: Connection,
    watch: Incoming,
    /// The connection of the watch.
    _watching: Connection,
    token: String,
}

impl Voices {
    async fn of(lab: &Lab) -> Self {
        let machine = lab.machine().await;
        let certificates = lab.join(&machine).await.accepted();
        let who: Identity = identity(&machine, &certificates);
        let tls = config(&lab.site.root, Some(&who));
        let node = format!("{}/{}", collection::<Node>(), machine.node);
        let open = async || {
            Connection::open(lab.site.address, tls.clone())
                .await
                .unwrap()
        };
        let path = format!(
            "{}?watch=true&fieldSelector=metadata.name={}",
            collection::<Node>(),
            machine.node
        );
        let mut watching = open().await;
        let watch = watching
            .request(Method::GET, &path, "application/json", Vec::new())
            .await
            .unwrap()
            .into_body();
        let status = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 9 } } } });
        let path = format!("{node}/status");
        let answer = open()
            .await
            .send(Method::PATCH, &path, serde_json::to_vec(&status).unwrap())
            .await;
        assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.json);
        let token = token(lab, &machine.node).await;
        let kept = open().await;
        Self {
            machine,
            node,
            tls,
            kept,
            watch,
            _watching: watching,
            token,
        }
    }

    /// The statuses of a request on the kept connection, on a new one, on a resumed session, and
    /// with the pod's token.
    async fn speak(&mut self, lab: &Lab) -> [StatusCode; 4] {
        let kept = self.kept.status(Method::GET, &self.node, Vec::new()).await;
        let mut bearer = lab.connect().await.with_token(&self.token);
        let token = bearer.send(Method::GET, "/api/v1", Vec::new()).await.status;
        let mut new = Connection::open(lab.site.address, self.tls.clone())
            .await
            .unwrap();
        let first = new.status(Method::GET, &self.node, Vec::new()).await;
        let mut resumed = Connection::open(lab.site.address, self.tls.clone())
            .await
            .unwrap();
        assert!(resumed.resumed, "this TLS session was to be resumed");
        let second = resumed.status(Method::GET, &self.node, Vec::new()).await;
        [kept, first, second, token]
    }

    /// The master's answer to a request for a pod's log on the node.
    async fn asked(&self, lab: &Lab) -> String {
        let answer = lab
            .site
            .api(
                Method::GET,
                &format!("{PODS}/{}/log", self.machine.node),
                Vec::new(),
            )
            .await;
        answer.json["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    async fn pod_ready(&self, lab: &Lab) -> Option<bool> {
        let pod = lab
            .site
            .api(
                Method::GET,
                &format!("{PODS}/{}", self.machine.node),
                Vec::new(),
            )
            .await
            .json;
        let conditions = pod["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        conditions
            .iter()
            .find(|condition| condition["type"] == "Ready")
            .map(|ready| ready["status"] == "True")
    }
}

/// Waits until pods may be made: the namespace has its account.
pub(crate) async fn account(lab: &Lab) {
    let start = Instant::now();
    while !lab
        .site
        .api(Method::GET, ACCOUNT, Vec::new())
        .await
        .status
        .is_success()
    {
        assert!(start.elapsed() < LIMIT, "no default service account");
    }
}

/// A pod on the node, and the token that its account has there.
pub(crate) async fn token(lab: &Lab, node: &str) -> String {
    account(lab).await;
    let post = async |path: &str, body: Value| {
        let answer = lab
            .site
            .api(Method::POST, path, serde_json::to_vec(&body).unwrap())
            .await;
        assert!(answer.status.is_success(), "{:?}", answer.json);
        answer.json
    };
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": node },
        "spec": { "nodeName": node, "containers": [{ "name": "a", "image": "a" }] } });
    let pod = post(PODS, pod).await;
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    let answer = lab
        .site
        .api(
            Method::PATCH,
            &format!("{PODS}/{node}/status"),
            serde_json::to_vec(&ready).unwrap(),
        )
        .await;
    assert!(answer.status.is_success(), "{:?}", answer.json);
    let bound =
        json!({ "kind": "Pod", "apiVersion": "v1", "name": node, "uid": pod["metadata"]["uid"] });
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "audiences": [], "boundObjectRef": bound } });
    post(&format!("{ACCOUNT}/token"), request).await["status"]["token"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A machine reboots into a bad image: from the moment of its proof its requests are denied, none
/// is sent to it, and its pods are not ready. Another machine is not affected.
pub(crate) async fn a_machine_that_proves_a_bad_image_is_denied_at_once_with_its_pods(lab: &Lab) {
    let (mut bad, mut good) = (Voices::of(lab).await, Voices::of(lab).await);
    for voices in [&mut bad, &mut good] {
        assert_eq!(voices.speak(lab).await, [StatusCode::OK; 4]);
        assert!(
            voices
                .asked(lab)
                .await
                .contains("the node cannot be reached"),
            "{}",
            voices.asked(lab).await
        );
        assert_eq!(voices.pod_ready(lab).await, Some(true));
    }
    let mut image = lab.image.clone();
    image.kernel[0] ^= 1;
    bad.machine.boot(&image, "nocloud", CONFIG);
    let outcome = lab.join(&bad.machine).await;
    let start = Instant::now();
    assert_eq!(bad.speak(lab).await, [StatusCode::UNAUTHORIZED; 4]);
    let refused = start.elapsed();
    let ended = async { while let Some(Ok(_)) = bad.watch.frame().await {} };
    tokio::time::timeout(LIMIT, ended)
        .await
        .expect("the open watch of a denied node ends");
    let cut = start.elapsed();
    let mut closed = false;
    while !closed && start.elapsed() < LIMIT {
        closed = bad
            .kept
            .request(Method::GET, "/version", "text/plain", Vec::new())
            .await
            .is_err();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(closed, "the connection of a denied node is cut");
    println!(
        "from the verdict: requests refused within {refused:?}, watch cut {cut:?}, connection {:?}",
        start.elapsed()
    );
    lab.refused(&outcome, Code::ImageLoader, true).await;
    assert!(
        bad.asked(lab).await.contains("no request is sent to node"),
        "{}",
        bad.asked(lab).await
    );
    until("its pod is not ready", || async {
        bad.pod_ready(lab).await != Some(true)
    })
    .await;
    // The control.
    assert_eq!(good.speak(lab).await, [StatusCode::OK; 4]);
    assert!(good.asked(lab).await.contains("the node cannot be reached"));
    assert_eq!(good.pod_ready(lab).await, Some(true));
    let still = tokio::time::timeout(Duration::from_millis(50), async {
        while good.watch.frame().await.is_some() {}
    });
    assert!(still.await.is_err(), "the watch of a good node goes on");
    let name = bad.machine.node.clone();
    until("events tell it", || async {
        let events: Vec<Event> = lab.site.list().await;
        let reported = |reason: &str, node: &str| {
            events.iter().any(|event| {
                event.reason.as_deref() == Some(reason)
                    && event.involved_object.name.as_deref() == Some(node)
            })
        };
        reported("Untrusted", &name)
            && reported("Joined", &name)
            && !reported("Untrusted", &good.machine.node)
    })
    .await;
}

/// The log as an admin gets it.
pub(crate) async fn log(lab: &Lab) -> Vec<u8> {
    let mut admin = Connection::open(lab.site.address, lab.site.admin.clone())
        .await
        .unwrap();
    let answer = admin
        .request(Method::GET, "/verdicts", "text/plain", Vec::new())
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    answer
        .into_body()
        .collect()
        .await
        .unwrap()
        .to_bytes()
        .to_vec()
}

/// Decisions are in the log, the log verifies with the root's pin, a changed one does not, and only
/// an admin reads it.
pub(crate) async fn a_changed_verdict_log_is_found_and_only_an_admin_reads_it(lab: &Lab) {
    let (_, root) = x509_parser::parse_x509_certificate(&lab.site.root).unwrap();
    let pin = Digest::of(root.public_key().raw);
    let mut machine = lab.machine().await;
    let who = identity(&machine, &lab.join(&machine).await.accepted());
    let before = verify(&[LogFile::new("log", log(lab).await)], &[pin], &[]).unwrap();
    let mut image = lab.image.clone();
    image.kernel[0] ^= 1;
    machine.boot(&image, "nocloud", CONFIG);
    lab.refused(&lab.join(&machine).await, Code::ImageLoader, true)
        .await;
    let text = log(lab).await;
    let after = verify(&[LogFile::new("log", text.clone())], &[pin], &[before.head]).unwrap();
    assert_eq!(after.met, 1, "what was noted is still there");
    assert!(
        after.kinds[&Kind::Refused]
            > before
                .kinds
                .get(&Kind::Refused)
                .copied()
                .unwrap_or_default()
    );
    assert!(after.kinds[&Kind::Joined] >= 1 && after.codes.contains_key("IMAGE_LOADER"));
    let found = String::from_utf8(text.clone()).unwrap();
    let record = found
        .lines()
        .find(|line| line.contains("IMAGE_LOADER") && line.contains(&machine.node))
        .unwrap();
    for forged in [
        found.replace(record, &record.replace("IMAGE_LOADER", "IMAGE_SVN")),
        found.replace(&format!("{record}\n"), ""),
    ] {
        assert!(
            verify(&[LogFile::new("log", forged.into_bytes())], &[pin], &[]).is_err(),
            "a forged log is accepted"
        );
    }
    assert!(
        verify(
            &[LogFile::new("log", text)],
            &[Digest::of(b"another root")],
            &[]
        )
        .is_err()
    );
    for mut nosy in [lab.connect().await, lab.connect_as(&who).await.unwrap()] {
        let status = nosy.send(Method::GET, "/verdicts", Vec::new()).await.status;
        assert!(
            [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status),
            "{status}"
        );
    }
    let mut admin = Connection::open(lab.site.address, lab.site.admin.clone())
        .await
        .unwrap();
    let figures = admin
        .request(Method::GET, "/metrics", "text/plain", Vec::new())
        .await
        .unwrap();
    let figures = figures.into_body().collect().await.unwrap().to_bytes();
    let figures = String::from_utf8(figures.to_vec()).unwrap();
    for line in [
        "pratique_machines{state=\"Trusted\"}",
        "pratique_refusals_total{code=\"IMAGE_LOADER\"}",
        "pratique_sessions{",
    ] {
        assert!(figures.contains(line), "no {line}");
    }
}

/// The lowest SVN rises by an ordinary write, and falls only by a write with the annotation that
/// allows it.
pub(crate) async fn the_minimum_svn_falls_only_by_an_explicit_write(lab: &Lab) {
    let policy: config_kube::CertificatePolicy = lab.site.get("cluster").await;
    let path = format!("{}/cluster", collection::<config_kube::CertificatePolicy>());
    let write = async |svn: u64, said: Option<&str>| {
        let mut rules = serde_json::to_value(&policy.spec.rules).unwrap();
        rules[0]["images"]["minSvn"] = json!(svn);
        let change = json!({ "metadata": { "annotations": { "pratique.dev/lower-min-svn": said } }, "spec": { "rules": rules } });
        lab.site
            .api(Method::PATCH, &path, serde_json::to_vec(&change).unwrap())
            .await
    };
    let refused = write(6, None).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{:?}", refused.json);
    let why = refused.json["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(
        why.contains("pratique.dev/lower-min-svn=workers=6"),
        "the cure is in the refusal: {why}"
    );
    assert_eq!(
        write(6, Some("workers=5")).await.status,
        StatusCode::FORBIDDEN,
        "said of another floor"
    );
    assert_eq!(write(6, Some("workers=6")).await.status, StatusCode::OK);
    assert_eq!(
        write(7, None).await.status,
        StatusCode::OK,
        "rising needs no word"
    );
    // Neither another policy nor another object makes the master forget it.
    let put = async |policy_name: &str, svn: u64| {
        let mut rules = serde_json::to_value(&policy.spec.rules).unwrap();
        rules[0]["policy"] = json!(policy_name);
        rules[0]["images"]["minSvn"] = json!(svn);
        let change = json!({ "metadata": { "annotations": { "pratique.dev/lower-min-svn": null } }, "spec": { "rules": rules } });
        lab.site
            .api(Method::PATCH, &path, serde_json::to_vec(&change).unwrap())
            .await
    };
    let rejecting = json!([{ "name": "workers", "policy": "always-reject", "signers": policy.spec.rules[0].signers,
        "certificate": { "roles": ["worker"] } }]);
    let rejecting = json!({ "spec": { "rules": rejecting } });
    let away = lab
        .site
        .api(
            Method::PATCH,
            &path,
            serde_json::to_vec(&rejecting).unwrap(),
        )
        .await;
    assert_eq!(away.status, StatusCode::OK, "{:?}", away.json);
    assert_eq!(
        put("cloud-verify", 6).await.status,
        StatusCode::FORBIDDEN,
        "a detour over another policy"
    );
    assert_eq!(put("cloud-verify", 7).await.status, StatusCode::OK);
    let gone = lab.site.api(Method::DELETE, &path, Vec::new()).await;
    assert_eq!(gone.status, StatusCode::FORBIDDEN, "{:?}", gone.json);
    let why = gone.json["message"].as_str().unwrap_or_default().to_owned();
    assert!(
        why.contains("pratique.dev/lower-min-svn=all"),
        "the cure is in the refusal: {why}"
    );
}
