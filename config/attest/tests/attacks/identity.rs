//! Which Machine a key belongs to.

use super::{Anonymous, Proven, accepted, expect, half_open, lab, refused};
use config_attest::verifier::RenewingPeer;
use config_certificates::{EkFault, EkIssuer, check_ek_certificate};
use config_kube::MachineState;
use config_kube::machine::EkSelector;
use config_protocol::Code;
use config_protocol::wire::{Challenge, Evidence};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, PublicKeyData as _,
};
use tests_machines::{EkKind, SoftMachine, World};

#[test]
fn an_ek_certificate_must_be_present_parse_and_match_the_key() {
    refused(Anonymous, Code::EkCertificateMissing, |world, machine| {
        machine.ek_certificate = None;
        world.join(machine)
    });
    refused(Anonymous, Code::EkCertificateMalformed, |world, machine| {
        machine.ek_certificate = Some(b"not DER".to_vec());
        world.join(machine)
    });
    refused(Anonymous, Code::EkCertificateMalformed, |world, machine| {
        // Padding of the NV index, which the prover must cut off.
        machine.ek_certificate.get_or_insert_default().push(0xff);
        world.join(machine)
    });
    refused(Anonymous, Code::EkCertificateOtherKey, |world, machine| {
        let other = SoftMachine::new("other", EkKind::P256);
        machine.ek_certificate = Some(world.endorse(&other, &[2, 23, 133, 8, 1], 2090));
        world.join(machine)
    });
}

#[test]
fn an_ek_certificate_must_be_valid_now_and_from_a_known_manufacturer() {
    refused(Anonymous, Code::EkCertificateExpired, |world, machine| {
        machine.ek_certificate = Some(world.endorse(machine, &[2, 23, 133, 8, 1], 2025));
        world.join(machine)
    });
    refused(Anonymous, Code::EkCertificateUsage, |world, machine| {
        machine.ek_certificate = Some(world.endorse(machine, &[1, 3, 6, 1, 5, 5, 7, 3, 2], 2090));
        world.join(machine)
    });
    refused(Anonymous, Code::EkCertificateIssuer, |world, machine| {
        // The right name, another key.
        world.maker = SoftMachine::new("impostor", EkKind::P256).ak;
        machine.ek_certificate = Some(world.endorse(machine, &[2, 23, 133, 8, 1], 2090));
        world.join(machine)
    });
    refused(Anonymous, Code::EkCertificateIssuer, |world, machine| {
        world.rule.ek.issuers = vec!["another-maker".to_owned()];
        world.join(machine)
    });
    // The certificate of the far future that software TPMs get is valid.
    let (mut world, mut machine) = lab();
    machine.ek_certificate = Some(world.endorse(&machine, &[2, 23, 133, 8, 1], 9999));
    accepted(world.join(&machine));
}

/// Manufacturers renew a CA's certificate for the same name and key.
#[test]
fn an_expired_ca_certificate_beside_its_renewed_one_refuses_no_ek() {
    let dated = |until: i32| {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 12, 31);
        params
    };
    let of_ca = |until: i32| {
        let mut params = dated(until);
        params
            .distinguished_name
            .push(DnType::CommonName, "TPM maker");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    };
    let key = || KeyPair::generate().expect("a key");
    let (ca, ek) = (key(), key());
    let [expired, renewed] = [2025, 2090].map(|until| {
        let certificate = of_ca(until).self_signed(&ca);
        certificate.expect("a CA certificate").der().to_vec()
    });
    let mut own = dated(2090);
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 1])];
    let issuer = rcgen::Issuer::new(of_ca(2090), &ca);
    let certificate = own.signed_by(&ek, &issuer).expect("an EK certificate");
    let found = |listed: &[&Vec<u8>]| {
        let listed = listed.iter().map(|der| (*der).clone()).collect();
        let issuer = EkIssuer::from_der("maker", listed).expect("an issuer");
        let spki = ek.subject_public_key_info();
        check_ek_certificate(certificate.der(), &spki, &[&issuer], 1_800_000_000).map(str::to_owned)
    };
    for listed in [[&expired, &renewed], [&renewed, &expired]] {
        assert_eq!(found(&listed), Ok("maker".to_owned()));
    }
    assert!(matches!(found(&[&expired]), Err(EkFault::Expired(_))));
}

