//! The exact public areas of the keys in use.
//!
//! A template is the public area with an empty public value: what TPM2_CreatePrimary is given.
//! [`matches()`] says whether a key is of its template, whatever its public value.

use super::{Attributes, Curve, HashAlg, Key, Public, Scheme, Symmetric};
use crate::Digest;
use crate::pcr::{NK_PCRS, Selection};
use std::collections::BTreeMap;

const FIXED: Attributes = Attributes::FIXED_TPM
    .with(Attributes::FIXED_PARENT)
    .with(Attributes::SENSITIVE_DATA_ORIGIN);
/// Attributes of an attestation key. Its auth value is 32 random bytes, which cannot be guessed.
pub const AK_ATTRIBUTES: Attributes = FIXED
    .with(Attributes::USER_WITH_AUTH)
    .with(Attributes::NO_DA)
    .with(Attributes::RESTRICTED)
    .with(Attributes::SIGN);
/// Attributes of a node key. It signs by its policy alone; it is certified by its auth value, which
/// is empty.
pub const NK_ATTRIBUTES: Attributes = FIXED.with(Attributes::NO_DA).with(Attributes::SIGN);
const EK_LOW: Attributes = FIXED
    .with(Attributes::ADMIN_WITH_POLICY)
    .with(Attributes::RESTRICTED)
    .with(Attributes::DECRYPT);
const EK_HIGH: Attributes = EK_LOW.with(Attributes::USER_WITH_AUTH);

/// PolicySecret(TPM_RH_ENDORSEMENT) in SHA-256 (TCG EK Credential Profile 2.x, B.3.3).
const POLICY_A_SHA256: [u8; 32] = [
    0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xb3, 0xf8, 0x1a, 0x90, 0xcc, 0x8d, 0x46, 0xa5, 0xd7, 0x24,
    0xfd, 0x52, 0xd7, 0x6e, 0x06, 0x52, 0x0b, 0x64, 0xf2, 0xa1, 0xda, 0x1b, 0x33, 0x14, 0x69, 0xaa,
];
/// PolicyB in SHA-256 (TCG EK Credential Profile 2.x, B.6.2).
const POLICY_B_SHA256: [u8; 32] = [
    0xca, 0x3d, 0x0a, 0x99, 0xa2, 0xb9, 0x39, 0x06, 0xf7, 0xa3, 0x34, 0x24, 0x14, 0xef, 0xcf, 0xb3,
    0xa3, 0x85, 0xd4, 0x4c, 0xd1, 0xfd, 0x45, 0x90, 0x89, 0xd1, 0x9b, 0x50, 0x71, 0xc0, 0xb7, 0xa0,
];
/// PolicyB in SHA-384 (TCG EK Credential Profile 2.x, B.6.3).
const POLICY_B_SHA384: [u8; 48] = [
    0xb2, 0x6e, 0x7d, 0x28, 0xd1, 0x1a, 0x50, 0xbc, 0x53, 0xd8, 0x82, 0xbc, 0xf5, 0xfd, 0x3a, 0x1a,
    0x07, 0x41, 0x48, 0xbb, 0x35, 0xd3, 0xb4, 0xe4, 0xcb, 0x1c, 0x0a, 0xd9, 0xbd, 0xe4, 0x19, 0xca,
    0xcb, 0x47, 0xba, 0x09, 0x69, 0x96, 0x46, 0x15, 0x0f, 0x9f, 0xc0, 0x00, 0xf3, 0xf8, 0x0e, 0x12,
];

/// An ECDSA P-256 key with SHA-256; without a point it is a template.
fn signing_key(attributes: Attributes, auth_policy: Vec<u8>, x: Vec<u8>, y: Vec<u8>) -> Public {
    Public {
        name_alg: HashAlg::Sha256,
        attributes,
        auth_policy,
        key: Key::Ecc {
            symmetric: Symmetric::Null,
            scheme: Scheme::Ecdsa(HashAlg::Sha256),
            curve: Curve::P256,
            x,
            y,
        },
    }
}

/// The attestation key: a primary of the endorsement hierarchy.
pub fn ak() -> Public {
    signing_key(AK_ATTRIBUTES, Vec::new(), Vec::new(), Vec::new())
}

/// The node key: a primary of the NULL hierarchy, usable only while the registers 4, 7, 9, 11, 12
/// and 13 hold `pcrs`. Missing registers count as zero.
pub fn nk(pcrs: &BTreeMap<u8, Digest>) -> Public {
    signing_key(
        NK_ATTRIBUTES,
        nk_policy(pcrs).0.to_vec(),
        Vec::new(),
        Vec::new(),
    )
}

/// The node key's authPolicy: PolicyPCR (TPM 2.0 part 3, 23.7) over 4, 7, 9, 11, 12 and 13 of the
/// SHA-256 bank.
pub fn nk_policy(pcrs: &BTreeMap<u8, Digest>) -> Digest {
    const TPM_CC_POLICY_PCR: [u8; 4] = 0x0000_017f_u32.to_be_bytes();
    let selection = Selection::of(NK_PCRS);
    let digest = selection.digest(pcrs);
    Digest::of_parts(&[
        Digest::ZERO.as_bytes(),
        &TPM_CC_POLICY_PCR,
        &selection.to_tpm(),
        digest.as_bytes(),
    ])
}

/// Attributes of a key that an admin issued: it may sign, and has no policy by which it could leave
/// the TPM again. It has no auth value to guess.
pub const ISSUED_ATTRIBUTES: Attributes = Attributes::USER_WITH_AUTH
    .with(Attributes::NO_DA)
    .with(Attributes::SIGN);

