//! Signatures of X.509 structures, and the exact form of a certificate request: what the verifier
//! needs and no more.
//!
//! ring checks them, several times as fast as RustCrypto, which does only what ring lacks: SHA-512
//! with ECDSA.

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

/// How deep constructed values may nest in a certificate request.
const MAX_NESTING: u8 = 16;

/// The type of a public key.
enum KeyAlgorithm {
    Rsa,
    P256,
    P384,
}

/// Whether `signature` with algorithm `oid` over `message` is by the key in `spki` (DER). False for
/// unknown algorithms and for RSA keys below 2048 bits.
pub fn verifies(oid: &str, spki: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let Ok(([], key)) = SubjectPublicKeyInfo::from_der(spki) else {
        return false;
    };
    let Some(kind) = key_algorithm(&key) else {
        return false;
    };
    let algorithm: &dyn VerificationAlgorithm = match (oid, kind) {
        (RSA_SHA256 | RSA_SHA384 | RSA_SHA512, KeyAlgorithm::Rsa)
            if signature.len() > MAX_RSA_BYTES =>
        {
            return false;
        }
        (RSA_SHA256, KeyAlgorithm::Rsa) => &signature::RSA_PKCS1_2048_8192_SHA256,
        (RSA_SHA384, KeyAlgorithm::Rsa) => &signature::RSA_PKCS1_2048_8192_SHA384,
        (RSA_SHA512, KeyAlgorithm::Rsa) => &signature::RSA_PKCS1_2048_8192_SHA512,
        (ECDSA_SHA256, KeyAlgorithm::P256) => &signature::ECDSA_P256_SHA256_ASN1,
        (ECDSA_SHA384, KeyAlgorithm::P256) => &signature::ECDSA_P256_SHA384_ASN1,
        (ECDSA_SHA256, KeyAlgorithm::P384) => &signature::ECDSA_P384_SHA256_ASN1,
        (ECDSA_SHA384, KeyAlgorithm::P384) => &signature::ECDSA_P384_SHA384_ASN1,
        (ECDSA_SHA512, KeyAlgorithm::P256 | KeyAlgorithm::P384) => {
            return ecdsa_sha512(spki, message, signature);
        }
        _ => return false,
    };
    UnparsedPublicKey::new(algorithm, &key.subject_public_key.data)
        .verify(message, signature)
        .is_ok()
}

/// Whether a certificate names `parent` as its issuer and the parent's key signed it. The caller
/// checks what `parent` may issue.
pub fn signed_by(certificate: &X509Certificate<'_>, parent: &X509Certificate<'_>) -> bool {
    certificate.issuer().as_raw() == parent.subject().as_raw()
        && certificate.signature_algorithm == certificate.tbs_certificate.signature
        && verifies(
            &certificate.signature_algorithm.algorithm.to_id_string(),
            parent.public_key().raw,
            certificate.tbs_certificate.as_ref(),
            &certificate.signature_value.data,
        )
}

/// The DER tags in a certificate request (X.690, 8).
mod tag {
    pub(super) const BOOLEAN: u8 = 0x01;
    pub(super) const INTEGER: u8 = 0x02;
    pub(super) const BIT_STRING: u8 = 0x03;
    pub(super) const OCTET_STRING: u8 = 0x04;
    pub(super) const OID: u8 = 0x06;
    pub(super) const SEQUENCE: u8 = 0x30;
    pub(super) const SET: u8 = 0x31;
    pub(super) const ATTRIBUTES: u8 = 0xa0;
}

/// pkcs-9-at-extensionRequest, 1.2.840.113549.1.9.14.
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
/// ecdsa-with-SHA256, 1.2.840.10045.4.3.2.
const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
/// Extensions that a node may ask for: basic constraints, key usage, extended key usage,
/// alternative names (RFC 5280, 4.2.1). The value of each is DER again; that of others may be
/// anything.
const KNOWN_EXTENSIONS: [&[u8]; 4] = [
    &[0x55, 0x1d, 0x13],
    &[0x55, 0x1d, 0x0f],
    &[0x55, 0x1d, 0x25],
    &[0x55, 0x1d, 0x11],
];

/// Whether a PKCS #10 request (RFC 2986, 4.1) has no trailing data in any of its structures. The
/// parser skips trailing data, and another reader of the same bytes may not.
pub fn request_is_exact(der: &[u8]) -> bool {
    exact(der).is_some()
}

