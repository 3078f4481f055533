//! Replays, splices, late and second answers, other TPMs, and messages that cannot make another
//! machine Untrusted.

use super::{Anonymous, accepted, expect, half_open, lab, refused};
use config_attest::Refusal;
use config_attest::sessions::{Limits, Sessions};
use config_attest::verifier::check_hello;
use config_protocol::wire::{SESSION_SECONDS, SessionId};
use config_protocol::{Channel, Code, Purpose};
use config_tpm::Digest;
use tests_machines::{EkKind, SeededRng, SoftMachine, World};

#[test]
fn evidence_for_another_nonce_is_replayed() {
    refused(Anonymous, Code::NonceReplayed, |world, machine| {
        let hello = machine.hello();
        let first = world.challenge(&hello.0)?;
        let replayed = machine.evidence(Purpose::Join, &hello, &first, &world.channel);
        let second = world.challenge(&hello.0)?;
        world.verify(&second, &replayed)
    });
}

#[test]
fn a_replay_that_lies_about_its_nonce_fails_at_the_credential() {
    refused(Anonymous, Code::CredentialNotActivated, |world, machine| {
        let hello = machine.hello();
        let first = world.challenge(&hello.0)?;
        let mut replayed = machine.evidence(Purpose::Join, &hello, &first, &world.channel);
        let second = world.challenge(&hello.0)?;
        replayed.proof.transcript.nonce = second.nonce;
        world.verify(&second, &replayed)
    });
}

#[test]
fn an_old_quote_under_a_fresh_mac_does_not_carry_q() {
    refused(Anonymous, Code::QuoteExtraData, |world, machine| {
        let hello = machine.hello();
        let first = world.challenge(&hello.0)?;
        let old = machine.evidence(Purpose::Join, &hello, &first, &world.channel);
        let second = world.challenge(&hello.0)?;
        let mut evidence = machine.evidence(Purpose::Join, &hello, &second, &world.channel);
        evidence.proof.quote = old.proof.quote;
        world.verify(&second, &evidence)
    });
}

#[test]
fn an_answer_after_the_time_is_expired_and_one_just_before_is_not() {
    refused(Anonymous, Code::SessionExpired, |world, machine| {
        let hello = machine.hello();
        let challenge = world.challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        world.now += SESSION_SECONDS;
        world.verify(&challenge, &evidence)
    });
    let (mut world, machine) = lab();
    let (challenge, evidence) = half_open(&mut world, &machine);
    world.now += SESSION_SECONDS - 1;
    accepted(world.verify(&challenge, &evidence));
}

#[test]
fn a_session_is_answered_once_even_if_the_first_answer_was_refused() {
    let (mut world, machine) = lab();
    let hello = machine.hello();
    let challenge = world.challenge(&hello.0).expect("a challenge");
    let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
    accepted(world.verify(&challenge, &evidence));
    expect(
        Anonymous,
        Code::SessionUsed,
        world.verify(&challenge, &evidence),
    );

    let challenge = world.challenge(&hello.0).expect("a challenge");
    let good = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
    let mut bad = good.clone();
    bad.proof.mac = Digest::ZERO;
    expect(
        Anonymous,
        Code::CredentialNotActivated,
        world.verify(&challenge, &bad),
    );
    expect(
        Anonymous,
        Code::SessionUsed,
        world.verify(&challenge, &good),
    );
}

#[test]
fn an_invented_session_is_unknown_and_a_forgotten_one_too() {
    refused(Anonymous, Code::SessionUnknown, |world, machine| {
        let hello = machine.hello();
        let mut challenge = world.challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        challenge.session = SessionId([7; 16]);
        world.verify(&challenge, &evidence)
    });
}

/// The service reads a body of evidence only for an open session; the look-up does not use up the
/// session.
#[test]
fn only_evidence_for_an_open_session_is_read() {
    let (mut world, machine) = lab();
    let hello = machine.hello();
    let challenge = world.challenge(&hello.0).expect("a challenge");
    let look = |world: &World, session: &SessionId| world.sessions.look(session, world.now);
    let invented = SessionId([7; 16]);
    assert_eq!(look(&world, &invented), Err(Code::SessionUnknown));
    let open = look(&world, &challenge.session).expect("open");
    assert_eq!(open.listed, Some(machine.ek_hash()));
    world.now += 3;
    let later = look(&world, &challenge.session).expect("still open");
    assert_eq!(later.seconds_left, SESSION_SECONDS - 3);
    let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
    accepted(world.verify(&challenge, &evidence));
    assert_eq!(look(&world, &challenge.session), Err(Code::SessionUsed));
    let second = world.challenge(&hello.0).expect("a challenge");
    world.now += SESSION_SECONDS;
    assert_eq!(look(&world, &second.session), Err(Code::SessionExpired));
    world.now += SESSION_SECONDS;
    assert_eq!(look(&world, &second.session), Err(Code::SessionUnknown));
}

