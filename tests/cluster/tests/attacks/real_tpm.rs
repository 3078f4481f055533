//! The same wire with a real TPM stack at the other end: tpm2-tss over a software TPM, driven by
//! the agent's own rooms.

use crate::lab::{CONFIG, Lab};
use agent_enroll::{
    Endpoint, Endpoints, Enroller, Identity, Logs, Milestone, MilestoneCallback, Pin, Prover,
    Renewer, Settings,
};
use agent_tpm::Tpm;
use config_kube::machine::EkSelector;
use config_kube::{Machine, MachineSpec, MachineState};
use config_protocol::Code;
use config_protocol::wire::{Claims, ConfigEvent};
use config_tpm::Digest;
use config_tpm::Public;
use config_tpm::eventlog::kind;
use config_tpm::pcr::config_event_digest;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests_harness::swtpm::Swtpm;
use tests_machines::SoftImage;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Time for an exchange with a software TPM on a busy machine, or for a renewal at a third of 30
/// seconds.
const LIMIT: Duration = Duration::from_secs(270);

/// Measures an image and a configuration as firmware, stub and init would, and writes the logs that
/// they leave.
pub(crate) fn boot(tpm: &Tpm, image: &SoftImage, dir: &Path) -> Logs {
    let mut log = image.log();
    // This TPM was started in locality 0.
    log.events.retain(|event| event.kind != kind::NO_ACTION);
    for event in log.measured() {
        tpm.extend_pcr(event.pcr, event.digest).unwrap();
    }
    let digest = config_event_digest("nocloud", CONFIG);
    tpm.extend_pcr(13, digest).unwrap();
    let event = ConfigEvent {
        pcr: 13,
        label: "nocloud".to_owned(),
        length: CONFIG.len() as u64,
        digest,
    };
    let (firmware, config_event) = (dir.join("log"), dir.join("config-event.json"));
    std::fs::write(&firmware, log.to_bytes()).unwrap();
    std::fs::write(&config_event, serde_json::to_vec(&event).unwrap()).unwrap();
    Logs {
        firmware,
        config_event,
    }
}

/// Writes the line of the inventory of the machine that has this TPM.
pub(crate) async fn list(lab: &Lab, tpm: &Tpm, name: &str) {
    let hashes = tpm.endorsement_keys().unwrap().into_iter();
    let hash =
        |public: &[u8]| Digest::of(&Public::parse(public).unwrap().spki().unwrap()).to_text();
    let spec = MachineSpec {
        role: "worker".to_owned(),
        ek: EkSelector {
            hashes: hashes.map(|key| hash(&key.public)).collect(),
            issuers: Vec::new(),
            ..EkSelector::default()
        },
        config_digests: vec![config_event_digest("nocloud", CONFIG).to_text()],
        ..MachineSpec::default()
    };
    lab.site.create(&Machine::named(name, spec)).await;
}

/// A machine with a real TPM, in the inventory, that tries to enrol.
pub(crate) struct Node {
    pub(crate) enroller: Enroller,
    pub(crate) milestones: UnboundedReceiver<String>,
    tpm: Tpm,
    pub(crate) _dir: tempfile::TempDir,
}

pub(crate) async fn node(lab: &Lab, swtpm: &Swtpm, name: &str, image: &SoftImage) -> Node {
    node_by(
        lab,
        swtpm,
        name,
        image,
        vec![agent_enroll::spki_hash(&lab.site.root).unwrap()],
    )
    .await
}

