//! Evidence that passed possession: which machine it is stands, and whether it is wanted is for the rule, a person or nobody.

use super::proof::{Attested, check_proof, proven_of, proven_refusal};
use super::requests::{Asks, Requested, check_requests, claimed_addresses, taken};
use super::standing::{Standing, hex_registers, standing, standing_without_tpm};
use super::unproven::Keyed;
use super::{Pending, Reference, Subject, Verified};
use crate::code::Code;
use crate::csr::San;
use crate::digest::Digest;
use crate::inventory::{Inventory, machine_id};
use crate::policy::CheckedRule;
use crate::question::{Channel, Purpose};
use crate::verdict::{MachineId, ProvenMachine, Refusal, Verdict};
use crate::wire::{Claims, Evidence, csr_hash};
use crate::{name, unproven};
use config_kube::machine::Admission;
use config_kube::{Decides, Machine};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A machine that proved which it is, by a TPM that holds its keys, or that has no TPM and proved no more than that it holds a
/// key; and that asks for no more than a node may have. Only [`check_evidence`] and [`super::check_unproven`] make it. Whether it
/// is wanted is in its verdict, and not decided yet.
#[derive(Debug)]
pub struct Claimant {
    pub(super) basis: Basis,
    pub(super) requested: Requested,
    pub(super) rule: CheckedRule,
}

/// What a claimant rests on.
#[derive(Debug)]
pub(super) enum Basis {
    /// Its TPM.
    Attested(Box<Attested>),
    /// A key that anybody can make.
    Keyed(Box<Keyed>),
}

/// On whose word a machine is let in, under a rule that does not enforce its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approval {
    /// A person approved a request.
    Person {
        /// Its name.
        request: String,
        /// What it was for: [`Claimant::id`] of the claimant that made it.
        id: Digest,
        /// Who approved it, and when, as the API noted it.
        by: String,
    },
    /// What was approved before still holds ([`Standing::Unchanged`]).
    Before,
    /// Nobody was asked.
    Nobody,
}

