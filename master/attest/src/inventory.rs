//! The inventory: Machines, ImageReleases and CertificatePolicies, updated by watches and by the
//! service's own writes.

use crate::deny::MachineDenyList;
use config_attest::release::{KnownRelease, ReleaseKey};
use config_errors::chain;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::policy::POLICY_NAME;
use config_kube::pratique::ImageReleaseStatus;
use config_kube::{CertificatePolicy, ImageRelease, Machine};
use master_client::{Change, Gone};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// An ImageRelease, parsed.
#[derive(Debug, Clone)]
pub(crate) struct Release {
    /// The object, for its status.
    pub(crate) object: Arc<ImageRelease>,
    /// The manifest with the keys that signed it, or why it cannot be used.
    pub(crate) known: Result<Arc<KnownRelease>, String>,
}

impl Release {
    /// The status of the object: what the manifest says, who signed it, what is wrong with it.
    pub(crate) fn status(&self) -> ImageReleaseStatus {
        match &self.known {
            Ok(known) => {
                let (manifest, verified_by) = (known.manifest(), known.verified_by().to_vec());
                let fault = if verified_by.is_empty() {
                    "no release key of the cluster's configuration has signed it".to_owned()
                } else {
                    String::new()
                };
                ImageReleaseStatus {
                    role: manifest.role.clone(),
                    svn: manifest.svn,
                    verified_by,
                    fault,
                }
            }
            Err(fault) => ImageReleaseStatus {
                fault: fault.clone(),
                ..ImageReleaseStatus::default()
            },
        }
    }
}

#[derive(Debug, Default)]
struct Tables {
    machines: BTreeMap<String, Machine>,
    /// The machines, indexed for the verifier; built on demand after a change.
    snapshot: Option<Arc<config_attest::Inventory>>,
    releases: BTreeMap<String, Release>,
    /// The usable releases for the verifier; built on demand after a change.
    known: Option<Arc<Vec<KnownRelease>>>,
    policies: BTreeMap<String, Arc<CertificatePolicy>>,
    /// Uids of the last deleted Machines. The response to an own write may arrive after the watch
    /// has reported the deletion; it must not bring the Machine back.
    gone: VecDeque<String>,
}

impl Tables {
    fn remember_gone(&mut self, uid: String) {
        self.gone.push_back(uid);
        if self.gone.len() > GONE {
            self.gone.pop_front();
        }
    }
}

/// How many deleted Machines are remembered.
const GONE: usize = 1024;

/// The tables that were filled once.
#[allow(clippy::struct_excessive_bools, reason = "one for each table")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Filled {
    machines: bool,
    nodes: bool,
    releases: bool,
    policies: bool,
}

/// An object's name, and its metadata if it is there.
pub(crate) type Stored = (String, Option<ObjectMeta>);

/// A kind of reference values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReferenceKind {
    /// `Machine`.
    Machine,
    /// `ImageRelease`.
    Release,
    /// `CertificatePolicy`.
    Policy,
}

/// The tables. One follower for each kind writes them, exchanges read them.
#[derive(Debug)]
pub(crate) struct ReferenceTables {
    tables: RwLock<Tables>,
    release_keys: Vec<ReleaseKey>,
    filled: watch::Sender<Filled>,
    /// A number that rises with every change of a machine.
    machines_changed: watch::Sender<u64>,
    /// A number that rises with every change of a release or policy.
    rules_changed: watch::Sender<u64>,
    deny: Arc<MachineDenyList>,
}

impl ReferenceTables {
    pub(crate) fn new(release_keys: Vec<ReleaseKey>, deny: Arc<MachineDenyList>) -> Self {
        Self {
            tables: RwLock::default(),
            release_keys,
            filled: watch::Sender::new(Filled::default()),
            machines_changed: watch::Sender::new(0),
            rules_changed: watch::Sender::new(0),
            deny,
        }
    }

    /// Waits until every table was filled once.
    pub(crate) async fn ready(&self) {
        let all = Filled {
            machines: true,
            nodes: true,
            releases: true,
            policies: true,
        };
        // The sender lives as long as self.
        drop(
            self.filled
                .subscribe()
                .wait_for(|filled| *filled == all)
                .await,
        );
    }

    pub(crate) fn machines_changed(&self) -> watch::Receiver<u64> {
        self.machines_changed.subscribe()
    }

    pub(crate) fn rules_changed(&self) -> watch::Receiver<u64> {
        self.rules_changed.subscribe()
    }

    /// Takes what an own write has stored.
    pub(crate) fn take_written(&self, machine: Machine) {
        self.take_machine(Change::Set(machine), 0);
    }

