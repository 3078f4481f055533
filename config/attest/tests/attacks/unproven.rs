//! Machines without a TPM: admitted only where the rule allows it, never in place of one that
//! has a TPM, and never with the other protocol's evidence.

use super::{Anonymous, Outcome, Proven, RefusalKind, accepted, expect, lab};
use config_attest::Refusal;
use config_attest::verifier::{Approval, Claimant, PriorApproval};
use config_kube::machine::CertificateRef;
use config_kube::{Machine, MachineSpec, MachineState, PolicyName};
use config_protocol::unproven::{self, Evidence};
use config_protocol::wire::{self, Blob};
use config_protocol::{Code, Purpose};
use config_tpm::Digest;
use tests_machines::{EkKind, Requester, SoftKeyed, SoftMachine, World};

/// A world whose rule admits machines without a TPM, with one that is a stranger.
fn open(policy: PolicyName) -> (World, SoftKeyed) {
    let (mut world, _) = lab();
    world.machines.clear();
    world.rule.policy = policy;
    world.rule.insecure_no_tpm = true;
    (world, SoftKeyed::new("edge-1", "192.168.77.31", "1"))
}

fn claimed(outcome: Result<Claimant, Box<Refusal>>) -> Claimant {
    outcome.unwrap_or_else(|refusal| panic!("{refusal}\n{:#?}", refusal.verdict()))
}

/// The person who decides says yes.
fn decided(world: &mut World, claimed: Result<Claimant, Box<Refusal>>) -> Outcome {
    let claimant = claimed?;
    let approval = match world.rule.policy {
        PolicyName::InsecureAlwaysApprove => Approval::Nobody,
        PolicyName::Queue | PolicyName::CloudVerify | PolicyName::AlwaysReject => {
            Approval::Person {
                request: "request-1".to_owned(),
                id: claimant.id(),
                by: "jane".to_owned(),
            }
        }
    };
    world.approve(claimant, &approval)
}

fn joins(world: &mut World, machine: &SoftKeyed) -> Outcome {
    let claimant = world.unproven_claim(machine);
    decided(world, claimant)
}

const POLICIES: [PolicyName; 2] = [PolicyName::Queue, PolicyName::InsecureAlwaysApprove];

/// A stranger without a TPM is admitted under both policies, and with the attack under neither.
#[track_caller]
fn refused(
    standing: RefusalKind,
    code: Code,
    mount: impl Fn(&mut World, &mut SoftKeyed) -> Outcome,
) {
    for policy in POLICIES {
        let (mut world, machine) = open(policy);
        if let Err(refusal) = joins(&mut world, &machine) {
            panic!("negative control refused: {refusal}");
        }
        let (mut world, mut machine) = open(policy);
        expect(standing, code, mount(&mut world, &mut machine));
    }
}

/// The same, with the attack in the machine before it sends anything.
#[track_caller]
fn refused_as(standing: RefusalKind, code: Code, mount: impl Fn(&mut World, &mut SoftKeyed)) {
    refused(standing, code, |world, machine| {
        mount(world, machine);
        joins(world, machine)
    });
}

/// The same, with the attack in the evidence.
#[track_caller]
fn refused_with(standing: RefusalKind, code: Code, change: impl Fn(&mut Evidence, &SoftKeyed)) {
    refused(standing, code, |world, machine| {
        let claimant = world.unproven_claim_with(machine, |evidence| change(evidence, machine));
        decided(world, claimant)
    });
}

