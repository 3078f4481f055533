//! What a machine showed, kept so that another rule can be asked what it would say to it.
//!
//! Possession is not looked at again: it does not depend on rules. All else goes through the same code as an exchange.

use super::claimant::names;
use super::requests::{Asks, check_requests};
use super::standing::standing;
use super::{Pending, Reference, Standing, identity, state};
use crate::code::Code;
use crate::digest::Digest;
use crate::inventory::known;
use crate::name;
use crate::question::Purpose;
use crate::tpm::Attest;
use crate::verdict::{Checks, Refusal, Stop, Verdict};
use crate::wire::{Claims, Evidence};
use config_kube::Decides;
use config_kube::policy::TpmVersion;

/// Longest event log that is kept, in bytes; a real one has some 15 KiB.
const KEPT_LOG: usize = 64 * 1024;

/// What a machine showed in one exchange. Proves nothing by itself: keep it where the exchange's verdict shows possession.
#[derive(Debug, Clone)]
pub struct Shown {
    ek_hash: Digest,
    ek_spki: Vec<u8>,
    ek_certificate: Option<Vec<u8>>,
    nk_spki: Vec<u8>,
    claims: Claims,
    evidence: Evidence,
}

/// What a rule would say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judged {
    /// It would be let in.
    Accepted(Verdict),
    /// A person would be asked; what changed since the last approval.
    Queued(Verdict, Vec<String>),
    /// It would be refused.
    Refused(Box<Refusal>),
}

impl Shown {
    /// What is being shown; none where it is larger than is kept.
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

    /// The name that the machine goes by where no Machine has its EK.
    pub fn claimed_name(&self) -> String {
        if self.claims.name.is_empty() {
            name::derived(&self.ek_hash)
        } else {
            self.claims.name.clone()
        }
    }

    /// Bytes that keeping it takes, about.
    pub fn size(&self) -> usize {
        let certificate = self.ek_certificate.as_ref().map_or(0, Vec::len);
        self.evidence.proof.event_log.as_bytes().len() + certificate + 8 * 1024
    }

    /// What the rule would say if the machine came with this to join.
    pub fn judge(&self, reference: &Reference<'_>, now: u64) -> Judged {
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
            (Err(code), _) => Judged::Refused(Box::new(Refusal::Anonymous { code, verdict })),
            (Ok(standing), Decides::Person) if standing != Standing::Unchanged => {
                Judged::Queued(verdict, standing.changes().to_vec())
            }
            (Ok(_), _) => Judged::Accepted(verdict),
        }
    }

    fn walk(
        &self,
        reference: &Reference<'_>,
        now: u64,
        checks: &mut Checks,
    ) -> Result<Standing, Stop> {
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
        let said = state::Said {
            purpose: Purpose::Join,
            then: known(machine).and_then(|status| status.counters),
            clock: quote.clock_info,
            issuer: issuer.as_deref(),
            tpm_firmware: TpmVersion(quote.firmware_version),
            pcrs: &proof.pcrs,
            log: proof.event_log.as_bytes(),
            config: proof.config_event.as_ref(),
            claims: &self.claims,
        };
        state::check(&said, machine, reference, now, checks)?;
        let asks = Asks {
            claims: &self.claims,
            derived: Some(name::derived(&self.ek_hash)),
            nk_spki: &self.nk_spki,
            stranger: found.is_stranger(),
            client: self.evidence.client_csr.as_bytes(),
            serving: self.evidence.serving_csr.as_bytes(),
        };
        let requested = check_requests(&asks, machine, reference, now, checks)?;
        Ok(standing(
            machine,
            Purpose::Join,
            &proof.pcrs,
            &names(&self.claims, &requested),
        ))
    }
}
