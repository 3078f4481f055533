//! Renewal: the recorded keys, the same boot, a fresh proof.

use super::{Anonymous, Outcome, Proven, accepted, expect, lab};
use config_attest::sessions::{Limits, Sessions};
use config_attest::verifier::RenewingPeer;
use config_kube::MachineState;
use config_protocol::{Code, Purpose};
use tests_machines::{EkKind, SoftMachine, World};

/// A world whose worker has joined.
fn joined() -> (World, SoftMachine) {
    let (mut world, mut machine) = lab();
    accepted(world.join(&machine));
    machine.clock.clock += 1000;
    (world, machine)
}

/// Unchanged, a renewal is accepted; changed, it is refused.
#[track_caller]
fn refused(
    kind: super::RefusalKind,
    code: Code,
    mount: impl FnOnce(&mut World, &mut SoftMachine) -> Outcome,
) {
    let (mut world, machine) = joined();
    accepted(world.renew(&machine));
    let (mut world, mut machine) = joined();
    expect(kind, code, mount(&mut world, &mut machine));
}

fn peer(machine: &SoftMachine) -> RenewingPeer {
    RenewingPeer {
        machine_uid: "uid-of-worker-1".to_owned(),
        node_name: "worker-1".to_owned(),
        spki: machine.nk_spki(),
    }
}

fn renew_as(world: &mut World, machine: &SoftMachine, peer: &RenewingPeer) -> Outcome {
    let hello = machine.hello();
    let challenge = world.renewal_challenge(&hello.0, peer)?;
    let evidence = machine.evidence(Purpose::Renew, &hello, &challenge, &world.channel);
    world.verify(&challenge, &evidence)
}

#[test]
fn the_certificate_is_this_machines() {
    refused(Anonymous, Code::RenewalIdentity, |world, machine| {
        let other = RenewingPeer {
            machine_uid: "uid-of-an-earlier-object".to_owned(),
            ..peer(machine)
        };
        renew_as(world, machine, &other)
    });
    refused(Anonymous, Code::RenewalIdentity, |world, machine| {
        let other = RenewingPeer {
            node_name: "worker-2".to_owned(),
            ..peer(machine)
        };
        renew_as(world, machine, &other)
    });
    refused(Anonymous, Code::RenewalIdentity, |world, machine| {
        let other = RenewingPeer {
            spki: SoftMachine::new("other", EkKind::P256).nk_spki(),
            ..peer(machine)
        };
        renew_as(world, machine, &other)
    });
    refused(Anonymous, Code::RenewalIdentity, |world, machine| {
        machine.claims.name = "worker-2".to_owned();
        renew_as(world, machine, &peer(machine))
    });
}

#[test]
fn the_keys_are_the_recorded_ones() {
    refused(Anonymous, Code::RenewalKeys, |world, machine| {
        let other = SoftMachine::new("other", EkKind::P256);
        machine.ak = other.ak;
        machine.ak_public = other.ak_public;
        renew_as(world, machine, &peer(machine))
    });
    refused(Anonymous, Code::RenewalKeys, |world, machine| {
        // A deleted and recreated object has no record.
        world
            .object("worker-1")
            .status
            .get_or_insert_default()
            .bound_ek = None;
        renew_as(world, machine, &peer(machine))
    });
    // A reboot makes another node key, so the machine must join again.
    refused(Anonymous, Code::RenewalKeys, |world, machine| {
        machine.boot(&world.image, "nocloud", b"version = 1\n");
        renew_as(world, machine, &peer(machine))
    });
}

#[test]
fn a_reset_since_the_certificate_needs_a_join() {
    refused(Proven, Code::RenewalAfterReset, |world, machine| {
        machine.clock.reset_count += 1;
        world.renew(machine)
    });
    // The same node key in another boot: the TPM was shut down with its state, and so keeps the
    // seed of the NULL hierarchy.
    refused(Proven, Code::RenewalAfterReset, |world, machine| {
        machine.clock.restart_count += 1;
        accepted(world.join(machine));
        machine.clock.restart_count += 1;
        machine.clock.clock = 5;
        world.renew(machine)
    });
    let (mut world, mut machine) = joined();
    machine.clock.restart_count += 1;
    accepted(world.join(&machine));
    accepted(world.renew(&machine));
}

#[test]
fn suspect_and_untrusted_machines_do_not_renew() {
    refused(Anonymous, Code::RenewalState, |world, machine| {
        world
            .object("worker-1")
            .status
            .get_or_insert_default()
            .state = MachineState::Suspect;
        world.renew(machine)
    });
    refused(Anonymous, Code::MachineUntrusted, |world, machine| {
        world
            .object("worker-1")
            .status
            .get_or_insert_default()
            .state = MachineState::Untrusted;
        world.renew(machine)
    });
    // A Suspect machine becomes Trusted again by a join.
    let (mut world, machine) = joined();
    world
        .object("worker-1")
        .status
        .get_or_insert_default()
        .state = MachineState::Suspect;
    accepted(world.join(&machine));
}

#[test]
fn a_renewal_needs_a_fresh_and_complete_proof() {
    // The evidence of the join, or of another renewal, is refused.
    refused(Anonymous, Code::NonceReplayed, |world, machine| {
        let hello = machine.hello();
        let first = world.renewal_challenge(&hello.0, &peer(machine))?;
        let old = machine.evidence(Purpose::Renew, &hello, &first, &world.channel);
        let second = world.renewal_challenge(&hello.0, &peer(machine))?;
        world.verify(&second, &old)
    });
    refused(Anonymous, Code::CredentialNotActivated, |world, machine| {
        let hello = machine.hello();
        let challenge = world.renewal_challenge(&hello.0, &peer(machine))?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        world.verify(&challenge, &evidence)
    });
    // State is proved again: a register that changed since the join is noticed.
    refused(Proven, Code::NkAuthPolicy, |world, machine| {
        machine.bank.extend(12, &config_tpm::Digest::of(b"late"));
        world.renew(machine)
    });
    refused(Proven, Code::ImageSvn, |world, machine| {
        world.rule.images.min_svn = 8;
        world.renew(machine)
    });
}

#[test]
fn a_flood_of_joins_in_a_nodes_name_does_not_stop_its_renewal() {
    for limits in [
        Limits {
            total: 8,
            per_ek: 2,
        },
        Limits {
            total: 2,
            per_ek: 8,
        },
    ] {
        let (mut world, machine) = joined();
        world.sessions = Sessions::new(limits);
        let hello = machine.hello().0;
        for _ in 0..9 {
            // Beyond the share of its key it is refused.
            world.challenge(&hello).ok();
        }
        assert_eq!(world.sessions.len(), 2);
        accepted(world.renew(&machine));
    }
}
