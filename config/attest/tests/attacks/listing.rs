//! Under a rule that enforces its verdict only an endorsement key counts that an admin listed, by
//! its hash or by its issuer, and not one that was merely seen.

use super::claimant::{claimed, open, queued, unseen};
use super::{Anonymous, accepted, expect, lab};
use config_kube::PolicyName;
use config_kube::machine::EkSelector;
use config_protocol::Code;
use tests_machines::{EkKind, SoftMachine, World};

/// Every way in which a rule can ask for endorsement keys, without faults.
fn forms(world: &World) -> Vec<config_kube::Rule> {
    let mut rules = Vec::new();
    for hashes in ["inventory", ""] {
        for issuers in [vec![], vec!["lab-ca".to_owned()]] {
            for require in ["all", "any"] {
                let mut rule = world.rule.clone();
                rule.policy = PolicyName::CloudVerify;
                rule.config.digests.clear();
                hashes.clone_into(&mut rule.ek.hashes);
                rule.ek.issuers.clone_from(&issuers);
                require.clone_into(&mut rule.ek.require);
                if config_attest::policy::CheckedRule::try_from(&rule).is_ok() {
                    rules.push(rule);
                }
            }
        }
    }
    assert_eq!(rules.len(), 6, "only nothing at all is a fault");
    rules
}

/// The machine is refused as unknown under every form of rule, at the join and at the renewal.
#[track_caller]
fn unknown_everywhere(world: &mut World, machine: &mut SoftMachine, what: &str) {
    for rule in forms(world) {
        let ek = rule.ek.clone();
        world.rule = rule;
        machine.clock.clock += 1000;
        for (way, outcome) in [
            ("join", world.join(machine)),
            ("renewal", world.renew(machine)),
        ] {
            let code = match outcome {
                Ok(_) => panic!("{what}: accepted at the {way} under {ek:?}"),
                Err(refusal) => refusal.code(),
            };
            assert_eq!(code, Code::MachineUnknown, "{what}: the {way} under {ek:?}");
        }
    }
}

#[test]
fn a_key_that_was_only_seen_passes_no_rule_that_enforces() {
    let (mut world, mut machine) = open(PolicyName::InsecureAlwaysApprove);
    unseen(&mut world, &machine).expect("anybody");
    unknown_everywhere(&mut world, &mut machine, "seen and not listed");
    // Control: an admin lists it, by its hash or by its issuer.
    let listed: [fn(&mut EkSelector, &SoftMachine); 2] = [
        |ek, machine| ek.hashes = vec![machine.ek_hash().to_text()],
        |ek, _| ek.issuers = vec!["lab-ca".to_owned()],
    ];
    for list in listed {
        let (mut world, mut machine) = open(PolicyName::InsecureAlwaysApprove);
        unseen(&mut world, &machine).expect("anybody");
        list(&mut world.object("worker-1").spec.ek, &machine);
        world.object("worker-1").spec.addresses = vec!["192.168.77.11".to_owned()];
        world.rule = forms(&world)
            .into_iter()
            .find(|rule| rule.ek.hashes.is_empty())
            .expect("by issuers");
        machine.clock.clock += 1000;
        accepted(world.join(&machine));
        machine.clock.clock += 1000;
        accepted(world.renew(&machine));
    }
}

