//! The machines that may join, indexed by what the verifier looks up.

use crate::verdict::MachineId;
use config_certificates::San;
use config_kube::{Machine, MachineState, MachineStatus};
use config_tpm::Digest;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// A snapshot of all Machine objects, rebuilt when one changes.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    machines: BTreeMap<String, Machine>,
    listed: HashMap<Digest, Vec<String>>,
    bound: HashMap<Digest, String>,
    nodes: HashMap<String, Vec<String>>,
    /// Addresses in serving certificates that machines hold, each with the machine and the
    /// certificate's end in Unix seconds. One whose end cannot be read has none.
    certified: HashMap<IpAddr, Vec<(String, Option<u64>)>>,
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
            // An EK that was only seen counts if the spec lists neither hashes nor issuers.
            let seen = ek
                .seen
                .iter()
                .filter(|_| ek.hashes.is_empty() && ek.issuers.is_empty());
            for hash in ek.hashes.iter().chain(seen) {
                if let Ok(hash) = hash.parse() {
                    inventory.listed.entry(hash).or_default().push(name.clone());
                }
            }
            for (name_or_address, until) in certified_names(&machine) {
                if let San::Ip(address) = San::from_text(name_or_address) {
                    let holder = (name.clone(), seconds(until));
                    inventory.certified.entry(address).or_default().push(holder);
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

    /// All Machines, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values()
    }

    /// Another machine that holds a certificate for an address at `now` (Unix seconds).
    pub(crate) fn holder(&self, address: &IpAddr, but: &Machine, now: u64) -> Option<&Machine> {
        let others = self
            .certified
            .get(address)
            .into_iter()
            .flatten()
            // The second of notAfter is still within the validity (RFC 5280, 4.1.2.5). An end that
            // cannot be read counts as one that never comes.
            .filter(|(_, end)| end.is_none_or(|end| now <= end))
            .filter_map(|(name, _)| self.get(name));
        others
            .into_iter()
            .find(|other| other.metadata.name != but.metadata.name)
    }

    /// The Machines that list an EK hash, and those that list nothing and were admitted with it
    /// without a decision (`seen`).
    pub(crate) fn listing(&self, ek: &Digest) -> Vec<&Machine> {
        self.listed
            .get(ek)
            .into_iter()
            .flatten()
            .filter_map(|name| self.get(name))
            .collect()
    }

    /// Whether an EK is in the inventory: a Machine lists its hash, or is bound to it. EKs are
    /// public: a caller that shows one has proved nothing, so that this may choose the limits for
    /// it, but never admits it.
    pub fn has_ek(&self, ek: &Digest) -> bool {
        self.bound_to(ek).is_some() || !self.listing(ek).is_empty()
    }

    /// The Machine that is bound to an EK.
    pub(crate) fn bound_to(&self, ek: &Digest) -> Option<&Machine> {
        self.bound.get(ek).and_then(|name| self.get(name))
    }

    /// The Machines with this Node name.
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

/// Names in a Machine's serving certificates that the master still accepts, with the ends of the
/// certificates.
fn certified_names(machine: &Machine) -> impl Iterator<Item = (&str, &str)> {
    let status = current_status(machine).filter(|_| !machine.spec.retired);
    status.into_iter().flat_map(names_until)
}

/// Names in the serving certificates that a status records, the last one and earlier ones, with the
/// ends of the certificates.
fn names_until(status: &MachineStatus) -> impl Iterator<Item = (&str, &str)> {
    let last = status.certificate.as_ref();
    let end = last.map_or("", |last| last.not_after.as_str());
    let present = status.serving_names.iter().map(move |name| (&**name, end));
    let earlier = status.earlier_names.iter();
    present.chain(earlier.map(|(name, end)| (&**name, &**end)))
}

/// Names of earlier certificates once the next certificate has `names`. A name in several
/// certificates is held until the last of them ends.
pub(crate) fn earlier_names(status: &MachineStatus, names: &[String]) -> BTreeMap<String, String> {
    let mut earlier = BTreeMap::<String, String>::new();
    for (name, end) in names_until(status) {
        if names.iter().any(|next| next == name) {
            continue;
        }
        // The later end counts; one that cannot be read counts as never.
        let known = earlier.entry(name.to_owned()).or_insert(end.to_owned());
        if seconds(known).is_some_and(|known| seconds(end).is_none_or(|end| known < end)) {
            end.clone_into(known);
        }
    }
    earlier
}

/// Forgets names of certificates that have ended at `now` (Unix seconds).
pub fn forget_ended(earlier: &mut BTreeMap<String, String>, now: u64) {
    earlier.retain(|_, end| seconds(end).is_none_or(|end| now <= end));
}

/// An RFC 3339 time in Unix seconds; `None` where it cannot be read.
fn seconds(time: &str) -> Option<u64> {
    let time = time.parse::<jiff::Timestamp>().ok()?;
    u64::try_from(time.as_second()).ok()
}

/// The EK that a Machine is bound to; `None` if the inventory lists others instead.
pub(crate) fn bound_ek(machine: &Machine) -> Option<Digest> {
    machine.binding()?.parse().ok()
}

/// Whether an admin has re-admitted the Machine until after `now` (Unix seconds). A re-admission
/// counts once: the admin did not approve what the machine proves after that.
pub(crate) fn readmitted(machine: &Machine, now: u64) -> bool {
    let used = machine
        .status
        .as_ref()
        .and_then(|status| status.readmitted.as_deref());
    machine
        .spec
        .readmit_until
        .as_deref()
        // By its text: an admin re-admits again by writing another time.
        .filter(|until| used != Some(*until))
        .and_then(|text| text.parse::<jiff::Timestamp>().ok())
        .is_some_and(|until| u64::try_from(until.as_second()).is_ok_and(|until| now < until))
}

/// The Machine's status; `None` if it is about a board that an admin has replaced: pinned
/// registers, counters and approvals of one board must not count for another.
pub(crate) fn current_status(machine: &Machine) -> Option<&MachineStatus> {
    let status = machine.status.as_ref();
    status.filter(|_| !machine.is_replaced())
}

/// A Machine's state.
pub(crate) fn state(machine: &Machine) -> MachineState {
    current_status(machine).map_or(MachineState::Pending, |status| status.state)
}
