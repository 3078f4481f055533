//! Invariants of parsers and of the verifier, by generated cases.

#![allow(clippy::panic, reason = "helpers of tests stop at the first surprise")]

use config_attest::verifier::{check_evidence, check_hello};
use config_certificates::EkIssuer;
use config_protocol::Purpose;
use config_protocol::wire::{Challenge, Evidence, Hello};
use config_tpm::Digest;
use config_tpm::eventlog::{Event, EventLog, kind};
use config_tpm::pcr::{Bank, Selection};
use config_tpm::{Attest, EcdsaSignature, Public};
use proptest::prelude::*;
use tests_machines::{EkKind, SeededRng, SoftMachine, World};

fn event() -> impl Strategy<Value = Event> {
    let kinds = prop_oneof![
        Just(kind::NO_ACTION),
        Just(kind::SEPARATOR),
        Just(kind::IPL),
        any::<u32>()
    ];
    (
        0_u8..24,
        kinds,
        any::<[u8; 32]>(),
        prop::collection::vec(any::<u8>(), 0..64),
    )
        .prop_map(|(pcr, kind, digest, data)| Event {
            pcr,
            kind,
            digest: Digest(digest),
            data,
        })
}

fn log() -> impl Strategy<Value = EventLog> {
    prop::collection::vec(event(), 0..32).prop_map(|events| EventLog { events })
}

proptest! {
    /// A written log parses to itself and replays to the registers that extending its events gives.
    #[test]
    fn replay_of_the_parsed_log_is_the_registers(log in log()) {
        let parsed = EventLog::parse(&log.to_bytes()).expect("a written log");
        prop_assert_eq!(&parsed, &log);
        let mut bank = Bank::new();
        for event in log.events.iter().filter(|event| event.kind != kind::NO_ACTION) {
            bank.extend(event.pcr, &event.digest);
        }
        let all = Selection::of(&(0..24).collect::<Vec<u8>>());
        prop_assert_eq!(parsed.replay().values(all), bank.values(all));
    }

    /// Cutting a log anywhere inside an event is seen; cutting it between events gives a prefix.
    #[test]
    fn a_cut_log_is_refused_or_a_prefix(log in log(), cut in any::<prop::sample::Index>()) {
        let bytes = log.to_bytes();
        let cut = cut.index(bytes.len());
        if let Ok(parsed) = EventLog::parse(&bytes[..cut]) {
            prop_assert!(parsed.events.len() < log.events.len());
            prop_assert!(log.events.starts_with(&parsed.events));
        }
    }

    /// No bytes make a parser panic, and what parses is written back to the same bytes.
    #[test]
    fn parsers_are_total_and_lose_nothing(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Ok(public) = Public::parse(&bytes) {
            prop_assert_eq!(public.to_bytes(), &bytes[..]);
        }
        if let Ok(attest) = Attest::parse(&bytes) {
            prop_assert_eq!(attest.to_bytes(), &bytes[..]);
        }
        if let Ok(signature) = EcdsaSignature::parse(&bytes) {
            prop_assert_eq!(signature.to_bytes(), &bytes[..]);
        }
        prop_assert!(EventLog::parse(&bytes).is_err() || bytes.len() > 60);
        prop_assert!(EkIssuer::from_der("x", vec![bytes]).is_err());
    }

    /// Structures with one byte changed parse to something else or not at all, and never panic.
    #[test]
    fn a_changed_structure_is_another_structure(at in any::<prop::sample::Index>(), flip in 1_u8..) {
        let machine = SoftMachine::new("worker-1", EkKind::P256);
        let question = Digest::of(b"Q");
        let signed = machine.sign(&machine.quote(&question));
        for bytes in [machine.ek_public.to_bytes(), signed.attest.as_bytes().to_vec()] {
            let mut changed = bytes.clone();
            changed[at.index(bytes.len())] ^= flip;
            if let Ok(public) = Public::parse(&changed) {
                prop_assert_eq!(public.to_bytes(), &changed[..]);
                prop_assert_ne!(public.name(), machine.ek_public.name());
            }
            if let Ok(attest) = Attest::parse(&changed) {
                prop_assert_eq!(attest.to_bytes(), changed);
            }
        }
    }
}

/// One exchange that is accepted, up to its evidence.
struct Exchange {
    world: World,
    hello: Hello,
    challenge: Challenge,
    evidence: Evidence,
}

const SEED: &str = "bit flips";

impl Exchange {
    fn new() -> Self {
        let mut world = World::new();
        let machine = world.machine("worker-1", "192.168.77.11", EkKind::P256);
        let hello = machine.hello();
        let references = world.references();
        let admitted =
            check_hello(&hello.0, &references.get(), &world.channel, world.now).expect("admitted");
        let mut sessions = config_attest::sessions::Sessions::default();
        let challenge = sessions
            .open(admitted, world.now, &mut SeededRng::new(SEED))
            .expect("a challenge");
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        Self {
            world,
            hello: hello.0,
            challenge,
            evidence,
        }
    }

