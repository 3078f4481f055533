//! The node's side of an exchange, without I/O: the messages to send, and the TPM commands to run
//! in between. The steps are those of WIRE.md.
//!
//! - Step 1: [`hello`], from the keys' public areas, both certificate requests and the claims.
//! - Step 3: [`answer`], from the master's challenge of step 2, says what to activate and gives Q.
//!   The caller runs `TPM2_ActivateCredential`, `TPM2_Quote(Q)`, `TPM2_Certify(NK, Q)` and
//!   `TPM2_PCR_Read`. [`ChallengeAnswer::proof`] makes the proof from the outputs; with the
//!   requests it is the evidence.

use crate::question::{Channel, Names, Purpose, mac, question};
use crate::wire::{
    Blob, Challenge, Claims, ConfigEvent, Der, Hello, Keys, PROTOCOL, Proof, Signed, TooLong,
    Transcript, csr_hash,
};
use config_tpm::Digest;
use config_tpm::pcr::{QUOTE_PCRS, Selection};
use config_tpm::{Public, TpmError};
use std::collections::BTreeMap;

/// Why the node cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ProverError {
    /// A field of the node's own message is over its limit.
    #[error("{0} is too long for the protocol")]
    TooLong(&'static str, #[source] TooLong),
    /// A key of the node's own TPM cannot be parsed.
    #[error("the public area of the {0} is not of this protocol")]
    Key(&'static str, #[source] TpmError),
    /// The master asks for registers that are not the protocol's.
    #[error("the master asks for registers {0:?}, the protocol has {QUOTE_PCRS:?}")]
    Selection(Vec<u8>),
}

/// The public areas as messages carry them. Each is a TPMT_PUBLIC; the certificate is DER without
/// padding.
///
/// # Errors
/// [`ProverError::TooLong`] where a public area or the certificate is longer than a message may
/// carry.
pub fn keys(
    ek: &[u8],
    ak: &[u8],
    nk: &[u8],
    ek_certificate: Option<&[u8]>,
) -> Result<Keys, ProverError> {
    let area =
        |what, bytes: &[u8]| Blob::new(bytes).map_err(|cause| ProverError::TooLong(what, cause));
    let ek_certificate = match ek_certificate {
        Some(der) => {
            Some(Der::new(der).map_err(|cause| ProverError::TooLong("EK certificate", cause))?)
        }
        None => None,
    };
    Ok(Keys {
        ek: area("endorsement key", ek)?,
        ak: area("attestation key", ak)?,
        nk: area("node key", nk)?,
        ek_certificate,
    })
}

/// Step 1: the hello.
pub fn hello(keys: Keys, client_csr: &[u8], serving_csr: &[u8], claims: Claims) -> Hello {
    Hello {
        protocol: PROTOCOL.to_owned(),
        keys,
        csr_hash: csr_hash(client_csr, serving_csr),
        claims,
    }
}

/// The Names of keys.
///
/// # Errors
/// [`ProverError::Key`] where a public area cannot be parsed.
pub fn names(keys: &Keys) -> Result<Names, ProverError> {
    let name = |what, bytes: &[u8]| {
        Public::parse(bytes)
            .map(|public| public.name())
            .map_err(|cause| ProverError::Key(what, cause))
    };
    Ok(Names {
        ek: name("endorsement key", keys.ek.as_bytes())?,
        ak: name("attestation key", keys.ak.as_bytes())?,
        nk: name("node key", keys.nk.as_bytes())?,
    })
}

/// The answer to a challenge while the TPM makes it: Q, and what the proof repeats.
#[derive(Debug, Clone)]
pub struct ChallengeAnswer {
    question: Digest,
    transcript: Transcript,
}

/// Step 3, first half: computes Q. `csr_hash` and `claims` are those of the hello (at bootstrap
/// `csr_hash` is the SHA-256 of the root's DER). The caller activates `challenge.credential`.
///
/// # Errors
/// [`ProverError::Selection`] where the challenge asks for other registers than [`QUOTE_PCRS`];
/// [`ProverError::Key`] where a public area cannot be parsed.
pub fn answer(
    purpose: Purpose,
    keys: &Keys,
    csr_hash: Digest,
    claims: &Claims,
    challenge: &Challenge,
    channel: &Channel,
) -> Result<ChallengeAnswer, ProverError> {
    if challenge.pcrs != QUOTE_PCRS {
        return Err(ProverError::Selection(
            challenge.pcrs.iter().copied().take(24).collect(),
        ));
    }
    let transcript = Transcript::of(challenge.nonce, csr_hash, claims, channel);
    let question = question(purpose, &challenge.session, &names(keys)?, &transcript);
    Ok(ChallengeAnswer {
        question,
        transcript,
    })
}

/// Raw outputs of the TPM, and the logs.
#[derive(Debug, Clone)]
pub struct TpmOutputs {
    /// The output of ActivateCredential: S.
    pub secret: Vec<u8>,
    /// TPMS_ATTEST of the quote, without a size before it.
    pub quote: Vec<u8>,
    /// TPMT_SIGNATURE over it.
    pub quote_signature: Vec<u8>,
    /// TPMS_ATTEST of the certification, without a size before it.
    pub certify: Vec<u8>,
    /// TPMT_SIGNATURE over it.
    pub certify_signature: Vec<u8>,
    /// Values of the quoted registers in the SHA-256 bank.
    pub pcrs: BTreeMap<u8, Digest>,
    /// The firmware's event log.
    pub event_log: Vec<u8>,
    /// init's record of the configuration event.
    pub config_event: Option<ConfigEvent>,
}

impl ChallengeAnswer {
    /// Q: extraData of the quote and qualifyingData of the certification.
    pub fn question(&self) -> &Digest {
        &self.question
    }

    /// The registers to quote.
    pub fn selection(&self) -> Selection {
        Selection::of(QUOTE_PCRS)
    }

    /// Step 3, second half: assembles the proof.
    ///
    /// # Errors
    /// [`ProverError::TooLong`] where an output of the TPM or the event log is longer than a
    /// message may carry.
    pub fn proof(&self, outputs: TpmOutputs) -> Result<Proof, ProverError> {
        let signed = |what, attest: Vec<u8>, signature: Vec<u8>| {
            let too_long = |cause| ProverError::TooLong(what, cause);
            Ok(Signed {
                attest: Blob::new(attest).map_err(too_long)?,
                signature: Blob::new(signature).map_err(too_long)?,
            })
        };
        Ok(Proof {
            transcript: self.transcript.clone(),
            mac: mac(&outputs.secret, &self.question),
            quote: signed("quote", outputs.quote, outputs.quote_signature)?,
            certify: signed("certification", outputs.certify, outputs.certify_signature)?,
            pcrs: outputs.pcrs,
            event_log: Blob::new(outputs.event_log)
                .map_err(|cause| ProverError::TooLong("event log", cause))?,
            config_event: outputs.config_event,
        })
    }
}
