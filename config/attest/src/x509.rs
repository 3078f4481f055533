//! Signatures of X.509 structures by RustCrypto: what the verifier needs, without a C library.

use p256::ecdsa::signature::hazmat::PrehashVerifier as _;
use rsa::pkcs1v15::Pkcs1v15Sign;
use rsa::pkcs8::DecodePublicKey as _;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

const RSA_SHA256: &str = "1.2.840.113549.1.1.11";
const RSA_SHA384: &str = "1.2.840.113549.1.1.12";
const RSA_SHA512: &str = "1.2.840.113549.1.1.13";
const ECDSA_SHA256: &str = "1.2.840.10045.4.3.2";
const ECDSA_SHA384: &str = "1.2.840.10045.4.3.3";
const ECDSA_SHA512: &str = "1.2.840.10045.4.3.4";

/// Largest modulus of an RSA issuer, in bytes; bounds the work that a certificate can cause.
const MAX_RSA_BYTES: usize = 512;

/// Whether `signature` with algorithm `oid` over `message` is by the key in `spki` (DER). Unknown algorithms are not.
pub(crate) fn verifies(oid: &str, spki: &[u8], message: &[u8], signature: &[u8]) -> bool {
    match oid {
        RSA_SHA256 => rsa(spki, Pkcs1v15Sign::new::<Sha256>(), &Sha256::digest(message), signature),
        RSA_SHA384 => rsa(spki, Pkcs1v15Sign::new::<Sha384>(), &Sha384::digest(message), signature),
        RSA_SHA512 => rsa(spki, Pkcs1v15Sign::new::<Sha512>(), &Sha512::digest(message), signature),
        ECDSA_SHA256 => ecdsa(spki, &Sha256::digest(message), signature),
        ECDSA_SHA384 => ecdsa(spki, &Sha384::digest(message), signature),
        ECDSA_SHA512 => ecdsa(spki, &Sha512::digest(message), signature),
        _ => false,
    }
}

fn rsa(spki: &[u8], padding: Pkcs1v15Sign, hash: &[u8], signature: &[u8]) -> bool {
    signature.len() <= MAX_RSA_BYTES
        && rsa::RsaPublicKey::from_public_key_der(spki).is_ok_and(|key| key.verify(padding, hash, signature).is_ok())
}

fn ecdsa(spki: &[u8], hash: &[u8], signature: &[u8]) -> bool {
    if let Ok(key) = p256::PublicKey::from_public_key_der(spki) {
        return p256::ecdsa::Signature::from_der(signature)
            .is_ok_and(|signature| p256::ecdsa::VerifyingKey::from(key).verify_prehash(hash, &signature).is_ok());
    }
    if let Ok(key) = p384::PublicKey::from_public_key_der(spki) {
        return p384::ecdsa::Signature::from_der(signature)
            .is_ok_and(|signature| p384::ecdsa::VerifyingKey::from(key).verify_prehash(hash, &signature).is_ok());
    }
    false
}