#[test]
fn a_rule_can_admit_a_machine_without_a_tpm_and_records_what_is_not_proven() {
    for policy in POLICIES {
        let (mut world, machine) = open(policy);
        let claimant = claimed(world.unproven_claim(&machine));
        assert!(claimant.is_stranger() && !claimant.has_tpm());
        assert!(
            claimant.machine().is_none() && claimant.party().contains("no TPM"),
            "{}",
            claimant.party()
        );
        let verified = decided(&mut world, Ok(claimant)).expect("let in");
        assert!(verified.is_unproven() && verified.image().is_none());
        assert_eq!(verified.client_spki(), machine.announced);
        let failed = verified.verdict().failed();
        let statements = [
            "TPM",
            "node key in the TPM",
            "boot registers",
            "event log",
            "image",
            "Secure Boot",
            "configuration",
            "counters",
        ];
        for what in statements {
            let check = verified
                .verdict()
                .checks
                .iter()
                .find(|check| check.name == what)
                .expect(what);
            assert!(
                !check.ok && check.code == Code::NotProven.as_str() && failed.contains(what),
                "{check:?}"
            );
        }
        let object = world.object("edge-1").clone();
        assert!(
            object.spec.insecure_no_tpm
                && object.spec.ek == config_kube::machine::EkSelector::default()
        );
        let status = object.status.expect("recorded");
        // An admission without a decision is no entry of the inventory.
        let looked_at = policy != PolicyName::InsecureAlwaysApprove;
        assert_eq!(
            object.spec.addresses.contains(&"192.168.77.31".to_owned()),
            looked_at
        );
        assert!(status.serving_names.contains(&"192.168.77.31".to_owned()));
        assert_eq!(
            (status.state, status.bound_ek, status.image),
            (MachineState::Unproven, None, None)
        );
        assert_eq!(status.node_key, Some(machine.key_hash().to_text()));
        assert!(status.pinned_pcrs.is_empty() && status.counters.is_none());
        // A join with the same key, and its renewal, are proven.
        for claimant in [
            world.unproven_claim(&machine),
            world.unproven_renewal(&machine),
        ] {
            let claimant = claimed(claimant);
            assert_eq!(
                claimant.machine().map(|id| id.name.as_str()),
                Some("edge-1")
            );
            if policy == PolicyName::Queue {
                assert_eq!(claimant.prior_approval(), PriorApproval::Unchanged);
                world
                    .approve(claimant, &Approval::Before)
                    .expect("the same key needs no second approval");
            } else {
                world.approve(claimant, &Approval::Nobody).expect("let in");
            }
        }
    }
}

#[test]
fn a_machine_without_a_tpm_is_refused_where_the_rule_does_not_admit_it() {
    for policy in [
        PolicyName::CloudVerify,
        PolicyName::Queue,
        PolicyName::InsecureAlwaysApprove,
    ] {
        let (mut world, machine) = open(PolicyName::Queue);
        world.rule.policy = policy;
        world.rule.insecure_no_tpm = false;
        expect(Anonymous, Code::NoTpm, joins(&mut world, &machine));
    }
    // The rule stopped admitting it while the session was open, or before the renewal.
    refused(Anonymous, Code::NoTpm, |world, machine| {
        let hello = machine.hello();
        let challenge = world.unproven_challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        world.rule.insecure_no_tpm = false;
        let claimant = world.unproven_check(&challenge, &evidence);
        decided(world, claimant)
    });
    refused(Anonymous, Code::NoTpm, |world, machine| {
        joins(world, machine)?;
        world.rule.insecure_no_tpm = false;
        let claimant = world.unproven_renewal(machine);
        decided(world, claimant)
    });
    let (world, _) = open(PolicyName::Queue);
    for policy in [PolicyName::CloudVerify, PolicyName::AlwaysReject] {
        let mut rule = world.rule.clone();
        rule.policy = policy;
        let fault = config_attest::policy::CheckedRule::try_from(&rule)
            .expect_err("a fault")
            .to_string();
        assert!(fault.contains("insecure_no_tpm"), "{fault}");
    }
}

