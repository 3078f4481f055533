//! Rules that leave the decision to a person or to no one: possession is still required, failed
//! checks are shown and do not refuse, and only the verifier makes a grant.

use super::{Anonymous, Outcome, Proven, RefusalKind, accepted, expect, half_open, lab};
use config_attest::Refusal;
use config_attest::verifier::{Approval, Claimant, DryRunVerdict, PriorApproval};
use config_kube::{MachineState, PolicyName};
use config_protocol::{Code, name};
use config_tpm::Digest;
use config_tpm::pcr::CONFIG_PCR;
use proptest::prelude::*;
use tests_machines::{EkKind, SoftMachine, World};

/// A world under a policy, with a booted machine that is a stranger.
pub(crate) fn open(policy: PolicyName) -> (World, SoftMachine) {
    let (mut world, machine) = lab();
    world.machines.clear();
    world.rule.policy = policy;
    (world, machine)
}

pub(crate) fn person(claimant: &Claimant) -> Approval {
    Approval::Person {
        request: "request-1".to_owned(),
        id: claimant.id(),
        by: "jane".to_owned(),
    }
}

/// A whole join that a person approves.
pub(crate) fn queued(world: &mut World, machine: &SoftMachine) -> Outcome {
    let claimant = world.claim(machine)?;
    let approval = person(&claimant);
    world.approve(claimant, &approval)
}

/// A whole join that is admitted without a decision.
pub(crate) fn unseen(world: &mut World, machine: &SoftMachine) -> Outcome {
    let claimant = world.claim(machine)?;
    world.approve(claimant, &Approval::Nobody)
}

pub(crate) fn claimed(outcome: Result<Claimant, Box<Refusal>>) -> Claimant {
    outcome.unwrap_or_else(|refusal| panic!("{refusal}\n{:#?}", refusal.verdict()))
}

/// Without the attack a stranger is admitted under both policies; with the attack it is refused
/// under both.
#[track_caller]
fn refused(standing: RefusalKind, code: Code, mount: fn(&mut World, &mut SoftMachine)) {
    for (policy, join) in [
        (
            PolicyName::Queue,
            queued as fn(&mut World, &SoftMachine) -> Outcome,
        ),
        (PolicyName::InsecureAlwaysApprove, unseen),
    ] {
        let (mut world, machine) = open(policy);
        if let Err(refusal) = join(&mut world, &machine) {
            panic!("negative control refused: {refusal}");
        }
        let (mut world, mut machine) = open(policy);
        mount(&mut world, &mut machine);
        expect(standing, code, join(&mut world, &machine));
    }
}

#[test]
fn an_approved_stranger_becomes_a_machine_and_needs_no_second_approval() {
    let (mut world, mut machine) = open(PolicyName::Queue);
    let claimant = claimed(world.claim(&machine));
    assert_eq!(
        (claimant.machine(), claimant.prior_approval()),
        (None, PriorApproval::New)
    );
    let shown = claimant.verdict();
    let failed: Vec<&str> = shown
        .checks
        .iter()
        .filter(|check| !check.ok)
        .map(|check| check.name.as_str())
        .collect();
    assert_eq!(
        failed,
        ["EK hash", "configuration"],
        "what the inventory lacks"
    );
    let approval = person(&claimant);
    let verified = world.approve(claimant, &approval).expect("approved");
    assert_eq!(
        (verified.node_name(), verified.machine_id().uid.as_str()),
        ("worker-1", "uid-of-worker-1")
    );
    assert_eq!(
        verified.image().map(|image| image.id.as_str()),
        Some("worker-7")
    );
    let object = world.object("worker-1").clone();
    assert_eq!(object.spec.ek.hashes, [machine.ek_hash().to_text()]);
    assert_eq!(object.spec.addresses, ["192.168.77.11"]);
    assert_eq!(
        object.status.as_ref().map(|status| status.state),
        Some(MachineState::Trusted)
    );
    // Renewals of this boot, and a boot into the same state, need no person.
    machine.clock.clock += 1000;
    let renewal = claimed(world.claim_renewal(&machine));
    assert_eq!(renewal.prior_approval(), PriorApproval::Unchanged);
    world
        .approve(renewal, &Approval::Before)
        .expect("a renewal");
    let image = world.image.clone();
    machine.boot(&image, "nocloud", b"version = 1\n");
    let again = claimed(world.claim(&machine));
    assert_eq!(again.prior_approval(), PriorApproval::Unchanged);
    let verified = world.approve(again, &Approval::Before).expect("a reboot");
    assert_eq!(verified.admission().request, "request-1");
}

