//! Static joins: `pratique issue` against the running master, the agent with what it wrote, and
//! what such a node may not do.

use crate::after_join::ask;
use crate::lab::Lab;
use crate::site::collection;
use crate::wire::Identity;
use agent_tpm::Tpm;
use config_kube::Machine;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_model::Document;
use config_model::identity::{IssuedIdentity, IssuedKey};
use config_protocol::Code;
use config_tpm::Public;
use http::{Method, StatusCode};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tests_harness::process::Owned;
use tests_harness::swtpm::Swtpm;

const LIMIT: Duration = Duration::from_secs(180);

/// Runs `pratique issue`.
fn issue(lab: &Lab, name: &str, out: &Path, more: &[&str]) -> Output {
    let mut pratique = lab.site.program("pratique");
    pratique
        .args([
            "issue",
            "--name",
            name,
            "--address",
            "192.0.2.7",
            "--kubeconfig",
        ])
        .arg(lab.site.kubeconfig());
    pratique
        .arg("--out")
        .arg(out)
        .args(more)
        .output()
        .expect("pratique")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The identity in a document.
fn written(out: &Path) -> IssuedIdentity {
    let text = std::fs::read(out).unwrap();
    let Ok(Document::Machine(machine)) = config_model::parse(text, "issued") else {
        panic!("a machine's document")
    };
    machine.identity.expect("an identity")
}

/// A static node whose key the test has too.
pub(crate) fn bare(lab: &Lab, name: &str) -> Identity {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("user-data.toml");
    let output = issue(lab, name, &out, &["--insecure-plaintext-key"]);
    assert!(
        output.status.success(),
        "{}\n{}",
        stderr(&output),
        lab.site.log()
    );
    assert!(stderr(&output).contains("WARNING"), "{}", stderr(&output));
    let identity = written(&out);
    let IssuedKey::Plaintext(key) = identity.key else {
        panic!("a bare key")
    };
    Identity {
        chain: identity.certificate,
        key: key.to_vec(),
    }
}

/// Waits for a Node, which the master makes.
async fn node(lab: &Lab, name: &str) -> Node {
    let start = Instant::now();
    loop {
        let nodes: Vec<Node> = lab.site.list().await;
        if let Some(node) = nodes
            .into_iter()
            .find(|node| node.metadata.name.as_deref() == Some(name))
        {
            return node;
        }
        assert!(
            start.elapsed() < LIMIT,
            "no Node {name}:\n{}",
            lab.site.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The Machine says what is not proven, the Node exists, the certificate names the Machine, and is
/// denied with the Machine.
pub(crate) async fn a_static_machine_is_shown_as_unproven_and_denied_with_its_record(lab: &Lab) {
    let who = bare(lab, "static-1");
    let machine: Machine = lab.site.get("static-1").await;
    let status = machine.status.clone().unwrap_or_default();
    assert!(machine.spec.is_static && status.image.is_none() && status.last_attestation.is_none());
    assert!(
        status
            .message
            .starts_with("static: nothing about image or configuration is proven"),
        "{}",
        status.message
    );
    let extension = master_ca::NodeExtension::of_certificate(&who.chain[0]).unwrap();
    assert_eq!(Some(extension.machine_uid), machine.metadata.uid);
    let labels = node(lab, "static-1")
        .await
        .metadata
        .labels
        .unwrap_or_default();
    assert_eq!(
        labels.get("pratique.dev/join").map(String::as_str),
        Some("static")
    );
    let own = format!("{}/static-1", collection::<Node>());
    assert_eq!(
        ask(lab, &who, Method::GET, &own, json!(null)).await,
        StatusCode::OK,
        "the negative control"
    );
    lab.site
        .patch::<Machine>("static-1", &json!({ "spec": { "retired": true } }))
        .await;
    let start = Instant::now();
    while ask(lab, &who, Method::GET, &own, json!(null)).await == StatusCode::OK {
        assert!(start.elapsed() < LIMIT, "retired, and still heard");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Nor is anything issued to a retired machine, or in the name of one that proves itself.
    let dir = tempfile::tempdir().unwrap();
    let refused = issue(
        lab,
        "static-1",
        &dir.path().join("a"),
        &["--insecure-plaintext-key"],
    );
    assert!(
        !refused.status.success() && stderr(&refused).contains("retired"),
        "{}",
        stderr(&refused)
    );
    let attested = lab.machine().await;
    let refused = issue(
        lab,
        &attested.node,
        &dir.path().join("b"),
        &["--insecure-plaintext-key"],
    );
    assert!(
        !refused.status.success() && stderr(&refused).contains("proves itself"),
        "{}",
        stderr(&refused)
    );
    assert!(!dir.path().join("a").exists() && !dir.path().join("b").exists());
}

/// A static node can't renew, can't enrol, and can't have a request of its own approved.
pub(crate) async fn a_static_node_cannot_renew_enrol_or_request(lab: &Lab) {
    let who = bare(lab, "static-2");
    let mut machine = lab.stranger();
    "static-2".clone_into(&mut machine.node);
    "static-2".clone_into(&mut machine.claims.name);
    let hashes = json!({ "spec": { "ek": { "hashes": [machine.ek_hash().to_text()] } } });
    lab.site.patch::<Machine>("static-2", &hashes).await;
    let outcome = lab.until(Code::MachineStatic, || lab.join(&machine)).await;
    lab.refused(&outcome, Code::MachineStatic, false).await;
    let outcome = lab.renew(&machine, &who).await;
    lab.refused(&outcome, Code::MachineStatic, false).await;
    let requests = collection::<CertificateSigningRequest>();
    let found: Vec<CertificateSigningRequest> = lab.site.list().await;
    let own = found
        .into_iter()
        .find(|request| request.spec.signer_name == "pratique.dev/static-client")
        .unwrap();
    let mut copy = serde_json::to_value(&own).unwrap();
    copy["metadata"] = json!({ "name": "by-itself" });
    copy["status"] = json!({});
    let made = ask(lab, &who, Method::POST, &requests, copy.clone()).await;
    if made.is_success() {
        copy["status"] = json!({ "conditions": [{ "type": "Approved", "status": "True", "reason": "x", "message": "x" }] });
        let approved = ask(
            lab,
            &who,
            Method::PUT,
            &format!("{requests}/by-itself/approval"),
            copy,
        )
        .await;
        assert_eq!(approved, StatusCode::FORBIDDEN);
    }
}

/// The agent as a process, with a document on a host.
struct Agent {
    process: Owned,
    dir: tempfile::TempDir,
}

impl Agent {
    fn start(lab: &Lab, tcti: &str, document: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| -> PathBuf { dir.path().join(name) };
        let mut agent: Command = lab.site.program("agent");
        agent.args([
            "run",
            "--tcti",
            tcti,
            "--image",
            "/nonexistent",
            "--kubelet-port",
            "0",
        ]);
        agent
            .args(["--containerd", "/nonexistent", "--config"])
            .arg(document);
        for (flag, name) in [
            ("--data", "data"),
            ("--run", "run"),
            ("--kubelet-data", "kubelet"),
            ("--pod-logs", "logs"),
        ] {
            agent.arg(flag).arg(at(name));
        }
        let process = Owned::start(agent, &at("agent.log")).unwrap();
        Self { process, dir }
    }

    async fn says(&self, text: &str) {
        let start = Instant::now();
        loop {
            let log =
                std::fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default();
            if log.contains(text) {
                return;
            }
            assert!(
                start.elapsed() < LIMIT,
                "the agent never said {text:?}:\n{log}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The whole way: an EK in a file, a document that holds no key in the clear, a node with its key
/// in the TPM; and the same document on another machine is refused with the reason.
pub(crate) async fn a_wrapped_key_is_usable_on_its_own_tpm_alone(lab: &Lab) {
    let (own, other) = (Swtpm::new(), Swtpm::new());
    let dir = tempfile::tempdir().unwrap();
    let (ek, out) = (
        dir.path().join("ek.tpmt"),
        dir.path().join("user-data.toml"),
    );
    {
        let tpm = Tpm::open(&own.tcti()).unwrap();
        let key = tpm.endorsement_keys().unwrap().remove(0);
        Public::parse(&key.public).unwrap();
        std::fs::write(&ek, &key.public).unwrap();
    }
    let output = issue(
        lab,
        "static-3",
        &out,
        &["--ek", &ek.display().to_string(), "--ttl", "2d"],
    );
    assert!(
        output.status.success(),
        "{}\n{}",
        stderr(&output),
        lab.site.log()
    );
    assert!(
        !std::fs::read_to_string(&out)
            .unwrap()
            .contains("PRIVATE KEY")
    );
    assert!(matches!(written(&out).key, IssuedKey::Wrapped { .. }));
    let agent = Agent::start(lab, &own.tcti(), &out);
    agent
        .says("node static-3 by issued certificates until")
        .await;
    // Two days, or a moment less, are within the notice.
    agent.says("the issued certificates end in ").await;
    agent.says("node static-3 is served").await;
    let start = Instant::now();
    // The kubelet writes its Node's status with a key that only the TPM has.
    while node(lab, "static-3")
        .await
        .status
        .and_then(|status| status.node_info)
        .is_none()
    {
        assert!(
            start.elapsed() < LIMIT,
            "the node never spoke:\n{}",
            lab.site.log()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    agent.process.stop(Duration::from_secs(20)).unwrap();
    let stolen = Agent::start(lab, &other.tcti(), &out);
    stolen
        .says("the key was wrapped to the endorsement key sha256:")
        .await;
    stolen.process.stop(Duration::from_secs(20)).ok();
}
