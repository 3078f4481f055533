//! A machine without a TPM that proved its key: `unproven` makes it, the claimant holds it.

use super::Subject;
use crate::verdict::{Checks, ProvenMachine, Verdict};
use config_kube::Machine;
use config_protocol::Purpose;
use config_protocol::wire::Claims;
use config_tpm::Digest;

/// A machine without a TPM. Holding one proves: the machine holds the private key.
#[derive(Debug)]
pub(super) struct KeyHolder {
    /// The Machine, where the key is the one that it was admitted with.
    pub(super) proven: Option<ProvenMachine>,
    pub(super) machine: Machine,
    pub(super) subject: Subject,
    pub(super) purpose: Purpose,
    pub(super) key: Digest,
    pub(super) claims: Claims,
    pub(super) checks: Checks,
}

impl KeyHolder {
    pub(super) fn verdict(&self) -> Verdict {
        Verdict {
            checks: self.checks.list().to_vec(),
            ek_hash: None,
            claims: self.claims.clone(),
        }
    }
}