/// What an admin can do to take a key off a Machine.
type Taken = (&'static str, fn(&mut EkSelector));

const TAKEN: [Taken; 3] = [
    ("another listed in its place", |ek| {
        ek.hashes = vec![
            SoftMachine::new("a spare board", EkKind::P256)
                .ek_hash()
                .to_text(),
        ];
        ek.issuers.clear();
    }),
    ("hashes and issuers emptied", |ek| {
        ek.hashes.clear();
        ek.issuers.clear();
    }),
    ("spec.ek emptied", |ek| *ek = EkSelector::default()),
];

#[test]
fn a_key_removed_from_its_machine_neither_joins_nor_renews() {
    type Begun = (&'static str, fn() -> (World, SoftMachine));
    let begun: [Begun; 4] = [
        ("joined by its hash", || {
            let (mut world, machine) = lab();
            accepted(world.join(&machine));
            (world, machine)
        }),
        ("joined by its issuer", || {
            let (mut world, machine) = lab();
            world.rule.ek.hashes.clear();
            world.object("worker-1").spec.ek = EkSelector {
                issuers: vec!["lab-ca".to_owned()],
                ..EkSelector::default()
            };
            accepted(world.join(&machine));
            (world, machine)
        }),
        ("approved by a person", || {
            let (mut world, machine) = open(PolicyName::Queue);
            queued(&mut world, &machine).expect("approved");
            (world, machine)
        }),
        ("admitted without a decision", || {
            let (mut world, machine) = open(PolicyName::InsecureAlwaysApprove);
            unseen(&mut world, &machine).expect("anybody");
            (world, machine)
        }),
    ];
    for (how, begin) in begun {
        for (what, take) in TAKEN {
            let (mut world, mut machine) = begin();
            take(&mut world.object("worker-1").spec.ek);
            unknown_everywhere(&mut world, &mut machine, &format!("{how}, {what}"));
        }
    }
}

/// Another issuer in place of the one whose certificate the board has, or an issuer in place of its
/// hash, replaces the board: it is no longer bound, and comes in again only with a certificate of
/// the issuer that is named now.
#[test]
fn a_board_is_not_bound_by_an_issuer_that_did_not_sign_for_it() {
    let known: [fn(&mut EkSelector); 2] = [
        |_| {},
        |ek| {
            ek.hashes.clear();
            ek.issuers = vec!["lab-ca".to_owned()];
        },
    ];
    for name in known {
        let (mut world, mut machine) = lab();
        world.rule.ek.hashes.clear();
        world.rule.ek.issuers.push("another-maker".to_owned());
        name(&mut world.object("worker-1").spec.ek);
        accepted(world.join(&machine));
        let object = world.object("worker-1");
        let status = object.status.clone().unwrap_or_default();
        assert_eq!(status.ek_issuer.as_deref(), Some("lab-ca"));
        assert!(object.binding().is_some());
        object.spec.ek = EkSelector {
            issuers: vec!["another-maker".to_owned()],
            ..EkSelector::default()
        };
        assert_eq!(object.binding(), None, "{:?}", object.spec.ek);
        machine.clock.clock += 1000;
        for outcome in [world.join(&machine), world.renew(&machine)] {
            assert!(outcome.is_err(), "of another maker");
        }
        // The control.
        world.object("worker-1").spec.ek.issuers = vec!["lab-ca".to_owned()];
        assert!(world.object("worker-1").binding().is_some());
        accepted(world.join(&machine));
    }
    // Known by its hash alone, under a rule that asks for no certificate.
    let (mut world, machine) = lab();
    world.rule.ek.issuers.clear();
    accepted(world.join(&machine));
    let object = world.object("worker-1");
    assert!(object.binding().is_some());
    object.spec.ek.hashes.clear();
    object.spec.ek.issuers = vec!["lab-ca".to_owned()];
    assert_eq!(object.binding(), None);
}

/// The claims of a machine that was admitted without a decision are in its status, and give it
/// nothing under a rule that uses the inventory.
#[test]
fn claims_admitted_without_a_decision_are_no_inventory_entries() {
    let (mut world, mut machine) = open(PolicyName::InsecureAlwaysApprove);
    unseen(&mut world, &machine).expect("anybody");
    let object = world.object("worker-1");
    assert_eq!(object.spec.addresses, [] as [&str; 0]);
    let names = object.status.clone().unwrap_or_default().serving_names;
    assert!(names.contains(&"192.168.77.11".to_owned()), "{names:?}");
    // Nothing changes under a rule without a decision.
    machine.clock.clock += 1000;
    let renewed = claimed(world.claim_renewal(&machine));
    let nobody = config_attest::verifier::Approval::Nobody;
    drop(world.approve(renewed, &nobody).expect("anybody"));
    // Listed by its hash, it has the addresses that an admin lists.
    let ek = machine.ek_hash().to_text();
    world.object("worker-1").spec.ek.hashes = vec![ek];
    world.rule.policy = PolicyName::CloudVerify;
    "inventory".clone_into(&mut world.rule.certificate.sans);
    world.rule.config.digests.clear();
    machine.clock.clock += 1000;
    expect(super::Proven, Code::CsrSan, world.join(&machine));
    let object = world.object("worker-1");
    object.spec.addresses = vec!["192.168.77.11".to_owned()];
    object.status.get_or_insert_default().state = config_kube::MachineState::Pending;
    accepted(world.join(&machine));
}

/// A removed key is also refused under rules by which a person or no one decides.
#[test]
fn a_removed_key_is_not_its_machines_under_any_policy() {
    for (policy, join) in [
        (
            PolicyName::Queue,
            queued as fn(&mut World, &SoftMachine) -> super::Outcome,
        ),
        (PolicyName::InsecureAlwaysApprove, unseen),
    ] {
        for (what, take) in TAKEN
            .into_iter()
            .filter(|(what, _)| *what != "hashes and issuers emptied")
        {
            let (mut world, mut machine) = open(policy);
            join(&mut world, &machine).expect("let in");
            take(&mut world.object("worker-1").spec.ek);
            machine.clock.clock += 1000;
            assert!(world.claim(&machine).is_err(), "{policy:?}, {what}: a join");
            assert!(
                world.claim_renewal(&machine).is_err(),
                "{policy:?}, {what}: a renewal"
            );
        }
    }
}

/// After another manufacturer's issuer replaces a Machine's issuer, a TPM of the first manufacturer
/// is refused, bound or not, under every policy.
#[test]
fn a_machine_known_by_its_issuer_shows_that_issuers_certificate_every_time() {
    for policy in [
        PolicyName::CloudVerify,
        PolicyName::Queue,
        PolicyName::InsecureAlwaysApprove,
    ] {
        let (mut world, mut machine) = lab();
        world.rule.ek.hashes.clear();
        world.object("worker-1").spec.ek = EkSelector {
            issuers: vec!["lab-ca".to_owned()],
            ..EkSelector::default()
        };
        accepted(world.join(&machine));
        world.rule.policy = policy;
        machine.clock.clock += 1000;
        claimed(world.claim(&machine));
        claimed(world.claim_renewal(&machine));
        world.object("worker-1").spec.ek.issuers = vec!["another-maker".to_owned()];
        for outcome in [world.claim(&machine), world.claim_renewal(&machine)] {
            let code = outcome.err().map(|refusal| refusal.code());
            assert_eq!(code, Some(Code::EkCertificateIssuer), "{policy:?}");
        }
    }
}

/// A key that a person approved is in the inventory, and passes full verification once the rule
/// asks for it.
#[test]
fn an_approval_lists_the_key_in_the_inventory() {
    let (mut world, mut machine) = open(PolicyName::Queue);
    queued(&mut world, &machine).expect("approved");
    for rule in forms(&world) {
        world.rule = rule;
        machine.clock.clock += 1000;
        accepted(world.join(&machine));
        machine.clock.clock += 1000;
        accepted(world.renew(&machine));
    }
}

/// The answer to a hello, as its caller sees it.
fn answered(world: &mut World, machine: &SoftMachine) -> bool {
    let answered = world.challenge(&machine.hello().0).is_ok();
    world.sessions = config_attest::sessions::Sessions::default();
    answered
}

/// Brings a machine to a state.
type Mount = fn(&mut World, &mut SoftMachine);
/// What the inventory knows of a machine, by which an answer could differ.
const STANDINGS: [(&str, Mount); 9] = [
    ("listed", |_, _| {}),
    ("bound", |world, machine| {
        drop(accepted(world.join(machine)));
    }),
    ("retired", |world, _| {
        world.object("worker-1").spec.retired = true;
    }),
    ("Untrusted", |world, _| {
        world
            .object("worker-1")
            .status
            .get_or_insert_default()
            .state = config_kube::MachineState::Untrusted;
    }),
    ("listed twice", |world, _| {
        let mut second = world.object("worker-1").clone();
        second.metadata.name = Some("worker-9".to_owned());
        second.metadata.uid = Some("uid-of-worker-9".to_owned());
        second.spec.retired = true;
        world.machines.push(second);
    }),
    ("known by its issuer", |world, _| {
        world.rule.ek.hashes.clear();
        world.object("worker-1").spec.ek = EkSelector {
            issuers: vec!["lab-ca".to_owned()],
            ..EkSelector::default()
        };
    }),
    ("bound by its issuer", |world, machine| {
        world.rule.ek.hashes.clear();
        world.object("worker-1").spec.ek = EkSelector {
            issuers: vec!["lab-ca".to_owned()],
            ..EkSelector::default()
        };
        drop(accepted(world.join(machine)));
    }),
    ("known by another issuer", |world, _| {
        world.rule.ek.hashes.clear();
        world.rule.ek.issuers.push("another-maker".to_owned());
        world.object("worker-1").spec.ek = EkSelector {
            issuers: vec!["another-maker".to_owned()],
            ..EkSelector::default()
        };
    }),
    ("unknown, and a person decides", |world, _| {
        world.rule.policy = PolicyName::Queue;
        world.object("worker-1").spec.ek = EkSelector::default();
    }),
];

/// A caller with a machine's public keys and EK certificate, and no TPM, gets the same answer for
/// every name that it guesses.
#[test]
fn a_guessed_name_gets_the_answer_that_the_right_one_gets() {
    for (what, mount) in STANDINGS {
        for certificate in [true, false] {
            let (mut world, mut machine) = lab();
            world.machine("worker-2", "192.168.77.12", EkKind::P256);
            mount(&mut world, &mut machine);
            if !certificate {
                machine.ek_certificate = None;
            }
            let mut heard = Vec::new();
            for name in ["worker-1", "worker-2", "worker-9", "nobody", ""] {
                name.clone_into(&mut machine.claims.name);
                heard.push(answered(&mut world, &machine));
            }
            heard.dedup();
            assert_eq!(
                heard.len(),
                1,
                "{what}, certificate {certificate}: {heard:?} by the name"
            );
        }
    }
    // A caller without the TPM learns nothing from the evidence's answer either: the credential
    // does not open, whatever the name.
    for name in ["worker-1", "worker-2"] {
        let (mut world, machine) = lab();
        world.machine("worker-2", "192.168.77.12", EkKind::P256);
        let mut thief = SoftMachine::new("a thief of public halves", EkKind::P256);
        thief.ek_public = machine.ek_public.clone();
        thief.ek_certificate.clone_from(&machine.ek_certificate);
        name.clone_into(&mut thief.claims.name);
        expect(Anonymous, Code::CredentialNotActivated, world.join(&thief));
    }
}

/// The share of the sessions reveals no name either: when garbage has filled it, the right name
/// gets the same answer as a wrong one.
#[test]
fn a_full_share_of_sessions_reveals_no_name() {
    for (what, mount) in STANDINGS {
        let (mut world, mut machine) = lab();
        world.machine("worker-2", "192.168.77.12", EkKind::P256);
        mount(&mut world, &mut machine);
        let mut heard = Vec::new();
        for name in ["worker-1", "worker-2", "nobody"] {
            world.sessions = config_attest::sessions::Sessions::default();
            for number in 0..5 {
                machine.claims.name = format!("nonsense-{number}");
                drop(world.challenge(&machine.hello().0));
            }
            name.clone_into(&mut machine.claims.name);
            heard.push(world.challenge(&machine.hello().0).map_err(|no| no.code()));
        }
        let opened: Vec<bool> = heard.iter().map(Result::is_ok).collect();
        assert!(!opened.contains(&true), "{what}: {heard:?}");
        heard.dedup_by_key(|one| one.as_ref().err().copied());
        assert_eq!(heard.len(), 1, "{what}: {heard:?} by the name");
    }
}

/// An address beyond what a person approved, with the same registers: a person is asked again.
#[test]
fn more_names_than_were_approved_ask_again() {
    let (mut world, mut machine) = open(PolicyName::Queue);
    world.rule.certificate.sans.clear();
    queued(&mut world, &machine).expect("approved");
    machine.clock.clock += 1000;
    claimed(world.claim_renewal(&machine));
    let before = machine.clone();
    let more: [fn(&mut SoftMachine); 2] = [
        // Claimed and asked for, and claimed for later.
        |machine| {
            machine.claims.addresses.push("192.168.77.99".to_owned());
            machine
                .serving_request
                .names
                .push("192.168.77.99".to_owned());
        },
        |machine| machine.claims.addresses.push("192.168.77.99".to_owned()),
    ];
    for claim in more {
        let mut machine = before.clone();
        claim(&mut machine);
        for claimant in [world.claim(&machine), world.claim_renewal(&machine)] {
            let claimant = claimed(claimant);
            assert_ne!(
                claimant.prior_approval(),
                config_attest::verifier::PriorApproval::Unchanged
            );
            let shown = format!("{:?}", claimant.prior_approval());
            assert!(
                shown.contains("192.168.77.99"),
                "what is new is said: {shown}"
            );
            assert!(
                world
                    .approve(claimant, &config_attest::verifier::Approval::Before)
                    .is_err()
            );
        }
    }
    // Fewer names, another order or another form need no new approval.
    let mut fewer = before.clone();
    fewer.serving_request.names = vec!["worker-1".to_owned()];
    fewer.claims.addresses.clear();
    assert_eq!(
        claimed(world.claim(&fewer)).prior_approval(),
        config_attest::verifier::PriorApproval::Unchanged
    );
    // The second approval holds as the first did.
    let mut machine = before;
    more[0](&mut machine);
    queued(&mut world, &machine).expect("a person approves the address");
    machine.clock.clock += 1000;
    assert_eq!(
        claimed(world.claim_renewal(&machine)).prior_approval(),
        config_attest::verifier::PriorApproval::Unchanged
    );
}

/// After an admission under a rule that verifies, a renewal under `queue` needs a person only for
/// names that are new.
#[test]
fn a_verified_machine_asks_a_person_for_a_further_address() {
    let (mut world, mut machine) = lab();
    world.rule.certificate.sans.clear();
    accepted(world.join(&machine));
    world.rule.policy = PolicyName::Queue;
    machine.clock.clock += 1000;
    assert_eq!(
        claimed(world.claim_renewal(&machine)).prior_approval(),
        config_attest::verifier::PriorApproval::Unchanged
    );
    machine.claims.addresses.push("192.168.77.99".to_owned());
    machine
        .serving_request
        .names
        .push("192.168.77.99".to_owned());
    assert_ne!(
        claimed(world.claim_renewal(&machine)).prior_approval(),
        config_attest::verifier::PriorApproval::Unchanged
    );
}

/// The TPM's own firmware is recorded and must reach the minimum for its manufacturer, at the join
/// and at the renewal. A TPM whose manufacturer is unknown fails.
#[test]
fn a_tpm_below_its_manufacturers_minimum_firmware_is_refused() {
    let floor = |world: &mut World, maker: &str, least: &str| {
        world.rule.ek.min_firmware = [(maker.to_owned(), least.to_owned())].into();
    };
    let (mut world, mut machine) = lab();
    floor(&mut world, "lab-ca", "7.85.4555");
    accepted(world.join(&machine));
    let recorded = world
        .object("worker-1")
        .status
        .clone()
        .unwrap_or_default()
        .tpm_firmware;
    assert_eq!(recorded, "7.85.4555.0");
    machine.clock.clock += 1000;
    floor(&mut world, "lab-ca", "7.85.4555.1");
    expect(super::Proven, Code::TpmFirmware, world.renew(&machine));
    let (mut world, mut machine) = lab();
    machine.tpm_firmware -= 1;
    floor(&mut world, "lab-ca", "7.85.4555.0");
    expect(super::Proven, Code::TpmFirmware, world.join(&machine));
    // The minimum for another manufacturer does not apply.
    world.rule.ek.issuers.push("another-maker".to_owned());
    floor(&mut world, "another-maker", "9");
    accepted(world.join(&machine));
    // Leaving out the certificate does not avoid the minimum, although a listed hash would be
    // enough otherwise.
    let (mut world, mut machine) = lab();
    "any".clone_into(&mut world.rule.ek.require);
    floor(&mut world, "lab-ca", "1");
    machine.ek_certificate = None;
    expect(
        super::Proven,
        Code::EkCertificateMissing,
        world.join(&machine),
    );
    for (maker, least) in [
        ("lab-ca", ""),
        ("lab-ca", "7."),
        ("lab-ca", "70000"),
        ("lab-ca", "1.2.3.4.5"),
        ("nobody", "1"),
    ] {
        let mut rule = world.rule.clone();
        rule.ek.min_firmware = [(maker.to_owned(), least.to_owned())].into();
        assert!(
            config_attest::policy::CheckedRule::try_from(&rule).is_err(),
            "{maker} {least}"
        );
    }
}
