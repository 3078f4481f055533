//! Keys that an admin wrapped, on a real software TPM: each type of endorsement key, and keys that
//! a TPM must not open.

use agent_tpm::{EkKind, EndorsementKey, Error, Tpm, WrappedKey};
use config_tpm::Digest;
use config_tpm::{Duplicate, Public, duplicate, template};
use p256::SecretKey;
use p256::ecdsa::signature::Verifier as _;
use p256::ecdsa::signature::hazmat::PrehashVerifier;
use p256::ecdsa::{Signature, VerifyingKey};
use p256::pkcs8::EncodePublicKey as _;
use rand_core::OsRng;
use tests_harness::swtpm::Swtpm;

/// Wraps a key as an admin does, with a file that holds the endorsement key.
fn wrap(ek: &EndorsementKey, key: &SecretKey) -> WrappedKey {
    let found = Public::parse(&ek.public).expect("an EK");
    let spki = found.spki().expect("DER");
    let rebuilt = template::ek_of_spki(&spki).expect("an EK of a template");
    assert_eq!(
        rebuilt, found,
        "{:?}: the template is found by the key alone",
        ek.kind
    );
    WrappedKey {
        ek: Digest::of(&spki),
        key: duplicate(&rebuilt, key, &mut OsRng).expect("wrapped"),
    }
}

fn imported_and_used(tpm: &Tpm, ek: &EndorsementKey) {
    let key = SecretKey::random(&mut OsRng);
    let public = tpm.import(wrap(ek, &key)).expect("imported");
    assert_eq!(
        public.spki,
        key.public_key()
            .to_public_key_der()
            .expect("DER")
            .as_bytes(),
        "{:?}",
        ek.kind
    );
    let signature =
        Signature::from_slice(&tpm.sign_imported([7; 32]).expect("signed")).expect("r and s");
    VerifyingKey::from(key.public_key())
        .verify_prehash(&[7; 32], &signature)
        .expect("a good signature");
}

#[test]
fn a_wrapped_key_is_imported_under_every_kind_of_endorsement_key() {
    let mut seen = Vec::new();
    // A TPM that its manufacturer gave certificates, and one without.
    for swtpm in [Swtpm::new(), Swtpm::blank()] {
        let tpm = Tpm::open(&swtpm.tcti()).expect("open");
        for ek in tpm.endorsement_keys().expect("keys") {
            imported_and_used(&tpm, &ek);
            seen.push(ek.kind);
        }
    }
    assert_eq!(seen, [EkKind::Rsa2048, EkKind::P384, EkKind::P256]);
}

/// No more than the TPM's own keys.
#[test]
fn power_cuts_lock_no_imported_key() {
    let mut swtpm = Swtpm::new();
    for _ in 0..6 {
        let tpm = Tpm::open(&swtpm.tcti()).expect("open");
        let ek = tpm.endorsement_keys().expect("keys").remove(0);
        imported_and_used(&tpm, &ek);
        drop(tpm);
        swtpm.power_cycle();
    }
}

#[test]
fn a_key_for_another_tpm_is_named_and_does_not_open() {
    let (own, other) = (Swtpm::new(), Swtpm::new());
    let (tpm, stranger) = (
        Tpm::open(&own.tcti()).expect("open"),
        Tpm::open(&other.tcti()).expect("open"),
    );
    let (own, other) = (
        tpm.endorsement_keys().expect("keys"),
        stranger.endorsement_keys().expect("keys"),
    );
    let key = SecretKey::random(&mut OsRng);
    for (own, other) in own.iter().zip(&other) {
        let wrapped = wrap(other, &key);
        let error = tpm.import(wrapped.clone()).expect_err("another TPM's");
        let text = error.to_string();
        assert!(matches!(error, Error::ForAnotherTpm { .. }), "{text}");
        assert!(
            text.contains(&wrapped.ek.to_text()) && text.contains(&wrap(own, &key).ek.to_text()),
            "{text}"
        );
        // The document claims to be for this TPM, and the TPM refuses it.
        let forged = WrappedKey {
            ek: wrap(own, &key).ek,
            ..wrapped
        };
        assert!(matches!(tpm.import(forged), Err(Error::NotImported { .. })));
        tpm.import(wrap(own, &key)).expect("the negative control");
    }
}

