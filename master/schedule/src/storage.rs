//! Claims, volumes and classes: which nodes can have the volumes of a pod.

use crate::capacity::{Capacities, Capacity, Driver, fits};
use crate::node::NodeInfo;
use crate::request::PodRequest;
use config_kube::k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver};
use master_claims::{Claim, Class, CsiVolume, ReachableFrom, Volume, best};
use master_client::{Key, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A node's limits of volumes by CSI driver. A driver without an entry has no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits(BTreeMap<String, usize>);

impl Limits {
    pub(crate) fn of(&self, driver: &str) -> Option<usize> {
        self.0.get(driver).copied()
    }
}

impl View for Limits {
    type Object = CSINode;

    fn read(node: CSINode) -> Self {
        let drivers = node.spec.drivers.into_iter();
        let limit = |driver: CSINodeDriver| {
            let most = driver.allocatable?.count?;
            Some((driver.name, usize::try_from(most).ok()?))
        };
        Self(drivers.filter_map(limit).collect())
    }
}

/// What a volume may be bound to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// The claim that it is for.
    Claim(Key),
    /// Any claim of its class.
    Class(String),
}

impl Use {
    /// `None` for a volume without a claim that is not available either.
    fn of(volume: &Volume) -> Option<Self> {
        match &volume.claim {
            Some(claim) => Some(Self::Claim(claim.key.clone())),
            None => (volume.phase == "Available").then(|| Self::Class(volume.class.clone())),
        }
    }
}

/// The claims, volumes and classes that decisions need.
#[derive(Debug, Clone, Default)]
pub struct Storage {
    claims: HashMap<Key, Claim>,
    volumes: BTreeMap<String, Volume>,
    /// Names of volumes by what they may be bound to: a pod's claims look at no others.
    uses: BTreeSet<(Use, String)>,
    classes: HashMap<String, Class>,
    /// Limits of volumes, by node.
    limits: HashMap<String, Limits>,
    /// Volumes that this scheduler chose for a claim, until the API shows or refuses that.
    assumed: HashMap<String, Key>,
    capacities: Capacities,
}

impl Storage {
    /// Adds or updates a claim; returns whether anything changed.
    pub fn set_claim(&mut self, key: Key, claim: Claim) -> bool {
        self.claims.insert(key, claim.clone()) != Some(claim)
    }

    /// Removes a claim.
    pub fn remove_claim(&mut self, key: &Key) {
        self.claims.remove(key);
    }

    /// Adds or updates a volume; returns whether anything changed. An assumed claim of the volume
    /// is replaced by the one that the API shows.
    pub fn set_volume(&mut self, name: String, volume: Volume) -> bool {
        if volume.claim.is_some() {
            self.assumed.remove(&name);
        }
        let before = self.volumes.insert(name.clone(), volume.clone());
        let (old, new) = (before.as_ref().and_then(Use::of), Use::of(&volume));
        if old != new {
            if let Some(old) = old {
                self.uses.remove(&(old, name.clone()));
            }
            self.uses.extend(new.map(|new| (new, name)));
        }
        before != Some(volume)
    }

    /// Removes a volume.
    pub fn remove_volume(&mut self, name: &str) {
        let before = self.volumes.remove(name);
        if let Some(old) = before.as_ref().and_then(Use::of) {
            self.uses.remove(&(old, name.to_owned()));
        }
        self.assumed.remove(name);
    }

    /// Adds or updates a class; returns whether anything changed.
    pub fn set_class(&mut self, name: String, class: Class) -> bool {
        self.classes.insert(name, class.clone()) != Some(class)
    }

    /// Removes a class.
    pub fn remove_class(&mut self, name: &str) {
        self.classes.remove(name);
    }

    /// Adds or updates a node's limits; returns whether anything changed.
    pub fn set_limits(&mut self, node: String, limits: Limits) -> bool {
        if limits.0.is_empty() {
            return self.limits.remove(&node).is_some();
        }
        self.limits.insert(node, limits.clone()) != Some(limits)
    }

    /// Removes a node's limits; returns whether it had any.
    pub(crate) fn remove_limits(&mut self, node: &str) -> bool {
        self.limits.remove(node).is_some()
    }

    pub(crate) fn retain_limits(&mut self, keep: impl Fn(&str) -> bool) {
        self.limits.retain(|node, _| keep(node));
    }