    /// The verdict on some evidence in the same session: what would be recorded, or the code.
    fn judge(&self, evidence: &Evidence) -> Result<String, config_protocol::Code> {
        let references = self.world.references();
        let admitted = check_hello(
            &self.hello,
            &references.get(),
            &self.world.channel,
            self.world.now,
        )
        .expect("admitted");
        let mut sessions = config_attest::sessions::Sessions::default();
        let challenge = sessions
            .open(admitted, self.world.now, &mut SeededRng::new(SEED))
            .expect("a challenge");
        assert_eq!(challenge, self.challenge);
        let pending = sessions
            .take(&challenge.session, self.world.now)
            .expect("the session");
        match check_evidence(
            pending,
            evidence,
            &references.get(),
            &self.world.channel,
            self.world.now,
        )
        .and_then(config_attest::verifier::Claimant::grant)
        {
            Ok(verified) => {
                let mut status = config_kube::MachineStatus::default();
                verified.record(&mut status);
                if let Some(config) = &mut status.config {
                    // The agent chooses the event's label and length, for people; only its digest
                    // is proved.
                    config.source.clear();
                }
                status.checks.clear();
                Ok(format!(
                    "{status:?} {:?} {:?}",
                    verified.client_spki(),
                    verified.serving_names()
                ))
            }
            Err(refusal) => Err(refusal.code()),
        }
    }
}

/// Any single bit flipped anywhere in the evidence's JSON is refused, or is no other evidence (the
/// case of a hex digit), or lies in what policy leaves unread (descriptions, unquoted registers of
/// the log) and changes nothing that is recorded.
#[test]
fn a_flipped_bit_of_evidence_is_refused_or_changes_nothing() {
    let exchange = Exchange::new();
    let accepted = exchange
        .judge(&exchange.evidence)
        .expect("the evidence as it is");
    let text = serde_json::to_vec(&exchange.evidence).expect("JSON");
    let (mut refused, mut unparsed, mut unread) = (0, 0, 0);
    // A stride that is prime to the length visits bits all over the text.
    for bit in (0..text.len() * 8).step_by(23) {
        let mut changed = text.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let Ok(evidence) = config_protocol::wire::parse::<Evidence>(&changed) else {
            unparsed += 1;
            continue;
        };
        match exchange.judge(&evidence) {
            Err(_) => refused += 1,
            Ok(recorded) => {
                assert_eq!(recorded, accepted);
                let log_only = Evidence {
                    proof: config_protocol::wire::Proof {
                        event_log: exchange.evidence.proof.event_log.clone(),
                        ..evidence.proof.clone()
                    },
                    ..evidence.clone()
                };
                let mut same = log_only.clone();
                same.proof
                    .config_event
                    .clone_from(&exchange.evidence.proof.config_event);
                assert_eq!(same, exchange.evidence, "bit {bit} is read by nobody");
                unread += 1;
            }
        }
    }
    assert!(
        refused > 100 && unparsed > 100,
        "{refused} refused, {unparsed} unparsed, {unread} unread"
    );
}

/// Every bit of what the TPM signed, of the signatures, the MAC and the register values.
#[test]
fn a_flipped_bit_of_what_the_tpm_signed_is_refused() {
    type Part = (
        &'static str,
        fn(&mut Evidence) -> Vec<u8>,
        fn(&mut Evidence, Vec<u8>),
    );
    let parts: [Part; 5] = [
        (
            "quote",
            |e| e.proof.quote.attest.as_bytes().to_vec(),
            |e, b| e.proof.quote.attest = blob(b),
        ),
        (
            "quote signature",
            |e| e.proof.quote.signature.as_bytes().to_vec(),
            |e, b| e.proof.quote.signature = blob(b),
        ),
        (
            "certify",
            |e| e.proof.certify.attest.as_bytes().to_vec(),
            |e, b| e.proof.certify.attest = blob(b),
        ),
        (
            "certify signature",
            |e| e.proof.certify.signature.as_bytes().to_vec(),
            |e, b| {
                e.proof.certify.signature = blob(b);
            },
        ),
        (
            "mac",
            |e| e.proof.mac.0.to_vec(),
            |e, b| e.proof.mac = Digest::from_slice(&b).expect("32 bytes"),
        ),
    ];
    let exchange = Exchange::new();
    for (name, get, set) in parts {
        let bytes = get(&mut exchange.evidence.clone());
        for bit in (0..bytes.len() * 8).step_by(7) {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let mut evidence = exchange.evidence.clone();
            set(&mut evidence, changed);
            assert!(exchange.judge(&evidence).is_err(), "bit {bit} of {name}");
        }
    }
}

fn blob<const MAX: usize>(bytes: Vec<u8>) -> config_protocol::wire::Blob<MAX> {
    config_protocol::wire::Blob::new(bytes).expect("the same length")
}
