//! The cluster's keys change under a running master: the intermediate unnoticed, the root with both
//! in force until an admin ends the old one.

use crate::lab::{Lab, chain, identity};
use crate::real_tpm::{self, Node};
use crate::site::{collection, credentials};
use crate::wire::{Connection, Identity, config};
use agent_enroll::{RootReadiness, root_readiness};
use config_kube::Machine;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Node as KubeNode};
use config_kube::roots::{ROOT_UNKNOWN, ready_for};
use config_protocol::Purpose;
use config_protocol::wire::{Certificates, SESSIONS_PATH};
use config_tpm::Digest;
use http::{Method, StatusCode};
use master_ca::{Authority, FileKeeper, profile};
use serde_json::json;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tests_harness::swtpm::Swtpm;
use tests_harness::tools::Tools;
use tests_machines::SoftMachine;

/// Time for what the master and the agent do by themselves.
const LIMIT: Duration = Duration::from_secs(180);
/// Time between two renewals of one machine, within the master's rate limit.
const PACE: Duration = Duration::from_millis(250);
/// How long after the lab's preparation its intermediate is due; the second where a machine can't
/// join in half of the first.
const DUE: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(120)];

async fn eventually<F: Future<Output = bool>>(what: &str, lab: &Lab, mut look: impl FnMut() -> F) {
    let start = Instant::now();
    while !look().await {
        assert!(
            start.elapsed() < LIMIT,
            "not in time: {what}\n{}",
            lab.site.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Nodes renew while the intermediate is renewed under them: no renewal fails, no connection ends,
/// what was signed by the old one stays good, and the root is the same.
pub(crate) async fn nodes_renew_without_failure_while_the_intermediate_changes() {
    let (lab, first, certificates) = joined_in_time().await;
    let old = identity(&first, &certificates);
    let path = format!("{}/{}", collection::<KubeNode>(), first.node);
    let mut open = lab.connect_as(&old).await.unwrap();
    let (mut machine, mut who, mut renewals) = (lab.machine().await, None, 0);
    let renewed = || {
        lab.site
            .log()
            .contains("the issuing intermediate was renewed")
    };
    assert!(!renewed(), "nothing to see is left");
    let (start, mut pace) = (Instant::now(), tokio::time::interval(PACE));
    loop {
        pace.tick().await;
        let done = renewed();
        let outcome = match &who {
            None => lab.join(&machine).await,
            Some(who) => lab.renew(&machine, who).await,
        };
        who = Some(identity(&machine, &outcome.accepted()));
        machine.clock.clock += 1000;
        renewals += 1;
        assert_eq!(
            open.send(Method::GET, &path, Vec::new()).await.status,
            StatusCode::OK
        );
        if done {
            break;
        }
        assert!(
            start.elapsed() < LIMIT,
            "the intermediate is not renewed:\n{}",
            lab.site.log()
        );
    }
    assert!(renewals > 3, "{renewals} renewals on both sides of it");
    let fresh = who.unwrap();
    assert_ne!(fresh.chain[1], old.chain[1], "another intermediate");
    for who in [&old, &fresh] {
        let answer = lab
            .connect_as(who)
            .await
            .unwrap()
            .send(Method::GET, "/version", Vec::new())
            .await;
        assert_eq!(answer.status, StatusCode::OK);
    }
    let mut first = first;
    first.clock.clock += 1000;
    let certificates = lab.renew(&first, &old).await.accepted();
    assert_eq!(
        chain(&certificates.roots),
        std::slice::from_ref(&lab.site.root),
        "the root is the same"
    );
    lab.site.stop();
}

/// A lab whose intermediate is soon to be renewed, and what a machine got there well before.
async fn joined_in_time() -> (Lab, SoftMachine, Certificates) {
    for due in DUE {
        let now = SystemTime::now();
        let made = now - profile::INTERMEDIATE_LIFE / 2 + due;
        let before = |data: &Path| {
            drop(Authority::open(&data.join("ca"), "lab", Arc::new(FileKeeper), made).unwrap());
        };
        let lab = Lab::start_on("", "30m", before).await;
        let machine = lab.machine().await;
        let certificates = lab.join(&machine).await.accepted();
        if now.elapsed().unwrap() < due / 2 {
            return (lab, machine, certificates);
        }
        lab.site.stop();
    }
    panic!("no join before the renewal, so there is nothing to see");
}

/// The admin's commands around one lab.
struct Admin<'a> {
    lab: &'a Lab,
    kubeconfig: std::path::PathBuf,
}

impl Admin<'_> {
    fn root(&self, arguments: &[&str]) -> Output {
        let mut pratique = self.lab.site.program("pratique");
        pratique
            .arg("root")
            .args(arguments)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .output()
            .unwrap()
    }

    fn done(&self, arguments: &[&str]) -> String {
        let output = self.root(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "root {arguments:?}: {error}\n{}",
            self.lab.site.log()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, arguments: &[&str], words: &[&str]) {
        let output = self.root(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "root {arguments:?} is done");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

fn kubectl(kubeconfig: &Path) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let tools = Tools::find(root.unwrap()).unwrap();
    tools
        .command("kubectl")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["get", "nodes", "-o", "name"])
        .output()
        .unwrap()
}

/// A join of a machine that trusts this root alone.
async fn join_by(lab: &Lab, root: &[u8]) -> (SoftMachine, Certificates) {
    let machine = lab.stranger();
    lab.list(&machine, &machine.node).await;
    let start = Instant::now();
    loop {
        let connection = Connection::open(lab.site.address, config(root, None))
            .await
            .unwrap();
        let outcome = lab
            .exchange(
                &machine,
                connection,
                SESSIONS_PATH,
                Purpose::Join,
                |_| {},
                |_| {},
            )
            .await;
        if outcome.answer.status == StatusCode::OK {
            let certificates = outcome.accepted();
            return (machine, certificates);
        }
        assert!(
            start.elapsed() < LIMIT,
            "the machine does not become known: {:?}",
            outcome.answer.json
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// From now on certificates live for 30 seconds, so that agents renew soon; returns the machine
/// that has such a certificate.
async fn short_certificates(lab: &Lab) -> SoftMachine {
    lab.change_rule(|rule| rule["certificate"]["ttlSeconds"] = json!(30))
        .await;
    let machine = lab.machine().await;
    eventually("short certificates", lab, || async {
        let outcome = lab.join(&machine).await;
        outcome.answer.status == StatusCode::OK && outcome.accepted().renew_after_seconds < 60
    })
    .await;
    machine
}

/// Reports for a node what its agent would report.
async fn tell_ready(lab: &Lab, node: &str, pins: &[String]) {
    let condition = json!({
        "type": ROOT_UNKNOWN, "status": "False", "reason": "RootsAreKnown", "message": ready_for(pins),
    });
    let change = json!({"status": {"conditions": [condition]}}).to_string();
    let path = format!("{}/{node}/status", collection::<KubeNode>());
    let answer = lab
        .site
        .api(Method::PATCH, &path, change.into_bytes())
        .await;
    assert!(answer.status.is_success(), "{:?}", answer.json);
}

/// From one root to the next with a machine that stays, machines that join with either pin,
/// restarts in between, and an end of the old root that is refused while a node would be locked
/// out.
pub(crate) async fn the_root_is_rotated_with_both_pins_in_force() {
    let (good, late) = (Swtpm::new(), Swtpm::of_another_maker());
    let mut lab = Lab::start_with(&(good.issuer_pem() + &late.issuer_pem()), "30m").await;
    let folder = tempfile::tempdir().unwrap();
    let (own, before) = (folder.path().join("own"), folder.path().join("before"));
    std::fs::copy(lab.site.kubeconfig(), &own).unwrap();
    std::fs::copy(lab.site.kubeconfig(), &before).unwrap();
    let old = lab.site.root.clone();
    let old_pin = pin(&old);
    // Its certificate outlives the old root.
    let (early, certificates) = join_by(&lab, &old).await;
    let ends = identity(&early, &certificates);
    let brief = short_certificates(&lab).await;
    // A machine with a real TPM and the old pin, kept by the agent's own rooms.
    let Node {
        enroller,
        mut milestones,
        _dir,
        ..
    } = real_tpm::node(&lab, &good, "real-1", &lab.image).await;
    let (agent, keeper) = tokio::time::timeout(LIMIT, enroller.enroll())
        .await
        .unwrap()
        .unwrap();
    let keeping = tokio::spawn(keeper.keep());

    let new_pin = begin(&lab, &own, &before, (&old_pin, &ends)).await;
    let roots = credentials_of(&own);
    let new = roots.iter().find(|root| **root != old).unwrap().clone();
    assert_eq!(pin(&new), new_pin);
    // Killed in between, the master comes back with both.
    lab.site.cut_and_restart().await;
    let pins = [old_pin.clone(), new_pin.clone()];
    let (by_new, certificates) = join_by(&lab, &new).await;
    let both = chain(&certificates.roots);
    assert_eq!(both, [old.clone(), new.clone()]);
    let (by_old, _) = join_by(&lab, &old).await;
    eventually("the roots in kube-root-ca.crt", &lab, || async {
        let path = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt";
        let answer = lab.site.api(Method::GET, path, Vec::new()).await;
        let map: ConfigMap = serde_json::from_value(answer.json).unwrap_or_default();
        map.data.is_some_and(|data| chain(&data["ca.crt"]) == both)
    })
    .await;

    // The agent with the old pin keeps renewing, and reports what it lacks; with the new one it is
    // ready after its next renewal.
    while milestones.try_recv().is_ok() {}
    real_tpm::milestone(&mut milestones, "renewed").await;
    assert_eq!(
        root_readiness(&agent.pins, &agent.certificate),
        Some(RootReadiness::PinMissing(new_pin.clone()))
    );
    let admin = Admin {
        lab: &lab,
        kubeconfig: own.clone(),
    };
    for machine in [&early, &brief, &by_new, &by_old] {
        tell_ready(&lab, &machine.node, &pins).await;
    }
    admin.refused(&["finish"], &["real-1", "locked out", "--force"]);
    agent.pins.replace(
        [&old, &new]
            .map(|root| agent_enroll::spki_hash(root).unwrap())
            .to_vec(),
    );
    let ready = Some(RootReadiness::Ready(pins.to_vec()));
    eventually("the agent is ready", &lab, || async {
        root_readiness(&agent.pins, &agent.certificate) == ready
    })
    .await;
    tell_ready(&lab, "real-1", &pins).await;
    assert!(admin.done(&["show"]).contains("every node is ready"));
    let mut open = lab.connect_as(&ends).await.unwrap();
    let heard = open
        .request(Method::GET, "/version", "", Vec::new())
        .await
        .unwrap();
    assert_eq!(
        heard.status(),
        StatusCode::OK,
        "the control: what is signed by the old root counts until the end"
    );
    assert!(
        admin
            .done(&["finish"])
            .contains(&format!("{new_pin}  the only root"))
    );

    let heard = open.request(Method::GET, "/version", "", Vec::new()).await;
    let refused = heard.map_or(true, |answer| answer.status() == StatusCode::UNAUTHORIZED);
    assert!(
        refused,
        "a connection that was open over the end of its root is let pass no more"
    );
    lab.site.trust(&own);
    ended(&lab, (&old, &ends), &own, &before).await;
    while milestones.try_recv().is_ok() {}
    real_tpm::milestone(&mut milestones, "renewed").await;
    locked_out(&lab, &late, (&old, &new_pin)).await;
    lab.site.cut_and_restart().await;
    join_by(&lab, &new).await;
    whole_log(&lab, folder.path(), &old_pin, &new_pin).await;
    keeping.abort();
    lab.site.stop();
}

/// Begins, and what must be refused around it; the new pin.
async fn begin(lab: &Lab, own: &Path, before: &Path, (old_pin, node): (&str, &Identity)) -> String {
    let admin = Admin {
        lab,
        kubeconfig: own.to_owned(),
    };
    assert!(
        admin
            .done(&["show"])
            .contains(&format!("{old_pin}  the only root"))
    );
    admin.refused(&["finish"], &["not being rotated"]);
    admin.refused(&["abandon"], &["not being rotated"]);
    let said = admin.done(&["rotate"]);
    let line = said
        .lines()
        .find(|line| line.starts_with("ca_pins = ["))
        .unwrap();
    let pins: Vec<&str> = line
        .split('"')
        .filter(|part| part.starts_with("sha256:"))
        .collect();
    assert!(pins.len() == 2 && pins[0] == old_pin, "{said}");
    admin.refused(&["rotate"], &["already"]);
    // Only an admin may.
    for (method, path) in [
        (Method::GET, ""),
        (Method::POST, "/finish?force=true"),
        (Method::POST, "/abandon"),
    ] {
        let path = format!("{}{path}", master_ca::ROOT_PATH);
        for mut caller in [lab.connect().await, lab.connect_as(node).await.unwrap()] {
            assert_eq!(
                caller.send(method.clone(), &path, Vec::new()).await.status,
                StatusCode::FORBIDDEN,
                "{path}"
            );
        }
    }
    for kubeconfig in [own, before] {
        let output = kubectl(kubeconfig);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    pins[1].to_owned()
}

/// The old root counts for nothing: not the server's, not a client's.
async fn ended(lab: &Lab, (old, signed): (&[u8], &Identity), own: &Path, before: &Path) {
    let output = kubectl(own);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        !kubectl(before).status.success(),
        "a kubeconfig with the old root alone"
    );
    assert!(
        Connection::open(lab.site.address, config(old, None))
            .await
            .is_err(),
        "the server shows the old root no more"
    );
    let refused = match lab.connect_as(signed).await {
        Err(_) => true,
        // With TLS 1.3 a client learns it with the first answer.
        Ok(mut connection) => connection
            .request(Method::GET, "/version", "", Vec::new())
            .await
            .is_err(),
    };
    assert!(refused, "a certificate that ends with the old root");
}

/// A machine with only the old pin gets an error that names this cause.
async fn locked_out(lab: &Lab, swtpm: &Swtpm, (old, new_pin): (&[u8], &str)) {
    let pins = vec![agent_enroll::spki_hash(old).unwrap()];
    let Node {
        enroller,
        mut milestones,
        _dir,
        ..
    } = real_tpm::node_by(lab, swtpm, "real-2", &lab.image, pins).await;
    let trying = tokio::spawn(enroller.enroll());
    let failure = real_tpm::milestone(&mut milestones, "failed").await;
    assert!(
        failure.contains(new_pin) && failure.contains("ca_pins") && failure.contains(&pin(old)),
        "{failure}"
    );
    trying.abort();
    let machine: Machine = lab.site.get("real-2").await;
    assert!(
        machine
            .status
            .is_none_or(|status| status.certificate.is_none())
    );
}

/// The log of verdicts verifies with both pins, and records who did what: each step, and each
/// renewal of the admin's certificate with its key.
async fn whole_log(lab: &Lab, folder: &Path, old: &str, new: &str) {
    let path = &folder.join("verdicts");
    let log = lab.site.text("/verdicts").await;
    std::fs::write(path, &log).unwrap();
    let verify = |pins: &[&str]| {
        let mut pratique = lab.site.program("pratique");
        pratique.arg("verify").arg(path);
        pratique.args(pins.iter().flat_map(|pin| ["--ca-pin", pin]));
        pratique.output().unwrap()
    };
    assert!(
        !verify(&[old]).status.success() && !verify(&[new]).status.success(),
        "each root vouches for its own time"
    );
    let output = verify(&[old, new]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (_, admin) = credentials(&std::fs::read(folder.join("own")).unwrap());
    let key = Digest::of(&master_ca::spki_of(&admin.chain[0]).unwrap()).to_text();
    let renewals = log
        .matches(&format!("was renewed, over the key {key}"))
        .count();
    assert_eq!(
        renewals, 5,
        "after rotate, before three finishes, after the last"
    );
    assert!(
        said.lines()
            .any(|line| line.split_whitespace().collect::<Vec<_>>() == ["7", "authority"]),
        "{said}"
    );
    assert!(
        log.contains("the rotation of the root is begun") && log.contains("the old root is ended")
    );
}

fn pin(root: &[u8]) -> String {
    Digest(agent_enroll::spki_hash(root).unwrap()).to_text()
}

/// The roots of a kubeconfig.
fn credentials_of(kubeconfig: &Path) -> Vec<Vec<u8>> {
    credentials(&std::fs::read(kubeconfig).unwrap()).0
}