#[test]
fn a_machine_outside_the_inventory_is_unknown() {
    refused(Anonymous, Code::MachineUnknown, |world, machine| {
        world.machines.clear();
        world.join(machine)
    });
    refused(Anonymous, Code::MachineUnknown, |world, machine| {
        world.object("worker-1").spec.ek.hashes = vec![format!("sha256:{}", "00".repeat(32))];
        world.join(machine)
    });
}

#[test]
fn another_nodes_name_is_refused() {
    refused(Anonymous, Code::NameMismatch, |world, machine| {
        world.machine("worker-2", "192.168.77.12", EkKind::P256);
        machine.claims.name = "worker-2".to_owned();
        world.join(machine)
    });
    // The same after the key is bound.
    let (mut world, mut machine) = lab();
    accepted(world.join(&machine));
    machine.claims.name = "worker-2".to_owned();
    expect(Anonymous, Code::NameMismatch, world.join(&machine));
    // No claim: the inventory's name.
    machine.claims.name = String::new();
    assert_eq!(accepted(world.join(&machine)).node_name(), "worker-1");
}

#[test]
fn one_ek_under_a_second_name_is_refused() {
    let (mut world, mut machine) = lab();
    accepted(world.join(&machine));
    let mut second = world.object("worker-1").clone();
    second.metadata.name = Some("worker-9".to_owned());
    second.metadata.uid = Some("uid-of-worker-9".to_owned());
    second.status = None;
    world.machines.push(second);
    machine.claims.name = "worker-9".to_owned();
    machine.client_request.common_name = "system:node:worker-9".to_owned();
    expect(Anonymous, Code::EkBoundElsewhere, world.join(&machine));
    // Joining under the first name again is allowed.
    machine.claims.name = "worker-1".to_owned();
    machine.client_request.common_name = "system:node:worker-1".to_owned();
    accepted(world.join(&machine));
}

#[test]
fn an_ek_listed_by_two_machines_is_refused_without_a_claimed_name() {
    refused(Anonymous, Code::MachineUnknown, |world, machine| {
        let mut second = world.object("worker-1").clone();
        second.metadata.name = Some("worker-9".to_owned());
        world.machines.push(second);
        machine.claims.name = String::new();
        world.join(machine)
    });
}

#[test]
fn one_name_under_a_second_ek_is_refused() {
    // The Machine lists both EKs of its TPM; it is bound to the one that came first.
    let (mut world, machine) = lab();
    accepted(world.join(&machine));
    let mut other = SoftMachine::new("other board", EkKind::P384);
    other.claims.name = "worker-1".to_owned();
    other.ek_certificate = Some(world.endorse(&other, &[2, 23, 133, 8, 1], 2090));
    world
        .object("worker-1")
        .spec
        .ek
        .hashes
        .push(other.ek_hash().to_text());
    expect(Anonymous, Code::MachineBoundToOtherEk, world.join(&other));
    // Two Machines for one Node.
    refused(Anonymous, Code::MachineBoundToOtherEk, |world, machine| {
        world.machine("worker-2", "192.168.77.12", EkKind::P256);
        world.object("worker-2").spec.node_name = Some("worker-1".to_owned());
        world.join(machine)
    });
}

#[test]
fn a_worker_that_declares_itself_master_is_refused() {
    refused(Anonymous, Code::RoleMismatch, |world, machine| {
        machine.claims.role = "master".to_owned();
        world.join(machine)
    });
    refused(Anonymous, Code::RoleNotAdmitted, |world, machine| {
        world.object("worker-1").spec.role = "master".to_owned();
        world.join(machine)
    });
}

#[test]
fn retired_and_untrusted_machines_stay_out_until_an_admin_acts() {
    refused(Anonymous, Code::MachineRetired, |world, machine| {
        world.object("worker-1").spec.retired = true;
        world.join(machine)
    });
    refused(Anonymous, Code::MachineStatic, |world, machine| {
        world.object("worker-1").spec.is_static = true;
        world.join(machine)
    });
    let (mut world, machine) = lab();
    world
        .object("worker-1")
        .status
        .get_or_insert_default()
        .state = MachineState::Untrusted;
    expect(Anonymous, Code::MachineUntrusted, world.join(&machine));
    world.object("worker-1").spec.readmit_until = Some("2020-01-01T00:00:00Z".to_owned());
    expect(Anonymous, Code::MachineUntrusted, world.join(&machine));
    world.object("worker-1").spec.readmit_until = Some("garbage".to_owned());
    expect(Anonymous, Code::MachineUntrusted, world.join(&machine));
    world.object("worker-1").spec.readmit_until = Some("2030-01-01T00:00:00Z".to_owned());
    accepted(world.join(&machine));
    // The re-admission covered what the machine had done before, not what it does afterwards.
    world
        .object("worker-1")
        .status
        .get_or_insert_default()
        .state = MachineState::Untrusted;
    expect(Anonymous, Code::MachineUntrusted, world.join(&machine));
    world.object("worker-1").spec.readmit_until = Some("2031-01-01T00:00:00Z".to_owned());
    accepted(world.join(&machine));
}

