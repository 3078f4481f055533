//! Whether an earlier approval of a machine still holds and, if not, what changed.

use crate::inventory::current_status;
use config_certificates::San;
use config_kube::machine::Admission;
use config_kube::{Decides, Machine};
use config_protocol::Purpose;
use config_tpm::Digest;
use std::collections::{BTreeMap, BTreeSet};

/// Whether an earlier approval still holds. Only [`PriorApproval::Unchanged`] admits without a new
/// decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PriorApproval {
    /// There is no approval of this machine.
    New,
    /// The machine is in the state that was approved, and asks for no more.
    Unchanged,
    /// It has booted something else since: the difference for each register, as sentences.
    Changed(Vec<String>),
    /// It is in the approved state, and claims or asks for more names or addresses, which are
    /// listed.
    More(Vec<String>),
}

impl PriorApproval {
    /// The differences from what was approved, as sentences.
    pub fn changes(&self) -> &[String] {
        match self {
            Self::New | Self::Unchanged => &[],
            Self::Changed(changes) | Self::More(changes) => changes,
        }
    }
}

/// Whether an earlier approval of a Machine holds for these registers and names. A renewal of a
/// machine that the verifier admitted needs no comparison of registers: the node key works only
/// while its registers are unchanged (PolicyPCR). A machine that was admitted without a decision is
/// new to a person.
pub(super) fn prior_approval(
    machine: &Machine,
    purpose: Purpose,
    registers: &BTreeMap<u8, Digest>,
    names: &BTreeSet<San>,
) -> PriorApproval {
    let Some(admission) = current_status(machine).and_then(|status| status.admission.as_ref())
    else {
        return PriorApproval::New;
    };
    let (approved, decided) = (&admission.registers, admission.policy.decides());
    let more = beyond(machine, admission, names);
    if decided == Decides::Verifier && purpose == Purpose::Renew {
        return unless_more(more);
    }
    // An approval without registers is of a machine that had no TPM: it says nothing about a boot.
    if decided != Decides::Person || approved.is_empty() {
        return PriorApproval::New;
    }
    let found = hex_registers(registers);
    let all: BTreeSet<&String> = approved.keys().chain(found.keys()).collect();
    let none = String::from("nothing");
    let changes = all
        .into_iter()
        .filter(|pcr| approved.get(*pcr) != found.get(*pcr))
        .map(|pcr| {
            let [before, after] = [approved, &found].map(|map| map.get(pcr).unwrap_or(&none));
            format!("PCR {pcr}: {before} was approved, now {after}")
        });
    let mut changes: Vec<String> = changes.collect();
    if changes.is_empty() {
        return unless_more(more);
    }
    changes.extend(more);
    PriorApproval::Changed(changes)
}

/// Whether an earlier approval holds for a machine without a TPM: it was for one key and its
/// claims.
pub(super) fn prior_approval_without_tpm(
    machine: &Machine,
    key: &Digest,
    names: &BTreeSet<San>,
) -> PriorApproval {
    let Some(status) = current_status(machine) else {
        return PriorApproval::New;
    };
    let Some(recorded) = status.node_key.as_ref() else {
        return PriorApproval::New;
    };
    // Not refused here: a machine without a TPM has a new key after each boot, and a person sees
    // until when the old one is certified.
    if *recorded != key.to_text() {
        let until = status
            .certificate
            .as_ref()
            .map_or("", |certificate| certificate.not_after.as_str());
        let change = format!(
            "node key: {recorded} was admitted, with a certificate until {until}; now {}",
            key.to_text()
        );
        return PriorApproval::Changed(vec![change]);
    }
    let approved = status
        .admission
        .as_ref()
        .filter(|admission| admission.policy.decides() == Decides::Person);
    let Some(admission) = approved else {
        return PriorApproval::New;
    };
    unless_more(beyond(machine, admission, names))
}

/// Names and addresses beyond those approved and those of the inventory, as sentences.
fn beyond(machine: &Machine, admission: &Admission, names: &BTreeSet<San>) -> Vec<String> {
    // What the inventory gives to the Machine was an admin's decision, too.
    let given = machine
        .spec
        .addresses
        .iter()
        .map(String::as_str)
        .chain([machine.node_name()]);
    let known: BTreeSet<San> = admission
        .names
        .iter()
        .map(String::as_str)
        .chain(given)
        .map(San::from_text)
        .collect();
    names
        .difference(&known)
        .map(|name| format!("{} is claimed, and was not approved", name.text()))
        .collect()
}

fn unless_more(more: Vec<String>) -> PriorApproval {
    if more.is_empty() {
        PriorApproval::Unchanged
    } else {
        PriorApproval::More(more)
    }
}

pub(super) fn hex_registers(registers: &BTreeMap<u8, Digest>) -> BTreeMap<String, String> {
    registers
        .iter()
        .map(|(pcr, value)| (pcr.to_string(), value.to_hex()))
        .collect()
}