#[test]
fn a_boot_into_something_else_needs_a_person_again_and_says_what_changed() {
    let (mut world, mut machine) = open(PolicyName::Queue);
    queued(&mut world, &machine).expect("approved");
    let image = world.image.clone();
    machine.boot(&image, "nocloud", b"version = 1\n# another\n");
    let claimant = claimed(world.claim(&machine));
    let PriorApproval::Changed(changes) = claimant.prior_approval() else {
        panic!("{:?}", claimant.prior_approval())
    };
    assert_eq!(changes.len(), 1);
    assert!(changes[0].starts_with("PCR 13: "), "{changes:?}");
    expect(
        Proven,
        Code::PolicyRejects,
        world.approve(claimant, &Approval::Before),
    );
    // The approval of the earlier boot does not hold for this one.
    let (_, before) = open(PolicyName::Queue);
    let old = claimed(open(PolicyName::Queue).0.claim(&before)).id();
    let claimant = claimed(world.claim(&machine));
    expect(
        Proven,
        Code::PolicyRejects,
        world.approve(
            claimant,
            &Approval::Person {
                request: "r".to_owned(),
                id: old,
                by: "jane".to_owned(),
            },
        ),
    );
    queued(&mut world, &machine).expect("a person approves what changed");
}

#[test]
fn only_the_rule_chooses_who_decides() {
    let (mut world, machine) = open(PolicyName::Queue);
    for approval in [Approval::Nobody, Approval::Before] {
        let claimant = claimed(world.claim(&machine));
        expect(
            Anonymous,
            Code::PolicyRejects,
            world.approve(claimant, &approval),
        );
    }
    let claimant = claimed(world.claim(&machine));
    expect(Anonymous, Code::PolicyRejects, claimant.grant());
    queued(&mut world, &machine).expect("control");
    let (mut world, machine) = open(PolicyName::InsecureAlwaysApprove);
    let claimant = claimed(world.claim(&machine));
    let approval = person(&claimant);
    expect(
        Anonymous,
        Code::PolicyRejects,
        world.approve(claimant, &approval),
    );
    unseen(&mut world, &machine).expect("control");
    // Under cloud-verify no approval admits a machine.
    let (mut world, machine) = lab();
    let claimant = claimed(world.claim(&machine));
    expect(
        Proven,
        Code::PolicyRejects,
        world.approve(claimant, &Approval::Nobody),
    );
    accepted(world.join(&machine));
}

#[test]
fn a_machine_admitted_without_a_decision_is_not_in_the_inventory() {
    let (mut world, mut machine) = open(PolicyName::InsecureAlwaysApprove);
    machine.ek_certificate = None;
    let verified = unseen(&mut world, &machine).expect("anybody");
    assert_eq!(
        verified.admission().policy,
        PolicyName::InsecureAlwaysApprove
    );
    let object = world.object("worker-1").clone();
    assert!(object.spec.ek.hashes.is_empty());
    assert!(
        object
            .status
            .is_some_and(|status| status.pinned_pcrs.is_empty())
    );
    // A person is asked again, also at the renewal, and cloud-verify by the inventory's hashes
    // refuses it.
    world.rule.policy = PolicyName::Queue;
    machine.clock.clock += 1000;
    assert_eq!(
        claimed(world.claim_renewal(&machine)).prior_approval(),
        PriorApproval::New
    );
    world.rule.policy = PolicyName::CloudVerify;
    world.rule.ek.issuers.clear();
    expect(Anonymous, Code::MachineUnknown, world.join(&machine));
    expect(Anonymous, Code::MachineUnknown, world.renew(&machine));
}

/// A person approves what he was shown; with other claims it is another request.
#[test]
fn an_approval_holds_only_for_the_claims_that_were_shown() {
    let (mut world, mut machine) = open(PolicyName::Queue);
    let first = claimed(world.claim(&machine));
    let approval = person(&first);
    let shown = machine.claims.clone();
    machine.claims.addresses.push("192.168.77.99".to_owned());
    let other = claimed(world.claim(&machine));
    assert_ne!(first.id(), other.id());
    expect(
        Anonymous,
        Code::PolicyRejects,
        world.approve(other, &approval),
    );
    machine.claims = shown;
    let again = claimed(world.claim(&machine));
    assert_eq!(first.id(), again.id());
    world.approve(again, &approval).expect("what was shown");
}

