//! `unproven/v1`: how a machine without a TPM joins. All that it can prove is that it holds one
//! key, which anyone can make, now and on this connection. Which machine holds the key, and what it
//! booted, are unproven claims.
//!
//! Its messages are not accepted by cloud-verify/v1, nor the other way round: paths, sessions,
//! messages, labels and signed bytes differ.

use crate::question::{Channel, Purpose, of_fields};
use crate::wire::{Blob, Claims, Der, SessionId, Transcript, csr_hash};
use config_tpm::Digest;
use serde::{Deserialize, Serialize};

/// The protocol's name, in every hello.
pub const PROTOCOL: &str = "unproven/v1";
/// `POST`: [`Hello`] → [`Challenge`].
pub const SESSIONS_PATH: &str = "/attest/v1/unproven";
/// `POST` over mTLS: [`Hello`] → [`Challenge`].
pub const RENEWALS_PATH: &str = "/attest/v1/unproven-renewals";
/// The prefix of Q in the signed bytes: no TPM attestation, certificate request or TLS transcript
/// begins with it.
pub const SIGNATURE_LABEL: &[u8] = b"pratique unproven/v1 signature\n";

/// SubjectPublicKeyInfo of an ECDSA P-256 key, DER.
pub type KeyBlob = Blob<256>;

/// Step 1: the node's key and claims, and the hash of its certificate requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hello {
    /// Always [`PROTOCOL`].
    pub protocol: String,
    /// The node key.
    pub key: KeyBlob,
    /// Hash over both certificate requests ([`csr_hash`]).
    pub csr_hash: Digest,
    /// Claims; the name must be there.
    pub claims: Claims,
}

/// Step 2: the nonce that the evidence must sign, and the time limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Challenge {
    /// The session.
    pub session: SessionId,
    /// Fresh for each session.
    pub nonce: Digest,
    /// Seconds until the session ends.
    pub expires_in_seconds: u64,
}

/// Step 3: possession of the key, and the requests whose hash was announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Evidence {
    /// What the node put into Q, so that a mismatch can be named. It proves nothing by itself.
    pub transcript: Transcript,
    /// DER ECDSA P-256/SHA-256 signature of the node key over [`signed`].
    pub signature: Blob<256>,
    /// Request for the client certificate (key: the node key).
    pub client_csr: Der,
    /// Request for the kubelet API's serving certificate.
    pub serving_csr: Der,
}

/// The label of Q.
pub fn label(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Renew => "unproven/v1 renewal",
        // This protocol has no bootstrap: a first master without a TPM proves nothing to the admin.
        Purpose::Join | Purpose::Bootstrap => PROTOCOL,
    }
}

/// Q = SHA-256 over label, session, nonce, SHA-256 of the node key's SubjectPublicKeyInfo, CSR
/// hash, claims hash, server SPKI hash and TLS exporter, each with its length as u16 big-endian
/// before it.
pub fn question(
    purpose: Purpose,
    session: &SessionId,
    key: &Digest,
    transcript: &Transcript,
) -> Digest {
    let fields: [&[u8]; 8] = [
        label(purpose).as_bytes(),
        &session.0,
        transcript.nonce.as_bytes(),
        key.as_bytes(),
        transcript.csr_hash.as_bytes(),
        transcript.claims_hash.as_bytes(),
        transcript.server_spki.as_bytes(),
        transcript.exporter.as_bytes(),
    ];
    of_fields(&fields)
}

/// The bytes that the node key signs: [`SIGNATURE_LABEL`] and Q.
pub fn signed(question: &Digest) -> Vec<u8> {
    [SIGNATURE_LABEL, question.as_bytes()].concat()
}

/// The node's step 1.
pub fn hello(key: KeyBlob, client_csr: &[u8], serving_csr: &[u8], claims: Claims) -> Hello {
    Hello {
        protocol: PROTOCOL.to_owned(),
        key,
        csr_hash: csr_hash(client_csr, serving_csr),
        claims,
    }
}

/// The node's step 3: the transcript, and what the node key must sign.
pub fn answer(
    purpose: Purpose,
    hello: &Hello,
    challenge: &Challenge,
    channel: &Channel,
) -> (Transcript, Vec<u8>) {
    let transcript = Transcript::of(challenge.nonce, hello.csr_hash, &hello.claims, channel);
    let key = Digest::of(hello.key.as_bytes());
    let question = question(purpose, &challenge.session, &key, &transcript);
    (transcript, signed(&question))
}
