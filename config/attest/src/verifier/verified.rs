//! The end: what the CA may sign.

use super::proof::{Attested, check_proof, proven_refusal};
use super::{Pending, Reference};
use crate::code::Code;
use crate::csr::{self, Allowed, Profile, Request, San};
use crate::digest::Digest;
use crate::question::Channel;
use crate::verdict::{Checks, MachineId, ProvenMachine, Refusal, Stop, Verdict};
use crate::wire::{Claims, Evidence, csr_hash};
use config_kube::machine::{Counters, ProvenImage};
use config_kube::{Machine, MachineState, MachineStatus};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Evidence that passed every check. Only [`check_evidence`] makes it; the CA signs for nothing else.
#[derive(Debug)]
pub struct Verified {
    proven: ProvenMachine,
    node_name: String,
    role: String,
    rule: String,
    ttl_seconds: u64,
    client_spki: Vec<u8>,
    serving_spki: Vec<u8>,
    serving_names: Vec<San>,
    image: ProvenImage,
    status: MachineStatus,
    verdict: Verdict,
}

/// Step 4: everything about the evidence of a join or a renewal.
pub fn check_evidence(
    pending: Pending,
    evidence: &Evidence,
    reference: &Reference<'_>,
    channel: &Channel,
    now: u64,
) -> Result<Verified, Box<Refusal>> {
    let found = csr_hash(evidence.client_csr.as_bytes(), evidence.serving_csr.as_bytes());
    if found != pending.csr_hash() {
        let mut checks = Checks::resume(pending.checks());
        let stop = checks.fail("requests", Code::CsrHash, pending.csr_hash(), found);
        return Err(super::refusal(stop, checks, Some(pending.ek_hash()), pending.claims()));
    }
    let mut attested = check_proof(pending, &evidence.proof, reference, channel, now)?;
    match requests(&mut attested, evidence, reference) {
        Ok(requested) => Ok(Verified::new(attested, requested, reference)),
        Err(stop) => Err(proven_refusal(attested.proven, &attested.pending, attested.checks, stop)),
    }
}

struct Requested {
    node_name: String,
    role: String,
    client: Request,
    serving: Request,
}

/// That the requests ask for what this node may have.
fn requests(attested: &mut Attested, evidence: &Evidence, reference: &Reference<'_>) -> Result<Requested, Stop> {
    let checks = &mut attested.checks;
    let Some(machine) = reference.inventory.find(attested.proven.id()) else {
        return Err(checks.fail("inventory", Code::MachineUnknown, "the Machine of phase 1", "gone"));
    };
    let allowed = allowed(machine, attested.pending.claims(), reference);
    let client = csr::check(evidence.client_csr.as_bytes(), Profile::Client, &allowed, checks)?;
    let serving = csr::check(evidence.serving_csr.as_bytes(), Profile::Serving, &allowed, checks)?;
    let is_nk = client.spki == attested.pending.nk_spki();
    checks.test(
        "client request: key",
        Code::CsrKey,
        is_nk,
        "the node key",
        if is_nk { "the node key" } else { "another" },
    );
    let own = serving.spki != attested.pending.nk_spki() && is_p256(&serving.spki);
    let wanted = "a P-256 key of its own";
    checks.test("serving request: key", Code::CsrServingKey, own, wanted, if own { wanted } else { "another" });
    checks.all_passed()?;
    Ok(Requested { node_name: machine.node_name().to_owned(), role: machine.spec.role.clone(), client, serving })
}

fn is_p256(spki: &[u8]) -> bool {
    use p256::pkcs8::DecodePublicKey as _;
    p256::PublicKey::from_public_key_der(spki).is_ok()
}

