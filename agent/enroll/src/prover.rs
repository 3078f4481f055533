//! The machine's proof: the outputs of its TPM and its logs, as messages of the protocol.
//! Everything here blocks.

use agent_tpm::{EndorsementKey, Tpm};
use config_protocol::prover::{self, ProverError, TpmOutputs};
use config_protocol::question::{Channel, Purpose};
use config_protocol::wire::{Challenge, Claims, ConfigEvent, Keys, Proof};
use config_tpm::Public;
use config_tpm::eventlog::MAX_EVENT_LOG;
use config_tpm::{Digest, pcr};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Largest record of the configuration event; it has four short fields.
const CONFIG_EVENT_LIMIT: u64 = 4096;

/// Where the machine's logs are.
#[derive(Debug, Clone)]
pub struct Logs {
    /// The firmware's event log as the kernel shows it; need not exist.
    pub firmware: PathBuf,
    /// init's record of the configuration event; need not exist.
    pub config_event: PathBuf,
}

/// Why the machine cannot prove anything.
#[derive(Debug, thiserror::Error)]
pub enum ProveError {
    /// The TPM failed.
    #[error("the TPM failed")]
    Tpm(#[from] agent_tpm::Error),
    /// What is to be sent does not fit the protocol.
    #[error("the proof cannot be made")]
    Protocol(#[from] ProverError),
    /// A log cannot be read.
    #[error("{} cannot be read", path.display())]
    Log {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The TPM with the machine's logs.
#[derive(Debug, Clone)]
pub struct Prover {
    tpm: Tpm,
    logs: Logs,
}

impl Prover {
    /// Does not use the TPM yet.
    pub fn new(tpm: Tpm, logs: Logs) -> Self {
        Self { tpm, logs }
    }

    /// The TPM.
    pub fn tpm(&self) -> &Tpm {
        &self.tpm
    }

    /// The endorsement key to show in attempt number `turn`: the preferred one first, then the
    /// others the TPM has.
    ///
    /// # Errors
    /// The TPM failed to list its endorsement keys, or has none.
    pub fn endorsement_key(&self, turn: usize) -> Result<EndorsementKey, ProveError> {
        let keys = self.tpm.endorsement_keys()?;
        let index = turn.checked_rem(keys.len()).unwrap_or(0);
        Ok(keys
            .into_iter()
            .nth(index)
            .ok_or(agent_tpm::Error::NoEndorsementKey)?)
    }

    /// What this machine can't prove although it has a TPM, one sentence each; blocks.
    ///
    /// # Errors
    /// The TPM failed to list its endorsement keys, or an event log is there and can't be read.
    pub fn lacks(&self) -> Result<Vec<String>, ProveError> {
        let mut lacks = Vec::new();
        let keys = self.tpm.endorsement_keys()?;
        if keys.iter().all(|key| key.certificate.is_none()) {
            let spkis = keys
                .iter()
                .filter_map(|key| Public::parse(&key.public).ok()?.spki().ok());
            let hashes: Vec<String> = spkis.map(|spki| Digest::of(&spki).to_text()).collect();
            lacks.push(format!(
                "the TPM holds no certificate of its endorsement key, so nothing shows who made it: a rule with `ek.issuers` \
                 refuses it, and the inventory must name the key: pratique machine --ek-hash {}",
                hashes.join(" --ek-hash ")
            ));
        }
        if read_bounded(&self.logs.firmware, MAX_EVENT_LOG as u64)?.is_none_or(|log| log.is_empty())
        {
            lacks.push(format!(
                "the firmware left no event log ({}), so nothing shows what was booted and cloud-verify refuses it: boot by \
                 UEFI, with the TPM switched on in the firmware's settings",
                self.logs.firmware.display()
            ));
        }
        if self.config_event()?.is_none() {
            lacks.push(
                "the configuration was not measured at this boot, so nothing shows which it is: a rule with \
                 `config.measured` refuses it; boot the image, whose init measures it"
                    .to_owned(),
            );
        }
        Ok(lacks)
    }

    /// The machine's keys as messages carry them.
    ///
    /// # Errors
    /// The TPM failed to derive the attestation key or the node key, or a public area is longer
    /// than a message may carry.
    pub fn keys(&self, ek: &EndorsementKey) -> Result<Keys, ProveError> {
        let (ak, nk) = (self.tpm.attestation_key()?, self.tpm.node_key()?);
        Ok(prover::keys(
            &ek.public,
            &ak.public,
            &nk.public,
            ek.certificate.as_deref(),
        )?)
    }

    /// Answers a challenge. `csr_hash` and `claims` are those that were announced with the keys.
    ///
    /// # Errors
    /// The TPM failed or refuses the credential, the challenge asks for other registers, or the
    /// event log cannot be read.
    pub fn prove(
        &self,
        purpose: Purpose,
        ek: &EndorsementKey,
        csr_hash: Digest,
        claims: &Claims,
        challenge: &Challenge,
        channel: &Channel,
    ) -> Result<Proof, ProveError> {
        let answer = prover::answer(
            purpose,
            &self.keys(ek)?,
            csr_hash,
            claims,
            challenge,
            channel,
        )?;
        let question = answer.question().0;
        let credential = &challenge.credential;
        let secret = self.tpm.activate(
            ek,
            credential.id_object.as_bytes(),
            credential.encrypted_secret.as_bytes(),
        )?;
        let certified = self.tpm.certify(question)?;
        let quote = self.tpm.quote(question, pcr::QUOTE_PCRS)?;
        Ok(answer.proof(TpmOutputs {
            secret: secret.to_vec(),
            quote: quote.attestation.attest,
            quote_signature: quote.attestation.signature,
            certify: certified.attest,
            certify_signature: certified.signature,
            pcrs: quote.pcrs,
            event_log: read_bounded(&self.logs.firmware, MAX_EVENT_LOG as u64)?.unwrap_or_default(),
            config_event: self.config_event()?,
        })?)
    }

    /// init's record; absent if nothing was measured (on a host, or without a TPM at boot).
    fn config_event(&self) -> Result<Option<ConfigEvent>, ProveError> {
        let path = &self.logs.config_event;
        let Some(text) = read_bounded(path, CONFIG_EVENT_LIMIT)? else {
            return Ok(None);
        };
        let fault = |error: serde_json::Error| ProveError::Log {
            path: path.clone(),
            source: error.into(),
        };
        let record: serde_json::Value = serde_json::from_slice(&text).map_err(fault)?;
        if record.get("measured").and_then(serde_json::Value::as_bool) == Some(false) {
            return Ok(None);
        }
        serde_json::from_value(record).map(Some).map_err(fault)
    }
}

/// A whole file of at most `limit` bytes; `None` where there is none. Kernel files report no size,
/// so it reads up to the limit.
fn read_bounded(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ProveError> {
    let fault = |source| ProveError::Log {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(fault(source)),
    };
    let mut bytes = Vec::new();
    let length = file
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(fault)?;
    if length as u64 > limit {
        return Err(fault(io::ErrorKind::FileTooLarge.into()));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_log_is_none_and_a_too_large_one_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        assert!(read_bounded(&path, 8).expect("no file").is_none());
        std::fs::write(&path, [1; 8]).expect("a file");
        assert_eq!(read_bounded(&path, 8).expect("a file"), Some(vec![1; 8]));
        std::fs::write(&path, [1; 9]).expect("a file");
        assert!(matches!(
            read_bounded(&path, 8),
            Err(ProveError::Log { .. })
        ));
    }
}
