//! WIRE.md says what the code does.

use config_kube::policy::TpmVersion;
use config_protocol::wire::{self, Claims, Transcript};
use config_protocol::{Code, Consequence, Purpose, unproven};
use config_tpm::Digest;
use config_tpm::eventlog::{Event, EventLog, kind};
use config_tpm::pcr::{NK_PCRS, QUOTE_PCRS, Selection};
use config_tpm::{Attest, Attested, ClockInfo, EcdsaSignature, PcrSelection};
use tests_machines::{EkKind, World};

const DOCUMENT: &str = include_str!("../WIRE.md");

#[test]
fn every_code_is_in_the_table_with_its_meaning_and_consequence() {
    for code in Code::ALL {
        let consequence = match code.consequence() {
            Consequence::Nothing => String::new(),
            consequence @ (Consequence::Suspect | Consequence::Untrusted) => {
                format!("{consequence:?}")
            }
        };
        let row = format!("| `{code}` | {consequence} | {} |", code.meaning());
        assert!(DOCUMENT.contains(&row), "missing: {row}");
    }
    let rows = DOCUMENT
        .lines()
        .filter(|line| line.starts_with("| `") && line.ends_with(" |"))
        .count();
    assert!(rows >= Code::ALL.len());
}

#[test]
fn paths_labels_registers_and_limits_are_the_documented_ones() {
    for path in [
        wire::SESSIONS_PATH,
        wire::RENEWALS_PATH,
        wire::BOOTSTRAP_HELLO_PATH,
        wire::BOOTSTRAP_CHALLENGE_PATH,
        wire::BOOTSTRAP_ADMIT_PATH,
        unproven::SESSIONS_PATH,
        unproven::RENEWALS_PATH,
    ] {
        assert!(DOCUMENT.contains(path), "{path}");
    }
    for purpose in [Purpose::Join, Purpose::Renew, Purpose::Bootstrap] {
        assert!(DOCUMENT.contains(&format!("`{}`", purpose.label())));
    }
    for label in [
        unproven::label(Purpose::Join),
        unproven::label(Purpose::Renew),
    ] {
        assert!(DOCUMENT.contains(&format!("`{label}`")));
    }
    let registers = QUOTE_PCRS
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",");
    assert!(DOCUMENT.contains(&format!("`[{registers}]`")));
    let selection = hex::encode(Selection::of(NK_PCRS).to_tpm());
    assert!(
        DOCUMENT
            .replace(' ', "")
            .contains(&format!("`{selection}`")),
        "{selection}"
    );
    assert_eq!(
        (
            wire::MAX_HELLO_BODY,
            wire::MAX_EVIDENCE_BODY,
            config_tpm::eventlog::MAX_EVENT_LOG
        ),
        (32 << 10, 512 << 10, 256 << 10)
    );
    assert_eq!(
        (
            wire::MAX_ADDRESSES,
            wire::MAX_CLAIM,
            wire::MAX_LABEL,
            wire::SESSION_SECONDS
        ),
        (16, 253, 64, 30)
    );
}