/// The main attack: a machine with a TPM, or anyone who has its name, claims that it has no TPM.
#[test]
fn a_machine_that_has_a_tpm_never_joins_without_it() {
    for policy in POLICIES {
        // The machine joined; then its TPM is hidden at a boot, or another machine uses its name.
        let (mut world, machine) = lab();
        accepted(world.join(&machine));
        world.rule.policy = policy;
        world.rule.insecure_no_tpm = true;
        let before = world.object("worker-1").clone();
        expect(
            Anonymous,
            Code::TpmExpected,
            joins(&mut world, &SoftKeyed::hiding(&machine)),
        );
        let stranger = SoftKeyed::new("worker-1", "192.168.77.11", "1");
        expect(Anonymous, Code::TpmExpected, joins(&mut world, &stranger));
        assert_eq!(
            *world.object("worker-1"),
            before,
            "nothing is changed by it"
        );
        // Its certificate over its node key does not help either.
        let hidden = SoftKeyed::hiding(&machine);
        let claimant = world.unproven_renewal(&hidden);
        expect(Anonymous, Code::TpmExpected, decided(&mut world, claimant));
        // For each trace of a TPM in the Machine: endorsement keys, issuers, a binding, a seen EK.
        for spoil in [
            (|machine: &mut Machine| machine.spec.ek.hashes = vec![Digest::ZERO.to_text()])
                as fn(&mut Machine),
            |machine| machine.spec.ek.issuers = vec!["lab-ca".to_owned()],
            |machine| machine.spec.ek.seen = vec![Digest::ZERO.to_text()],
            |machine| {
                machine.status.get_or_insert_default().bound_ek = Some(Digest::ZERO.to_text());
            },
            |machine| machine.status.get_or_insert_default().ak_name = Some("00".to_owned()),
            |machine| machine.spec.insecure_no_tpm = false,
        ] {
            let (mut world, machine) = open(policy);
            world.machines.push(without_tpm(&machine.node));
            spoil(world.object(&machine.node));
            expect(Anonymous, Code::TpmExpected, joins(&mut world, &machine));
            world.machines = vec![without_tpm(&machine.node)];
            joins(&mut world, &machine).expect("control");
        }
    }
}

/// An inventory entry for a machine without a TPM.
fn without_tpm(node: &str) -> Machine {
    let spec = MachineSpec {
        role: "worker".to_owned(),
        insecure_no_tpm: true,
        ..MachineSpec::default()
    };
    let mut machine = Machine::named(
        node,
        MachineSpec {
            addresses: vec!["192.168.77.31".to_owned()],
            ..spec
        },
    );
    machine.metadata.uid = Some(format!("uid-of-{node}"));
    machine
}

/// The other way round: a TPM does not get the place of a machine that has none.
#[test]
fn a_tpm_cannot_take_the_place_of_a_machine_without_one() {
    for policy in POLICIES {
        let (mut world, machine) = open(policy);
        joins(&mut world, &machine).expect("control");
        let mut other = SoftMachine::new("edge-1", EkKind::P256);
        let image = world.image.clone();
        other.boot(&image, "nocloud", b"version = 1\n");
        expect(Anonymous, Code::NameMismatch, world.join(&other));
    }
}