    pub(crate) fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }

    pub(crate) fn limits(&self, node: &str) -> Option<&Limits> {
        self.limits.get(node)
    }

    /// The volume of a CSI driver that a claim has, or that is to be made for it.
    pub(crate) fn csi_volume(&self, key: &Key) -> Option<CsiVolume> {
        let claim = self.claims.get(key)?;
        if !claim.volume.is_empty() {
            return self.volumes.get(&claim.volume)?.csi.clone();
        }
        let class = self.classes.get(claim.class_name())?;
        Some(CsiVolume {
            driver: class.provisioner.clone(),
            handle: key.to_string(),
        })
    }

    /// The free storage that CSI drivers report, for changes.
    pub(crate) fn capacities_mut(&mut self) -> &mut Capacities {
        &mut self.capacities
    }

    /// Adds or updates a CSI driver; returns whether anything changed.
    pub fn set_driver(&mut self, name: String, driver: Driver) -> bool {
        self.capacities.set_driver(name, driver)
    }

    /// Adds or updates a driver's report of free storage; returns whether anything changed.
    pub fn set_capacity(&mut self, key: Key, capacity: Capacity) -> bool {
        self.capacities.set(key, capacity)
    }

    /// Keeps only the claims for which `keep` is true, as all were listed again.
    pub(crate) fn retain_claims(&mut self, keep: impl Fn(&Key) -> bool) {
        self.claims.retain(|key, _| keep(key));
    }

    pub(crate) fn retain_volumes(&mut self, keep: impl Fn(&str) -> bool) {
        self.volumes.retain(|name, _| keep(name));
        self.uses.retain(|(_, name)| keep(name));
        self.assumed.retain(|name, _| keep(name));
    }

    pub(crate) fn retain_classes(&mut self, keep: impl Fn(&str) -> bool) {
        self.classes.retain(|name, _| keep(name));
    }

    pub(crate) fn claim(&self, key: &Key) -> Option<&Claim> {
        self.claims.get(key)
    }

    /// The volume that a claim is bound to permanently.
    pub(crate) fn bound(&self, key: &Key) -> Option<&Volume> {
        let claim = self.claims.get(key).filter(|claim| claim.is_bound())?;
        self.volumes.get(&claim.volume)
    }

    /// Assumes that a volume is bound to this claim.
    pub(crate) fn assume(&mut self, volume: String, claim: Key) {
        self.assumed.insert(volume, claim);
    }

    /// Ends the assumption: the volume could not be reserved for the claim.
    pub(crate) fn forget(&mut self, volume: &str) {
        self.assumed.remove(volume);
    }

    /// The volumes that may be bound to a claim: those that are for it, and free ones of its class.
    fn candidates(&self, key: &Key, claim: &Claim) -> Vec<(&str, &Volume)> {
        let own = self.used_by(Use::Claim(key.clone()));
        let free = self.used_by(Use::Class(claim.class_name().to_owned()));
        let free = free.filter(|(name, _)| self.assumed.get(*name).is_none_or(|by| by == key));
        own.chain(free).collect()
    }

    fn used_by(&self, by: Use) -> impl Iterator<Item = (&str, &Volume)> {
        let first = (by.clone(), String::new());
        let uses = self
            .uses
            .range(first..)
            .take_while(move |(of, _)| *of == by);
        uses.filter_map(move |(_, name)| Some((name.as_str(), self.volumes.get(name)?)))
    }
}

/// A claim that a pod uses.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodClaim {
    pub(crate) key: Key,
    /// Whether it must have been made for this very pod (an ephemeral volume).
    pub(crate) own: bool,
}

/// An unbound claim, whose class has `WaitForFirstConsumer`.
#[derive(Debug)]
struct Open<'a> {
    key: &'a Key,
    claim: &'a Claim,
    class: &'a Class,
    candidates: Vec<(&'a str, &'a Volume)>,
    /// The free storage for a provisioned volume; `None` if the driver does not report it.
    room: Option<Vec<&'a Capacity>>,
}

/// Why claims can't get their volumes on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoBindings {
    /// One of them has no matching volume, and none can be provisioned.
    NoVolume,
    /// A volume could be provisioned, but there is not enough free storage.
    NoSpace,
}

/// The requirements of a pod's claims on its node.
#[derive(Debug)]
pub(crate) struct VolumeRequirements<'a> {
    /// Volumes of bound claims; `None` where the volume does not exist.
    bound: Vec<Option<&'a Volume>>,
    open: Vec<Open<'a>>,
}

/// The writes that the claims of a pod need before it can be bound to a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bindings {
    /// Volumes to reserve: claim and volume.
    pub(crate) volumes: Vec<(Key, String)>,
    /// Claims for which a volume is to be provisioned on the node.
    pub(crate) provisioned: Vec<Key>,
}

