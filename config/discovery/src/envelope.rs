//! The signature of a document, and the checks before a document is trusted.

use crate::document::Document;
use crate::fault::DocumentFault;
use crate::{LABEL, MAX_BYTES, SKEW, object};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_model::discovery::ClusterId;
use config_model::format::Pin;
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{Signature, SigningKey, VerifyingKey};
use p256::pkcs8::{DecodePublicKey as _, EncodePublicKey as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The signed document in transit.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedDocument {
    document: String,
    key: String,
    signature: String,
}

/// The keys whose signature is trusted.
#[derive(Debug, Clone, Copy)]
pub enum Trust<'a> {
    /// Keys with one of these hashes.
    Pins(&'a [Pin]),
    /// Any key. Insecure: for the first use, if the configuration allows it explicitly.
    AnyKey,
}

/// The expectations for a signed document.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The requested cluster.
    pub cluster: &'a ClusterId,
    /// The trusted keys.
    pub trust: Trust<'a>,
    /// The lowest accepted generation.
    pub min_generation: u64,
    /// The current time, Unix seconds.
    pub now: u64,
}

/// A document that passed [`check`]. Holding one proves: a trusted key signed it, and it is
/// current.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedDocument {
    document: Document,
    key: Pin,
}

impl VerifiedDocument {
    /// The document.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// The hash of the key that signed it.
    pub fn key(&self) -> Pin {
        self.key
    }
}

impl Document {
    /// Signs the document; the result is what an endpoint serves.
    ///
    /// # Errors
    /// The document is one that [`check`] would never accept.
    pub fn sign(&self, key: &SigningKey) -> Result<Vec<u8>, DocumentFault> {
        let document = self.encode()?;
        let signature: Signature = key.sign(&message(&document));
        let spki = VerifyingKey::from(key)
            .to_public_key_der()
            .map_err(|e| DocumentFault::Malformed(e.to_string()))?;
        let envelope = SignedDocument {
            document: STANDARD.encode(&document),
            key: STANDARD.encode(spki.as_bytes()),
            signature: STANDARD.encode(signature.to_bytes()),
        };
        let bytes =
            serde_json::to_vec(&envelope).map_err(|e| DocumentFault::Malformed(e.to_string()))?;
        if bytes.len() > MAX_BYTES {
            Err(DocumentFault::TooLarge { found: bytes.len() })
        } else {
            Ok(bytes)
        }
    }
}

fn message(document: &[u8]) -> Vec<u8> {
    [LABEL, document].concat()
}

/// SHA-256 of a key's SubjectPublicKeyInfo DER, which is pinned.
pub fn pin_of(spki: &[u8]) -> Pin {
    Pin(Sha256::digest(spki).into())
}

/// Verifies a signed document.
///
/// Guarantees: total over all bytes; the document is parsed only after its signature was verified.
/// Checks, in this order: size, envelope, pin, signature, version, form, cluster, generation, time.
///
/// # Errors
/// The first check that failed.
pub fn check(bytes: &[u8], expected: &Expected<'_>) -> Result<VerifiedDocument, DocumentFault> {
    if bytes.len() > MAX_BYTES {
        return Err(DocumentFault::TooLarge { found: bytes.len() });
    }
    let envelope: SignedDocument = object::parse(bytes)?;
    let field = |name: &str, text: &str| {
        STANDARD
            .decode(text)
            .map_err(|e| DocumentFault::Malformed(format!("`{name}` is not base64: {e}")))
    };
    let (document, spki) = (
        field("document", &envelope.document)?,
        field("key", &envelope.key)?,
    );
    let signature: [u8; 64] = field("signature", &envelope.signature)?
        .try_into()
        .map_err(|_opaque| {
            DocumentFault::Malformed(
                "`signature` is not the 64 bytes r ‖ s of ECDSA P-256".to_owned(),
            )
        })?;
    let public = VerifyingKey::from_public_key_der(&spki).map_err(|_opaque| {
        DocumentFault::Malformed("`key` is not the SubjectPublicKeyInfo of a P-256 key".to_owned())
    })?;
    let key = pin_of(&spki);
    let trusted = match expected.trust {
        Trust::Pins(pins) => pins.contains(&key),
        Trust::AnyKey => true,
    };
    if !trusted {
        return Err(DocumentFault::PinUnknown {
            found: key.to_string(),
        });
    }
    // Values of r or s that no signature can have, such as zero, are well-formed but not a
    // signature.
    let signature =
        Signature::from_slice(&signature).map_err(|_opaque| DocumentFault::Signature)?;
    public
        .verify(&message(&document), &signature)
        .map_err(|_opaque| DocumentFault::Signature)?;
    let document = Document::decode(&document)?;
    in_force(&document, expected)?;
    Ok(VerifiedDocument { document, key })
}

/// Checks that depend on the time and on what was seen before.
fn in_force(document: &Document, expected: &Expected<'_>) -> Result<(), DocumentFault> {
    let Expected {
        cluster,
        min_generation: least,
        now,
        ..
    } = *expected;
    let Document {
        generation: found,
        issued,
        expires,
        ..
    } = *document;
    if document.cluster != *cluster {
        return Err(DocumentFault::OtherCluster {
            found: document.cluster.to_string(),
            expected: cluster.to_string(),
        });
    }
    if found < least {
        return Err(DocumentFault::GenerationBack { found, least });
    }
    if issued > now.saturating_add(SKEW) {
        return Err(DocumentFault::NotYetValid { issued, now });
    }
    if expires <= now {
        return Err(DocumentFault::Expired { expires, now });
    }
    Ok(())
}