fn exact(der: &[u8]) -> Option<()> {
    let [(tag::SEQUENCE, request)] = parts(der)?[..] else {
        return None;
    };
    let [
        (tag::SEQUENCE, info),
        (tag::SEQUENCE, algorithm),
        (tag::BIT_STRING, [0, ..]),
    ] = parts(request)?[..]
    else {
        return None;
    };
    // The part outside the signed bytes must be exact too: ECDSA has no parameters (RFC 5758, 3.2).
    let algorithm = parts(algorithm)?;
    let [(tag::OID, oid), parameters @ ..] = algorithm.as_slice() else {
        return None;
    };
    (parameters.is_empty() || *oid != ECDSA_WITH_SHA256).then_some(())?;
    let (subject, key, attributes) = match parts(info)?[..] {
        [
            (tag::INTEGER, [0]),
            (tag::SEQUENCE, subject),
            (tag::SEQUENCE, key),
        ] => (subject, key, &[][..]),
        [
            (tag::INTEGER, [0]),
            (tag::SEQUENCE, subject),
            (tag::SEQUENCE, key),
            (tag::ATTRIBUTES, attributes),
        ] => (subject, key, attributes),
        _ => return None,
    };
    let [(tag::SEQUENCE, kind), (tag::BIT_STRING, [0, ..])] = parts(key)?[..] else {
        return None;
    };
    matches!(parts(kind)?[..], [(tag::OID, _)] | [(tag::OID, _), _]).then_some(())?;
    for (kind, name) in parts(subject)? {
        let pairs = parts(name).filter(|_| kind == tag::SET)?;
        let good = |(kind, pair): &(u8, &[u8])| {
            *kind == tag::SEQUENCE && parts(pair).is_some_and(|two| two.len() == 2)
        };
        pairs.iter().all(good).then_some(())?;
    }
    for (kind, attribute) in parts(attributes)? {
        let [(tag::OID, oid), (tag::SET, values)] =
            parts(attribute).filter(|_| kind == tag::SEQUENCE)?[..]
        else {
            return None;
        };
        if oid == EXTENSION_REQUEST {
            let [(tag::SEQUENCE, extensions)] = parts(values)?[..] else {
                return None;
            };
            parts(extensions)?
                .into_iter()
                .try_for_each(|(kind, value)| {
                    extension(value).filter(|()| kind == tag::SEQUENCE)
                })?;
        }
    }
    Some(())
}

fn extension(der: &[u8]) -> Option<()> {
    let ([(tag::OID, oid), (tag::OCTET_STRING, value)]
    | [
        (tag::OID, oid),
        (tag::BOOLEAN, _),
        (tag::OCTET_STRING, value),
    ]) = parts(der)?[..]
    else {
        return None;
    };
    (!KNOWN_EXTENSIONS.contains(&oid) || parts(value)?.len() == 1).then_some(())
}

/// The consecutive values in some DER, each with its tag.
fn parts(mut der: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut parts = Vec::new();
    while let [tag, rest @ ..] = der {
        let (length, rest) = shortest(rest)?;
        let (value, rest) = rest.split_at_checked(length)?;
        parts.push((*tag, value));
        der = rest;
    }
    Some(parts)
}

/// Whether each length in some DER is definite and in its shortest form, also within the extensions
/// that nodes may ask for. The parser accepts longer forms, so one request would have many
/// encodings.
pub fn lengths_are_shortest(der: &[u8]) -> bool {
    values_are_short(der, MAX_NESTING)
}

fn values_are_short(mut der: &[u8], left: u8) -> bool {
    const CONSTRUCTED: u8 = 0x20;
    let mut known = false;
    while let [tag, rest @ ..] = der {
        let Some((value, rest)) =
            shortest(rest).and_then(|(length, rest)| rest.split_at_checked(length))
        else {
            return false;
        };
        if *tag == tag::OID {
            known = KNOWN_EXTENSIONS.contains(&value);
        }
        let nests = tag & CONSTRUCTED != 0 || (*tag == tag::OCTET_STRING && known);
        if nests
            && !left
                .checked_sub(1)
                .is_some_and(|left| values_are_short(value, left))
        {
            return false;
        }
        der = rest;
    }
    true
}

/// A length in its shortest form (X.690, 10.1), and the bytes after it. Two octets are enough for
/// the length of any field of a message.
fn shortest(der: &[u8]) -> Option<(usize, &[u8])> {
    let (length, rest) = match der {
        [0x81, length, rest @ ..] if *length >= 0x80 => (u16::from(*length), rest),
        [0x82, high, low, rest @ ..] if *high > 0 => (u16::from_be_bytes([*high, *low]), rest),
        [length, rest @ ..] if *length < 0x80 => (u16::from(*length), rest),
        _ => return None,
    };
    Some((usize::from(length), rest))
}

fn key_algorithm(key: &SubjectPublicKeyInfo<'_>) -> Option<KeyAlgorithm> {
    let algorithm = &key.algorithm;
    if algorithm.algorithm == OID_PKCS1_RSAENCRYPTION {
        return Some(KeyAlgorithm::Rsa);
    }
    if algorithm.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY {
        return None;
    }
    let curve = Oid::try_from(algorithm.parameters.as_ref()?).ok()?;
    match curve {
        curve if curve == OID_EC_P256 => Some(KeyAlgorithm::P256),
        curve if curve == OID_NIST_EC_P384 => Some(KeyAlgorithm::P384),
        _ => None,
    }
}