fn allowed<'a>(machine: &'a Machine, claims: &Claims, reference: &Reference<'_>) -> Allowed<'a> {
    let listed: BTreeSet<San> = machine.spec.addresses.iter().map(|text| San::from_text(text)).collect();
    let mut sans = listed.clone();
    sans.insert(San::from_text(machine.node_name()));
    if !reference.rule.sans_inventory {
        sans.extend(claims.addresses.iter().filter_map(|text| text.parse().ok()).filter(usable).map(San::Ip));
    }
    for other in reference.inventory.iter().filter(|other| other.metadata.name != machine.metadata.name) {
        // What the inventory gives to another machine, this one cannot claim.
        for taken in other.spec.addresses.iter().map(|text| San::from_text(text)) {
            if !listed.contains(&taken) {
                sans.remove(&taken);
            }
        }
    }
    let mut api: BTreeSet<San> = reference.api_names.iter().map(|text| San::from_text(text)).collect();
    if machine.spec.role == "master" {
        // The API server runs on this machine: its own name and its own listed addresses are both.
        let own = San::from_text(machine.node_name());
        api.retain(|name| *name != own && !listed.contains(name));
    }
    Allowed { node: machine.node_name(), sans, api }
}

/// An address that a node can be reached at.
fn usable(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local)
}

impl Verified {
    fn new(attested: Attested, requested: Requested, reference: &Reference<'_>) -> Self {
        let clock = attested.state.clock;
        let status = MachineStatus {
            state: MachineState::Trusted,
            bound_ek: Some(attested.ek_hash().to_text()),
            ak_name: Some(attested.ak_name()),
            nk_name: Some(attested.nk_name()),
            node_key: Some(Digest::of(&requested.client.spki).to_text()),
            image: Some(attested.state.image.clone()),
            config: attested.state.config.clone(),
            counters: Some(Counters {
                reset_count: clock.reset_count,
                restart_count: clock.restart_count,
                clock: clock.clock,
                safe: clock.safe,
            }),
            pinned_pcrs: attested.state.pinned.iter().map(|(pcr, value)| (pcr.to_string(), value.to_hex())).collect(),
            ..MachineStatus::default()
        };
        Self {
            proven: attested.proven.clone(),
            node_name: requested.node_name,
            role: requested.role,
            rule: reference.rule.name().to_owned(),
            ttl_seconds: reference.rule.ttl_seconds(),
            client_spki: requested.client.spki,
            serving_spki: requested.serving.spki,
            serving_names: requested.serving.sans,
            image: attested.state.image.clone(),
            status,
            verdict: attested.into_verdict(),
        }
    }

    /// The Machine.
    pub fn machine(&self) -> &ProvenMachine {
        &self.proven
    }

    /// Name and uid of the Machine.
    pub fn machine_id(&self) -> &MachineId {
        self.proven.id()
    }

    /// The Node's name: the common name is `system:node:` and this.
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// `worker` or `master`.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// The rule that decided.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// How long the certificates live, in seconds.
    pub fn ttl_seconds(&self) -> u64 {
        self.ttl_seconds
    }

    /// SubjectPublicKeyInfo DER of the client certificate: the node key.
    pub fn client_spki(&self) -> &[u8] {
        &self.client_spki
    }

    /// SubjectPublicKeyInfo DER of the serving certificate.
    pub fn serving_spki(&self) -> &[u8] {
        &self.serving_spki
    }

    /// Names of the serving certificate.
    pub fn serving_names(&self) -> &[San] {
        &self.serving_names
    }

    /// The image.
    pub fn image(&self) -> &ProvenImage {
        &self.image
    }

    /// What was looked at.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Writes what was proved into a Machine's status: state, keys, image, configuration, counters, learned registers and
    /// checks. Certificate, time, conditions and the admin's verdict are the caller's and stay.
    pub fn record(&self, status: &mut MachineStatus) {
        let proved = self.status.clone();
        *status = MachineStatus {
            certificate: status.certificate.take(),
            last_attestation: status.last_attestation.take(),
            admin_verdict: status.admin_verdict.take(),
            conditions: std::mem::take(&mut status.conditions),
            checks: self.verdict.checks.clone(),
            ..proved
        };
    }
}
