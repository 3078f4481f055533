//! PEM blocks (RFC 7468) of public keys and certificates: decoded and validated.

use crate::format::{FormatError, Pin};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use p256::pkcs8::DecodePublicKey;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

/// An ECDSA P-256 public key that verifies images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct P256PublicKey {
    /// The key's SubjectPublicKeyInfo.
    pub spki_der: Vec<u8>,
    /// SHA-256 of the SubjectPublicKeyInfo.
    pub pin: Pin,
}

/// SHA-256 of bytes, as a pin.
pub fn pin_of(bytes: &[u8]) -> Pin {
    Pin(Sha256::digest(bytes).into())
}

/// Parses one `PUBLIC KEY` block with a P-256 key.
///
/// # Errors
/// The text has another number or type of blocks, or another key.
pub fn public_key(text: &str) -> Result<P256PublicKey, FormatError> {
    let error =
        || FormatError::new("one PEM block `-----BEGIN PUBLIC KEY-----` with an ECDSA P-256 key");
    let blocks = blocks(text).ok_or_else(error)?;
    let [(label, spki_der)] = blocks.as_slice() else {
        return Err(error().hint(format!("there are {} blocks", blocks.len())));
    };
    if label.contains("PRIVATE KEY") {
        return Err(error().hint(
            "this is a private key: take it out of this file; only the public key belongs here",
        ));
    }
    if label != "PUBLIC KEY" {
        return Err(error().hint(format!("the block is `{label}`")));
    }
    p256::PublicKey::from_public_key_der(spki_der)
        .map_err(|_not_p256| error().hint("the block holds another key"))?;
    Ok(P256PublicKey {
        spki_der: spki_der.clone(),
        pin: pin_of(spki_der),
    })
}

/// Parses one or more `CERTIFICATE` blocks; returns each as DER.
///
/// # Errors
/// The text has no blocks, another type of block, or a block that is not an X.509 certificate.
pub fn certificates(text: &str) -> Result<Vec<Vec<u8>>, FormatError> {
    let error = || FormatError::new("PEM blocks `-----BEGIN CERTIFICATE-----`");
    let blocks = blocks(text).ok_or_else(error)?;
    if blocks.is_empty() {
        return Err(error());
    }
    let mut certificates = Vec::new();
    for (index, (label, der)) in blocks.into_iter().enumerate() {
        if label != "CERTIFICATE" {
            return Err(error().hint(format!("block {} is `{label}`", index + 1)));
        }
        let whole = X509Certificate::from_der(&der).is_ok_and(|(rest, _)| rest.is_empty());
        if !whole {
            return Err(error().hint(format!(
                "block {} does not hold an X.509 certificate",
                index + 1
            )));
        }
        certificates.push(der);
    }
    Ok(certificates)
}

/// Parses one `PRIVATE KEY` block (PKCS#8) with a P-256 key; returns DER. `None` for anything else:
/// an error could quote a secret.
pub(crate) fn private_key(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    use p256::pkcs8::DecodePrivateKey as _;
    let blocks = blocks(text)?;
    let [(label, der)] = <[_; 1]>::try_from(blocks).ok()?;
    let der = Zeroizing::new(der);
    (label == "PRIVATE KEY" && p256::SecretKey::from_pkcs8_der(&der).is_ok()).then_some(der)
}

/// Label and content of each block. Text outside of blocks is ignored (RFC 7468, 5.2).
fn blocks(text: &str) -> Option<Vec<(String, Vec<u8>)>> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines().map(str::trim) {
        let begin = line
            .strip_prefix("-----BEGIN ")
            .and_then(|rest| rest.strip_suffix("-----"));
        let end = line
            .strip_prefix("-----END ")
            .and_then(|rest| rest.strip_suffix("-----"));
        open = match (open, begin, end) {
            (None, Some(label), None) => Some((label.to_owned(), String::new())),
            (None, None, None) => None,
            (Some((label, body)), None, Some(ended)) if ended == label => {
                blocks.push((label, STANDARD.decode(body).ok()?));
                None
            }
            (Some((label, body)), None, None) => Some((label, body + line)),
            (None | Some(_), _, _) => return None,
        };
    }
    open.is_none().then_some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
        MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE8goDcDqRn//zdg1UAx0bSjsmMM2S\n\
        sE8LxMKmS/ySohRCQALSTp35SuXmZHLMYNZScFfUqbKZMUXPEVnHE0wKDw==\n-----END PUBLIC KEY-----\n";

    #[test]
    fn the_pin_of_a_key_is_the_hash_of_its_subject_public_key_info() {
        let key = public_key(&format!("release key of 2026:\n{KEY}")).unwrap();
        assert_eq!(
            key.pin.to_string(),
            "sha256:1039e0a02e79dc9b867692160fa982c3a654228eb1b835b1454aeee9df236e82"
        );
        assert_eq!(key.spki_der.len(), 91);
    }

    #[test]
    fn a_point_off_the_curve_is_no_key() {
        let bent = KEY.replace("0wKDw==", "0wKEA==");
        assert!(
            public_key(&bent)
                .unwrap_err()
                .suggestion
                .unwrap()
                .contains("another key")
        );
    }

    #[test]
    fn blocks_without_their_end_line_are_refused() {
        for text in [
            "-----BEGIN A-----\nMAA=\n",
            "-----BEGIN A-----\n-----END B-----\n",
            "-----END A-----\n",
            "-----BEGIN A-----\n?\n-----END A-----",
        ] {
            assert_eq!(blocks(text), None, "{text}");
        }
    }
}
