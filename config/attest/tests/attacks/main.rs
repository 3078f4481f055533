//! Every attack of cloud-verify/v1, each refused with its own code, each beside the same exchange
//! without it (the negative control).

#![allow(clippy::panic, reason = "helpers of tests stop at the first surprise")]

mod addresses;
mod bootstrap;
mod claimant;
mod coverage;
mod csr;
mod freshness;
mod identity;
mod keys;
mod listing;
mod privileged;
mod renewal;
mod state;
mod unproven;

use config_attest::Refusal;
use config_attest::verifier::CertificateGrant;
use config_protocol::wire::{Challenge, Evidence};
use config_protocol::{Code, Purpose};
use tests_machines::{EkKind, SoftMachine, World};

type Outcome = Result<CertificateGrant, Box<Refusal>>;

/// A world with one good worker that is booted and has not joined.
fn lab() -> (World, SoftMachine) {
    let mut world = World::new();
    let machine = world.machine("worker-1", "192.168.77.11", EkKind::P256);
    (world, machine)
}

/// A session, and evidence for it that is not sent yet.
#[track_caller]
fn half_open(world: &mut World, machine: &SoftMachine) -> (Challenge, Evidence) {
    let hello = machine.hello();
    let challenge = world.challenge(&hello.0).expect("a challenge");
    let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
    (challenge, evidence)
}

/// What a refusal may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RefusalKind {
    /// Nothing was proved.
    Anonymous,
    /// The machine itself proved it.
    Proven,
}
use RefusalKind::{Anonymous, Proven};

/// Without the attack the exchange is accepted; with it, in a fresh world, it is refused with the
/// code, proven or anonymous as expected.
#[track_caller]
fn refused(
    kind: RefusalKind,
    code: Code,
    mount: impl FnOnce(&mut World, &mut SoftMachine) -> Outcome,
) {
    let (mut world, machine) = lab();
    if let Err(refusal) = world.join(&machine) {
        panic!("negative control refused: {refusal}");
    }
    let (mut world, mut machine) = lab();
    expect(kind, code, mount(&mut world, &mut machine));
}

/// An outcome is this refusal.
#[track_caller]
fn expect(kind: RefusalKind, code: Code, outcome: Outcome) {
    match outcome {
        Ok(verified) => panic!("accepted, expected {code}: {:#?}", verified.verdict()),
        Err(refusal) => {
            assert_eq!(refusal.code(), code, "{refusal}\n{:#?}", refusal.verdict());
            let found = match *refusal {
                Refusal::Anonymous { .. } => Anonymous,
                Refusal::Proven { .. } => Proven,
            };
            assert_eq!(found, kind, "{code}");
            assert!(found == Proven || refusal.consequence().is_none());
        }
    }
}

/// An outcome is acceptance.
#[track_caller]
fn accepted(outcome: Outcome) -> CertificateGrant {
    match outcome {
        Ok(verified) => {
            assert!(
                verified.verdict().checks.iter().all(|check| check.ok),
                "{:#?}",
                verified.verdict()
            );
            verified
        }
        Err(refusal) => panic!("{refusal}\n{:#?}", refusal.verdict()),
    }
}

#[test]
fn a_good_machine_joins_and_everything_it_proved_is_recorded() {
    for kind in [EkKind::P256, EkKind::P384, EkKind::Rsa] {
        let mut world = World::new();
        if kind == EkKind::Rsa {
            // The shared RSA key has no certificate: known by the inventory only.
            world.rule.ek.issuers.clear();
        }
        let machine = world.machine("worker-1", "192.168.77.11", kind);
        let verified = accepted(world.join(&machine));
        assert_eq!(verified.node_name(), "worker-1");
        assert_eq!(verified.role(), "worker");
        assert_eq!(verified.ttl_seconds(), 1800);
        assert_eq!(verified.client_spki(), machine.nk_spki());
        let names: Vec<String> = verified
            .serving_names()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(names, ["DNS:worker-1", "IP:192.168.77.11"]);
        let status = world.object("worker-1").status.clone().unwrap_or_default();
        assert_eq!(status.bound_ek, Some(machine.ek_hash().to_text()));
        assert_eq!(
            status.image.map(|image| (image.id, image.svn)),
            Some(("worker-7".to_owned(), 7))
        );
        assert_eq!(
            status
                .pinned_pcrs
                .keys()
                .map(String::as_str)
                .collect::<Vec<_>>(),
            ["0", "2"]
        );
        assert_eq!(
            status.config.map(|config| config.source).as_deref(),
            Some("nocloud")
        );
        assert!(status.checks.len() > 30, "{} checks", status.checks.len());
    }
}

#[test]
fn a_manifest_that_lists_events_is_held_to_them() {
    let (mut world, _) = lab();
    let mut image = world.image.clone();
    image.list_events = true;
    world.releases = vec![
        image
            .manifest()
            .sign(&[&world.release_signer])
            .expect("a release"),
    ];
    let machine = world.machine("worker-2", "192.168.77.12", EkKind::P256);
    accepted(world.join(&machine));
}
