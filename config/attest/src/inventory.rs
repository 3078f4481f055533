//! The machines that may join, indexed as the verifier asks for them.

use crate::verdict::MachineId;
use config_certificates::San;
use config_kube::{Machine, MachineState, MachineStatus};
use config_tpm::Digest;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// A snapshot of all Machine objects. Made anew when one changes.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    machines: BTreeMap<String, Machine>,
    listed: HashMap<Digest, Vec<String>>,
    bound: HashMap<Digest, String>,
    nodes: HashMap<String, Vec<String>>,
    /// Addresses in serving certificates that machines hold.
    held: HashMap<IpAddr, Vec<String>>,
}

impl Inventory {
    /// From all Machine objects.
    pub fn new(machines: impl IntoIterator<Item = Machine>) -> Self {
        let mut inventory = Self::default();
        for machine in machines {
            let Some(name) = machine.metadata.name.clone() else {
                continue;
            };
            let ek = &machine.spec.ek;
            // What was seen counts where nothing else is said.
            let seen = ek
                .seen
                .iter()
                .filter(|_| ek.hashes.is_empty() && ek.issuers.is_empty());
            for hash in ek.hashes.iter().chain(seen) {
                if let Ok(hash) = hash.parse() {
                    inventory.listed.entry(hash).or_default().push(name.clone());
                }
            }
            for name_or_address in held(&machine) {
                if let San::Ip(address) = San::from_text(name_or_address) {
                    inventory
                        .held
                        .entry(address)
                        .or_default()
                        .push(name.clone());
                }
            }
            if let Some(ek) = bound_ek(&machine) {
                inventory.bound.insert(ek, name.clone());
            }
            inventory
                .nodes
                .entry(machine.node_name().to_owned())
                .or_default()
                .push(name.clone());
            inventory.machines.insert(name, machine);
        }
        inventory
    }

    /// By the object's name.
    pub fn get(&self, name: &str) -> Option<&Machine> {
        self.machines.get(name)
    }

    /// By name and uid.
    pub fn find(&self, id: &MachineId) -> Option<&Machine> {
        self.get(&id.name)
            .filter(|machine| machine_id(machine) == *id)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values()
    }

    /// Another machine that holds a certificate for an address at `now` (Unix seconds).
    pub(crate) fn holder(&self, address: &IpAddr, but: &Machine, now: u64) -> Option<&Machine> {
        let others = self
            .held
            .get(address)
            .into_iter()
            .flatten()
            .filter_map(|name| self.get(name));
        others
            .filter(|other| other.metadata.name != but.metadata.name)
            .find(|other| holds_certificate(other, now))
    }

    /// Those that list an EK hash or, where they list nothing, let it in at sight.
    pub(crate) fn listing(&self, ek: &Digest) -> Vec<&Machine> {
        self.listed
            .get(ek)
            .into_iter()
            .flatten()
            .filter_map(|name| self.get(name))
            .collect()
    }

    /// Whether an EK is in the inventory: a Machine lists its hash, or is bound to it. For limits, never for an admission.
    pub fn lists(&self, ek: &Digest) -> bool {
        self.knows(ek)
    }

    /// Whether an EK belongs to any Machine.
    pub(crate) fn knows(&self, ek: &Digest) -> bool {
        self.bound_to(ek).is_some() || !self.listing(ek).is_empty()
    }

    /// The one that is bound to an EK.
    pub(crate) fn bound_to(&self, ek: &Digest) -> Option<&Machine> {
        self.bound.get(ek).and_then(|name| self.get(name))
    }

    /// Those that become the Node of a name.
    pub(crate) fn of_node(&self, node: &str) -> Vec<&Machine> {
        self.nodes
            .get(node)
            .into_iter()
            .flatten()
            .filter_map(|name| self.get(name))
            .collect()
    }
}

/// Name and uid of an object.
pub fn machine_id(machine: &Machine) -> MachineId {
    MachineId {
        name: machine.metadata.name.clone().unwrap_or_default(),
        uid: machine.metadata.uid.clone().unwrap_or_default(),
    }
}

/// What stands in the serving certificate of a Machine, as long as the certificate is good to the master.
fn held(machine: &Machine) -> &[String] {
    let status = known(machine).filter(|_| !machine.spec.retired);
    status.map_or(&[], |status| status.serving_names.as_slice())
}

/// Whether a Machine's last certificate has not ended at `now`. One whose end cannot be read has none.
fn holds_certificate(machine: &Machine, now: u64) -> bool {
    let until = known(machine)
        .and_then(|status| status.certificate.as_ref())
        .map(|last| last.not_after.as_str());
    let end = until.and_then(|until| until.parse::<jiff::Timestamp>().ok());
    end.and_then(|end| u64::try_from(end.as_second()).ok())
        .is_none_or(|end| now <= end)
}

/// The EK that a Machine is bound to; none where the inventory lists others in its place.
pub(crate) fn bound_ek(machine: &Machine) -> Option<Digest> {
    machine.binding()?.parse().ok()
}

/// Whether an admin has re-admitted the Machine until after `now` (Unix seconds). An act that was made use of is over: what
/// came after that proof, the admin did not speak of.
pub(crate) fn readmitted(machine: &Machine, now: u64) -> bool {
    let used = machine
        .status
        .as_ref()
        .and_then(|status| status.readmitted.as_deref());
    machine
        .spec
        .readmit_until
        .as_deref()
        .filter(|until| used != Some(*until))
        .and_then(|text| text.parse::<jiff::Timestamp>().ok())
        .is_some_and(|until| u64::try_from(until.as_second()).is_ok_and(|until| now < until))
}

/// What is known of the board that the Machine is bound to; none where it is bound to none, or to one that was replaced.
pub(crate) fn known(machine: &Machine) -> Option<&MachineStatus> {
    let replaced = machine
        .status
        .as_ref()
        .is_some_and(|status| status.bound_ek.is_some())
        && machine.binding().is_none();
    machine.status.as_ref().filter(|_| !replaced)
}

/// Where a Machine stands.
pub(crate) fn state(machine: &Machine) -> MachineState {
    known(machine).map_or(MachineState::Pending, |status| status.state)
}
