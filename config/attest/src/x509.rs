//! Signatures of X.509 structures: what the verifier needs and no more.
//!
//! ring checks them, several times as fast as RustCrypto, which is asked only for what ring has not: SHA-512 with ECDSA.

use p256::ecdsa::signature::hazmat::PrehashVerifier as _;
use p256::pkcs8::DecodePublicKey as _;
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use sha2::{Digest as _, Sha512};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION, Oid,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::SubjectPublicKeyInfo;

const RSA_SHA256: &str = "1.2.840.113549.1.1.11";
const RSA_SHA384: &str = "1.2.840.113549.1.1.12";
const RSA_SHA512: &str = "1.2.840.113549.1.1.13";
const ECDSA_SHA256: &str = "1.2.840.10045.4.3.2";
const ECDSA_SHA384: &str = "1.2.840.10045.4.3.3";
const ECDSA_SHA512: &str = "1.2.840.10045.4.3.4";

/// Largest modulus of an RSA issuer, in bytes; bounds the work that a certificate can cause.
const MAX_RSA_BYTES: usize = 512;

/// How deep what is constructed nests at most in a certificate request.
const MAX_NESTING: u8 = 16;

/// What a public key is of.
enum Kind {
    Rsa,
    P256,
    P384,
}

/// Whether `signature` with algorithm `oid` over `message` is by the key in `spki` (DER). Unknown algorithms are not, and no
/// RSA key below 2048 bits is taken.
pub(crate) fn verifies(oid: &str, spki: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let Ok(([], key)) = SubjectPublicKeyInfo::from_der(spki) else { return false };
    let Some(kind) = kind(&key) else { return false };
    let algorithm: &dyn VerificationAlgorithm = match (oid, kind) {
        (RSA_SHA256 | RSA_SHA384 | RSA_SHA512, Kind::Rsa) if signature.len() > MAX_RSA_BYTES => return false,
        (RSA_SHA256, Kind::Rsa) => &signature::RSA_PKCS1_2048_8192_SHA256,
        (RSA_SHA384, Kind::Rsa) => &signature::RSA_PKCS1_2048_8192_SHA384,
        (RSA_SHA512, Kind::Rsa) => &signature::RSA_PKCS1_2048_8192_SHA512,
        (ECDSA_SHA256, Kind::P256) => &signature::ECDSA_P256_SHA256_ASN1,
        (ECDSA_SHA384, Kind::P256) => &signature::ECDSA_P256_SHA384_ASN1,
        (ECDSA_SHA256, Kind::P384) => &signature::ECDSA_P384_SHA256_ASN1,
        (ECDSA_SHA384, Kind::P384) => &signature::ECDSA_P384_SHA384_ASN1,
        (ECDSA_SHA512, Kind::P256 | Kind::P384) => return ecdsa_sha512(spki, message, signature),
        _ => return false,
    };
    UnparsedPublicKey::new(algorithm, &key.subject_public_key.data).verify(message, signature).is_ok()
}

/// Whether `parent` is named as the issuer of a certificate and its key signed it. What `parent` may issue is the caller's to
/// ask.
pub(crate) fn signed_by(certificate: &X509Certificate<'_>, parent: &X509Certificate<'_>) -> bool {
    certificate.issuer().as_raw() == parent.subject().as_raw()
        && certificate.signature_algorithm == certificate.tbs_certificate.signature
        && verifies(
            &certificate.signature_algorithm.algorithm.to_id_string(),
            parent.public_key().raw,
            certificate.tbs_certificate.as_ref(),
            &certificate.signature_value.data,
        )
}

/// Whether each length in some DER is definite and in its shortest form, also within extensions. The parser takes longer forms,
/// of which one request would have many.
pub(crate) fn lengths_are_shortest(der: &[u8]) -> bool {
    values_are_short(der, MAX_NESTING)
}