/// The key of an issued identity, made outside, with its public point.
pub fn issued_key(x: Vec<u8>, y: Vec<u8>) -> Public {
    signing_key(ISSUED_ATTRIBUTES, Vec::new(), x, y)
}

/// The endorsement key with this SubjectPublicKeyInfo, where one of the templates has such a key.
/// Of templates that differ in policy and attributes only, it is the low-range one: wrapping
/// something for the key needs neither.
pub fn ek_of_spki(der: &[u8]) -> Option<Public> {
    use p256::elliptic_curve::sec1::ToEncodedPoint as _;
    use p256::pkcs8::DecodePublicKey as _;
    use rsa::traits::PublicKeyParts as _;
    if let Ok(found) = rsa::RsaPublicKey::from_public_key_der(der) {
        let ek = ek_rsa2048();
        let Key::Rsa {
            symmetric,
            bits,
            exponent,
            ..
        } = ek.key
        else {
            return None;
        };
        let key = Key::Rsa {
            symmetric,
            bits,
            exponent,
            modulus: found.n().to_bytes_be(),
        };
        let ek = Public { key, ..ek };
        let standard = *found.e() == rsa::BigUint::from(65537_u32);
        return (standard && ek.rsa().is_ok()).then_some(ek);
    }
    let (ek, sec1) = if let Ok(found) = p256::PublicKey::from_public_key_der(der) {
        (ek_p256(), found.to_encoded_point(false).as_bytes().to_vec())
    } else {
        let found = p384::PublicKey::from_public_key_der(der).ok()?;
        (ek_p384(), found.to_encoded_point(false).as_bytes().to_vec())
    };
    let Key::Ecc {
        symmetric,
        scheme,
        curve,
        ..
    } = ek.key
    else {
        return None;
    };
    let (x, y) = (
        sec1.get(1..=curve.size())?.to_vec(),
        sec1.get(curve.size() + 1..)?.to_vec(),
    );
    Some(Public {
        key: Key::Ecc {
            symmetric,
            scheme,
            curve,
            x,
            y,
        },
        ..ek
    })
}

/// RSA-2048 endorsement key, template L-1.
pub fn ek_rsa2048() -> Public {
    Public {
        name_alg: HashAlg::Sha256,
        attributes: EK_LOW,
        auth_policy: POLICY_A_SHA256.to_vec(),
        key: Key::Rsa {
            symmetric: Symmetric::Aes128Cfb,
            bits: 2048,
            exponent: 0,
            modulus: vec![0; 256],
        },
    }
}

/// ECC P-256 endorsement key, template L-2.
pub fn ek_p256() -> Public {
    ek_ecc(
        EK_LOW,
        HashAlg::Sha256,
        &POLICY_A_SHA256,
        Symmetric::Aes128Cfb,
        Curve::P256,
    )
}

/// ECC P-384 endorsement key, template H-3.
pub fn ek_p384() -> Public {
    ek_ecc(
        EK_HIGH,
        HashAlg::Sha384,
        &POLICY_B_SHA384,
        Symmetric::Aes256Cfb,
        Curve::P384,
    )
}

fn ek_ecc(
    attributes: Attributes,
    name_alg: HashAlg,
    policy: &[u8],
    symmetric: Symmetric,
    curve: Curve,
) -> Public {
    Public {
        name_alg,
        attributes,
        auth_policy: policy.to_vec(),
        key: Key::Ecc {
            symmetric,
            scheme: Scheme::Null,
            curve,
            x: vec![0; curve.size()],
            y: vec![0; curve.size()],
        },
    }
}

/// The high-range variants of the same keys (H-1 and H-2), which differ in attributes and policy
/// only.
fn ek_high(low: Public) -> Public {
    Public {
        attributes: EK_HIGH,
        auth_policy: POLICY_B_SHA256.to_vec(),
        ..low
    }
}

/// Whether a key is an endorsement key by one of the TCG's templates.
pub fn is_ek(key: &Public) -> bool {
    [
        ek_rsa2048(),
        ek_p256(),
        ek_p384(),
        ek_high(ek_rsa2048()),
        ek_high(ek_p256()),
    ]
    .iter()
    .any(|template| matches(key, template))
}

/// Whether a key is exactly of a template, apart from its public value.
pub fn matches(key: &Public, template: &Public) -> bool {
    let same_kind = match (&key.key, &template.key) {
        (
            Key::Rsa {
                symmetric,
                bits,
                exponent,
                ..
            },
            Key::Rsa {
                symmetric: symmetric_wanted,
                bits: bits_wanted,
                exponent: exponent_wanted,
                ..
            },
        ) => symmetric == symmetric_wanted && bits == bits_wanted && exponent == exponent_wanted,
        (
            Key::Ecc {
                symmetric,
                scheme,
                curve,
                ..
            },
            Key::Ecc {
                symmetric: symmetric_wanted,
                scheme: scheme_wanted,
                curve: curve_wanted,
                ..
            },
        ) => symmetric == symmetric_wanted && scheme == scheme_wanted && curve == curve_wanted,
        (Key::Rsa { .. }, Key::Ecc { .. }) | (Key::Ecc { .. }, Key::Rsa { .. }) => false,
    };
    same_kind
        && key.name_alg == template.name_alg
        && key.attributes == template.attributes
        && key.auth_policy == template.auth_policy
}
