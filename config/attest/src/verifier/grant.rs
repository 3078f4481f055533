//! The grant: what the CA signs certificates for.

use super::claimant::{Basis, Claimant};
use super::proof::AttestedMachine;
use crate::inventory::{current_status, earlier_names};
use crate::policy::CheckedRule;
use crate::verdict::{MachineId, ProvenMachine, Verdict};
use config_certificates::San;
use config_kube::machine::{Admission, Counters, ProvenImage};
use config_kube::{Decides, Machine, MachineState, MachineStatus};
use config_tpm::Digest;

/// The decision to admit a machine, with everything that its certificates and its Machine's status
/// need.
///
/// Holding one proves: a [`Claimant`] passed every check of a rule that enforces them
/// ([`Claimant::grant`]), or a person or a rule that approves every machine decided to admit it
/// ([`Claimant::approve`]). It does not prove that the machine has a TPM:
/// [`CertificateGrant::is_unproven`].
#[derive(Debug)]
pub struct CertificateGrant {
    proven: ProvenMachine,
    node_name: String,
    role: String,
    rule: String,
    ttl_seconds: u64,
    client_spki: Vec<u8>,
    serving_spki: Vec<u8>,
    serving_names: Vec<San>,
    unproven: bool,
    image: Option<ProvenImage>,
    admission: Admission,
    status: MachineStatus,
    verdict: Verdict,
}

impl CertificateGrant {
    pub(super) fn new(claimant: Claimant, proven: ProvenMachine, admission: Admission) -> Self {
        let (verdict, unproven) = (claimant.verdict(), !claimant.has_tpm());
        let privileged_pods = verdict.claims.privileged_pods;
        let Claimant {
            basis,
            requested,
            rule,
        } = claimant;
        // By this hash the deny list refuses certificates over earlier keys of the Machine.
        let node_key = Some(Digest::of(&requested.client.spki).to_text());
        let (machine, status) = match basis {
            Basis::Attested(attested) => {
                let status = status_of(&attested, &rule);
                (attested.machine, status)
            }
            Basis::KeyOnly(keyed) => (
                keyed.machine,
                MachineStatus {
                    state: MachineState::Unproven,
                    ..MachineStatus::default()
                },
            ),
        };
        let serving_names = requested.serving.sans.iter().map(San::text).collect();
        let status = MachineStatus {
            node_key,
            serving_names,
            privileged_pods,
            admission: Some(admission.clone()),
            ..status
        };
        // Marked as used only where the admission needed it; the mark is the time's text.
        let readmitted = machine
            .spec
            .readmit_until
            .clone()
            .filter(|_| needs_readmission(&machine, &status));
        let status = MachineStatus {
            readmitted,
            ..status
        };
        Self {
            proven,
            node_name: machine.node_name().to_owned(),
            role: machine.spec.role.clone(),
            rule: rule.name().to_owned(),
            ttl_seconds: rule.ttl_seconds(),
            client_spki: requested.client.spki,
            serving_spki: requested.serving.spki,
            serving_names: requested.serving.sans,
            unproven,
            image: status.image.clone(),
            admission,
            status,
            verdict,
        }
    }

    /// Whether the machine has no TPM: it proved only that it holds its key.
    pub fn is_unproven(&self) -> bool {
        self.unproven
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

    /// The image that it booted; `None` if the rule does not accept it, and a person or no one
    /// decided.
    pub fn image(&self) -> Option<&ProvenImage> {
        self.image.as_ref()
    }

    /// Who decided, as it is recorded in the Machine.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// All checks of the exchange.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Writes the result into a Machine's status: state, keys, image, configuration, counters,
    /// pinned registers and checks. It leaves certificate, time, conditions, the Node's marks and
    /// the admin's verdict, which the caller writes.
    pub fn record(&self, status: &mut MachineStatus) {
        let mut proved = self.status.clone();
        // An admission that compared no registers pins none, and leaves those of an earlier one.
        if proved.pinned_pcrs.is_empty() {
            proved.pinned_pcrs = std::mem::take(&mut status.pinned_pcrs);
        }
        // Without the old mark, a re-admission that was used before could be used again.
        proved.readmitted = proved.readmitted.or_else(|| status.readmitted.take());
        proved.earlier_names = earlier_names(status, &proved.serving_names);
        *status = MachineStatus {
            certificate: status.certificate.take(),
            last_attestation: status.last_attestation.take(),
            admin_verdict: status.admin_verdict.take(),
            node: status.node.take(),
            conditions: std::mem::take(&mut status.conditions),
            checks: self.verdict.checks.clone(),
            ..proved
        };
    }
}

/// Whether this admission uses up an admin's re-admission (`spec.readmitUntil`): the Machine was
/// Untrusted, other registers are pinned than before, or a machine without a TPM has another node
/// key. An admission that needs none of these, such as a renewal before the firmware update that it
/// was given for, must not use it up.
fn needs_readmission(machine: &Machine, proved: &MachineStatus) -> bool {
    let Some(before) = &machine.status else {
        return false;
    };
    let learned = current_status(machine).is_some_and(|status| {
        let other = |(pcr, value): (&String, &String)| status.pinned_pcrs.get(pcr) != Some(value);
        !status.pinned_pcrs.is_empty() && proved.pinned_pcrs.iter().any(other)
    });
    let replaced = proved.state == MachineState::Unproven
        && before.node_key.is_some()
        && before.node_key != proved.node_key;
    before.state == MachineState::Untrusted || learned || replaced
}

/// The status of a Machine after an attestation by TPM.
fn status_of(attested: &AttestedMachine, rule: &CheckedRule) -> MachineStatus {
    let clock = attested.state.clock;
    // Under a policy that checks nothing the registers can have any values; later boots must not be
    // compared with them.
    let compared = rule.decides() != Decides::Always;
    let pinned = attested.state.pinned.iter().filter(|_| compared);
    MachineStatus {
        state: MachineState::Trusted,
        bound_ek: Some(attested.ek_hash().to_text()),
        ek_issuer: attested.issuer.clone(),
        ak_name: Some(attested.ak_name()),
        nk_name: Some(attested.nk_name()),
        image: attested.state.image.clone(),
        tpm_firmware: attested.state.tpm_firmware.to_string(),
        config: attested.state.config.clone(),
        counters: Some(Counters {
            reset_count: clock.reset_count,
            restart_count: clock.restart_count,
            clock: clock.clock,
            safe: clock.safe,
        }),
        pinned_pcrs: pinned
            .map(|(pcr, value)| (pcr.to_string(), value.to_hex()))
            .collect(),
        ..MachineStatus::default()
    }
}