fn values_are_short(mut der: &[u8], left: u8) -> bool {
    const CONSTRUCTED: u8 = 0x20;
    // The value of an extension, which is DER again.
    const OCTET_STRING: u8 = 0x04;
    while let [tag, rest @ ..] = der {
        let Some((value, rest)) = shortest(rest).and_then(|(length, rest)| rest.split_at_checked(length)) else {
            return false;
        };
        let nests = tag & CONSTRUCTED != 0 || *tag == OCTET_STRING;
        if nests && !left.checked_sub(1).is_some_and(|left| values_are_short(value, left)) {
            return false;
        }
        der = rest;
    }
    true
}

/// A length in its shortest form (X.690, 10.1), and what follows it. No field of a message is longer than two octets tell.
fn shortest(der: &[u8]) -> Option<(usize, &[u8])> {
    let (length, rest) = match der {
        [0x81, length, rest @ ..] if *length >= 0x80 => (u16::from(*length), rest),
        [0x82, high, low, rest @ ..] if *high > 0 => (u16::from_be_bytes([*high, *low]), rest),
        [length, rest @ ..] if *length < 0x80 => (u16::from(*length), rest),
        _ => return None,
    };
    Some((usize::from(length), rest))
}

fn kind(key: &SubjectPublicKeyInfo<'_>) -> Option<Kind> {
    let algorithm = &key.algorithm;
    if algorithm.algorithm == OID_PKCS1_RSAENCRYPTION {
        return Some(Kind::Rsa);
    }
    if algorithm.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY {
        return None;
    }
    let curve = Oid::try_from(algorithm.parameters.as_ref()?).ok()?;
    match curve {
        curve if curve == OID_EC_P256 => Some(Kind::P256),
        curve if curve == OID_NIST_EC_P384 => Some(Kind::P384),
        _ => None,
    }
}

fn ecdsa_sha512(spki: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let hash = Sha512::digest(message);
    if let Ok(key) = p256::PublicKey::from_public_key_der(spki) {
        return p256::ecdsa::Signature::from_der(signature)
            .is_ok_and(|signature| p256::ecdsa::VerifyingKey::from(key).verify_prehash(&hash, &signature).is_ok());
    }
    p384::PublicKey::from_public_key_der(spki).is_ok_and(|key| {
        p384::ecdsa::Signature::from_der(signature)
            .is_ok_and(|signature| p384::ecdsa::VerifyingKey::from(key).verify_prehash(&hash, &signature).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shortest_and_definite_lengths_are_taken() {
        let good: [&[u8]; 6] = [
            &[],
            &[0x05, 0x00],
            &[0x30, 0x03, 0x02, 0x01, 0x00, 0x05, 0x00],
            &[&[0x0c, 0x7f][..], &[0; 0x7f]].concat(),
            &[&[0x0c, 0x81, 0x80][..], &[0; 0x80]].concat(),
            &[&[0x0c, 0x82, 0x01, 0x00][..], &[0; 0x100]].concat(),
        ];
        for der in good {
            assert!(lengths_are_shortest(der), "{der:02x?}");
        }
        let bad: [&[u8]; 11] = [
            &[0x05],
            &[0x05, 0x01],
            &[0x05, 0x81, 0x00],
            &[0x02, 0x81, 0x01, 0x00],
            &[0x02, 0x82, 0x00, 0x01, 0x00],
            &[&[0x0c, 0x82, 0x00, 0x80][..], &[0; 0x80]].concat(),
            &[&[0x0c, 0x83, 0x00, 0x01, 0x00][..], &[0; 0x100]].concat(),
            &[0x30, 0x80, 0x00, 0x00],
            &[0x30, 0x04, 0x02, 0x81, 0x01, 0x00],
            // In the value of an extension.
            &[0x04, 0x04, 0x02, 0x81, 0x01, 0x00],
            &[0x30, 0xff, 0x00],
        ];
        for der in bad {
            assert!(!lengths_are_shortest(der), "{der:02x?}");
        }
        let mut deep = Vec::new();
        for _ in 0..=MAX_NESTING {
            deep.splice(0..0, [0x30, u8::try_from(deep.len()).expect("short")]);
        }
        assert!(lengths_are_shortest(&deep[2..]) && !lengths_are_shortest(&deep));
    }
}