    /// Takes a change that the watch reports. `reached`: the revision of a list.
    pub(crate) fn take_machine(&self, change: Change<Machine>, reached: u64) {
        let mut guard = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let tables = &mut *guard;
        match change {
            Change::Listed(machines) => {
                // An own write may be newer than the list: the list was read before it, and must
                // not undo it.
                let newest = |listed: Machine| match tables.machines.get(&name(&listed.metadata)) {
                    Some(known) if is_newer(known, &listed) => known.clone(),
                    Some(_) | None => listed,
                };
                let mut machines: BTreeMap<String, Machine> = machines
                    .into_iter()
                    .map(newest)
                    .map(|m| (name(&m.metadata), m))
                    .collect();
                for (name, known) in std::mem::take(&mut tables.machines) {
                    let listed = machines.get(&name).map(|one| &one.metadata.uid);
                    if listed == Some(&known.metadata.uid) {
                        continue;
                    }
                    if listed.is_none() && revision(&known.metadata) > reached {
                        // Made after the list.
                        machines.insert(name, known);
                    } else {
                        tables.remember_gone(known.metadata.uid.unwrap_or_default());
                    }
                }
                self.deny.fill(machines.values());
                tables.machines = machines;
                self.filled.send_modify(|filled| filled.machines = true);
            }
            Change::Set(machine) => {
                let known = tables.machines.get(&name(&machine.metadata));
                let gone = machine
                    .metadata
                    .uid
                    .as_ref()
                    .is_some_and(|uid| tables.gone.contains(uid));
                if gone {
                    return;
                }
                if known.is_some_and(|known| is_newer(known, &machine)) {
                    // Watch events and responses to own writes arrive in any order; the higher
                    // revision wins.
                    return;
                }
                if let Some(replaced) =
                    known.filter(|known| known.metadata.uid != machine.metadata.uid)
                {
                    self.deny.remove(&Gone::of(&replaced.metadata).uid);
                }
                self.deny.set(&machine);
                tables.machines.insert(name(&machine.metadata), machine);
            }
            Change::Deleted(gone) => {
                self.deny.remove(&gone.uid);
                let known = tables.machines.get(&gone.key.name);
                if known.is_some_and(|known| Gone::of(&known.metadata).is(&gone)) {
                    tables.machines.remove(&gone.key.name);
                }
                tables.remember_gone(gone.uid);
            }
        }
        tables.snapshot = None;
        self.machines_changed.send_modify(|version| *version += 1);
    }

    /// Takes a change of the Nodes that were created for Machines, by name.
    pub(crate) fn take_nodes(&self, change: Change<String>) {
        match change {
            Change::Listed(nodes) => {
                self.deny.fill_node_objects(nodes.into_iter());
                self.filled.send_modify(|filled| filled.nodes = true);
            }
            Change::Set(node) => self.deny.set_node_object(&node, true),
            Change::Deleted(gone) => self.deny.set_node_object(&gone.key.name, false),
        }
    }

    /// Whether the inventory has these objects of the API in the same or a newer revision. `all`:
    /// these are all of the kind, and the inventory must have no others.
    pub(crate) fn holds(&self, kind: ReferenceKind, stored: &[Stored], all: bool) -> bool {
        let tables = self.read();
        let known: BTreeMap<&str, &ObjectMeta> = match kind {
            ReferenceKind::Machine => tables
                .machines
                .iter()
                .map(|(name, one)| (name.as_str(), &one.metadata))
                .collect(),
            ReferenceKind::Release => tables
                .releases
                .iter()
                .map(|(name, one)| (name.as_str(), &one.object.metadata))
                .collect(),
            ReferenceKind::Policy => tables
                .policies
                .iter()
                .map(|(name, one)| (name.as_str(), &one.metadata))
                .collect(),
        };
        let current = |(name, read): &Stored| match (known.get(name.as_str()), read) {
            (None, None) => true,
            (Some(known), Some(read)) => known.uid == read.uid && revision(known) >= revision(read),
            (None, Some(_)) | (Some(_), None) => false,
        };
        stored.iter().all(current) && (!all || known.len() == stored.len())
    }

    fn open(&self, object: ImageRelease) -> Release {
        let known = KnownRelease::open(&object, &self.release_keys)
            .map(Arc::new)
            .map_err(|e| chain(&e));
        let known = known.and_then(|known| misnamed(&object, &known).map_or(Ok(known), Err));
        Release {
            object: Arc::new(object),
            known,
        }
    }

    /// Why a release admits no machine; `None` where it can.
    pub(crate) fn fault_of(&self, object: ImageRelease) -> Option<String> {
        Some(self.open(object).status().fault).filter(|fault| !fault.is_empty())
    }

