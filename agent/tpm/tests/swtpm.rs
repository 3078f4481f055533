//! The TPM's keys on a real software TPM without a resource manager.

use agent_tpm::{EkKind, Error, Seal, Sealing, Tpm};
use config_tpm::Digest as Sha;
use config_tpm::pcr::{NK_PCRS, QUOTE_PCRS, Selection, extended};
use config_tpm::{Public, make_credential, template};
use p256::ecdsa::signature::hazmat::PrehashVerifier;
use p256::ecdsa::{Signature, VerifyingKey};
use p256::pkcs8::DecodePublicKey;
use rand_core::OsRng;
use sha2::{Digest, Sha256};
use tests_harness::swtpm::Swtpm;
use zeroize::Zeroizing;

fn verify(spki: &[u8], digest: [u8; 32], signature: [u8; 64]) {
    let key = VerifyingKey::from_public_key_der(spki).expect("a P-256 key");
    key.verify_prehash(
        &digest,
        &Signature::from_slice(&signature).expect("r and s"),
    )
    .expect("a good signature");
}

/// r and s of a `TPMT_SIGNATURE` that is ECDSA with SHA-256.
fn tpmt_signature(bytes: &[u8]) -> [u8; 64] {
    assert_eq!(bytes[..4], [0, 0x18, 0, 0x0b], "ECDSA with SHA-256");
    let mut fixed = [0; 64];
    let r_size = usize::from(bytes[5]);
    let r = &bytes[6..6 + r_size];
    let s = &bytes[8 + r_size..];
    fixed[32 - r.len()..32].copy_from_slice(r);
    fixed[64 - s.len()..].copy_from_slice(s);
    fixed
}

#[test]
fn both_endorsement_keys_are_found_with_their_certificates() {
    let swtpm = Swtpm::new();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    let keys = tpm.endorsement_keys().expect("keys");
    assert_eq!(
        keys.iter().map(|key| key.kind).collect::<Vec<_>>(),
        [EkKind::Rsa2048, EkKind::P384]
    );
    for key in &keys {
        let certificate = key.certificate.as_ref().expect("a certificate");
        assert_eq!(certificate[0], 0x30);
        assert!(
            template::is_ek(&Public::parse(&key.public).expect("a public area")),
            "{:?}",
            key.kind
        );
    }
}

#[test]
fn an_error_names_what_the_tpm_lacks_for_the_proof() {
    let (good, bad) = (Swtpm::new(), Swtpm::with_banks("sha1"));
    Tpm::open(&good.tcti())
        .expect("open")
        .check()
        .expect("control");
    let error = Tpm::open(&bad.tcti())
        .expect("open")
        .check()
        .expect_err("no SHA-256 bank")
        .to_string();
    assert!(
        error.contains("SHA-256 bank") && error.contains("tpm2_pcrallocate"),
        "{error}"
    );
}

#[test]
fn the_node_key_signs_and_survives_nothing_but_the_boot() {
    let mut swtpm = Swtpm::new();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    let (ak, nk) = (
        tpm.attestation_key().expect("AK"),
        tpm.node_key().expect("NK"),
    );
    for round in 0_u8..4 {
        let digest: [u8; 32] = Sha256::digest([round]).into();
        verify(&nk.spki, digest, tpm.sign(digest).expect("sign"));
    }
    drop(tpm);
    let tpm = reopen(&swtpm);
    assert_eq!(
        tpm.attestation_key().expect("AK"),
        ak,
        "another auth value, the same key"
    );
    assert_eq!(
        tpm.node_key().expect("NK"),
        nk,
        "re-derived within the boot"
    );
    drop(tpm);
    swtpm.power_cycle();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    assert_eq!(
        tpm.attestation_key().expect("AK"),
        ak,
        "a key of the TPM's life"
    );
    assert_ne!(tpm.node_key().expect("NK"), nk, "a key of the boot");
}

/// The TPM's thread ends after its last handle; until then the software TPM takes no second
/// connection.
fn reopen(swtpm: &Swtpm) -> Tpm {
    Tpm::open(&swtpm.tcti()).expect("open again")
}