/// Step 4: everything about the evidence of a join or a renewal.
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
    let asks = Asks {
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

    /// The Machine whose own word this is; none where the inventory does not have it yet or, without a TPM, where its key is
    /// not the one that it was let in with.
    pub fn machine(&self) -> Option<&MachineId> {
        self.own_word().map(ProvenMachine::id)
    }

    fn own_word(&self) -> Option<&ProvenMachine> {
        match &self.basis {
            Basis::Attested(attested) => attested.proven.as_ref(),
            Basis::Keyed(keyed) => keyed.proven.as_ref(),
        }
    }

    fn object(&self) -> &Machine {
        match &self.basis {
            Basis::Attested(attested) => &attested.machine,
            Basis::Keyed(keyed) => &keyed.machine,
        }
    }

    fn subject(&self) -> &Subject {
        match &self.basis {
            Basis::Attested(attested) => attested.pending.subject(),
            Basis::Keyed(keyed) => &keyed.subject,
        }
    }

    /// Whether the inventory does not have it.
    pub fn is_stranger(&self) -> bool {
        matches!(self.subject(), Subject::Stranger(_))
    }

    /// Whether it has a TPM, which proved which machine it is.
    pub fn has_tpm(&self) -> bool {
        matches!(self.basis, Basis::Attested(_))
    }

    /// The same where the EK is known to be the Machine's, so that what is found may be held against it.
    pub fn own_machine(&self) -> Option<&MachineId> {
        self.machine().filter(|_| self.accused().is_some())
    }

    fn accused(&self) -> Option<ProvenMachine> {
        match &self.basis {
            Basis::Attested(attested) => attested.accused(),
            Basis::Keyed(keyed) => keyed.proven.clone(),
        }
    }

    /// The Node's name.
    pub fn node_name(&self) -> &str {
        self.object().node_name()
    }

    /// Who it is for those who keep records of it: hash of its endorsement key or, in words, that there is none, and of its
    /// node key.
    pub fn party(&self) -> String {
        match &self.basis {
            Basis::Attested(attested) => attested.ek_hash().to_text(),
            Basis::Keyed(keyed) => format!("none: no TPM; node key {}", keyed.key.to_text()),
        }
    }

    /// The role that its Machine has, or that it would get.
    pub fn role(&self) -> &str {
        &self.object().spec.role
    }

    /// Why the exchange took place.
    pub fn purpose(&self) -> Purpose {
        match &self.basis {
            Basis::Attested(attested) => attested.pending.purpose(),
            Basis::Keyed(keyed) => keyed.purpose,
        }
    }

    /// The rule.
    pub fn rule(&self) -> &CheckedRule {
        &self.rule
    }

    /// What is asked for, for good: this machine in this boot and this state, with what it claims to be. SHA-256 over EK hash,
    /// Name(NK), the quoted registers and the hash of the claims; without a TPM over label, hash of the node key and hash of the
    /// claims.
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
                let claims = pending.claims().hash();
                let (ek, nk) = (pending.ek_hash(), &pending.names().nk);
                Digest::of_parts(&[ek.as_bytes(), nk.as_bytes(), &registers, claims.as_bytes()])
            }
            Basis::Keyed(keyed) => {
                let label = unproven::PROTOCOL.as_bytes();
                Digest::of_parts(&[label, keyed.key.as_bytes(), keyed.claims.hash().as_bytes()])
            }
        }
    }

    /// What was looked at.
    pub fn verdict(&self) -> Verdict {
        match &self.basis {
            Basis::Attested(attested) => attested.verdict(),
            Basis::Keyed(keyed) => keyed.verdict(),
        }
    }

    /// What an earlier approval is worth.
    pub fn standing(&self) -> Standing {
        let names = names(self.claims(), &self.requested);
        match &self.basis {
            Basis::Attested(attested) => standing(
                &attested.machine,
                self.purpose(),
                &attested.state.registers,
                &names,
            ),
            Basis::Keyed(keyed) => standing_without_tpm(&keyed.machine, &keyed.key, &names),
        }
    }

    fn claims(&self) -> &Claims {
        match &self.basis {
            Basis::Attested(attested) => attested.pending.claims(),
            Basis::Keyed(keyed) => &keyed.claims,
        }
    }

    /// Addresses that its serving certificate would have on its claim, and not by the inventory.
    pub fn claimed_addresses(&self) -> Vec<IpAddr> {
        claimed_addresses(&self.requested.serving.sans, self.object())
    }

    /// Whether another machine holds a certificate for one of its addresses by now (Unix seconds), or has it by the inventory:
    /// two exchanges may have been checked before either was recorded.
    pub fn is_overtaken_in(&self, inventory: &Inventory, now: u64) -> bool {
        let (machine, claimed) = (self.object(), self.claimed_addresses());
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

    /// The Machine to make before this stranger can be approved; none where there is one. A person's word puts the EK into
    /// the inventory, nobody's does not.
    pub fn to_make(&self) -> Option<Machine> {
        let Subject::Stranger(machine) = self.subject() else {
            return None;
        };
        let mut machine = Machine::clone(machine);
        if let Basis::Attested(attested) = &self.basis {
            let ek = vec![attested.ek_hash().to_text()];
            match self.rule.decides() {
                Decides::Nobody => machine.spec.ek.seen = ek,
                Decides::Person | Decides::Verifier | Decides::Never => machine.spec.ek.hashes = ek,
            }
        }
        machine.spec.addresses = self
            .requested
            .serving
            .sans
            .iter()
            .filter_map(address)
            .collect();
        Some(machine)
    }

    /// What the CA may sign under a rule that enforces its verdict, which this claimant then passed. Without a TPM there is no
    /// verdict to pass.
    pub fn verified(self) -> Result<Verified, Box<Refusal>> {
        let enforced = self.rule.enforces() && self.has_tpm();
        let Some(proven) = self.own_word().filter(|_| enforced).cloned() else {
            return Err(self.refused(Code::PolicyRejects));
        };
        let admission = self.admission();
        Ok(Verified::new(self, proven, admission))
    }

    /// What the CA may sign on somebody's word. `made` is the object of [`Claimant::to_make`], as it was created.
    pub fn approve(
        self,
        approval: &Approval,
        made: Option<&Machine>,
    ) -> Result<Verified, Box<Refusal>> {
        let person = self.rule.decides() == Decides::Person;
        let admission = match approval {
            Approval::Person { request, id, by } if person && *id == self.id() => {
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
            Approval::Before if person && self.standing() == Standing::Unchanged => self
                .object()
                .status
                .as_ref()
                .and_then(|status| status.admission.clone()),
            Approval::Nobody if self.rule.decides() == Decides::Nobody => Some(self.admission()),
            Approval::Person { .. } | Approval::Before | Approval::Nobody => None,
        };
        let Some(admission) = admission else {
            return Err(self.refused(Code::PolicyRejects));
        };
        match self.proven(made) {
            Some(proven) => Ok(Verified::new(self, proven, admission)),
            None => Err(self.refused(Code::MachineUnknown)),
        }
    }

    /// A refusal by who decides.
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

    /// Whose this becomes: the Machine's of phase 1, or the one that was made for exactly this claimant.
    fn proven(&self, made: Option<&Machine>) -> Option<ProvenMachine> {
        if let Some(proven) = proven_of(self.subject()) {
            return Some(proven);
        }
        let (wanted, made) = (self.to_make()?, made?);
        let same = made.metadata.name == wanted.metadata.name && made.spec == wanted.spec;
        let id = machine_id(made);
        (same && !id.uid.is_empty()).then(|| ProvenMachine::new(id))
    }
}

/// What a machine claims and asks for: names of its serving certificate, and addresses that it says are its own.
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