/// The same with other pins.
pub(crate) async fn node_by(
    lab: &Lab,
    swtpm: &Swtpm,
    name: &str,
    image: &SoftImage,
    pins: Vec<Pin>,
) -> Node {
    let dir = tempfile::tempdir().unwrap();
    let tpm = Tpm::open(&swtpm.tcti()).unwrap();
    let logs = boot(&tpm, image, dir.path());
    list(lab, &tpm, name).await;
    let endpoint = Endpoint::new("127.0.0.1", lab.site.address.port()).unwrap();
    let settings = Settings {
        endpoints: Endpoints::new(vec![endpoint]).unwrap(),
        pins: pins.into(),
        claims: Claims {
            name: name.to_owned(),
            ..Claims::default()
        },
    };
    let (sender, milestones) = unbounded_channel();
    let report: MilestoneCallback = Arc::new(move |milestone: &Milestone<'_>| {
        let line = match milestone {
            Milestone::Enrolling { .. } => "enrolling".to_owned(),
            Milestone::Refused { code, .. } => format!("refused {code}"),
            Milestone::Queued { message, .. } => format!("queued {message}"),
            Milestone::Failed { error, .. } => format!("failed {}", chain(error)),
            Milestone::Enrolled { node, .. } => format!("enrolled {node}"),
            Milestone::Renewed { .. } => "renewed".to_owned(),
            Milestone::Expired => "expired".to_owned(),
        };
        drop(sender.send(line));
    });
    let enroller = Enroller::new(Prover::new(tpm.clone(), logs), settings, report)
        .await
        .unwrap();
    Node {
        enroller,
        milestones,
        tpm,
        _dir: dir,
    }
}

/// Waits for a milestone; returns its line.
pub(crate) async fn milestone(milestones: &mut UnboundedReceiver<String>, prefix: &str) -> String {
    let wait = async {
        loop {
            let line = milestones.recv().await.expect("more milestones");
            if line.starts_with(prefix) {
                return line;
            }
        }
    };
    tokio::time::timeout(LIMIT, wait)
        .await
        .unwrap_or_else(|_elapsed| panic!("no milestone `{prefix}` in time"))
}

/// An error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

async fn serial(lab: &Lab, name: &str) -> String {
    lab.status(name)
        .await
        .certificate
        .map(|certificate| certificate.serial)
        .unwrap_or_default()
}

/// A machine with a real TPM joins, speaks to the API with its TPM's key, and renews by a fresh
/// quote; once a register that the key is bound to changes, the TPM itself refuses. Another that
/// booted a changed kernel proves that and is refused.
pub(crate) async fn a_real_tpm_joins_and_renews_only_with_what_it_booted() {
    let (good, bad) = (Swtpm::new(), Swtpm::of_another_maker());
    let issuers = good.issuer_pem() + &bad.issuer_pem();
    let lab = Lab::start_with(&issuers, "30s").await;
    let Node {
        enroller,
        mut milestones,
        tpm,
        _dir,
    } = node(&lab, &good, "real-1", &lab.image).await;
    let enrolled: (Identity, Renewer) = tokio::time::timeout(LIMIT, enroller.enroll())
        .await
        .unwrap()
        .unwrap();
    let (identity, keeper) = enrolled;
    assert_eq!(identity.node, "real-1");
    let status = lab.status("real-1").await;
    assert_eq!(
        (status.state, status.image.map(|image| image.svn)),
        (MachineState::Trusted, Some(7))
    );
    let own = identity
        .client
        .request(
            http::Method::GET,
            "/api/v1/nodes/real-1",
            "",
            bytes::Bytes::new(),
        )
        .await
        .unwrap();
    assert_eq!(own.status, 200);
    let first = serial(&lab, "real-1").await;
    let keeping = tokio::spawn(keeper.keep());
    milestone(&mut milestones, "renewed").await;
    assert_ne!(
        serial(&lab, "real-1").await,
        first,
        "another certificate, by another quote"
    );
    // A measurement after the configuration makes the node key unusable, for the node and for an
    // attacker on it.
    tpm.extend_pcr(12, Digest::of(b"late")).unwrap();
    milestone(&mut milestones, "failed").await;
    keeping.abort();
    refused_for_its_kernel(&lab, &bad).await;
    lab.site.stop();
}

async fn refused_for_its_kernel(lab: &Lab, swtpm: &Swtpm) {
    let mut image = lab.image.clone();
    image.kernel[0] ^= 1;
    let Node {
        enroller,
        mut milestones,
        _dir,
        ..
    } = node(lab, swtpm, "real-2", &image).await;
    let trying = tokio::spawn(enroller.enroll());
    milestone(&mut milestones, "refused").await;
    let start = Instant::now();
    loop {
        let status = lab.status("real-2").await;
        if status.state == MachineState::Untrusted {
            assert_eq!(
                status.reason,
                Code::ImageLoader.as_str(),
                "{}",
                status.message
            );
            break;
        }
        assert!(start.elapsed() < LIMIT, "{status:?}\n{}", lab.site.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    trying.abort();
}