#[test]
fn the_node_key_is_refused_once_a_bound_register_changed() {
    let swtpm = Swtpm::new();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    tpm.node_key().expect("NK");
    tpm.extend_pcr(16, Sha([7; 32]))
        .expect("extend an unbound register");
    tpm.sign([1; 32])
        .expect("the unbound register does not matter");
    let bound = *NK_PCRS.last().expect("not empty");
    tpm.extend_pcr(bound, Sha([7; 32]))
        .expect("extend a bound register");
    assert!(matches!(tpm.sign([1; 32]), Err(Error::PolicyBroken { .. })));
}

#[test]
fn a_quote_is_signed_by_the_attestation_key_over_the_values_it_comes_with() {
    let swtpm = Swtpm::new();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    tpm.extend_pcr(13, Sha([5; 32])).expect("extend");
    let quote = tpm.quote([9; 32], QUOTE_PCRS).expect("quote");
    let ak = tpm.attestation_key().expect("AK");
    let attest = &quote.attestation.attest;
    verify(
        &ak.spki,
        Sha256::digest(attest).into(),
        tpmt_signature(&quote.attestation.signature),
    );
    assert_eq!(attest[..6], [0xff, b'T', b'C', b'G', 0x80, 0x18]);
    assert!(
        attest.windows(32).any(|window| window == [9; 32]),
        "carries the qualifying data"
    );
    assert_eq!(quote.pcrs.keys().copied().collect::<Vec<_>>(), QUOTE_PCRS);
    assert_eq!(quote.pcrs[&13], extended(&Sha::ZERO, &Sha([5; 32])));
    assert!(attest.ends_with(Selection::of(QUOTE_PCRS).digest(&quote.pcrs).as_bytes()));
}

#[test]
fn the_attestation_key_certifies_the_node_key() {
    let swtpm = Swtpm::new();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    let certified = tpm.certify([3; 32]).expect("certify");
    let ak = tpm.attestation_key().expect("AK");
    verify(
        &ak.spki,
        Sha256::digest(&certified.attest).into(),
        tpmt_signature(&certified.signature),
    );
    let name = Public::parse(&tpm.node_key().expect("NK").public)
        .expect("a public area")
        .name();
    assert!(
        certified
            .attest
            .windows(34)
            .any(|window| window == name.as_bytes())
    );
}

#[test]
fn the_keys_are_exactly_of_the_verifiers_templates() {
    let swtpm = Swtpm::new();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    tpm.extend_pcr(13, Sha([1; 32])).expect("extend");
    let ak = Public::parse(&tpm.attestation_key().expect("AK").public).expect("a public area");
    assert!(template::matches(&ak, &template::ak()), "{ak:?}");
    let nk = Public::parse(&tpm.node_key().expect("NK").public).expect("a public area");
    let pcrs = tpm.read_pcrs(NK_PCRS).expect("registers");
    assert!(template::matches(&nk, &template::nk(&pcrs)), "{nk:?}");
}

#[test]
fn a_credential_opens_for_each_endorsement_key_and_only_for_this_attestation_key() {
    let swtpm = Swtpm::new();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    let name = Public::parse(&tpm.attestation_key().expect("AK").public)
        .expect("a public area")
        .name();
    let other = Public::parse(&tpm.node_key().expect("NK").public)
        .expect("a public area")
        .name();
    for ek in tpm.endorsement_keys().expect("keys") {
        let public = Public::parse(&ek.public).expect("a public area");
        let wrap =
            |name| make_credential(&public, name, &[0x42; 32], &mut OsRng).expect("a credential");
        let credential = wrap(&name);
        let (id_object, secret) = (&credential.id_object, &credential.encrypted_secret);
        assert_eq!(
            *tpm.activate(&ek, id_object, secret).expect("opened"),
            [0x42; 32],
            "{:?}",
            ek.kind
        );
        let credential = wrap(&other);
        let (id_object, secret) = (&credential.id_object, &credential.encrypted_secret);
        assert!(
            tpm.activate(&ek, id_object, secret).is_err(),
            "{:?}",
            ek.kind
        );
    }
}