#[test]
fn failed_checks_are_shown_and_do_not_refuse_where_a_person_decides() {
    let (mut world, mut machine) = open(PolicyName::InsecureAlwaysApprove);
    let mut bad = world.image.clone();
    bad.kernel[0] ^= 1;
    machine.boot(&bad, "nocloud", b"another configuration");
    machine.ek_certificate = None;
    let verified = unseen(&mut world, &machine).expect("whatever it booted");
    assert_eq!(verified.image(), None);
    let failed: Vec<&str> = verified
        .verdict()
        .checks
        .iter()
        .filter(|check| !check.ok)
        .map(|check| check.code.as_str())
        .collect();
    for code in [
        Code::EkCertificateMissing,
        Code::MachineUnknown,
        Code::ImageLoader,
        Code::ConfigChanged,
    ] {
        assert!(
            failed.contains(&code.as_str()),
            "{code} is not in {failed:?}"
        );
    }
}

#[test]
fn possession_is_checked_under_every_policy() {
    refused(Anonymous, Code::EkTemplate, |_, machine| {
        machine.ek_public = machine.ak_public.clone();
    });
    refused(Anonymous, Code::AkTemplate, |_, machine| {
        machine.ak_public.auth_policy = vec![0; 32];
    });
    refused(Anonymous, Code::NkTemplate, |_, machine| {
        machine.nk_public.auth_policy = Vec::new();
    });
    // The AK is in another TPM than the EK: its credential cannot be opened.
    refused(Anonymous, Code::CredentialNotActivated, |_, machine| {
        let other = SoftMachine::new("another board", EkKind::P256);
        machine.ek_public = other.ek_public;
    });
    refused(Anonymous, Code::NkAuthPolicy, |_, machine| {
        machine.bank.extend(CONFIG_PCR, &Digest::of(b"later"));
    });
    refused(Anonymous, Code::AkHierarchy, |_, machine| {
        machine.ak_hierarchy = 0x4000_0001;
    });
    refused(Anonymous, Code::CsrKey, |_, machine| {
        machine.nk = SoftMachine::new("other", EkKind::P256).nk;
    });
    refused(Anonymous, Code::CsrOrganization, |_, machine| {
        "system:masters".clone_into(&mut machine.client_request.organization);
    });
    refused(Anonymous, Code::CsrSan, |_, machine| {
        machine.serving_request.names.push("10.9.9.9".to_owned());
    });
    refused(Anonymous, Code::CsrSanApiServer, |_, machine| {
        machine.claims.addresses.push("192.168.77.10".to_owned());
        machine
            .serving_request
            .names
            .push("192.168.77.10".to_owned());
    });
}

#[test]
fn a_stranger_cannot_take_the_name_or_machine_of_another() {
    refused(Anonymous, Code::NameMismatch, |world, machine| {
        // A Machine that has not joined yet.
        let spec = config_kube::MachineSpec {
            role: "worker".to_owned(),
            ..config_kube::MachineSpec::default()
        };
        world
            .machines
            .push(config_kube::Machine::named(&machine.node, spec));
    });
    refused(Anonymous, Code::MachineBoundToOtherEk, |world, machine| {
        world.machine("worker-1", "192.168.77.11", EkKind::P256);
        let bound = Digest::of(b"another EK").to_text();
        world.object("worker-1").spec.ek.hashes = vec![bound.clone()];
        world
            .object("worker-1")
            .status
            .get_or_insert_default()
            .bound_ek = Some(bound);
        machine.ek_certificate = None;
    });
    refused(Anonymous, Code::NameInvalid, |_, machine| {
        "../nodes".clone_into(&mut machine.claims.name);
    });
    refused(Anonymous, Code::RoleNotAdmitted, |_, machine| {
        "master".clone_into(&mut machine.claims.role);
    });
    refused(Anonymous, Code::CsrSan, |world, machine| {
        world.machine("worker-2", "192.168.77.12", EkKind::P256);
        machine.claims.addresses.push("192.168.77.12".to_owned());
        machine
            .serving_request
            .names
            .push("192.168.77.12".to_owned());
    });
    refused(Anonymous, Code::MachineRetired, |world, machine| {
        world.machine(&machine.node, "192.168.77.11", EkKind::P256);
        world.object("worker-1").spec.retired = true;
    });
    refused(Anonymous, Code::MachineUntrusted, |world, machine| {
        world.machine(&machine.node, "192.168.77.11", EkKind::P256);
        world
            .object("worker-1")
            .status
            .get_or_insert_default()
            .state = MachineState::Untrusted;
    });
}