#[test]
fn a_machine_deleted_between_the_steps_is_not_admitted() {
    refused(Anonymous, Code::MachineUnknown, |world, machine| {
        let hello = machine.hello();
        let challenge = world.challenge(&hello.0)?;
        let evidence = machine.evidence(
            config_protocol::Purpose::Join,
            &hello,
            &challenge,
            &world.channel,
        );
        // Deleted and made again: another object under the same name.
        world.object("worker-1").metadata.uid = Some("another".to_owned());
        world.verify(&challenge, &evidence)
    });
}

#[test]
fn an_ek_given_to_another_machine_between_the_steps_is_refused() {
    refused(Anonymous, Code::EkBoundElsewhere, |world, machine| {
        machine.claims.name.clear();
        world.machine("worker-2", "192.168.77.12", EkKind::P256);
        let hello = machine.hello();
        let challenge = world.challenge(&hello.0)?;
        let evidence = machine.evidence(
            config_protocol::Purpose::Join,
            &hello,
            &challenge,
            &world.channel,
        );
        let hashes = std::mem::take(&mut world.object("worker-1").spec.ek.hashes);
        world.object("worker-2").spec.ek.hashes = hashes;
        world.verify(&challenge, &evidence)
    });
}

/// A world in which an issuer is enough and names choose.
fn by_issuer() -> (World, SoftMachine) {
    let (mut world, machine) = lab();
    world.rule.ek.hashes = String::new();
    world.object("worker-1").spec.ek = EkSelector {
        hashes: Vec::new(),
        issuers: vec!["lab-ca".to_owned()],
        ..EkSelector::default()
    };
    (world, machine)
}

#[test]
fn a_machine_known_by_its_issuer_is_bound_to_the_first_ek() {
    let (mut world, machine) = by_issuer();
    accepted(world.join(&machine));
    let mut other = SoftMachine::new("other board", EkKind::P256);
    other.claims.name = "worker-1".to_owned();
    other.ek_certificate = Some(world.endorse(&other, &[2, 23, 133, 8, 1], 2090));
    expect(Anonymous, Code::MachineBoundToOtherEk, world.join(&other));
    // A Machine that also lists hashes does not accept the issuer's other machines.
    let (mut world, machine) = by_issuer();
    world.object("worker-1").spec.ek.hashes = vec![other.ek_hash().to_text()];
    expect(Anonymous, Code::MachineUnknown, world.join(&machine));
    // The Machine's own list of issuers narrows the rule's.
    let (mut world, machine) = by_issuer();
    world.object("worker-1").spec.ek.issuers = vec!["another-maker".to_owned()];
    expect(Anonymous, Code::EkCertificateIssuer, world.join(&machine));
}

#[test]
fn one_ek_under_two_names_at_once_is_one_node() {
    type Listed = fn(&mut World);
    let by_issuer_alone: Listed = |world| {
        world.rule.ek.hashes = String::new();
        for node in ["worker-1", "worker-2"] {
            world.object(node).spec.ek = EkSelector {
                issuers: vec!["lab-ca".to_owned()],
                ..EkSelector::default()
            };
        }
    };
    let listed_twice: Listed =
        |world| world.object("worker-2").spec.ek = world.object("worker-1").spec.ek.clone();
    for (mount, code) in [
        (by_issuer_alone, Code::NameMismatch),
        (listed_twice, Code::EkBoundElsewhere),
    ] {
        let (mut world, mut machine) = lab();
        world.machine("worker-2", "192.168.77.12", EkKind::P256);
        mount(&mut world);
        let mut second = machine.clone();
        second.node = "worker-2".to_owned();
        second.claims.name = "worker-2".to_owned();
        second.client_request.common_name = "system:node:worker-2".to_owned();
        second.serving_request.common_name = "system:node:worker-2".to_owned();
        second.serving_request.names = vec!["worker-2".to_owned()];
        // Control: the machine may choose either name if it uses only one.
        let (challenge, evidence) = half_open(&mut world, &second);
        accepted(world.verify(&challenge, &evidence));
        // Both sessions are open before either is answered.
        let (challenge, evidence) = half_open(&mut world, &second);
        accepted(world.join(&machine));
        expect(Anonymous, code, world.verify(&challenge, &evidence));
        machine.clock.clock += 1;
        accepted(world.join(&machine));
    }
}

