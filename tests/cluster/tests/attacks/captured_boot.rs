//! What a real machine measured: event logs captured in QEMU under OVMF, byte for byte, with the
//! release of the image that it had booted, sent to a running master.

use crate::lab::Lab;
use config_attest::release::Manifest;
use config_kube::MachineState;
use config_protocol::Code;
use config_protocol::wire::Blob;
use config_tpm::eventlog::EventLog;
use config_tpm::pcr::CONFIG_PCR;
use tests_machines::SoftMachine;

const MANIFEST: &str = include_str!("../../../../config/attest/vectors/guest-manifest.json");
const SECURE_BOOT_ON: &[u8] =
    include_bytes!("../../../../config/attest/vectors/guest-secure-boot-on.eventlog");
const SECURE_BOOT_OFF: &[u8] =
    include_bytes!("../../../../config/attest/vectors/guest-secure-boot-off.eventlog");

/// A machine whose registers are what this capture leads to.
async fn booted(lab: &Lab, capture: &[u8]) -> SoftMachine {
    let mut machine = lab.machine().await;
    let config = machine.config_event.clone().unwrap();
    machine.log = EventLog::parse(capture).unwrap();
    machine.bank = machine.log.replay();
    machine.bank.extend(CONFIG_PCR, &config.digest);
    machine.bind_nk();
    machine
}

/// The captured boot is admitted with Secure Boot on and refused with it off; truncated or changed,
/// it is refused.
pub(crate) async fn a_captured_boot_is_admitted_and_an_altered_one_refused(lab: &Lab) {
    let mut manifest = Manifest::parse(MANIFEST).unwrap();
    // The build's number is of its own time; nothing that was measured holds it.
    manifest.svn = lab.image.svn;
    lab.release_of(&manifest).await;
    let send = async |machine: &SoftMachine, capture: Vec<u8>| {
        lab.join_with(machine, |evidence| {
            evidence.proof.event_log = Blob::new(capture).unwrap();
        })
        .await
    };
    let good = booted(lab, SECURE_BOOT_ON).await;
    send(&good, SECURE_BOOT_ON.to_vec()).await.accepted();
    let status = lab.status(&good.node).await;
    assert_eq!(status.state, MachineState::Trusted, "{}", status.message);
    assert_eq!(status.image.map(|image| image.id), Some(manifest.id));

    let off = booted(lab, SECURE_BOOT_OFF).await;
    lab.refused(
        &send(&off, SECURE_BOOT_OFF.to_vec()).await,
        Code::SecureBootOff,
        true,
    )
    .await;
    let cut = SECURE_BOOT_ON[..SECURE_BOOT_ON.len() - 7].to_vec();
    lab.refused(&send(&good, cut).await, Code::EventLogTruncated, true)
        .await;
    send(&good, SECURE_BOOT_ON.to_vec()).await.accepted();
    lab.refused(
        &send(&good, SECURE_BOOT_OFF.to_vec()).await,
        Code::EventLogReplay,
        true,
    )
    .await;
}
