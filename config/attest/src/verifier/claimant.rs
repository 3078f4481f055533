//! Step 4: the claimant, a machine whose identity is proved, and the decision on it: by the rule,
//! by a person, or without a decision.

use super::key_holder::KeyHolder;
use super::prior_approval::{
    PriorApproval, hex_registers, prior_approval, prior_approval_without_tpm,
};
use super::proof::{AttestedMachine, check_proof, proven_of, proven_refusal};
use super::requests::{RequestContext, Requested, check_requests, claimed_addresses, taken};
use super::{CertificateGrant, Pending, Reference, Subject};
use crate::inventory::{Inventory, machine_id};
use crate::policy::CheckedRule;
use crate::verdict::{MachineId, ProvenMachine, Refusal, Verdict};
use config_certificates::San;
use config_kube::machine::Admission;
use config_kube::{Decides, Machine};
use config_protocol::wire::{Claims, Evidence, csr_hash};
use config_protocol::{Channel, Code, Purpose, name, unproven};
use config_tpm::Digest;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A machine after the check of its evidence, before the decision on it.
///
/// Holding one proves: the machine has the TPM of its endorsement key, with AK and NK in it
/// (without a TPM: it holds its key), and its certificate requests ask for no more than the node
/// may have. It does not prove that the other checks passed: the verdict says so, and the rule's
/// policy decides. Only [`check_evidence`] and [`super::check_unproven`] make one.
#[derive(Debug)]
pub struct Claimant {
    pub(super) basis: Basis,
    pub(super) requested: Requested,
    pub(super) rule: CheckedRule,
}

/// The basis of a claimant.
#[derive(Debug)]
pub(super) enum Basis {
    /// Its TPM.
    Attested(Box<AttestedMachine>),
    /// A key that anyone can make (no TPM).
    KeyOnly(Box<KeyHolder>),
}

/// The decision to admit a machine under a rule that does not enforce the verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approval {
    /// A person approved a request.
    Person {
        /// The request's name.
        request: String,
        /// The evidence that was approved: [`Claimant::id`] of the claimant for which the request
        /// was created.
        id: Digest,
        /// Who approved it, and when, as the API recorded it.
        by: String,
    },
    /// An earlier approval still holds ([`PriorApproval::Unchanged`]).
    Before,
    /// The rule approves every machine without a decision.
    Nobody,
}