impl<'a> VolumeRequirements<'a> {
    /// Reads a pod's claims (upstream: `VolumeBinding`'s `PreFilter`).
    ///
    /// # Errors
    /// The reason why no node can take the pod, in upstream's words.
    pub(crate) fn of(pod: &'a PodRequest, storage: &'a Storage) -> Result<Self, String> {
        let (mut bound, mut open) = (Vec::new(), Vec::new());
        let mut immediate = false;
        for PodClaim { key, own } in &*pod.claims {
            let name = &key.name;
            let Some(claim) = storage.claim(key) else {
                return Err(if *own {
                    format!(
                        "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
                    )
                } else {
                    format!("persistentvolumeclaim {name:?} not found")
                });
            };
            if claim.phase == "Lost" {
                return Err(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {:?}",
                    claim.volume
                ));
            }
            if claim.leaving {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            if *own && claim.pod != pod.uid {
                return Err(format!(
                    "PVC {key} was not created for pod {} (pod is not owner)",
                    pod.key
                ));
            }
            if claim.is_bound() {
                bound.push(storage.bound(key));
                continue;
            }
            let class = storage.classes.get(claim.class_name());
            match class.filter(|class| class.waits && claim.volume.is_empty()) {
                Some(class) => open.push(Open {
                    candidates: storage.candidates(key, claim),
                    room: storage
                        .capacities
                        .of_class(&class.provisioner, claim.class_name()),
                    key,
                    claim,
                    class,
                }),
                None => immediate = true,
            }
        }
        if immediate {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
        // Small claims first, so that a large volume is left for a large one (upstream).
        open.sort_by(|a, b| (a.claim.size, a.key).cmp(&(b.claim.size, b.key)));
        Ok(Self { bound, open })
    }

    /// Whether there is no claim to check.
    pub(crate) fn is_empty(&self) -> bool {
        self.bound.is_empty() && self.open.is_empty()
    }

    /// Why a node can't use the volumes of bound claims, in upstream's words.
    pub(crate) fn conflict(&self, node: &NodeInfo) -> Option<&'static str> {
        if self.bound.iter().any(Option::is_none) {
            return Some(
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
            );
        }
        let mut bound = self.bound.iter().flatten();
        let away = bound.any(|volume| !volume.is_reached(&node.name, &node.labels));
        away.then_some("node(s) had volume node affinity conflict")
    }

    /// Volumes of bound claims.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = &'a Volume> {
        self.bound.iter().flatten().copied()
    }

    /// How the unbound claims get their volumes on a node.
    ///
    /// # Errors
    /// [`NoBindings::NoVolume`] where a claim finds no volume that the node reaches and none can be
    /// provisioned there; [`NoBindings::NoSpace`] where one could, but there is not enough free
    /// storage.
    pub(crate) fn bindings(&self, node: &NodeInfo) -> Result<Bindings, NoBindings> {
        let mut bindings = Bindings::default();
        for open in &self.open {
            let (key, claim) = (open.key, open.claim);
            if !claim.node.is_empty() {
                // Its volume is being provisioned on the node that was chosen before.
                if claim.node != node.name {
                    return Err(NoBindings::NoVolume);
                }
                bindings.provisioned.push(key.clone());
                continue;
            }
            let taken = |name: &str| bindings.volumes.iter().any(|(_, taken)| taken == name);
            let left = open.candidates.iter().copied();
            let left = left.filter(|(name, _)| !taken(name));
            let from = ReachableFrom::Node(&node.name, &node.labels);
            if let Some(volume) = best(key, claim, left, from) {
                bindings.volumes.push((key.clone(), volume.to_owned()));
            } else if !open.class.provisions(&node.labels) {
                return Err(NoBindings::NoVolume);
            } else if open
                .room
                .as_ref()
                .is_some_and(|room| !fits(room, claim, node))
            {
                return Err(NoBindings::NoSpace);
            } else {
                bindings.provisioned.push(key.clone());
            }
        }
        Ok(bindings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use master_claims::ClaimRef;

    #[test]
    fn a_claim_looks_at_its_own_volumes_and_at_free_ones_of_its_class_alone() {
        let mut storage = Storage::default();
        let key = |name: &str| Key::new("default", name);
        let volume = |class: &str, claim: Option<&str>| Volume {
            class: class.to_owned(),
            phase: if claim.is_some() {
                "Bound"
            } else {
                "Available"
            }
            .to_owned(),
            claim: claim.map(|name| ClaimRef {
                key: key(name),
                uid: String::new(),
            }),
            ..Volume::default()
        };
        let claim = Claim {
            class: Some("fast".to_owned()),
            ..Claim::default()
        };
        let seen = |storage: &Storage| {
            let candidates = storage.candidates(&key("c"), &claim);
            let names = candidates.iter().map(|(name, _)| (*name).to_owned());
            names.collect::<Vec<String>>().join(" ")
        };
        for (name, class, of) in [
            ("a", "fast", None),
            ("b", "slow", None),
            ("c", "slow", Some("c")),
            ("d", "fast", Some("other")),
            ("e", "fast", None),
        ] {
            assert!(storage.set_volume(name.to_owned(), volume(class, of)));
        }
        assert_eq!(seen(&storage), "c a e");
        assert!(!storage.set_volume("a".to_owned(), volume("fast", None)));
        storage.assume("a".to_owned(), key("other"));
        storage.assume("e".to_owned(), key("c"));
        assert_eq!(seen(&storage), "c e");
        storage.forget("a");
        storage.set_volume("e".to_owned(), volume("fast", Some("other")));
        storage.set_volume("d".to_owned(), volume("fast", None));
        assert_eq!(seen(&storage), "c a d");
        storage.remove_volume("c");
        storage.retain_volumes(|name| name != "a");
        assert_eq!(seen(&storage), "d");
        assert_eq!(storage.uses.len(), 3, "one for each volume");
    }
}
