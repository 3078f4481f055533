//! Evidence kept for dry runs: what another rule would decide on it.
//!
//! Possession is not checked again, as it depends on no rule. All other checks are the code of an
//! exchange.

use super::claimant::names;
use super::prior_approval::prior_approval;
use super::requests::{RequestContext, check_requests};
use super::{Pending, PriorApproval, Reference, identity, state};
use crate::inventory::current_status;
use crate::verdict::{Checks, Refusal, Stop, Verdict};
use config_kube::Decides;
use config_kube::policy::TpmVersion;
use config_protocol::wire::{Claims, Evidence};
use config_protocol::{Code, Purpose, name};
use config_tpm::Attest;
use config_tpm::Digest;

/// Longest event log that is kept, in bytes; a real one has some 15 KiB.
const KEPT_LOG: usize = 64 * 1024;

/// The evidence of one exchange. Holding one proves nothing: keep it only where the exchange's
/// verdict shows possession.
#[derive(Debug, Clone)]
pub struct RecordedEvidence {
    ek_hash: Digest,
    ek_spki: Vec<u8>,
    ek_certificate: Option<Vec<u8>>,
    nk_spki: Vec<u8>,
    claims: Claims,
    evidence: Evidence,
}

/// The decision that a rule would make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DryRunVerdict {
    /// The machine would be admitted.
    Accepted(Verdict),
    /// The machine would be queued; with the differences from the last approval.
    Queued(Verdict, Vec<String>),
    /// The machine would be refused.
    Refused(Box<Refusal>),
}

impl RecordedEvidence {
    /// Records evidence; `None` where its event log is too large to keep.
    pub fn of(pending: &Pending, evidence: &Evidence) -> Option<Self> {
        let fits = evidence.proof.event_log.as_bytes().len() <= KEPT_LOG;
        let (ek_spki, ek_certificate) = pending.endorsement()?;
        fits.then(|| Self {
            ek_hash: pending.ek_hash(),
            ek_spki,
            ek_certificate,
            nk_spki: pending.nk_spki().to_vec(),
            claims: pending.claims().clone(),
            evidence: evidence.clone(),
        })
    }

    /// SHA-256 of the EK's SubjectPublicKeyInfo.
    pub fn ek_hash(&self) -> Digest {
        self.ek_hash
    }

    /// The machine's name where no Machine has its EK.
    pub fn claimed_name(&self) -> String {
        if self.claims.name.is_empty() {
            name::derived(&self.ek_hash)
        } else {
            self.claims.name.clone()
        }
    }

    /// Approximate size in memory, in bytes.
    pub fn size(&self) -> usize {
        let certificate = self.ek_certificate.as_ref().map_or(0, Vec::len);
        self.evidence.proof.event_log.as_bytes().len() + certificate + 8 * 1024
    }

    /// The decision of `reference.rule` if the machine joined with this evidence at `now` (Unix
    /// seconds).
    pub fn dry_run(&self, reference: &Reference<'_>, now: u64) -> DryRunVerdict {
        let mut checks = Checks::default();
        let outcome = self.walk(reference, now, &mut checks);
        let code = |stop| checks.first_failure(stop);
        let outcome = outcome.map_err(code);
        let verdict = Verdict {
            checks: checks.into_list(),
            ek_hash: Some(self.ek_hash),
            claims: self.claims.clone(),
        };
        match (outcome, reference.rule.decides()) {
            (Err(code), _) => {
                DryRunVerdict::Refused(Box::new(Refusal::Anonymous { code, verdict }))
            }
            (Ok(prior), Decides::Person) if prior != PriorApproval::Unchanged => {
                DryRunVerdict::Queued(verdict, prior.changes().to_vec())
            }
            (Ok(_), _) => DryRunVerdict::Accepted(verdict),
        }
    }

    fn walk(
        &self,
        reference: &Reference<'_>,
        now: u64,
        checks: &mut Checks,
    ) -> Result<PriorApproval, Stop> {
        // In the order of an exchange, so that the first failure names the code that it would have.
        let found = identity::find(&self.ek_hash, &self.claims, reference, checks)?;
        let machine = found.machine();
        identity::admissible(machine, &self.ek_hash, &self.claims, reference, now, checks)?;
        let certificate = self.ek_certificate.as_deref();
        let issuer = identity::endorsement(
            machine,
            &self.ek_hash,
            &self.ek_spki,
            certificate,
            reference,
            now,
            checks,
        )?;
        let proof = &self.evidence.proof;
        let quote = Attest::parse(proof.quote.attest.as_bytes())
            .map_err(|_unlike_then| Stop(Code::AttestMalformed))?;
        // As a join, also where the evidence came with a renewal: the question is what the rule
        // would do with the machine anew.
        let evidence = state::StateEvidence {
            purpose: Purpose::Join,
            counters_at_hello: current_status(machine).and_then(|status| status.counters),
            clock: quote.clock_info,
            issuer: issuer.as_deref(),
            tpm_firmware: TpmVersion(quote.firmware_version),
            pcrs: &proof.pcrs,
            log: proof.event_log.as_bytes(),
            config: proof.config_event.as_ref(),
            claims: &self.claims,
        };
        state::check(&evidence, machine, reference, now, checks)?;
        let asks = RequestContext {
            claims: &self.claims,
            derived: Some(name::derived(&self.ek_hash)),
            nk_spki: &self.nk_spki,
            stranger: found.is_stranger(),
            client: self.evidence.client_csr.as_bytes(),
            serving: self.evidence.serving_csr.as_bytes(),
        };
        let requested = check_requests(&asks, machine, reference, now, checks)?;
        Ok(prior_approval(
            machine,
            Purpose::Join,
            &proof.pcrs,
            &names(&self.claims, &requested),
        ))
    }
}