    pub(crate) fn take_release(&self, change: Change<ImageRelease>) {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let open = |object| self.open(object);
        match change {
            Change::Listed(releases) => {
                tables.releases = releases
                    .into_iter()
                    .map(|r| (name(&r.metadata), open(r)))
                    .collect();
                self.filled.send_modify(|filled| filled.releases = true);
            }
            Change::Set(release) => {
                tables
                    .releases
                    .insert(name(&release.metadata), open(release));
            }
            Change::Deleted(gone) => {
                tables.releases.remove(&gone.key.name);
            }
        }
        tables.known = None;
        self.rules_changed.send_modify(|version| *version += 1);
    }

    pub(crate) fn take_policy(&self, change: Change<CertificatePolicy>) {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        match change {
            Change::Listed(policies) => {
                tables.policies = policies
                    .into_iter()
                    .map(|p| (name(&p.metadata), Arc::new(p)))
                    .collect();
                self.filled.send_modify(|filled| filled.policies = true);
            }
            Change::Set(policy) => {
                tables
                    .policies
                    .insert(name(&policy.metadata), Arc::new(policy));
            }
            Change::Deleted(gone) => {
                tables.policies.remove(&gone.key.name);
            }
        }
        self.rules_changed.send_modify(|version| *version += 1);
    }

    /// A snapshot of all machines, indexed for the verifier.
    pub(crate) fn machines(&self) -> Arc<config_attest::Inventory> {
        if let Some(snapshot) = &self.read().snapshot {
            return snapshot.clone();
        }
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let machines = &tables.machines;
        let fresh = Arc::new(config_attest::Inventory::new(machines.values().cloned()));
        tables.snapshot = Some(fresh.clone());
        fresh
    }

    /// A snapshot of the releases that can be parsed, signed or not.
    pub(crate) fn known_releases(&self) -> Arc<Vec<KnownRelease>> {
        if let Some(known) = &self.read().known {
            return known.clone();
        }
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let usable = tables
            .releases
            .values()
            .filter_map(|release| release.known.as_ref().ok());
        let fresh = Arc::new(
            usable
                .map(|known| KnownRelease::clone(known))
                .collect::<Vec<_>>(),
        );
        tables.known = Some(fresh.clone());
        fresh
    }

    pub(crate) fn releases(&self) -> Vec<Release> {
        self.read().releases.values().cloned().collect()
    }

    pub(crate) fn policies(&self) -> Vec<Arc<CertificatePolicy>> {
        self.read().policies.values().cloned().collect()
    }

    /// The policy in force.
    pub(crate) fn policy(&self) -> Option<Arc<CertificatePolicy>> {
        self.read().policies.get(POLICY_NAME).cloned()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn misnamed(object: &ImageRelease, known: &KnownRelease) -> Option<String> {
    let (found, expected) = (name(&object.metadata), &known.manifest().id);
    (found != *expected)
        .then(|| format!("its name is `{found}`, but its manifest is of `{expected}`"))
}

/// Whether the known version is newer than the reported one.
fn is_newer(known: &Machine, other: &Machine) -> bool {
    revision(&known.metadata) > revision(&other.metadata)
}

/// The resource version as a number: in this API revisions are totally ordered.
fn revision(metadata: &ObjectMeta) -> u64 {
    metadata
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::MachineSpec;

    fn machine(name: &str, uid: &str, version: u64) -> Machine {
        let mut machine = Machine::named(name, MachineSpec::default());
        machine.metadata.uid = Some(uid.to_owned());
        machine.metadata.resource_version = Some(version.to_string());
        machine
    }

    /// The uid of the Machine of this name.
    fn uid(tables: &ReferenceTables, name: &str) -> Option<String> {
        tables.read().machines.get(name)?.metadata.uid.clone()
    }

    fn tables(known: &[Machine]) -> ReferenceTables {
        let tables = ReferenceTables::new(Vec::new(), Arc::default());
        tables.take_machine(Change::Listed(known.to_vec()), 10);
        tables
    }

    #[test]
    fn a_machine_that_a_list_shows_to_be_deleted_stays_deleted() {
        let known = [machine("a", "1", 3), machine("b", "2", 4)];
        let tables = tables(&known);
        let listed = vec![machine("b", "9", 21)];
        tables.take_machine(Change::Listed(listed), 21);
        for late in known {
            // The answer of an own write.
            tables.take_written(late);
        }
        assert_eq!(uid(&tables, "a"), None);
        assert_eq!(uid(&tables, "b").as_deref(), Some("9"));
    }

    #[test]
    fn what_was_made_after_a_list_stays() {
        let tables = tables(&[machine("a", "1", 3)]);
        tables.take_written(machine("b", "2", 30));
        tables.take_machine(Change::Listed(vec![machine("a", "1", 3)]), 29);
        assert_eq!(uid(&tables, "b").as_deref(), Some("2"));
        tables.take_machine(Change::Listed(vec![machine("a", "1", 3)]), 31);
        assert_eq!(uid(&tables, "b"), None);
    }
}