/// A TPM counts a power cut after the use of a protected key as a guess of its auth value, and
/// three lock swtpm for a long time.
#[test]
fn power_cuts_lock_no_key() {
    let mut swtpm = Swtpm::new();
    for cut in 0..6 {
        let tpm = Tpm::open(&swtpm.tcti()).expect("open");
        let name = Public::parse(&tpm.attestation_key().expect("AK").public)
            .expect("a public area")
            .name();
        let ek = tpm.endorsement_keys().expect("keys").remove(0);
        let public = Public::parse(&ek.public).expect("a public area");
        let credential =
            make_credential(&public, &name, &[0x42; 32], &mut OsRng).expect("a credential");
        let opened = tpm.activate(&ek, &credential.id_object, &credential.encrypted_secret);
        assert_eq!(
            *opened.unwrap_or_else(|error| panic!("after {cut} cuts: {error:?}")),
            [0x42; 32]
        );
        tpm.certify([3; 32])
            .unwrap_or_else(|error| panic!("after {cut} cuts: {error:?}"));
        tpm.quote([3; 32], QUOTE_PCRS)
            .unwrap_or_else(|error| panic!("after {cut} cuts: {error:?}"));
        tpm.sign([7; 32])
            .unwrap_or_else(|error| panic!("after {cut} cuts: {error:?}"));
        drop(tpm);
        swtpm.power_cycle();
    }
}

#[test]
fn sealed_bytes_open_after_a_reset_and_only_on_the_tpm_that_sealed_them() {
    let mut swtpm = Swtpm::new();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    let secret = vec![0x5a; 3000];
    let seal = |bytes: Vec<u8>| tpm.seal(&Sealing::AnyBoot, Zeroizing::new(bytes));
    let open = |tpm: &Tpm, sealed: &[u8]| tpm.unseal(&Sealing::AnyBoot, Seal::Current, sealed);
    let sealed = seal(secret.clone()).expect("seal");
    assert!(
        !sealed.windows(16).any(|window| window == [0x5a; 16]),
        "not in the clear"
    );
    assert_eq!(*open(&tpm, &sealed).expect("unseal"), secret);
    for position in [0, 5, sealed.len() / 2, sealed.len() - 1] {
        let mut altered = sealed.clone();
        altered[position] ^= 1;
        assert!(open(&tpm, &altered).is_err(), "byte {position}");
    }
    drop(tpm);
    swtpm.power_cycle();
    let again = Tpm::open(&swtpm.tcti()).expect("open");
    assert_eq!(*open(&again, &sealed).expect("unseal"), secret);
    let other = Swtpm::new();
    let refused = open(&Tpm::open(&other.tcti()).expect("open"), &sealed);
    assert!(matches!(refused, Err(Error::NotSealedHere)), "{refused:?}");
}

#[test]
fn bad_requests_leave_the_thread_alive() {
    let swtpm = Swtpm::new();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    assert!(tpm.quote([0; 32], &[24, 99]).is_err());
    assert!(tpm.extend_pcr(24, Sha::ZERO).is_err());
    let sealing = Sealing::AnyBoot;
    assert!(tpm.unseal(&sealing, Seal::Current, &[]).is_err());
    let too_much = Zeroizing::new(vec![0; agent_tpm::SEAL_LIMIT + 1]);
    assert!(tpm.seal(&sealing, too_much).is_err());
    for ek in tpm.endorsement_keys().expect("keys") {
        assert!(tpm.activate(&ek, &[0; 50], &[0; 80]).is_err());
        assert!(tpm.activate(&ek, &vec![0; 70_000], &[]).is_err());
    }
    for _ in 0..6 {
        tpm.quote([0; 32], QUOTE_PCRS)
            .expect("no slot has been lost");
        tpm.sign([0; 32]).expect("no session has been lost");
    }
}

#[test]
fn a_missing_tpm_is_reported() {
    assert!(matches!(
        Tpm::open("carrier-pigeon"),
        Err(Error::Tcti { .. })
    ));
    assert!(matches!(
        Tpm::open("device:/nonexistent/tpm"),
        Err(Error::Open { .. })
    ));
}
