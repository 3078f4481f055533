//! `[identity]`: certificates and a key that an admin issued to a machine in advance (a static
//! join).

use crate::fault::{FaultKind, Position, Sink};
use crate::format::{FormatError, Pin};
use crate::pem;
use crate::raw::RawIdentity;
use crate::read::At;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use zeroize::Zeroizing;

/// Bytes of one part of a wrapped key; each has a few hundred.
const MAX_PART: usize = 1024;

/// An identity that an admin issued to a machine. The machine makes no request of its own and
/// proves nothing about its image or configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct IssuedIdentity {
    /// The client certificate chain up to the root, DER.
    pub certificate: Vec<Vec<u8>>,
    /// The serving certificate chain, for the same key.
    pub serving_certificate: Vec<Vec<u8>>,
    /// The cluster's root certificates, with which the kubelet API authenticates its callers; they
    /// must be pinned.
    pub roots: Vec<Vec<u8>>,
    /// The private key of both certificates.
    pub key: IssuedKey,
}

/// The key of an issued identity.
#[derive(Clone, PartialEq)]
pub enum IssuedKey {
    /// Wrapped to an endorsement key, for TPM2_Import.
    Wrapped {
        /// SHA-256 of the SubjectPublicKeyInfo of that endorsement key.
        ek: Pin,
        /// TPMT_PUBLIC of the key.
        public: Vec<u8>,
        /// The contents of TPM2B_PRIVATE.
        private: Vec<u8>,
        /// The contents of TPM2B_ENCRYPTED_SECRET.
        seed: Vec<u8>,
    },
    /// Unencrypted, as `insecure_plaintext_key = true` explicitly allows: PKCS#8 DER.
    Plaintext(Zeroizing<Vec<u8>>),
}

impl fmt::Debug for IssuedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrapped { ek, .. } => write!(f, "Wrapped({ek})"),
            Self::Plaintext(_) => f.write_str("Plaintext(…)"),
        }
    }
}

/// Checks the section.
pub(crate) fn check(raw: At<RawIdentity>, sink: &mut Sink<'_>) -> Option<IssuedIdentity> {
    let At { value: raw, place } = raw;
    let chain = |text: Option<At<String>>, key: &str, sink: &mut Sink<'_>| {
        let text = sink.required(
            text,
            &place,
            key,
            "PEM certificates; `pratique issue` writes them",
        )?;
        sink.parsed(&text, pem::certificates(&text.value))
    };
    let certificate = chain(raw.certificate, "certificate", sink);
    let serving_certificate = chain(raw.serving_certificate, "serving_certificate", sink);
    let roots = chain(raw.roots, "roots", sink);
    let insecure = raw
        .insecure_plaintext_key
        .as_ref()
        .is_some_and(|flag| flag.value);
    let wrapped = [&raw.ek, &raw.public, &raw.private, &raw.seed];
    let key = match raw.key {
        Some(key) => {
            if let Some(other) = wrapped.into_iter().flatten().next() {
                let expected = "either a wrapped key (`ek`, `public`, `private`, `seed`) or `key`";
                sink.fault(
                    FaultKind::Conflict,
                    &other.place,
                    "a wrapped key beside `key`",
                    expected,
                );
            }
            plaintext(&key, insecure, sink)
        }
        None if insecure => {
            let flag = raw.insecure_plaintext_key.map_or(place, |flag| flag.place);
            sink.fault(
                FaultKind::Conflict,
                &flag,
                "`insecure_plaintext_key = true` without `key`",
                "both or neither",
            );
            None
        }
        None => {
            let ek = sink.required(
                raw.ek,
                &place,
                "ek",
                "`sha256:…` of the endorsement key; `pratique issue` writes it",
            );
            let ek = ek.and_then(|text| sink.parse(&text));
            let public = part(raw.public, &place, "public", sink);
            let private = part(raw.private, &place, "private", sink);
            let seed = part(raw.seed, &place, "seed", sink);
            Some(IssuedKey::Wrapped {
                ek: ek?,
                public: public?,
                private: private?,
                seed: seed?,
            })
        }
    };
    Some(IssuedIdentity {
        certificate: certificate?,
        serving_certificate: serving_certificate?,
        roots: roots?,
        key: key?,
    })
}

/// One part of a wrapped key, base64.
fn part(
    text: Option<At<String>>,
    table: &Position,
    key: &str,
    sink: &mut Sink<'_>,
) -> Option<Vec<u8>> {
    let text = sink.required(text, table, key, "base64; `pratique issue` writes it")?;
    let bytes = STANDARD
        .decode(&text.value)
        .ok()
        .filter(|bytes| (1..=MAX_PART).contains(&bytes.len()));
    sink.parsed(
        &text,
        bytes.ok_or_else(|| {
            FormatError::new("base64 of 1 to 1024 bytes, as `pratique issue` writes it")
        }),
    )
}

/// An unencrypted key. No part of it is shown in a fault.
fn plaintext(text: &At<String>, insecure: bool, sink: &mut Sink<'_>) -> Option<IssuedKey> {
    if !insecure {
        let suggestion = "wrap it: `pratique issue --ek FILE`; or add `insecure_plaintext_key = true` if every reader of \
                          this file may act as this node";
        let (found, expected) = (
            "a private key in the clear",
            "a key that only this machine's TPM can open",
        );
        sink.suggest(
            FaultKind::Conflict,
            &text.place,
            found,
            expected,
            Some(suggestion.to_owned()),
        );
        return None;
    }
    let key = pem::private_key(&text.value);
    if key.is_none() {
        let expected = "one PEM block `-----BEGIN PRIVATE KEY-----` with an ECDSA P-256 key";
        sink.fault(FaultKind::BadValue, &text.place, "something else", expected);
    }
    key.map(IssuedKey::Plaintext)
}
