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