#[test]
fn a_flipped_bit_does_not_open() {
    let swtpm = Swtpm::new();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    let ek = tpm.endorsement_keys().expect("keys").remove(0);
    let good = wrap(&ek, &SecretKey::random(&mut OsRng));
    let flip = |part: fn(&mut Duplicate) -> &mut Vec<u8>, at: usize| {
        let mut bad = good.clone();
        let bytes = part(&mut bad.key);
        let at = at % bytes.len();
        bytes[at] ^= 1;
        tpm.import(bad)
    };
    for at in [2, 20, 40, 70] {
        assert!(
            matches!(
                flip(|key| &mut key.private, at),
                Err(Error::NotImported { .. })
            ),
            "private, byte {at}"
        );
        assert!(
            matches!(
                flip(|key| &mut key.seed, at),
                Err(Error::NotImported { .. })
            ),
            "seed, byte {at}"
        );
    }
    // Of another size, or another key's public area.
    assert!(matches!(
        flip(|key| &mut key.private, 0),
        Err(Error::Malformed { .. } | Error::NotImported { .. })
    ));
    let last = good.key.public.len() - 1;
    assert!(matches!(
        flip(|key| &mut key.public, last),
        Err(Error::Malformed { .. } | Error::NotImported { .. })
    ));
    tpm.import(good).expect("the negative control");
}

/// Runs one of tpm2-tools on a software TPM.
fn tool(swtpm: &Swtpm, dir: &std::path::Path, line: &str) {
    let mut words = line.split(' ');
    let mut command = std::process::Command::new(words.next().expect("a program"));
    command
        .args(words)
        .current_dir(dir)
        .env("TPM2TOOLS_TCTI", swtpm.tcti());
    let output = command
        .output()
        .expect("tpm2-tools must be in PATH: install the package tpm2-tools");
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A second opinion: tpm2-tools import a key that is wrapped here, and sign with it.
#[test]
fn tpm2_tools_import_it_too() {
    let swtpm = Swtpm::new();
    let dir = tempfile::tempdir().expect("a directory");
    let run = |line: &str| tool(&swtpm, dir.path(), line);
    run("tpm2_createek -G rsa -c ek.ctx -u ek.pub");
    let area = std::fs::read(dir.path().join("ek.pub")).expect("the EK");
    let ek = Public::parse_sized(&area).expect("a public area");
    let key = SecretKey::random(&mut OsRng);
    let ek = template::ek_of_spki(&ek.spki().expect("DER")).expect("an EK");
    let made = duplicate(&ek, &key, &mut OsRng).expect("wrapped");
    let sized = |bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).expect("short");
        [&length.to_be_bytes()[..], bytes].concat()
    };
    for (name, bytes) in [
        ("key.pub", &made.public),
        ("key.dup", &made.private),
        ("key.seed", &made.seed),
    ] {
        std::fs::write(dir.path().join(name), sized(bytes)).expect("written");
    }
    let session = |command: &str| {
        run("tpm2_startauthsession --policy-session -S session.ctx");
        run("tpm2_policysecret -S session.ctx -c e");
        run(command);
        run("tpm2_flushcontext session.ctx");
    };
    session(
        "tpm2_import -C ek.ctx -P session:session.ctx -u key.pub -i key.dup -s key.seed -r key.priv",
    );
    run("tpm2_flushcontext -t");
    session("tpm2_load -C ek.ctx -P session:session.ctx -u key.pub -r key.priv -c key.ctx");
    run("tpm2_flushcontext -t");
    std::fs::write(dir.path().join("message"), b"message").expect("written");
    run("tpm2_sign -c key.ctx -g sha256 -s ecdsa -f plain -o signature message");
    let signature = std::fs::read(dir.path().join("signature")).expect("a signature");
    let signature = Signature::from_der(&signature).expect("ECDSA");
    VerifyingKey::from(key.public_key())
        .verify(b"message", &signature)
        .expect("a good signature");
}