#[test]
fn a_quote_from_another_tpm_is_not_signed_by_the_ak() {
    refused(Anonymous, Code::QuoteSignature, |world, machine| {
        let other = SoftMachine::new("elsewhere", EkKind::P256);
        let hello = machine.hello();
        let challenge = world.challenge(&hello.0)?;
        let mut evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        let attest = evidence.proof.quote.attest.as_bytes().to_vec();
        evidence.proof.quote = other.sign_bytes(&attest);
        world.verify(&challenge, &evidence)
    });
}

#[test]
fn a_certification_from_another_tpm_is_not_signed_by_the_ak() {
    refused(super::Proven, Code::CertifySignature, |world, machine| {
        let other = SoftMachine::new("elsewhere", EkKind::P256);
        world.join_with(machine, |evidence| {
            let attest = evidence.proof.certify.attest.as_bytes().to_vec();
            evidence.proof.certify = other.sign_bytes(&attest);
        })
    });
}

#[test]
fn an_old_certification_does_not_carry_q() {
    refused(super::Proven, Code::CertifyExtraData, |world, machine| {
        let old = machine.sign(&machine.certify(&Digest::of(b"another exchange")));
        world.join_with(machine, |evidence| evidence.proof.certify = old)
    });
}

#[test]
fn a_spliced_tls_connection_is_refused() {
    // The machine spoke to a machine in the middle, on a separate connection.
    refused(Anonymous, Code::Channel, |world, machine| {
        let hello = machine.hello();
        let challenge = world.challenge(&hello.0)?;
        let between = Channel {
            exporter: Digest::of(b"another connection"),
            ..world.channel.clone()
        };
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &between);
        world.verify(&challenge, &evidence)
    });
}

#[test]
fn evidence_on_another_connection_than_the_hello_is_refused() {
    refused(Anonymous, Code::Channel, |world, machine| {
        let hello = machine.hello();
        let challenge = world.challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        world.channel.exporter = Digest::of(b"connection 2");
        world.verify(&challenge, &evidence)
    });
}

#[test]
fn evidence_for_an_impersonated_master_is_refused() {
    refused(Anonymous, Code::MasterKey, |world, machine| {
        let hello = machine.hello();
        let challenge = world.challenge(&hello.0)?;
        let impostor = Channel {
            server_spki: Digest::of(b"impostor"),
            ..world.channel.clone()
        };
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &impostor);
        world.verify(&challenge, &evidence)
    });
}

#[test]
fn a_proof_made_for_another_purpose_is_refused() {
    refused(Anonymous, Code::CredentialNotActivated, |world, machine| {
        let hello = machine.hello();
        let challenge = world.challenge(&hello.0)?;
        let evidence = machine.evidence(Purpose::Bootstrap, &hello, &challenge, &world.channel);
        world.verify(&challenge, &evidence)
    });
}

#[test]
fn another_protocol_version_is_a_downgrade() {
    refused(Anonymous, Code::ProtocolVersion, |world, machine| {
        let mut hello = machine.hello().0;
        hello.protocol = "cloud-verify/v0".to_owned();
        world
            .challenge(&hello)
            .map(|_| unreachable!("a challenge for another protocol"))
    });
}

#[test]
fn claims_over_their_limits_are_malformed() {
    for name in ["n".repeat(254), "new\nline".to_owned()] {
        refused(Anonymous, Code::Malformed, |world, machine| {
            machine.claims.instance = name;
            world.join(machine)
        });
    }
}

#[test]
fn open_sessions_are_bounded_for_each_ek_and_old_ones_stay() {
    let (mut world, machine) = lab();
    world.sessions = Sessions::new(Limits {
        total: 8,
        per_ek: 2,
    });
    let other = world.machine("worker-2", "192.168.77.12", EkKind::P256);
    // The good machine's session comes first; then its EK is named by a flood.
    let hello = machine.hello();
    let good = world.challenge(&hello.0).expect("a challenge");
    world.challenge(&hello.0).expect("a second session");
    let refusal = world.challenge(&hello.0).expect_err("a third session");
    assert_eq!(refusal.code(), Code::SessionsFullForEk);
    assert!(matches!(*refusal, Refusal::Anonymous { .. }));
    // Another EK is not touched by that, and the first session still works.
    world
        .challenge(&other.hello().0)
        .expect("another EK's session");
    let evidence = machine.evidence(Purpose::Join, &hello, &good, &world.channel);
    accepted(world.verify(&good, &evidence));
    // A session that was answered, or whose time is over, makes room.
    world.challenge(&hello.0).expect("room after an answer");
    world.now += SESSION_SECONDS;
    world.challenge(&hello.0).expect("room after the time");
}

#[test]
fn the_table_is_bounded_and_forgets_ended_sessions() {
    let (mut world, machine) = lab();
    world.sessions = Sessions::new(Limits {
        total: 3,
        per_ek: 3,
    });
    let hello = machine.hello().0;
    for _ in 0..3 {
        world.challenge(&hello).expect("a challenge");
    }
    let other = world.machine("worker-2", "192.168.77.12", EkKind::P256);
    world
        .challenge(&other.hello().0)
        .expect("a place of the key that has most");
    assert_eq!(world.sessions.len(), 3);
    world.now += 2 * SESSION_SECONDS;
    world
        .challenge(&other.hello().0)
        .expect("room after the ends were forgotten");
    assert_eq!(world.sessions.len(), 1);
}

