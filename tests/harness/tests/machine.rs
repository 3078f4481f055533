//! The harness with a real QEMU, firmware and software TPM.

use std::path::Path;
use std::time::Duration;
use tests_harness::machine::{Blueprint, Segment};
use tests_harness::tools::Tools;

/// A disk without a boot loader: enough to see that firmware, TPM, console, monitor and the ways to
/// end a machine work.
#[test]
fn firmware_with_an_empty_disk_says_so_and_the_machine_can_be_ended() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap();
    let tools = Tools::find(root).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("empty.raw");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let blueprint = Blueprint {
        name: "empty".into(),
        dir: dir.path().join("empty"),
        image,
        vars: tools.file("/usr/share/OVMF/OVMF_VARS_4M.fd"),
        authority: dir.path().join("authority"),
        has_tpm: true,
        has_serial: true,
        cidata: None,
        fw_cfg: None,
        smbios: vec!["with,a,comma".into()],
        cloud: None,
        clock: None,
        forwards: vec![],
        host_service: None,
        host_discovery: None,
        segment: Segment::None,
        memory: 256,
        disk: 1,
    };
    let machine = blueprint.start(&tools).unwrap();
    let outcome = machine.wait("BdsDxe", Duration::from_secs(400));
    machine.cut_power().unwrap();
    assert!(outcome.unwrap().contains("BdsDxe"));
    assert!(!machine.alive());
    assert!(blueprint.tpm(&tools).unwrap().ek_certificate().exists());
}