/// The same for a renewal.
fn half_renewed(world: &mut World, machine: &SoftMachine) -> (Challenge, Evidence) {
    let hello = machine.hello();
    let machine_uid = world
        .object(&machine.node)
        .metadata
        .uid
        .clone()
        .unwrap_or_default();
    let peer = RenewingPeer {
        machine_uid,
        node_name: machine.node.clone(),
        spki: machine.nk_spki(),
    };
    let challenge = world
        .renewal_challenge(&hello.0, &peer)
        .expect("a challenge");
    let evidence = machine.evidence(
        config_protocol::Purpose::Renew,
        &hello,
        &challenge,
        &world.channel,
    );
    (challenge, evidence)
}

/// An attacker who delays a machine's evidence until the machine has tried again cannot make it
/// Untrusted.
#[test]
fn overtaken_evidence_makes_no_machine_untrusted() {
    let (mut world, mut machine) = lab();
    for already_known in [false, true] {
        if already_known {
            accepted(world.join(&machine));
        }
        let (challenge, late) = half_open(&mut world, &machine);
        machine.clock.clock += 1000;
        accepted(world.join(&machine));
        let refusal = world.verify(&challenge, &late).expect_err("late");
        assert_eq!(
            (refusal.code(), refusal.consequence()),
            (Code::Overtaken, None)
        );
    }
    // Counters below those known at the hello come from a restored snapshot, however late they
    // arrive.
    let (challenge, _) = half_open(&mut world, &machine);
    let now = machine.clock;
    machine.clock.clock -= 500;
    let hello = machine.hello();
    let other = world.challenge(&hello.0).expect("a challenge");
    let restored = machine.evidence(
        config_protocol::Purpose::Join,
        &hello,
        &other,
        &world.channel,
    );
    machine.clock = now;
    machine.clock.clock += 1000;
    accepted(world.join(&machine));
    expect(
        Proven,
        Code::CountersWentBack,
        world.verify(&other, &restored),
    );
    drop(challenge);
}

/// A renewal begins while the machine is Trusted; what another exchange finds meanwhile counts.
#[test]
fn a_pending_renewal_is_refused_once_the_machine_is_suspect_or_has_rebooted() {
    let (mut world, mut machine) = lab();
    accepted(world.join(&machine));
    machine.clock.clock += 1000;
    let (challenge, evidence) = half_renewed(&mut world, &machine);
    world
        .object("worker-1")
        .status
        .get_or_insert_default()
        .state = MachineState::Suspect;
    expect(
        Proven,
        Code::RenewalState,
        world.verify(&challenge, &evidence),
    );
    accepted(world.join(&machine));
    machine.clock.clock += 1000;
    let (challenge, evidence) = half_renewed(&mut world, &machine);
    let mut rebooted = machine.clone();
    rebooted.boot(&world.image.clone(), "nocloud", b"version = 1\n");
    accepted(world.join(&rebooted));
    expect(
        Proven,
        Code::RenewalKeys,
        world.verify(&challenge, &evidence),
    );
    rebooted.clock.clock += 1000;
    let (challenge, evidence) = half_renewed(&mut world, &rebooted);
    accepted(world.verify(&challenge, &evidence));
}

/// The rule's demands on endorsement keys hold for renewals too, and for machines admitted under a
/// looser rule.
#[test]
fn a_stricter_rule_on_endorsement_keys_counts_at_once() {
    let (mut world, mut machine) = lab();
    world.rule.ek.issuers.clear();
    let certificate = machine.ek_certificate.take();
    accepted(world.join(&machine));
    let (challenge, evidence) = half_open(&mut world, &machine);
    world.rule.ek.issuers = vec!["lab-ca".to_owned()];
    machine.clock.clock += 1000;
    expect(Anonymous, Code::EkCertificateMissing, world.renew(&machine));
    expect(
        Proven,
        Code::EkCertificateMissing,
        world.verify(&challenge, &evidence),
    );
    machine.ek_certificate = certificate;
    accepted(world.renew(&machine));
}

