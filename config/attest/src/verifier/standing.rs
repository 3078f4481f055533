//! What an earlier approval of a machine is worth now.

use crate::csr::San;
use crate::digest::Digest;
use crate::inventory::known;
use crate::question::Purpose;
use config_kube::machine::Admission;
use config_kube::{Decides, Machine};
use std::collections::{BTreeMap, BTreeSet};

/// What an earlier approval is worth now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nobody approved this machine yet.
    New,
    /// It is as it was when it was approved.
    Unchanged,
    /// It booted something else since; register by register, what was approved and what is.
    Changed(Vec<String>),
    /// It is in the state that was approved, and claims or asks for names and addresses beyond those that were.
    More(Vec<String>),
}

impl Standing {
    /// What is not as it was approved, in words.
    pub fn changes(&self) -> &[String] {
        match self {
            Self::New | Self::Unchanged => &[],
            Self::Changed(changes) | Self::More(changes) => changes,
        }
    }
}

/// What an earlier approval of a Machine is worth, which now shows these registers and asks for these names. Within one boot the node key itself says
/// that nothing changed: it works only while its registers hold what they held. Who was let in without any proof is new to a
/// person.
pub(super) fn standing(
    machine: &Machine,
    purpose: Purpose,
    registers: &BTreeMap<u8, Digest>,
    names: &BTreeSet<San>,
) -> Standing {
    let Some(admission) = known(machine).and_then(|status| status.admission.as_ref()) else {
        return Standing::New;
    };
    let (approved, decided) = (&admission.registers, admission.policy.decides());
    let more = beyond(machine, admission, names);
    if decided == Decides::Verifier && purpose == Purpose::Renew {
        return unless_more(more);
    }
    if decided != Decides::Person || approved.is_empty() {
        return Standing::New;
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
    Standing::Changed(changes)
}

/// What a person's word on a machine without a TPM is worth now: it was on one key and what that claimed, and holds for these.
pub(super) fn standing_without_tpm(
    machine: &Machine,
    key: &Digest,
    names: &BTreeSet<San>,
) -> Standing {
    let Some(status) = known(machine) else {
        return Standing::New;
    };
    let Some(recorded) = status.node_key.as_ref() else {
        return Standing::New;
    };
    if *recorded != key.to_text() {
        let until = status
            .certificate
            .as_ref()
            .map_or("", |certificate| certificate.not_after.as_str());
        let change = format!(
            "node key: {recorded} was let in, with a certificate until {until}; now {}",
            key.to_text()
        );
        return Standing::Changed(vec![change]);
    }
    let approved = status
        .admission
        .as_ref()
        .filter(|admission| admission.policy.decides() == Decides::Person);
    let Some(admission) = approved else {
        return Standing::New;
    };
    unless_more(beyond(machine, admission, names))
}

/// Names and addresses beyond those that were approved and those that the inventory gives to the machine, in words.
fn beyond(machine: &Machine, admission: &Admission, names: &BTreeSet<San>) -> Vec<String> {
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

fn unless_more(more: Vec<String>) -> Standing {
    if more.is_empty() {
        Standing::Unchanged
    } else {
        Standing::More(more)
    }
}

pub(super) fn hex_registers(registers: &BTreeMap<u8, Digest>) -> BTreeMap<String, String> {
    registers
        .iter()
        .map(|(pcr, value)| (pcr.to_string(), value.to_hex()))
        .collect()
}