#[test]
fn a_reboot_makes_another_key_which_a_person_must_approve() {
    let (mut world, machine) = open(PolicyName::Queue);
    joins(&mut world, &machine).expect("approved");
    let before = world.object("edge-1").clone();
    let rebooted = SoftKeyed::new("edge-1", "192.168.77.31", "2");
    let claimant = claimed(world.unproven_claim(&rebooted));
    assert!(
        claimant.machine().is_none(),
        "a new key proves no Machine, so it changes none"
    );
    let PriorApproval::Changed(changes) = claimant.prior_approval() else {
        panic!("{:?}", claimant.prior_approval())
    };
    assert!(
        changes[0].contains(&machine.key_hash().to_text()),
        "{changes:?}"
    );
    expect(
        Anonymous,
        Code::PolicyRejects,
        world.approve(claimant, &Approval::Before),
    );
    // The machine was approved before with another key, or other claims.
    let old = claimed(world.unproven_claim(&machine)).id();
    let claimant = claimed(world.unproven_claim(&rebooted));
    let approval = Approval::Person {
        request: "r".to_owned(),
        id: old,
        by: "jane".to_owned(),
    };
    expect(
        Anonymous,
        Code::PolicyRejects,
        world.approve(claimant, &approval),
    );
    let mut elsewhere = rebooted.clone();
    elsewhere.claims.addresses = vec!["192.168.77.99".to_owned()];
    elsewhere.serving_request.names = vec!["edge-1".to_owned(), "192.168.77.99".to_owned()];
    world.object("edge-1").spec.addresses.clear();
    world.rule.certificate.sans.clear();
    assert_ne!(
        claimed(world.unproven_claim(&elsewhere)).id(),
        claimed(world.unproven_claim(&rebooted)).id(),
        "an approval is of the claims too"
    );
    world.object("edge-1").spec = before.spec;
    joins(&mut world, &rebooted).expect("a person approves the new key");
    assert_eq!(
        world
            .object("edge-1")
            .status
            .clone()
            .unwrap_or_default()
            .node_key,
        Some(rebooted.key_hash().to_text())
    );
    // The key of the previous boot can no longer renew.
    let claimant = world.unproven_renewal(&machine);
    expect(Anonymous, Code::RenewalKeys, decided(&mut world, claimant));
}

/// Without a person's decision no key replaces one that still has a valid certificate.
#[test]
fn no_key_replaces_one_that_still_has_a_valid_certificate() {
    let (mut world, machine) = open(PolicyName::InsecureAlwaysApprove);
    joins(&mut world, &machine).expect("let in");
    let end = i64::try_from(world.now + 600).expect("a time");
    let end = jiff::Timestamp::from_second(end)
        .expect("a time")
        .to_string();
    let certificate = CertificateRef {
        serial: "01".to_owned(),
        not_after: end.clone(),
    };
    world
        .object("edge-1")
        .status
        .get_or_insert_default()
        .certificate = Some(certificate);
    let before = world.object("edge-1").clone();
    let other = SoftKeyed::new("edge-1", "192.168.77.31", "2");
    expect(Anonymous, Code::NodeKeyInUse, joins(&mut world, &other));
    assert_eq!(*world.object("edge-1"), before);
    joins(&mut world, &machine).expect("control: the same key");
    world
        .object("edge-1")
        .status
        .get_or_insert_default()
        .certificate
        .get_or_insert_default()
        .not_after = end;
    // A re-admission, or the end of the certificate, allows it.
    let mut readmitted = world.object("edge-1").clone();
    readmitted.spec.readmit_until = Some("2100-01-01T00:00:00Z".to_owned());
    std::mem::swap(world.object("edge-1"), &mut readmitted);
    joins(&mut world, &other).expect("re-admitted");
    std::mem::swap(world.object("edge-1"), &mut readmitted);
    world.now += 601;
    joins(&mut world, &other).expect("the certificate of the boot before has ended");
}

fn evidence_of_another_connection_is_refused() {
    for (code, spoil) in [
        (
            Code::Channel,
            (|channel| channel.exporter = Digest::of(b"another connection"))
                as fn(&mut config_protocol::Channel),
        ),
        (Code::MasterKey, |channel| {
            channel.server_spki = Digest::of(b"another server");
        }),
    ] {
        refused(Anonymous, code, |world, machine| {
            let hello = machine.hello();
            let challenge = world.unproven_challenge(&hello.0)?;
            let mut channel = world.channel.clone();
            spoil(&mut channel);
            let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &channel);
            let claimant = world.unproven_check(&challenge, &evidence);
            decided(world, claimant)
        });
    }
}