/// An issuer in place of hashes is part of which machine it is, so it is no judgement.
#[test]
fn a_machine_known_by_its_issuer_is_refused_without_its_certificate() {
    let by_issuer = |world: &mut World, machine: &SoftMachine| {
        world.machine(&machine.node, "192.168.77.11", EkKind::P256);
        let ek = &mut world.object("worker-1").spec.ek;
        ek.hashes.clear();
        ek.issuers = vec!["lab-ca".to_owned()];
    };
    let (mut world, mut machine) = open(PolicyName::InsecureAlwaysApprove);
    by_issuer(&mut world, &machine);
    unseen(&mut world, &machine).expect("control");
    let (mut world, _) = open(PolicyName::InsecureAlwaysApprove);
    by_issuer(&mut world, &machine);
    machine.ek_certificate = None;
    expect(
        Anonymous,
        Code::EkCertificateIssuer,
        unseen(&mut world, &machine),
    );
}

#[test]
fn a_machine_without_a_name_gets_one_derived_from_its_key_or_learns_its_own() {
    let unnamed = |machine: &mut SoftMachine| {
        let derived = name::derived(&machine.ek_hash());
        machine.claims.name.clear();
        machine.client_request.common_name = format!("system:node:{derived}");
        machine.serving_request.common_name = format!("system:node:{derived}");
        machine.serving_request.names = vec![derived.clone()];
        derived
    };
    let (mut world, mut machine) = open(PolicyName::Queue);
    let derived = unnamed(&mut machine);
    assert_eq!(
        queued(&mut world, &machine).expect("approved").node_name(),
        derived
    );
    // In the inventory under another name: the machine learns it after its proof, then asks under
    // it.
    let (mut world, mut machine) = lab();
    let original = machine.clone();
    unnamed(&mut machine);
    let outcome = world.join(&machine);
    if let Err(refusal) = &outcome {
        assert_eq!(refusal.consequence(), None);
    }
    expect(Proven, Code::NameAssigned, outcome);
    accepted(world.join(&original));
    // Another machine does not learn the name.
    let (mut world, mut machine) = lab();
    unnamed(&mut machine);
    machine.ak = SoftMachine::new("other", EkKind::P256).ak;
    expect(Anonymous, Code::QuoteSignature, world.join(&machine));
}

/// The rule becomes stricter while a session is open: the stricter rule decides.
#[test]
fn a_session_opened_under_a_looser_rule_does_not_satisfy_a_stricter_one() {
    let (mut world, mut machine) = lab();
    machine.ek_certificate = None;
    world.rule.policy = PolicyName::InsecureAlwaysApprove;
    let (challenge, evidence) = half_open(&mut world, &machine);
    world.rule.policy = PolicyName::CloudVerify;
    expect(
        Proven,
        Code::EkCertificateMissing,
        world.verify(&challenge, &evidence),
    );
    // A stranger's session, likewise.
    let (mut world, machine) = open(PolicyName::InsecureAlwaysApprove);
    let (challenge, evidence) = half_open(&mut world, &machine);
    world.rule.policy = PolicyName::CloudVerify;
    expect(
        Anonymous,
        Code::MachineUnknown,
        world.verify(&challenge, &evidence),
    );
}