/// Step 4: checks the evidence of a join or a renewal at `now` (Unix seconds).
///
/// # Errors
/// A refusal: anonymous up to the check of possession, proven after it.
pub fn check_evidence(
    pending: Pending,
    evidence: &Evidence,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<Claimant, Box<Refusal>> {
    let found = csr_hash(
        evidence.client_csr.as_bytes(),
        evidence.serving_csr.as_bytes(),
    );
    let mut checks = pending.resumed(reference.rule.enforces());
    // Before the proof, and anonymous: Q holds the hash of step 2, so the TPM vouches for no other
    // requests, and a caller that changed them proved nothing.
    let same = found == pending.csr_hash();
    if let Err(stop) = checks.must("requests", Code::CsrHash, same, pending.csr_hash(), found) {
        return Err(super::refusal(
            stop,
            checks,
            Some(pending.ek_hash()),
            pending.claims(),
        ));
    }
    let mut attested = check_proof(pending, &evidence.proof, reference, channel, now)?;
    let pending = &attested.pending;
    let asks = RequestContext {
        claims: pending.claims(),
        derived: Some(name::derived(&pending.ek_hash())),
        nk_spki: pending.nk_spki(),
        stranger: matches!(pending.subject(), Subject::Stranger(_)),
        client: evidence.client_csr.as_bytes(),
        serving: evidence.serving_csr.as_bytes(),
    };
    match check_requests(
        &asks,
        &attested.machine,
        reference,
        now,
        &mut attested.checks,
    ) {
        Ok(requested) => Ok(Claimant::new(
            Basis::Attested(Box::new(attested)),
            requested,
            reference.rule.clone(),
        )),
        // The machine's own fault: Q covers the hash of these requests.
        Err(stop) => Err(proven_refusal(
            attested.accused(),
            &attested.pending,
            attested.checks,
            stop,
        )),
    }
}

impl Claimant {
    pub(super) fn new(basis: Basis, requested: Requested, rule: CheckedRule) -> Self {
        Self {
            basis,
            requested,
            rule,
        }
    }

    /// The Machine that made this evidence; `None` for a stranger and, without a TPM, where the key
    /// is not the one that the Machine was admitted with.
    pub fn machine(&self) -> Option<&MachineId> {
        self.proven_machine().map(ProvenMachine::id)
    }

    /// The Machine that may be granted certificates.
    fn proven_machine(&self) -> Option<&ProvenMachine> {
        match &self.basis {
            Basis::Attested(attested) => attested.proven.as_ref(),
            Basis::KeyOnly(keyed) => keyed.proven.as_ref(),
        }
    }

    /// The Machine, or the one that would be created.
    fn object(&self) -> &Machine {
        match &self.basis {
            Basis::Attested(attested) => &attested.machine,
            Basis::KeyOnly(keyed) => &keyed.machine,
        }
    }

    fn subject(&self) -> &Subject {
        match &self.basis {
            Basis::Attested(attested) => attested.pending.subject(),
            Basis::KeyOnly(keyed) => &keyed.subject,
        }
    }

    /// Whether the inventory does not have the machine.
    pub fn is_stranger(&self) -> bool {
        matches!(self.subject(), Subject::Stranger(_))
    }

    /// The name of its Machine; `None` for a stranger.
    pub fn machine_name(&self) -> Option<&str> {
        match self.subject() {
            Subject::Known(id) => Some(&id.name),
            Subject::Stranger(_) | Subject::Refused(_) => None,
        }
    }

    /// Whether it has a TPM, which proved which machine it is.
    pub fn has_tpm(&self) -> bool {
        matches!(self.basis, Basis::Attested(_))
    }

    /// [`Claimant::machine`] where the EK is the Machine's by list or binding, so that a refusal
    /// may have a consequence for it.
    pub fn own_machine(&self) -> Option<&MachineId> {
        self.machine().filter(|_| self.accused().is_some())
    }

    /// The Machine whose state a refusal may change.
    fn accused(&self) -> Option<ProvenMachine> {
        match &self.basis {
            Basis::Attested(attested) => attested.accused(),
            Basis::KeyOnly(keyed) => keyed.proven.clone(),
        }
    }

    /// The Node's name.
    pub fn node_name(&self) -> &str {
        self.object().node_name()
    }

    /// The machine's identity in records: the hash of its endorsement key or, without a TPM, of its
    /// node key, with a note.
    pub fn party(&self) -> String {
        match &self.basis {
            Basis::Attested(attested) => attested.ek_hash().to_text(),
            Basis::KeyOnly(keyed) => format!("none: no TPM; node key {}", keyed.key.to_text()),
        }
    }

    /// The role of its Machine, or of the one that would be created.
    pub fn role(&self) -> &str {
        &self.object().spec.role
    }

    /// Join or renewal.
    pub fn purpose(&self) -> Purpose {
        match &self.basis {
            Basis::Attested(attested) => attested.pending.purpose(),
            Basis::KeyOnly(keyed) => keyed.purpose,
        }
    }

    /// The rule that decides.
    pub fn rule(&self) -> &CheckedRule {
        &self.rule
    }

    /// The digest that an approval is for: this machine, in this boot and state, with these claims.
    /// Nonce and session are not in it, so that the approval holds for the machine's next attempt.
    /// SHA-256 over EK hash, Name(NK), the quoted registers and the hash of the claims; without a
    /// TPM over label, hash of the node key and hash of the claims.
    pub fn id(&self) -> Digest {
        match &self.basis {
            Basis::Attested(attested) => {
                let registers: Vec<u8> = attested
                    .state
                    .registers
                    .values()
                    .flat_map(|value| value.0)
                    .collect();
                let pending = &attested.pending;
                // Every part has a fixed length (a quote covers exactly the registers that were
                // asked for), so the concatenation has one reading.
                let claims = pending.claims().hash();
                let (ek, nk) = (pending.ek_hash(), &pending.names().nk);
                Digest::of_parts(&[ek.as_bytes(), nk.as_bytes(), &registers, claims.as_bytes()])
            }
            Basis::KeyOnly(keyed) => {
                let label = unproven::PROTOCOL.as_bytes();
                Digest::of_parts(&[label, keyed.key.as_bytes(), keyed.claims.hash().as_bytes()])
            }
        }
    }

    /// All checks so far.
    pub fn verdict(&self) -> Verdict {
        match &self.basis {
            Basis::Attested(attested) => attested.verdict(),
            Basis::KeyOnly(keyed) => keyed.verdict(),
        }
    }

    /// Whether an earlier approval of the Machine holds for this evidence.
    pub fn prior_approval(&self) -> PriorApproval {
        let names = names(self.claims(), &self.requested);
        match &self.basis {
            Basis::Attested(attested) => prior_approval(
                &attested.machine,
                self.purpose(),
                &attested.state.registers,
                &names,
            ),
            Basis::KeyOnly(keyed) => prior_approval_without_tpm(&keyed.machine, &keyed.key, &names),
        }
    }

    fn claims(&self) -> &Claims {
        match &self.basis {
            Basis::Attested(attested) => attested.pending.claims(),
            Basis::KeyOnly(keyed) => &keyed.claims,
        }
    }

    /// Addresses of the serving certificate that the machine claims and the inventory does not give
    /// it.
    pub fn claimed_addresses(&self) -> Vec<IpAddr> {
        claimed_addresses(&self.requested.serving.sans, self.object())
    }

    /// Whether another machine holds a certificate for one of the claimed addresses at `now` (Unix
    /// seconds), or has it by the inventory. Check it again before the admission: two exchanges may
    /// pass the check of evidence before either is recorded.
    pub fn is_overtaken_in(&self, inventory: &Inventory, now: u64) -> bool {
        let (machine, claimed) = (self.object(), self.claimed_addresses());
        // The inventory gives the machine all addresses that it asks for: none can be taken by a
        // claim.
        if claimed.is_empty() {
            return false;
        }
        let others = inventory
            .iter()
            .filter(|other| other.metadata.name != machine.metadata.name);
        let mut listed = others
            .flat_map(|other| &other.spec.addresses)
            .map(|text| San::from_text(text));
        let given = listed.any(|name| claimed.iter().any(|address| name == San::Ip(*address)));
        given || taken(&self.requested.serving.sans, machine, inventory, now).is_some()
    }

    /// The Machine to create before this stranger can be approved; `None` where there is one. After
    /// a person's decision its spec lists the EK and the addresses; without a decision the EK is
    /// only recorded as seen, and the addresses only in the status.
    pub fn to_make(&self) -> Option<Machine> {
        let Subject::Stranger(machine) = self.subject() else {
            return None;
        };
        let mut machine = Machine::clone(machine);
        if let Basis::Attested(attested) = &self.basis {
            let ek = vec![attested.ek_hash().to_text()];
            match self.rule.decides() {
                Decides::Always => machine.spec.ek.seen = ek,
                Decides::Person | Decides::Verifier | Decides::Never => machine.spec.ek.hashes = ek,
            }
        }
        if self.rule.decides() != Decides::Always {
            let names = self.requested.serving.sans.iter();
            machine.spec.addresses = names.filter_map(address).collect();
        }
        Some(machine)
    }

    /// The grant under a rule that enforces its verdict: a claimant under such a rule passed every
    /// check.
    ///
    /// # Errors
    /// `POLICY_REJECTS` where the rule leaves the decision to others, or the machine has no TPM.
    pub fn grant(self) -> Result<CertificateGrant, Box<Refusal>> {
        let enforced = self.rule.enforces() && self.has_tpm();
        // `own` is not needed here: an issuer's certificate is enough to be admitted, and only not
        // enough to be accused.
        let Some(proven) = self.proven_machine().filter(|_| enforced).cloned() else {
            return Err(self.refused(Code::PolicyRejects));
        };
        let admission = self.admission();
        Ok(CertificateGrant::new(self, proven, admission))
    }

    /// The grant by an approval. `made` is the object of [`Claimant::to_make`], as the API created
    /// it.
    ///
    /// # Errors
    /// `POLICY_REJECTS` where the approval is not of the rule's kind, or for other evidence;
    /// `MACHINE_UNKNOWN` without a Machine.
    pub fn approve(
        self,
        approval: &Approval,
        made: Option<&Machine>,
    ) -> Result<CertificateGrant, Box<Refusal>> {
        let person = self.rule.decides() == Decides::Person;
        let admission = match approval {
            Approval::Person { request, id, by } if person && *id == self.id() => {
                // With the registers that the person saw: later boots are compared with these.
                let mut admission = Admission {
                    request: request.clone(),
                    by: by.clone(),
                    ..self.admission()
                };
                if let Basis::Attested(attested) = &self.basis {
                    admission.registers = hex_registers(&attested.state.registers);
                }
                Some(admission)
            }
            // The recorded admission stays as it is: only a person moves the registers that later
            // boots are compared with.
            Approval::Before if person && self.prior_approval() == PriorApproval::Unchanged => self
                .object()
                .status
                .as_ref()
                .and_then(|status| status.admission.clone()),
            Approval::Nobody if self.rule.decides() == Decides::Always => Some(self.admission()),
            Approval::Person { .. } | Approval::Before | Approval::Nobody => None,
        };
        let Some(admission) = admission else {
            return Err(self.refused(Code::PolicyRejects));
        };
        match self.proven(made) {
            Some(proven) => Ok(CertificateGrant::new(self, proven, admission)),
            None => Err(self.refused(Code::MachineUnknown)),
        }
    }

    /// A refusal by the policy's decision.
    pub fn refused(self, code: Code) -> Box<Refusal> {
        let verdict = self.verdict();
        Box::new(match self.accused() {
            Some(machine) => Refusal::Proven {
                machine,
                code,
                verdict,
            },
            None => Refusal::Anonymous { code, verdict },
        })
    }

    fn admission(&self) -> Admission {
        let names = names(self.claims(), &self.requested)
            .iter()
            .map(San::text)
            .collect();
        Admission {
            policy: self.rule.policy(),
            rule: self.rule.name().to_owned(),
            names,
            ..Admission::default()
        }
    }

    /// The Machine of the grant: that of step 2, or the one that was created for exactly this
    /// claimant.
    fn proven(&self, made: Option<&Machine>) -> Option<ProvenMachine> {
        if let Some(proven) = proven_of(self.subject()) {
            return Some(proven);
        }
        // An admin or another exchange may have created a Machine of this name first; the spec
        // shows whether it is for this EK.
        let (wanted, made) = (self.to_make()?, made?);
        let same = made.metadata.name == wanted.metadata.name && made.spec == wanted.spec;
        let id = machine_id(made);
        (same && !id.uid.is_empty()).then(|| ProvenMachine::new(id))
    }
}

/// The names of the requested serving certificate, and the claimed addresses.
pub(super) fn names(claims: &Claims, requested: &Requested) -> BTreeSet<San> {
    let claimed = claims
        .addresses
        .iter()
        .filter_map(|text| text.parse::<IpAddr>().ok());
    claimed
        .map(|address| San::Ip(address.to_canonical()))
        .chain(requested.serving.sans.iter().cloned())
        .collect()
}

fn address(san: &San) -> Option<String> {
    match san {
        San::Ip(address) => Some(address.to_string()),
        San::Dns(_) => None,
    }
}
