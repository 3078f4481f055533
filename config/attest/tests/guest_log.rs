//! Event logs of a real image booted in QEMU under OVMF (Secure Boot off and on), against the
//! manifest that its build wrote.
//!
//! The logs are as firmware, systemd-stub and kernel left them in the guest's memory (the copy
//! behind `binary_bios_measurements`); the manifest is the build's, with the lists of packages and
//! executables shortened.

#![allow(clippy::panic, reason = "helpers of tests stop at the first surprise")]

use config_attest::release::Manifest;
use config_protocol::Code;
use config_tpm::boot::Boot;
use config_tpm::eventlog::{EventLog, kind};
use config_tpm::pcr::{CONFIG_PCR, extended};
use tests_machines::{EkKind, SoftMachine, World};

fn manifest() -> Manifest {
    Manifest::parse(include_str!("../vectors/guest-manifest.json")).expect("the build's manifest")
}

/// The log of a boot and what was predicted for it.
fn boot(secure_boot: bool) -> (EventLog, Boot) {
    let bytes: &[u8] = if secure_boot {
        include_bytes!("../vectors/guest-secure-boot-on.eventlog")
    } else {
        include_bytes!("../vectors/guest-secure-boot-off.eventlog")
    };
    let log = EventLog::parse(bytes).expect("the guest's log");
    assert_eq!(log.to_bytes().len(), bytes.len());
    let boot = manifest()
        .boots
        .into_iter()
        .find(|boot| boot.secure_boot == secure_boot)
        .expect("a prediction");
    (log, boot)
}

/// A machine that booted with this log, in a world that allows the image.
fn machine(secure_boot: bool) -> (World, SoftMachine) {
    let (log, _) = boot(secure_boot);
    let mut world = World::new();
    world.releases = vec![
        manifest()
            .sign(&[&world.release_signer])
            .expect("a release"),
    ];
    world.rule.images.min_svn = 0;
    let mut machine = world.machine("worker-1", "192.168.77.11", EkKind::P256);
    let config = machine.config_event.clone().expect("a configuration event");
    machine.bank = log.replay();
    machine.bank.extend(CONFIG_PCR, &config.digest);
    assert_eq!(
        machine.bank.get(CONFIG_PCR),
        extended(&config_tpm::Digest::ZERO, &config.digest)
    );
    machine.log = log;
    machine.bind_nk();
    (world, machine)
}

#[test]
fn the_builds_prediction_is_what_the_guest_measured() {
    for secure_boot in [true, false] {
        let (log, boot) = boot(secure_boot);
        let bank = log.replay();
        for (pcr, allowed) in &boot.pcrs {
            assert_eq!(
                *allowed,
                [bank.get(*pcr)],
                "PCR {pcr}, Secure Boot {secure_boot}"
            );
        }
        for (pcr, expected) in &boot.events {
            let found: Vec<_> = log
                .of(*pcr)
                .map(|event| (event.kind, event.digest))
                .collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|event| (event.kind, event.digest))
                .collect();
            assert_eq!(
                found, expected,
                "events of PCR {pcr}, Secure Boot {secure_boot}"
            );
        }
    }
}

#[test]
fn a_real_boot_is_accepted_and_secure_boot_is_read_from_its_log() {
    let (mut world, guest) = machine(true);
    let verified = world
        .join(&guest)
        .unwrap_or_else(|refusal| panic!("{refusal}\n{:#?}", refusal.verdict()));
    assert_eq!(verified.image().expect("an image").id, manifest().id);
    let (mut world, guest) = machine(false);
    assert_eq!(
        world
            .join(&guest)
            .expect_err("Secure Boot is required")
            .code(),
        Code::SecureBootOff
    );
    world.rule.events.secure_boot = false;
    assert!(world.join(&guest).is_ok());
}

#[test]
fn no_event_of_a_quoted_register_can_change_its_type_or_be_removed() {
    let (_, good) = machine(true);
    for index in 0..good.log.events.len() {
        let pcr = good.log.events[index].pcr;
        if ![0, 2, 4, 7, 9, 11].contains(&pcr) || good.log.events[index].kind == kind::NO_ACTION {
            continue;
        }
        let (mut world, mut guest) = machine(true);
        guest.log.events.remove(index);
        assert!(
            world.join(&guest).is_err(),
            "event {index} of PCR {pcr} removed"
        );
        if ![0, 2].contains(&pcr) {
            // PCR 0 and 2 are the firmware's own: pinned as values, their events are not read.
            let (mut world, mut guest) = machine(true);
            guest.log.events[index].kind ^= 1;
            assert!(
                world.join(&guest).is_err(),
                "type of event {index} of PCR {pcr} changed"
            );
        }
    }
}
