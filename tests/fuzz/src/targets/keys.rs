//! What a master reads of the cluster's keys: the recovery copy, the list of kept keys, and kept
//! secrets.

use super::boot::{folder, target};
use crate::run::{Shape, Target};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use master_ca::decoders;
use master_ca::recovery::decrypt;
use p256::SecretKey;
use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::{Signature, SigningKey};
use p256::pkcs8::{EncodePrivateKey as _, LineEnding};
use serde_json::json;
use std::fs;
use std::io;
use std::path::Path;

/// The private key of the admin, and of the root.
const KEY: [u8; 32] = [7; 32];
/// What the recovery copy holds.
const SECRET: &[u8] = b"root key";
/// A recovery copy for the admin. It was made with the ephemeral key of 32 bytes of 8: `encrypt`
/// takes another one each time.
const RECOVERY_COPY: &str = r#"{
  "version": 1,
  "recipient": "sha256:ce97ec20d43661a19b215cb2e376a698d0b4aa2aa5b4c7854e916bd05082fcee",
  "ephemeral": "BDrasV1mJWvxXNcWA1s/BBRE5RL+0d1k1Lp1WX0g42bxVG0skKg+uroBWVCZ5fP/u9M4THSU3mdZ/dXmXvrpzGc=",
  "ciphertext": "qJcbac+BED6Qv20Bvl1nP/lLZ/YJ8sJY"
}"#;
/// A certificate of the root, which it signed itself.
const ROOT: &str = "MIIBCjCBsaADAgECAgEBMAoGCCqGSM49BAMCMA8xDTALBgNVBAMMBHJvb3QwHhcNMjYw\
    MTAxMDAwMDAwWhcNMzYwMTAxMDAwMDAwWjAPMQ0wCwYDVQQDDARyb290MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEHhhT\
    L9R1TALzBB2cdc6zO4P/2BrHzk/ogsyxyYvFiW6kbDEcTi/0DdlqNlPm5FRF0y3+SG7O11x6kMahiIHAozAKBggqhkjOPQQD\
    AgNIADBFAiBsQZOPFoMuqF4FHe0Wq0cR0a0NAeo0n+X+2L1WKnI89wIhAM4zSm1YGXTVsMzVsVDoh+bjcj0I0O6aAWGzLdRt\
    2TFO";
/// The file of the list of kept keys.
const FILE: &str = "kept-keys.json";
/// What is signed before the list.
const CONTEXT: &[u8] = b"pratique kept keys/v1\0";
/// A list as it is written.
const LIST: &str = r#"{"floor":7,"keys":{"service account key":["sha256:0a","sha256:0b"]}}"#;
/// A secret as a machine without a TPM keeps it.
const KEPT: &str = r#"{"version":1,"keeper":"file","secret":"c2VjcmV0"}"#;
/// What a secret is sealed for.
const PURPOSE: &str = "root key";
/// What is expected of files in memory.
const WRITTEN: &str = "a file takes what is written";

/// # Errors
/// No folder can be made for the files that targets read.
pub(super) fn targets() -> io::Result<Vec<Target>> {
    Ok(vec![
        recovery_copy(),
        signed_file()?,
        list()?,
        kept_secret()?,
        target(
            "master-ca/unsealed",
            [PURPOSE.as_bytes(), b"\0secret"].concat(),
            Box::new(|input| {
                if let Some(secret) = decoders::unsealed(PURPOSE, input) {
                    let sealed = [PURPOSE.as_bytes(), &[0], secret.as_slice()].concat();
                    assert_eq!(sealed, input, "a secret for another purpose");
                }
            }),
        ),
    ])
}

/// The recovery copy: what opens is what was encrypted.
fn recovery_copy() -> Target {
    let admin = admin();
    let decode = move |input: &[u8]| {
        if let Ok(file) = std::str::from_utf8(input)
            && let Ok(plain) = decrypt(&admin, file)
        {
            assert_eq!(plain.as_slice(), SECRET, "an altered copy opens");
        }
    };
    Target {
        shape: Shape::Json,
        ..target(
            "master-ca/recovery-copy",
            RECOVERY_COPY.into(),
            Box::new(decode),
        )
    }
}

/// The file with the list: nothing but what the root signed is believed.
fn signed_file() -> io::Result<Target> {
    let folder = folder()?;
    let decode = move |input: &[u8]| {
        if let Some(found) = listed(folder.path(), input) {
            assert_eq!(found, LIST, "a list that the root did not sign");
        }
    };
    Ok(Target {
        shape: Shape::Json,
        ..target("master-ca/key-list", signed(LIST), Box::new(decode))
    })
}

/// The list itself, signed as the root would, so that what is inside is reached.
fn list() -> io::Result<Target> {
    let folder = folder()?;
    let decode = move |input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else {
            return;
        };
        if let Some(found) = listed(folder.path(), &signed(text)) {
            let again = listed(folder.path(), &signed(&found));
            assert_eq!(again, Some(found), "two texts of one list");
        }
    };
    Ok(Target {
        shape: Shape::Json,
        seeds: [LIST, r#"{"keys":{}}"#].map(Into::into).into(),
        ..target("master-ca/kept-keys", Vec::new(), Box::new(decode))
    })
}

/// A kept secret: the one that is read is the one that is kept again.
fn kept_secret() -> io::Result<Target> {
    let folder = folder()?;
    let decode = move |input: &[u8]| {
        let path = folder.path().join("root.key");
        fs::write(&path, input).expect(WRITTEN);
        if let Some(secret) = decoders::kept_secret(&path) {
            decoders::keep_secret(&path, &secret).expect(WRITTEN);
            let again = decoders::kept_secret(&path);
            assert_eq!(again, Some(secret), "another secret is kept");
        }
    };
    Ok(Target {
        shape: Shape::Json,
        ..target("master-ca/kept-secret", KEPT.into(), Box::new(decode))
    })
}

/// The admin's private key in PEM.
fn admin() -> String {
    let key = SecretKey::from_slice(&KEY).expect("a private key");
    let pem = key.to_pkcs8_pem(LineEnding::LF).expect("its PEM");
    pem.to_string()
}

/// The list of a folder whose file holds these bytes.
fn listed(folder: &Path, file: &[u8]) -> Option<String> {
    fs::write(folder.join(FILE), file).expect(WRITTEN);
    let root = STANDARD.decode(ROOT).expect("base64");
    decoders::key_list(folder, &root)
}

/// The file with a list that the root signed.
fn signed(list: &str) -> Vec<u8> {
    let key = SigningKey::from_slice(&KEY).expect("a private key");
    let signature: Signature = key.sign(&[CONTEXT, list.as_bytes()].concat());
    let signature = STANDARD.encode(signature.to_der().as_bytes());
    let file = json!({"version": 1, "list": list, "signatures": [signature]});
    file.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_what_a_master_writes() {
        let plain = decrypt(&admin(), RECOVERY_COPY).expect("a recovery copy");
        assert_eq!(plain.as_slice(), SECRET);
        let folder = folder().expect("a folder");
        let found = listed(folder.path(), &signed(LIST));
        assert_eq!(found.as_deref(), Some(LIST));
        let path = folder.path().join("root.key");
        decoders::keep_secret(&path, b"secret").expect(WRITTEN);
        assert_eq!(fs::read(&path).expect("a file"), KEPT.as_bytes());
    }
}