#[test]
fn hashes_of_claims_and_requests_are_golden() {
    let claims = Claims {
        name: "worker-1".to_owned(),
        role: "worker".to_owned(),
        addresses: vec!["192.168.77.11".to_owned(), "fd00::11".to_owned()],
        instance: "i-1".to_owned(),
        image: "worker-7".to_owned(),
        privileged_pods: false,
    };
    let mut bytes = Vec::new();
    for text in ["worker-1", "worker", "i-1", "worker-7"] {
        bytes.extend_from_slice(&u32::try_from(text.len()).expect("short").to_be_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes.extend_from_slice(b"\0\0\0\x02\0\0\0\x0d192.168.77.11\0\0\0\x08fd00::11");
    assert_eq!(claims.hash(), Digest::of(&bytes));
    assert_ne!(
        claims.hash(),
        Claims {
            role: String::new(),
            ..claims.clone()
        }
        .hash()
    );
    // Claims without privileged pods are written and hashed as before that claim existed.
    assert!(
        !serde_json::to_string(&claims)
            .expect("claims")
            .contains("privileged")
    );
    bytes.push(1);
    let root = Claims {
        privileged_pods: true,
        ..claims
    };
    assert_eq!(root.hash(), Digest::of(&bytes));
    assert!(
        serde_json::to_string(&root)
            .expect("claims")
            .contains("\"privilegedPods\":true")
    );
    let requests = wire::csr_hash(b"client", b"serving");
    assert_eq!(requests, Digest::of(b"\0\0\0\x06client\0\0\0\x07serving"));
}

/// What another implementation must sign without a TPM, byte for byte.
#[test]
fn the_bytes_that_a_machine_without_a_tpm_signs_are_golden() {
    let part = |text: &[u8]| Digest::of(text);
    let transcript = Transcript {
        nonce: part(b"nonce"),
        csr_hash: part(b"requests"),
        claims_hash: part(b"claims"),
        server_spki: part(b"server"),
        exporter: part(b"exporter"),
    };
    let session = wire::SessionId([0xab; 16]);
    for (purpose, label) in [
        (Purpose::Join, &b"\0\x0bunproven/v1"[..]),
        (Purpose::Renew, b"\0\x13unproven/v1 renewal"),
    ] {
        let mut bytes = [label, &[0, 16], &[0xab; 16]].concat();
        for text in [
            &b"nonce"[..],
            b"key",
            b"requests",
            b"claims",
            b"server",
            b"exporter",
        ] {
            bytes.extend_from_slice(&[0, 32]);
            bytes.extend_from_slice(part(text).as_bytes());
        }
        let question = unproven::question(purpose, &session, &part(b"key"), &transcript);
        assert_eq!(question, Digest::of(&bytes));
        let signed = [
            &b"pratique unproven/v1 signature\n"[..],
            question.as_bytes(),
        ]
        .concat();
        assert_eq!(
            (unproven::signed(&question), signed.len()),
            (signed, 31 + 32)
        );
    }
}

#[test]
fn sessions_in_paths_are_parsed_back() {
    let session = wire::SessionId([0xab; 16]);
    let path = wire::evidence_path(wire::SESSIONS_PATH, &session);
    assert_eq!(
        wire::session_of_path(wire::SESSIONS_PATH, &path),
        Some(session)
    );
    assert_eq!(wire::session_of_path(wire::RENEWALS_PATH, &path), None);
    assert_eq!(
        wire::session_of_path(wire::SESSIONS_PATH, "/attest/v1/sessions/ab/evidence"),
        None
    );
    assert_eq!(
        wire::session_of_path(wire::SESSIONS_PATH, &path.replace("ab", "AB")),
        None
    );
}

#[test]
fn oversized_blobs_are_refused_before_they_are_decoded() {
    let text = format!("\"{}\"", "A".repeat(4096));
    assert!(serde_json::from_str::<wire::Blob<16>>(&text).is_err());
    assert!(serde_json::from_str::<wire::Blob<4096>>(&text).is_ok());
    assert!(serde_json::from_str::<wire::Blob<16>>("\"????\"").is_err());
    let error = serde_json::from_str::<wire::Blob<16>>(&text).expect_err("too long");
    assert_eq!(wire::code_of(&error), Code::TooLarge, "{error}");
    let one_more = format!("\"{}\"", "AAAA".repeat(6));
    let error = serde_json::from_str::<wire::Blob<16>>(&one_more).expect_err("18 bytes");
    assert_eq!(wire::code_of(&error), Code::TooLarge, "{error}");
}

/// An attestation with an extra data and a selection of these lengths.
fn attest(extra: usize, selected: usize) -> Attest {
    let selection = vec![PcrSelection {
        bank: 0x000b,
        select: vec![1; selected],
    }];
    Attest {
        qualified_signer: vec![1; 34],
        extra_data: vec![2; extra],
        clock_info: ClockInfo {
            clock: 1,
            reset_count: 2,
            restart_count: 3,
            safe: true,
        },
        firmware_version: 7 << 48 | 85 << 32 | 4555 << 16,
        attested: Attested::Quote {
            selection,
            digest: vec![3; 32],
        },
    }
}

/// The causes of `ATTEST_MALFORMED`, at each limit and beyond it.
#[test]
fn limits_of_attestations_and_signatures_are_the_documented_ones() {
    let parses = |attest: &Attest| Attest::parse(&attest.to_bytes()).is_ok();
    assert!(parses(&attest(66, 4)) && !parses(&attest(67, 4)) && !parses(&attest(66, 5)));
    for (size, good) in [(64, true), (65, false)] {
        let mut quote = attest(32, 3);
        quote.attested = Attested::Quote {
            selection: Vec::new(),
            digest: vec![0; size],
        };
        assert_eq!(parses(&quote), good, "a digest of {size} bytes");
    }
    let mut many = attest(32, 3);
    let one = PcrSelection {
        bank: 0x000b,
        select: vec![1, 0, 0],
    };
    for (count, good) in [(8, true), (9, false)] {
        many.attested = Attested::Quote {
            selection: vec![one.clone(); count],
            digest: vec![0; 32],
        };
        assert_eq!(parses(&many), good, "{count} selections");
    }
    let bytes = attest(32, 3).to_bytes();
    assert!(
        Attest::parse(&bytes[..bytes.len() - 1]).is_err()
            && Attest::parse(&[&bytes[..], &[0]].concat()).is_err()
    );
    // magic, type, qualified signer, extra data, clock, resetCount, restartCount: then `safe`.
    let safe = 4 + 2 + (2 + 34) + (2 + 32) + 8 + 4 + 4;
    assert_eq!(bytes[safe], 1);
    let mut other = bytes.clone();
    other[safe] = 2;
    assert!(Attest::parse(&other).is_err(), "safe is 0 or 1");
    assert_eq!(bytes[safe + 1..safe + 9], [0, 7, 0, 85, 0x11, 0xcb, 0, 0]);
    let version =
        Attest::parse(&bytes).map(|attest| TpmVersion(attest.firmware_version).to_string());
    assert_eq!(
        version.ok().as_deref(),
        Some("7.85.4555.0"),
        "as it stands in status.tpmFirmware"
    );
    let signature = |r: usize| {
        [
            &[0, 0x18, 0, 0x0b, 0, u8::try_from(r).expect("short")][..],
            &vec![1; r],
            &[0, 1, 1],
        ]
        .concat()
    };
    assert!(
        EcdsaSignature::parse(&signature(66)).is_ok()
            && EcdsaSignature::parse(&signature(67)).is_err()
    );
}

/// A register's value before the first event of a log (PC Client Platform Firmware Profile,
/// 10.4.5.3).
#[test]
fn pcr_0_begins_with_the_locality_of_the_startup() {
    let no_action = |pcr: u8, locality: u8| Event {
        pcr,
        kind: kind::NO_ACTION,
        digest: Digest::ZERO,
        data: [b"StartupLocality\0", &[locality][..]].concat(),
    };
    let begins = |events: Vec<Event>| EventLog { events }.replay().get(0);
    let mut wanted = Digest::ZERO;
    for locality in [3, 4] {
        wanted.0[31] = locality;
        assert_eq!(begins(vec![no_action(0, locality)]), wanted);
    }
    for none in [no_action(0, 0), no_action(0, 1), no_action(1, 3)] {
        assert_eq!(begins(vec![none]), Digest::ZERO);
    }
    assert_eq!(
        begins(vec![no_action(0, 4), no_action(0, 3)]),
        wanted,
        "the first counts"
    );
    assert!(DOCUMENT.contains("`StartupLocality`") && DOCUMENT.contains("2.23.133.8.1"));
}

/// The digest of an approval is over raw bytes: 32 of the EK's hash, 34 of the node key's Name, the
/// registers, 32 of the claims.
#[test]
fn the_digest_of_an_approval_is_golden() {
    let mut world = World::new();
    world.rule.policy = config_kube::PolicyName::Queue;
    let machine = world.machine("worker-1", "192.168.77.11", EkKind::P256);
    let claimant = world.claim(&machine).expect("a claimant");
    let mut bytes = machine.ek_hash().as_bytes().to_vec();
    bytes.extend_from_slice(machine.nk_public.name().as_bytes());
    for value in machine.bank.values(Selection::of(QUOTE_PCRS)).values() {
        bytes.extend_from_slice(value.as_bytes());
    }
    bytes.extend_from_slice(machine.claims.hash().as_bytes());
    assert_eq!(bytes.len(), 32 + 34 + 10 * 32 + 32);
    assert_eq!(claimant.id(), Digest::of(&bytes));
}
