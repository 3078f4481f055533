//! A machine whose configuration allows privileged pods.

use crate::{Proven, accepted, expect, lab, refused};
use config_kube::policy::PolicyName;
use config_protocol::Code;
use tests_machines::EkKind;
use tests_machines::World;

#[test]
fn a_machine_with_privileged_pods_needs_a_rule_that_allows_them() {
    refused(Proven, Code::PrivilegedPods, |world, machine| {
        machine.claims.privileged_pods = true;
        world.join(machine)
    });
    for word in ["", "refuse"] {
        let (mut world, mut machine) = lab();
        word.clone_into(&mut world.rule.config.privileged_pods);
        machine.claims.privileged_pods = true;
        expect(Proven, Code::PrivilegedPods, world.join(&machine));
    }
    let (mut world, mut machine) = lab();
    "allow".clone_into(&mut world.rule.config.privileged_pods);
    machine.claims.privileged_pods = true;
    let verified = accepted(world.join(&machine));
    assert!(
        verified
            .verdict()
            .checks
            .iter()
            .any(|check| check.ok && check.name == "privileged pods")
    );
    let status = |world: &mut World| world.object("worker-1").status.clone().expect("a status");
    assert!(status(&mut world).privileged_pods);
    // The machine's next configuration does not allow them, and neither does its record.
    machine.claims.privileged_pods = false;
    machine.clock.clock += 1;
    accepted(world.join(&machine));
    assert!(!status(&mut world).privileged_pods);
}

#[test]
fn a_rule_that_stops_allowing_them_refuses_the_next_renewal() {
    let (mut world, mut machine) = lab();
    "allow".clone_into(&mut world.rule.config.privileged_pods);
    machine.claims.privileged_pods = true;
    accepted(world.join(&machine));
    machine.clock.clock += 1;
    accepted(world.renew(&machine));
    world.rule.config.privileged_pods.clear();
    machine.clock.clock += 1;
    expect(Proven, Code::PrivilegedPods, world.renew(&machine));
}

#[test]
fn a_claim_removed_in_transit_is_noticed() {
    // Q covers the hash of the claims: without the claim the quote no longer matches.
    let (mut world, mut machine) = lab();
    machine.claims.privileged_pods = true;
    let mut hello = machine.hello();
    hello.0.claims.privileged_pods = false;
    let challenge = world.challenge(&hello.0).expect("a challenge");
    hello.0.claims.privileged_pods = true;
    let evidence = machine.evidence(
        config_protocol::Purpose::Join,
        &hello,
        &challenge,
        &world.channel,
    );
    expect(
        crate::Anonymous,
        Code::ClaimsMismatch,
        world.verify(&challenge, &evidence),
    );
}

#[test]
fn a_person_who_decides_sees_the_claim() {
    let mut world = World::new();
    world.rule.policy = PolicyName::Queue;
    let mut machine = world.machine("worker-1", "192.168.77.11", EkKind::P256);
    machine.claims.privileged_pods = true;
    let claimant = world
        .claim(&machine)
        .unwrap_or_else(|refusal| panic!("{refusal}"));
    let verdict = claimant.verdict();
    let shown = verdict
        .checks
        .iter()
        .find(|check| check.name == "privileged pods")
        .expect("a check");
    assert!(!shown.ok && shown.code == "PRIVILEGED_PODS", "{shown:?}");
}

#[test]
fn an_unknown_value_makes_the_rule_faulty() {
    let mut world = World::new();
    "yes".clone_into(&mut world.rule.config.privileged_pods);
    let faults = config_attest::policy::CheckedRule::try_from(&world.rule).expect_err("a fault");
    assert_eq!(
        faults.faults,
        ["config.privileged_pods: found \"yes\", expected \"refuse\" or \"allow\""]
    );
}
