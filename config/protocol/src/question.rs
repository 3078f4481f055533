//! Q: the one digest that ties evidence to its exchange.

use crate::wire::{BOOTSTRAP_PROTOCOL, Claims, PROTOCOL, SessionId, Transcript};
use config_tpm::Digest;
use config_tpm::{HashAlg, Name, hmac};

/// What an exchange is for; its label is the first field of Q, so that evidence made for one cannot
/// serve another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A machine joins.
    Join,
    /// A node renews its certificates.
    Renew,
    /// The admin attests the first master.
    Bootstrap,
}

impl Purpose {
    /// The label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Join => PROTOCOL,
            Self::Renew => "cloud-verify/v1 renewal",
            Self::Bootstrap => BOOTSTRAP_PROTOCOL,
        }
    }
}

/// The TLS connection as one side sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Channel {
    /// SHA-256 of the SubjectPublicKeyInfo in the server's certificate (at bootstrap: in the
    /// root's).
    pub server_spki: Digest,
    /// TLS exporter: label [`crate::wire::EXPORTER_LABEL`], empty context, 32 bytes.
    pub exporter: Digest,
}

impl Transcript {
    /// What an exchange is about, as one side knows it.
    pub fn of(nonce: Digest, csr_hash: Digest, claims: &Claims, channel: &Channel) -> Self {
        Self {
            nonce,
            csr_hash,
            claims_hash: claims.hash(),
            server_spki: channel.server_spki,
            exporter: channel.exporter,
        }
    }
}

/// The Names of a machine's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Endorsement key.
    pub ek: Name,
    /// Attestation key.
    pub ak: Name,
    /// Node key.
    pub nk: Name,
}

/// Q = SHA-256 over label, session, nonce, Name(EK), Name(AK), Name(NK), CSR hash, claims hash,
/// server SPKI hash and TLS exporter, each with its length as u16 big-endian before it.
pub fn question(
    purpose: Purpose,
    session: &SessionId,
    names: &Names,
    transcript: &Transcript,
) -> Digest {
    let fields: [&[u8]; 10] = [
        purpose.label().as_bytes(),
        &session.0,
        transcript.nonce.as_bytes(),
        names.ek.as_bytes(),
        names.ak.as_bytes(),
        names.nk.as_bytes(),
        transcript.csr_hash.as_bytes(),
        transcript.claims_hash.as_bytes(),
        transcript.server_spki.as_bytes(),
        transcript.exporter.as_bytes(),
    ];
    of_fields(&fields)
}

/// SHA-256 over fields, each with its length as u16 big-endian before it, so that no two lists of
/// fields give the same bytes.
pub(crate) fn of_fields(fields: &[&[u8]]) -> Digest {
    let mut bytes = Vec::with_capacity(384);
    for field in fields {
        bytes.extend_from_slice(&u16::try_from(field.len()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend_from_slice(field);
    }
    Digest::of(&bytes)
}

/// HMAC-SHA-256(S, Q).
pub fn mac(secret: &[u8], question: &Digest) -> Digest {
    Digest::from_slice(&hmac(HashAlg::Sha256, secret, &[question.as_bytes()])).unwrap_or_default()
}