fn ecdsa_sha512(spki: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let hash = Sha512::digest(message);
    if let Ok(key) = p256::PublicKey::from_public_key_der(spki) {
        return p256::ecdsa::Signature::from_der(signature).is_ok_and(|signature| {
            p256::ecdsa::VerifyingKey::from(key)
                .verify_prehash(&hash, &signature)
                .is_ok()
        });
    }
    p384::PublicKey::from_public_key_der(spki).is_ok_and(|key| {
        p384::ecdsa::Signature::from_der(signature).is_ok_and(|signature| {
            p384::ecdsa::VerifyingKey::from(key)
                .verify_prehash(&hash, &signature)
                .is_ok()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let value = parts.concat();
        [
            &[tag, u8::try_from(value.len()).expect("short")][..],
            &value,
        ]
        .concat()
    }

    /// A request with trailing data in each of its structures, in turn; the first is unchanged.
    fn requests() -> Vec<Vec<u8>> {
        let more = tlv(0x05, &[]);
        let nothing: &[u8] = &[];
        (0..12)
            .map(|place| {
                let at = |here: usize| {
                    if place == here {
                        more.as_slice()
                    } else {
                        nothing
                    }
                };
                let oid = tlv(tag::OID, &[&[0x55, 0x04, 0x03]]);
                let pair = tlv(tag::SEQUENCE, &[&oid, &tlv(0x0c, &[b"n"]), at(1)]);
                let subject = tlv(tag::SEQUENCE, &[&tlv(tag::SET, &[&pair, at(2)]), at(3)]);
                let constraints = tlv(tag::OCTET_STRING, &[&tlv(tag::SEQUENCE, &[]), at(4)]);
                let extension = tlv(
                    tag::SEQUENCE,
                    &[&tlv(tag::OID, &[&[0x55, 0x1d, 0x13]]), &constraints, at(5)],
                );
                let values = tlv(tag::SET, &[&tlv(tag::SEQUENCE, &[&extension]), at(6)]);
                let attribute = tlv(
                    tag::SEQUENCE,
                    &[&tlv(tag::OID, &[EXTENSION_REQUEST]), &values],
                );
                let attributes = tlv(tag::ATTRIBUTES, &[&attribute]);
                let version = tlv(tag::INTEGER, &[&[0]]);
                // There may be one more part here: the algorithm's parameters.
                let kind = tlv(tag::SEQUENCE, &[&oid, at(10), at(10)]);
                let key = tlv(
                    tag::SEQUENCE,
                    &[&kind, &tlv(tag::BIT_STRING, &[&[0]]), at(11)],
                );
                let info = tlv(
                    tag::SEQUENCE,
                    &[&version, &subject, &key, &attributes, at(7)],
                );
                let algorithm = tlv(
                    tag::SEQUENCE,
                    &[&tlv(tag::OID, &[ECDSA_WITH_SHA256]), at(9)],
                );
                tlv(
                    tag::SEQUENCE,
                    &[&info, &algorithm, &tlv(tag::BIT_STRING, &[&[0]]), at(8)],
                )
            })
            .collect()
    }

    #[test]
    fn a_request_with_trailing_data_is_not_exact() {
        let requests = requests();
        assert!(request_is_exact(&requests[0]));
        for request in &requests[1..] {
            assert!(!request_is_exact(request), "{}", hex::encode(request));
        }
        let version = requests[0]
            .windows(3)
            .position(|bytes| bytes == [tag::INTEGER, 1, 0])
            .expect("a version");
        let mut other = requests[0].clone();
        other[version + 2] = 1;
        assert!(!request_is_exact(&other));
        // Another tag for the algorithm's identifier, which the parser accepts, and a wrong number
        // of unused bits.
        let place = requests[0]
            .windows(8)
            .position(|bytes| bytes == ECDSA_WITH_SHA256)
            .expect("an algorithm");
        let mut other = requests[0].clone();
        other[place - 2] = 0x16;
        assert!(!request_is_exact(&other));
        let mut other = requests[0].clone();
        *other.last_mut().expect("bytes") = 1;
        assert!(!request_is_exact(&other));
    }

    #[test]
    fn only_shortest_and_definite_lengths_are_taken() {
        let good: [&[u8]; 7] = [
            // In the value of an unknown extension.
            &[
                0x06, 0x03, 0x55, 0x1d, 0x0e, 0x04, 0x04, 0x02, 0x81, 0x01, 0x00,
            ],
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
            &[
                0x06, 0x03, 0x55, 0x1d, 0x13, 0x04, 0x04, 0x02, 0x81, 0x01, 0x00,
            ],
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