#[test]
fn the_exchange_is_fresh_and_bound() {
    refused(Anonymous, Code::ProtocolVersion, |world, machine| {
        let mut hello = machine.hello();
        wire::PROTOCOL.clone_into(&mut hello.0.protocol);
        world
            .unproven_challenge(&hello.0)
            .map(|_| panic!("a challenge"))
    });
    refused(Anonymous, Code::NonceReplayed, |world, machine| {
        let hello = machine.hello();
        let old = world.unproven_challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Join, &hello, &old, &world.channel);
        let challenge = world.unproven_challenge(&hello.0)?;
        let claimant = world.unproven_check(&challenge, &evidence);
        decided(world, claimant)
    });
    refused(Anonymous, Code::SessionUsed, |world, machine| {
        let hello = machine.hello();
        let challenge = world.unproven_challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        claimed(world.unproven_check(&challenge, &evidence));
        let claimant = world.unproven_check(&challenge, &evidence);
        decided(world, claimant)
    });
    refused(Anonymous, Code::SessionExpired, |world, machine| {
        let hello = machine.hello();
        let challenge = world.unproven_challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        world.now += wire::SESSION_SECONDS;
        let claimant = world.unproven_check(&challenge, &evidence);
        decided(world, claimant)
    });
    refused(Anonymous, Code::SessionsFullForEk, |world, machine| {
        let hello = machine.hello();
        for _ in 0..4 {
            world.unproven_challenge(&hello.0)?;
        }
        world
            .unproven_challenge(&hello.0)
            .map(|_| panic!("a challenge"))
    });
    evidence_of_another_connection_is_refused();
    refused(Anonymous, Code::ClaimsMismatch, |world, machine| {
        let hello = machine.hello();
        let challenge = world.unproven_challenge(&hello.0)?;
        let mut other = hello.clone();
        other.0.claims.addresses.push("10.0.0.1".to_owned());
        let evidence = machine.evidence(Purpose::Join, &other, &challenge, &world.channel);
        let claimant = world.unproven_check(&challenge, &evidence);
        decided(world, claimant)
    });
    refused_with(Anonymous, Code::CsrHash, |evidence, machine| {
        let mut request = machine.client_request.clone();
        request.unit = Some("x".to_owned());
        evidence.client_csr = Blob::new(request.request(&machine.key)).expect("a request");
    });
}

#[test]
fn only_the_announced_key_answers() {
    let stranger = SoftKeyed::new("edge-1", "192.168.77.31", "another");
    refused_as(Anonymous, Code::UnprovenSignature, |_, machine| {
        machine.key = stranger.key.clone();
    });
    refused_with(Anonymous, Code::UnprovenSignature, |evidence, _| {
        let mut bytes = evidence.signature.as_bytes().to_vec();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        evidence.signature = Blob::new(bytes).expect("a signature");
    });
    // The key signed the digest without the label, for a renewal, or for another protocol.
    refused(Anonymous, Code::UnprovenSignature, |world, machine| {
        let hello = machine.hello();
        let challenge = world.unproven_challenge(&hello.0)?;
        let mut evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        let question = unproven::question(
            Purpose::Join,
            &challenge.session,
            &machine.key_hash(),
            &evidence.transcript,
        );
        evidence.signature = machine.sign(question.as_bytes());
        let claimant = world.unproven_check(&challenge, &evidence);
        decided(world, claimant)
    });
    refused(Anonymous, Code::UnprovenSignature, |world, machine| {
        let hello = machine.hello();
        let challenge = world.unproven_challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Renew, &hello, &challenge, &world.channel);
        let claimant = world.unproven_check(&challenge, &evidence);
        decided(world, claimant)
    });
    refused_as(Anonymous, Code::UnprovenKey, |_, machine| {
        machine.announced.push(0);
    });
    refused_as(Anonymous, Code::UnprovenKey, |_, machine| {
        // The same key with its point compressed: one key would have two names.
        let compressed = machine.key.verifying_key().to_encoded_point(true);
        let head = [
            0x30, 0x39, 0x30, 0x13, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1,
        ];
        let curve = [6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7, 3, 0x22, 0];
        machine.announced = [&head[..], &curve, compressed.as_bytes()].concat();
    });
}

