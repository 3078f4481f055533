//! Claimed addresses: no two machines hold valid certificates for one address, and a machine has a
//! bounded number of them.

use super::claimant::{claimed, person};
use super::{accepted, lab};
use config_kube::{Machine, PolicyName};
use config_protocol::Code;
use tests_machines::{EkKind, SoftMachine, World};

/// Two machines under a rule that takes claimed addresses, the first of which holds a certificate
/// for `10.9.9.9`.
fn two_claimants(policy: PolicyName) -> (World, SoftMachine, SoftMachine) {
    let (mut world, mut first) = lab();
    let mut second = world.machine("worker-2", "192.168.77.12", EkKind::P256);
    world.rule.certificate.sans.clear();
    world.rule.policy = policy;
    for machine in [&mut first, &mut second] {
        machine.claims.addresses.push("10.9.9.9".to_owned());
        machine.serving_request.names.push("10.9.9.9".to_owned());
    }
    (world, first, second)
}

/// Sets the end of a Machine's last certificate.
fn end(machine: &mut Machine, time: &str) {
    let status = machine.status.get_or_insert_default();
    time.clone_into(&mut status.certificate.get_or_insert_default().not_after);
}

/// A machine that goes from address to address has certificates with all of them: it gets no
/// further one until the first end.
#[test]
fn a_machine_does_not_collect_addresses() {
    let (mut world, mut machine) = lab();
    world.rule.certificate.sans.clear();
    let own = machine.serving_request.names.clone();
    accepted(world.join(&machine));
    let mut taken = 0;
    for number in 0..12_u8 {
        let addresses: Vec<String> = (0..15)
            .map(|last| format!("10.9.{number}.{last}"))
            .collect();
        machine.claims.addresses.clone_from(&addresses);
        machine.serving_request.names = [own.clone(), addresses].concat();
        machine.clock.clock += 1000;
        match world.renew(&machine) {
            Ok(_) => taken += 1,
            Err(refusal) => {
                assert_eq!(refusal.code(), Code::AddressTaken);
                break;
            }
        }
        end(world.object("worker-1"), "2090-01-01T00:00:00Z");
    }
    assert_eq!(taken, 9, "128 names beside the last fifteen");
    let status = world.object("worker-1").status.get_or_insert_default();
    for until in status.earlier_names.values_mut() {
        "2020-01-01T00:00:00Z".clone_into(until);
    }
    machine.clock.clock += 1000;
    accepted(world.renew(&machine));
}

/// What happens to the machine that held the address.
type Release = (&'static str, bool, fn(&mut World, &mut SoftMachine));

#[test]
fn one_address_is_in_the_certificates_of_one_machine() {
    let releases: [Release; 9] = [
        ("nothing", false, |_, _| {}),
        ("it became Suspect", false, |world, _| {
            world
                .object("worker-1")
                .status
                .get_or_insert_default()
                .state = config_kube::MachineState::Suspect;
        }),
        (
            "it became Untrusted, and its certificate is good to others",
            false,
            |world, _| {
                world
                    .object("worker-1")
                    .status
                    .get_or_insert_default()
                    .state = config_kube::MachineState::Untrusted;
            },
        ),
        ("its Machine was deleted", true, |world, _| {
            world
                .machines
                .retain(|machine| machine.node_name() != "worker-1");
        }),
        ("it was retired", true, |world, _| {
            world.object("worker-1").spec.retired = true;
        }),
        ("its board was replaced", true, |world, _| {
            let spare = SoftMachine::new("a spare board", EkKind::P256)
                .ek_hash()
                .to_text();
            world.object("worker-1").spec.ek.hashes = vec![spare];
        }),
        (
            "it gave the address up at its next proof, and its certificate with it is good",
            false,
            |world, machine| {
                machine.claims.addresses.pop();
                machine.serving_request.names.pop();
                machine.clock.clock += 1000;
                accepted(world.renew(machine));
            },
        ),
        (
            "it gave the address up, and its certificate with it ended",
            true,
            |world, machine| {
                end(world.object("worker-1"), "2020-01-01T00:00:00Z");
                machine.claims.addresses.pop();
                machine.serving_request.names.pop();
                machine.clock.clock += 1000;
                accepted(world.renew(machine));
                end(world.object("worker-1"), "2090-01-01T00:00:00Z");
            },
        ),
        ("its certificate ended", true, |world, _| {
            end(world.object("worker-1"), "2020-01-01T00:00:00Z");
        }),
    ];
    for (what, free, release) in releases {
        let (mut world, mut first, mut second) = two_claimants(PolicyName::CloudVerify);
        accepted(world.join(&first));
        release(&mut world, &mut first);
        let outcome = world.join(&second);
        if free {
            accepted(outcome);
            continue;
        }
        let refusal = outcome.expect_err(what);
        assert_eq!(
            (refusal.code(), refusal.consequence()),
            (Code::AddressTaken, None),
            "{what}"
        );
        // It may still ask for its own addresses.
        second.serving_request.names.pop();
        accepted(world.join(&second));
    }
}

/// The same for another form of the address, under the other policies, and for a stranger.
#[test]
fn one_address_is_one_machines_in_every_form_and_under_every_policy() {
    for policy in [PolicyName::Queue, PolicyName::InsecureAlwaysApprove] {
        let (mut world, first, mut second) = two_claimants(PolicyName::CloudVerify);
        accepted(world.join(&first));
        world.rule.policy = policy;
        second.claims.addresses = vec!["::ffff:10.9.9.9".to_owned()];
        second.serving_request.names = vec!["worker-2".to_owned(), "::ffff:10.9.9.9".to_owned()];
        let refusal = world.claim(&second).expect_err("taken");
        assert_eq!(refusal.code(), Code::AddressTaken, "{policy:?}");
        world
            .machines
            .retain(|machine: &Machine| machine.node_name() != "worker-2");
        let refusal = world.claim(&second).expect_err("taken, and a stranger's");
        assert_eq!(refusal.code(), Code::AddressTaken, "{policy:?}");
    }
    // The inventory takes precedence over what others claimed.
    let (mut world, first, second) = two_claimants(PolicyName::CloudVerify);
    accepted(world.join(&first));
    world
        .object("worker-2")
        .spec
        .addresses
        .push("10.9.9.9".to_owned());
    accepted(world.join(&second));
    // A renewal and a reboot of the machine itself do not count as a second machine.
    let (mut world, mut first, _) = two_claimants(PolicyName::CloudVerify);
    accepted(world.join(&first));
    first.clock.clock += 1000;
    accepted(world.renew(&first));
    let image = world.image.clone();
    first.boot(&image, "nocloud", b"version = 1\n");
    accepted(world.join(&first));
    drop(person(&claimed(world.claim(&first))));
}