#[test]
fn a_grant_needs_the_machine_that_was_created_for_the_claimant() {
    let (mut world, machine) = open(PolicyName::Queue);
    for spoil in [0, 1, 2] {
        let claimant = claimed(world.claim(&machine));
        let mut made = claimant.to_make().expect("a stranger");
        made.metadata.uid = Some("uid".to_owned());
        match spoil {
            0 => made.metadata.uid = None,
            1 => made.spec.ek.hashes = vec![Digest::of(b"another").to_text()],
            _ => made.metadata.name = Some("worker-2".to_owned()),
        }
        let approval = person(&claimant);
        expect(
            Anonymous,
            Code::MachineUnknown,
            claimant.approve(&approval, Some(&made)),
        );
        let claimant = claimed(world.claim(&machine));
        expect(
            Anonymous,
            Code::MachineUnknown,
            claimant.approve(&approval, None),
        );
    }
    queued(&mut world, &machine).expect("control");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// An approval holds for exactly the registers that were approved: if one differs, a person is
    /// asked again, and the request names it.
    #[test]
    fn an_approval_holds_for_exactly_its_registers(pcr in prop::sample::select(config_tpm::pcr::QUOTE_PCRS.to_vec()), change in any::<[u8; 8]>()) {
        let (mut world, mut machine) = open(PolicyName::Queue);
        queued(&mut world, &machine).expect("approved");
        machine.clock.reset_count += 1;
        prop_assert_eq!(claimed(world.claim(&machine)).prior_approval(), PriorApproval::Unchanged);
        machine.bank.extend(pcr, &Digest::of(&change));
        machine.bind_nk();
        let claimant = claimed(world.claim(&machine));
        let PriorApproval::Changed(changes) = claimant.prior_approval() else { panic!("not changed") };
        prop_assert_eq!(changes.len(), 1);
        let start = format!("PCR {pcr}: ");
        prop_assert!(changes[0].starts_with(&start));
        prop_assert!(world.approve(claimant, &Approval::Before).is_err());
    }

    /// A dry run of another rule gives the same result as the machine's next exchange under that
    /// rule.
    #[test]
    fn a_dry_run_decides_as_the_verifier_does(rule in changes(RULES.len()), object in changes(OBJECTS.len()), boot in changes(BOOTS.len()), known in any::<bool>()) {
        let (mut world, mut machine) = lab();
        for index in boot {
            BOOTS[index](&world, &mut machine);
        }
        let strict = world.rule.clone();
        world.rule.policy = PolicyName::InsecureAlwaysApprove;
        let shown = world.show(&machine).expect("possession passes");
        world.rule = strict;
        for index in object {
            OBJECTS[index](world.object("worker-1"));
        }
        if !known {
            world.machines.clear();
        }
        for index in rule {
            RULES[index](&mut world.rule);
        }
        let predicted = match shown.dry_run(&world.references().get(), world.now) {
            DryRunVerdict::Accepted(_) => "accepted",
            DryRunVerdict::Queued(..) => "queued",
            DryRunVerdict::Refused(refusal) => refusal.code().as_str(),
        };
        let claimant = world.claim(&machine);
        let said = match &claimant {
            Err(refusal) => refusal.code().as_str(),
            Ok(_) if world.rule.policy != PolicyName::Queue => "accepted",
            Ok(claimant) if claimant.prior_approval() == PriorApproval::Unchanged => "accepted",
            Ok(_) => "queued",
        };
        prop_assert_eq!(predicted, said);
    }
}

/// Some of a list, each at most once.
fn changes(count: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::btree_set(0..count, 0..3).prop_map(|set| set.into_iter().collect())
}

const RULES: [fn(&mut config_kube::Rule); 10] = [
    |rule| rule.policy = PolicyName::Queue,
    |rule| rule.policy = PolicyName::InsecureAlwaysApprove,
    |rule| rule.images.min_svn = 100,
    |rule| rule.images.release_keys = vec!["another".to_owned()],
    |rule| "any".clone_into(&mut rule.ek.require),
    |rule| rule.ek.issuers.clear(),
    |rule| rule.config.digests.clear(),
    |rule| rule.certificate.roles = vec!["master".to_owned()],
    |rule| rule.certificate.sans.clear(),
    |rule| rule.events.secure_boot = false,
];

const OBJECTS: [fn(&mut config_kube::Machine); 6] = [
    |object| object.spec.retired = true,
    |object| object.spec.ek.hashes = vec![Digest::ZERO.to_text()],
    |object| object.spec.config_digests.clear(),
    |object| object.spec.addresses.clear(),
    |object| object.status.get_or_insert_default().state = MachineState::Untrusted,
    |object| {
        let registers = [("0".to_owned(), "00".to_owned())].into();
        let admission = config_kube::machine::Admission {
            policy: PolicyName::Queue,
            registers,
            ..Default::default()
        };
        object.status.get_or_insert_default().admission = Some(admission);
    },
];

const BOOTS: [fn(&World, &mut SoftMachine); 4] = [
    |world, machine| {
        let mut bad = world.image.clone();
        bad.kernel[0] ^= 1;
        machine.boot(&bad, "nocloud", b"version = 1\n");
    },
    |world, machine| machine.boot(&world.image, "nocloud", b"another"),
    |_, machine| machine.ek_certificate = None,
    |_, machine| machine.serving_request.names.push("10.9.9.9".to_owned()),
];