/// Nothing of one protocol has the other's form, and no signature of one is over what the other
/// signs.
#[test]
fn evidence_of_one_protocol_is_refused_in_the_other() {
    let (mut world, machine) = lab();
    let hello = machine.hello();
    // Both worlds draw the same numbers, so the second session's id is unknown to the other.
    world.challenge(&hello.0).expect("a challenge");
    let challenge = world.challenge(&hello.0).expect("a challenge");
    let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
    let json = |value: serde_json::Value| value.to_string();
    let theirs = [
        json(serde_json::to_value(&hello.0).expect("JSON")),
        json(serde_json::to_value(&challenge).expect("JSON")),
        json(serde_json::to_value(&evidence).expect("JSON")),
    ];
    let (mut open_world, keyed) = open(PolicyName::Queue);
    let own_hello = keyed.hello();
    let own_challenge = open_world
        .unproven_challenge(&own_hello.0)
        .expect("a challenge");
    let own_evidence = keyed.evidence(
        Purpose::Join,
        &own_hello,
        &own_challenge,
        &open_world.channel,
    );
    assert!(serde_json::from_str::<unproven::Hello>(&theirs[0]).is_err());
    assert!(serde_json::from_str::<unproven::Challenge>(&theirs[1]).is_err());
    assert!(serde_json::from_str::<Evidence>(&theirs[2]).is_err());
    let own = |value| json(value);
    assert!(
        serde_json::from_str::<wire::Hello>(
            &own(serde_json::to_value(&own_hello.0).expect("JSON"))
        )
        .is_err()
    );
    assert!(
        serde_json::from_str::<wire::Challenge>(&own(
            serde_json::to_value(&own_challenge).expect("JSON")
        ))
        .is_err()
    );
    assert!(
        serde_json::from_str::<wire::Evidence>(&own(
            serde_json::to_value(&own_evidence).expect("JSON")
        ))
        .is_err()
    );
    // A session of one is unknown to the other.
    let foreign = unproven::Challenge {
        session: challenge.session,
        nonce: challenge.nonce,
        expires_in_seconds: 30,
    };
    let spliced = keyed.evidence(Purpose::Join, &own_hello, &foreign, &world.channel);
    let claimant = open_world.unproven_check(&foreign, &spliced);
    expect(
        Anonymous,
        Code::SessionUnknown,
        decided(&mut open_world, claimant),
    );
    let labels = [
        unproven::label(Purpose::Join),
        unproven::label(Purpose::Renew),
    ];
    for purpose in [Purpose::Join, Purpose::Renew, Purpose::Bootstrap] {
        assert!(!labels.contains(&purpose.label()));
    }
    let claimant = open_world.unproven_check(&own_challenge, &own_evidence);
    decided(&mut open_world, claimant).expect("control");
    accepted(world.verify(&challenge, &evidence));
}

