//! WIRE.md says what the code does.

use config_attest::pcr::{NK_PCRS, QUOTE_PCRS, Selection};
use config_attest::wire::{self, Claims, Transcript};
use config_attest::{Code, Consequence, Digest, Purpose, unproven};

const DOCUMENT: &str = include_str!("../WIRE.md");

#[test]
fn every_code_stands_in_the_table_with_its_meaning_and_consequence() {
    for code in Code::ALL {
        let consequence = match code.consequence() {
            Consequence::Nothing => String::new(),
            consequence @ (Consequence::Suspect | Consequence::Untrusted) => format!("{consequence:?}"),
        };
        let row = format!("| `{code}` | {consequence} | {} |", code.meaning());
        assert!(DOCUMENT.contains(&row), "missing: {row}");
    }
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `") && line.ends_with(" |")).count();
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
    for label in [unproven::label(Purpose::Join), unproven::label(Purpose::Renew)] {
        assert!(DOCUMENT.contains(&format!("`{label}`")));
    }
    let registers = QUOTE_PCRS.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    assert!(DOCUMENT.contains(&format!("`[{registers}]`")));
    let selection = hex::encode(Selection::of(NK_PCRS).to_tpm());
    assert!(DOCUMENT.replace(' ', "").contains(&format!("`{selection}`")), "{selection}");
    assert_eq!((wire::MAX_HELLO_BODY, wire::MAX_EVIDENCE_BODY, wire::MAX_EVENT_LOG), (32 << 10, 512 << 10, 256 << 10));
    assert_eq!((wire::MAX_ADDRESSES, wire::MAX_CLAIM, wire::MAX_LABEL, wire::SESSION_SECONDS), (16, 253, 64, 30));
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
    assert_ne!(claims.hash(), Claims { role: String::new(), ..claims.clone() }.hash());
    // What lets no pod be privileged is written and hashed as it was before there was such a claim.
    assert!(!serde_json::to_string(&claims).expect("claims").contains("privileged"));
    bytes.push(1);
    let root = Claims { privileged_pods: true, ..claims };
    assert_eq!(root.hash(), Digest::of(&bytes));
    assert!(serde_json::to_string(&root).expect("claims").contains("\"privilegedPods\":true"));
    let requests = wire::csr_hash(b"client", b"serving");
    assert_eq!(requests, Digest::of(b"\0\0\0\x06client\0\0\0\x07serving"));
}

/// What another implementation must sign without a TPM, byte for byte.
#[test]
fn what_a_machine_without_a_tpm_signs_is_golden() {
    let part = |text: &[u8]| Digest::of(text);
    let transcript = Transcript {
        nonce: part(b"nonce"),
        csr_hash: part(b"requests"),
        claims_hash: part(b"claims"),
        server_spki: part(b"server"),
        exporter: part(b"exporter"),
    };
    let session = wire::SessionId([0xab; 16]);
    for (purpose, label) in [(Purpose::Join, &b"\0\x0bunproven/v1"[..]), (Purpose::Renew, b"\0\x13unproven/v1 renewal")]
    {
        let mut bytes = [label, &[0, 16], &[0xab; 16]].concat();
        for text in [&b"nonce"[..], b"key", b"requests", b"claims", b"server", b"exporter"] {
            bytes.extend_from_slice(&[0, 32]);
            bytes.extend_from_slice(part(text).as_bytes());
        }
        let question = unproven::question(purpose, &session, &part(b"key"), &transcript);
        assert_eq!(question, Digest::of(&bytes));
        let signed = [&b"pratique unproven/v1 signature\n"[..], question.as_bytes()].concat();
        assert_eq!((unproven::signed(&question), signed.len()), (signed, 31 + 32));
    }
}

#[test]
fn sessions_in_paths_are_parsed_back() {
    let session = wire::SessionId([0xab; 16]);
    let path = wire::evidence_path(wire::SESSIONS_PATH, &session);
    assert_eq!(wire::session_of_path(wire::SESSIONS_PATH, &path), Some(session));
    assert_eq!(wire::session_of_path(wire::RENEWALS_PATH, &path), None);
    assert_eq!(wire::session_of_path(wire::SESSIONS_PATH, "/attest/v1/sessions/ab/evidence"), None);
    assert_eq!(wire::session_of_path(wire::SESSIONS_PATH, &path.replace("ab", "AB")), None);
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