#[test]
fn a_board_replaced_between_the_steps_is_refused() {
    refused(Anonymous, Code::MachineUnknown, |world, machine| {
        let (challenge, evidence) = half_open(world, machine);
        let spare = SoftMachine::new("a spare board", EkKind::P256);
        world.object("worker-1").spec.ek.hashes = vec![spare.ek_hash().to_text()];
        world.verify(&challenge, &evidence)
    });
}

/// No other TPM of the issuer can make a Machine Untrusted that trusts the issuer and has not
/// joined yet.
#[test]
fn another_tpm_of_the_manufacturer_cannot_condemn_a_machine_before_its_first_join() {
    let (mut world, machine) = by_issuer();
    let mut other = SoftMachine::new("another board", EkKind::P256);
    other.claims = machine.claims.clone();
    other.client_request = machine.client_request.clone();
    other.serving_request = machine.serving_request.clone();
    other.ek_certificate = Some(world.endorse(&other, &[2, 23, 133, 8, 1], 2090));
    let mut bad = world.image.clone();
    bad.kernel[0] ^= 1;
    other.boot(&bad, "nocloud", b"version = 1\n");
    expect(Anonymous, Code::ImageLoader, world.join(&other));
    let image = world.image.clone();
    other.boot(&image, "nocloud", b"version = 1\n");
    "system:masters".clone_into(&mut other.client_request.organization);
    expect(Anonymous, Code::CsrOrganization, world.join(&other));
    // After its first join the machine's own proof counts.
    let (mut world, mut machine) = by_issuer();
    accepted(world.join(&machine));
    machine.boot(&bad, "nocloud", b"version = 1\n");
    expect(Proven, Code::ImageLoader, world.join(&machine));
}

#[test]
fn require_any_takes_a_listed_hash_without_a_certificate() {
    let (mut world, mut machine) = lab();
    machine.ek_certificate = None;
    expect(Anonymous, Code::EkCertificateMissing, world.join(&machine));
    world.rule.ek.require = "any".to_owned();
    accepted(world.join(&machine));
}

#[test]
fn claims_swapped_between_the_steps_are_seen() {
    refused(Anonymous, Code::ClaimsMismatch, |world, machine| {
        let hello = machine.hello();
        let challenge = world.challenge(&hello.0)?;
        let mut other = hello.clone();
        other.0.claims.instance = "i-other".to_owned();
        let evidence = machine.evidence(
            config_protocol::Purpose::Join,
            &other,
            &challenge,
            &world.channel,
        );
        world.verify(&challenge, &evidence)
    });
}

#[test]
fn a_proven_refusal_names_the_machine_and_an_anonymous_one_does_not() {
    refused(Proven, Code::ImageSvn, |world, machine| {
        world.rule.images.min_svn = 100;
        let outcome = world.join(machine);
        if let Err(refusal) = &outcome {
            let (proven, _) = refusal.consequence().expect("a consequence");
            assert_eq!(proven.id().uid, "uid-of-worker-1");
            assert!(refusal.message().contains("at least 100"), "{refusal}");
        }
        outcome
    });
}

#[test]
fn a_second_session_does_not_outlive_the_first_ones_verdict() {
    let (mut world, machine) = lab();
    accepted(world.join(&machine));
    let (challenge, evidence) = half_open(&mut world, &machine);
    accepted(world.verify(&challenge, &evidence));
    let (challenge, evidence) = half_open(&mut world, &machine);
    world
        .object("worker-1")
        .status
        .get_or_insert_default()
        .state = MachineState::Untrusted;
    expect(
        Proven,
        Code::MachineUntrusted,
        world.verify(&challenge, &evidence),
    );
    world
        .object("worker-1")
        .status
        .get_or_insert_default()
        .state = MachineState::Trusted;
    let (challenge, evidence) = half_open(&mut world, &machine);
    world.object("worker-1").spec.retired = true;
    expect(
        Proven,
        Code::MachineRetired,
        world.verify(&challenge, &evidence),
    );
}