#[test]
fn a_machine_without_a_tpm_gets_no_more_than_a_node_may_have() {
    refused_as(Anonymous, Code::NameInvalid, |_, machine| {
        machine.claims.name.clear();
    });
    refused_as(Anonymous, Code::NameInvalid, |_, machine| {
        "../nodes".clone_into(&mut machine.claims.name);
    });
    refused_as(Anonymous, Code::Malformed, |_, machine| {
        machine.claims.instance = "x".repeat(300);
    });
    refused_as(Anonymous, Code::RoleMismatch, |_, machine| {
        "master".clone_into(&mut machine.claims.role);
    });
    refused_as(Anonymous, Code::RoleNotAdmitted, |world, _| {
        world.rule.certificate.roles = vec!["master".to_owned()];
    });
    refused_as(Anonymous, Code::RoleNotAdmitted, |world, machine| {
        // Not even where rule and inventory allow it.
        world.rule.certificate.roles.push("master".to_owned());
        world.machines.push(without_tpm(&machine.node));
        "master".clone_into(&mut world.object("edge-1").spec.role);
    });
    refused_as(Anonymous, Code::CsrOrganization, |_, machine| {
        "system:masters".clone_into(&mut machine.client_request.organization);
    });
    refused_as(Anonymous, Code::CsrCommonName, |_, machine| {
        "system:node:worker-1".clone_into(&mut machine.client_request.common_name);
    });
    refused_as(Anonymous, Code::CsrSanApiServer, |_, machine| {
        machine.claims.addresses.push("192.168.77.10".to_owned());
        machine
            .serving_request
            .names
            .push("192.168.77.10".to_owned());
    });
    refused_as(Anonymous, Code::CsrSan, |_, machine| {
        machine.serving_request.names.push("10.9.9.9".to_owned());
    });
    refused_as(Anonymous, Code::CsrServingKey, |_, machine| {
        machine.serving = machine.key.clone();
    });
    refused(Anonymous, Code::CsrKey, |world, machine| {
        let mut hello = machine.hello();
        let other = SoftKeyed::new("edge-1", "192.168.77.31", "another");
        hello.1 = other.client_request.request(&other.key);
        hello.0.csr_hash = wire::csr_hash(&hello.1, &hello.2);
        let challenge = world.unproven_challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        let claimant = world.unproven_check(&challenge, &evidence);
        decided(world, claimant)
    });
    // With the key of its admission the refusal is proven, and has the usual consequence.
    refused(Proven, Code::CsrOrganization, |world, machine| {
        joins(world, machine)?;
        machine.client_request = Requester {
            organization: "system:masters".to_owned(),
            ..machine.client_request.clone()
        };
        joins(world, machine)
    });
}

#[test]
fn a_machine_without_a_tpm_cannot_take_anothers_machine_or_ignore_its_state() {
    refused_as(Anonymous, Code::MachineRetired, |world, machine| {
        world.machines.push(without_tpm(&machine.node));
        world.object("edge-1").spec.retired = true;
    });
    refused_as(Anonymous, Code::MachineUntrusted, |world, machine| {
        world.machines.push(without_tpm(&machine.node));
        world.object("edge-1").status.get_or_insert_default().state = MachineState::Untrusted;
    });
    refused_as(Anonymous, Code::NameMismatch, |world, machine| {
        // An object of this name with another node name.
        let mut other = without_tpm(&machine.node);
        other.spec.node_name = Some("other".to_owned());
        world.machines.push(other);
    });
    refused(Anonymous, Code::MachineUnknown, |world, machine| {
        world.machines.push(without_tpm(&machine.node));
        let hello = machine.hello();
        let challenge = world.unproven_challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        world.object("edge-1").metadata.uid = Some("made anew".to_owned());
        let claimant = world.unproven_check(&challenge, &evidence);
        decided(world, claimant)
    });
}

#[test]
fn a_renewal_is_the_recorded_keys_over_its_own_certificate() {
    refused(Anonymous, Code::RenewalState, |world, machine| {
        joins(world, machine)?;
        world.object("edge-1").status.get_or_insert_default().state = MachineState::Suspect;
        let claimant = world.unproven_renewal(machine);
        decided(world, claimant)
    });
    for spoil in [
        (|peer| peer.machine_uid.clear()) as fn(&mut config_attest::verifier::RenewingPeer),
        |peer| "uid-of-edge-2".clone_into(&mut peer.machine_uid),
        |peer| "edge-2".clone_into(&mut peer.node_name),
        |peer| peer.spki[30] ^= 1,
    ] {
        refused(Anonymous, Code::RenewalIdentity, |world, machine| {
            joins(world, machine)?;
            let (mut peer, hello) = (world.unproven_peer(machine), machine.hello());
            spoil(&mut peer);
            world
                .unproven_renewal_challenge(&hello.0, &peer)
                .map(|_| panic!("a challenge"))
        });
    }
}