/// Twenty stolen public keys that open all the sessions they can, and one honest machine: the
/// master holds one place more than there are keys.
#[test]
fn keys_with_several_sessions_do_not_evict_the_only_session_of_another() {
    let (mut world, machine) = lab();
    world.sessions = Sessions::new(Limits {
        total: 22,
        per_ek: 4,
    });
    let stolen: Vec<_> = (2..22)
        .map(|number| {
            let (name, address) = (format!("worker-{number}"), format!("192.168.78.{number}"));
            let stolen = world.machine(&name, &address, EkKind::P256);
            stolen.hello().0
        })
        .collect();
    let flood = |world: &mut World| {
        for hello in stolen.iter().cycle().take(4 * stolen.len()) {
            // Beyond the share of its key it is refused.
            world.challenge(hello).ok();
        }
    };
    flood(&mut world);
    let hello = machine.hello();
    let good = world
        .challenge(&hello.0)
        .expect("a place in the full table");
    flood(&mut world);
    assert_eq!(world.sessions.len(), 22);
    let evidence = machine.evidence(Purpose::Join, &hello, &good, &world.channel);
    accepted(world.verify(&good, &evidence));
}

/// Answered and expired sessions make room for a new exchange, before open ones do.
#[test]
fn ended_sessions_make_room_for_a_new_exchange() {
    let (mut world, machine) = lab();
    world.sessions = Sessions::new(Limits {
        total: 2,
        per_ek: 2,
    });
    let hello = machine.hello();
    let ended = |world: &mut World| {
        let challenge = world.challenge(&hello.0).expect("room after an answer");
        let mut garbage = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        garbage.proof.mac = Digest::ZERO;
        expect(
            Anonymous,
            Code::CredentialNotActivated,
            world.verify(&challenge, &garbage),
        );
    };
    for _ in 0..8 {
        ended(&mut world);
    }
    let open = world.challenge(&hello.0).expect("a challenge");
    ended(&mut world);
    let other = world.machine("worker-2", "192.168.77.12", EkKind::P256);
    world
        .challenge(&other.hello().0)
        .expect("the place of the one that was answered");
    let evidence = machine.evidence(Purpose::Join, &hello, &open, &world.channel);
    accepted(world.verify(&open, &evidence));
    world.now += SESSION_SECONDS;
    for _ in 0..2 {
        world
            .challenge(&other.hello().0)
            .expect("room after the time");
    }
    let counts = world.sessions.counts();
    assert_eq!((counts.joins, counts.renewals), (2, 0));
}

/// Anyone who knows an EK opens sessions for it, but not all of them: from another network its
/// machine still joins.
#[test]
fn one_network_does_not_use_up_the_sessions_of_an_ek() {
    let (mut world, machine) = lab();
    world.sessions = Sessions::new(Limits {
        total: 100,
        per_ek: 2,
    });
    let hello = machine.hello();
    let mut open = |last: u8| {
        let (references, channel) = (world.references(), world.channel.clone());
        let admitted =
            check_hello(&hello.0, &references.get(), &channel, world.now).expect("admitted");
        let mut rng = SeededRng::new(&format!("{last} {}", world.sessions.len()));
        world
            .sessions
            .open_from([192, 0, 2, last].into(), admitted, world.now, &mut rng)
            .map_err(|refusal| refusal.code())
    };
    open(1).expect("the flood's first");
    open(1).expect("the flood's second");
    assert_eq!(open(1), Err(Code::SessionsFullForEk));
    let own = open(2).expect("from another network");
    for last in 3..18 {
        for _ in 0..2 {
            open(last).ok();
        }
    }
    assert_eq!(
        open(200),
        Err(Code::SessionsFullForEk),
        "all networks together are bounded too"
    );
    let evidence = machine.evidence(Purpose::Join, &hello, &own, &world.channel);
    accepted(world.verify(&own, &evidence));
}

#[test]
fn garbage_sent_under_a_machines_name_does_not_change_that_machine() {
    let (mut world, machine) = lab();
    accepted(world.join(&machine));
    let before = world.object("worker-1").clone();
    // Anyone who knows the EK, which is not secret, can send it with other keys.
    let mut attacker = SoftMachine::new("attacker", EkKind::P256);
    attacker.ek_public = machine.ek_public.clone();
    attacker.ek_certificate.clone_from(&machine.ek_certificate);
    attacker.claims = machine.claims.clone();
    attacker.bank = machine.bank.clone();
    attacker.log = machine.log.clone();
    attacker.bind_nk();
    expect(
        Anonymous,
        Code::CredentialNotActivated,
        world.join(&attacker),
    );
    assert_eq!(*world.object("worker-1"), before);
    accepted(world.join(&machine));
}
