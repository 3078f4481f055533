//! The graph of owners of objects of all kinds, with the minimum of data for each object.
//!
//! It has the UID of every object (to know that it exists), and the names and references of objects
//! with owners and of those whose deletion waits for others. Only this determines the action
//! ([`Graph::action`]), which stays the same until the graph changes.

use master_client::{Key, Meta, OwnerRef};
use master_control::every_kind::ResourceId;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Waits until those that it owns, and that block it, are gone.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Waits until no object names it as an owner any more.
pub(crate) const ORPHAN: &str = "orphan";
/// How many owners that orphaned their dependents are remembered.
const ORPHANERS: usize = 4_096;

/// A UID as a number. Another text than a UUID is hashed: no object of this server has such a UID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Uid(u128);

impl Uid {
    fn of(text: &str) -> Self {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if digits.len() == 32
            && let Ok(number) = u128::from_str_radix(&digits, 16)
        {
            return Self(number);
        }
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, text).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        Self(half(0) << 64 | half(1))
    }
}

impl Uid {
    fn key(self) -> Key {
        Key::cluster(&format!("{:032x}", self.0))
    }
}

/// Which object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// Its kind.
    pub resource: ResourceId,
    /// Its namespace; empty where it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// An action. Owners that seem to be gone are looked up once more before it is carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It has no owner any more: it is deleted.
    Collect {
        /// The object.
        object: Id,
        /// What happens to its dependents: upstream's propagation policy.
        policy: &'static str,
        /// Owners that seem to be gone.
        absent: Vec<OwnerRef>,
    },
    /// It has an owner, and others are gone: their references are removed.
    Release {
        /// The object.
        object: Id,
        /// UIDs of the owners.
        owners: Vec<String>,
        /// The owners that seem to be gone.
        absent: Vec<OwnerRef>,
    },
    /// Its owner waits for it, and one of its dependents waits too, which may be a cycle: its
    /// references no longer block.
    Unblock {
        /// The object.
        object: Id,
    },
    /// Its wait is over: its finalizer is removed.
    Finish {
        /// The object.
        object: Id,
        /// The finalizer.
        finalizer: &'static str,
    },
    /// Its dependents are orphaned, then its finalizer is removed. The dependents are read from the
    /// API, because the graph may not have all of them yet.
    Orphan {
        /// The object.
        object: Id,
    },
}

impl Action {
    /// The object that is written.
    pub fn object(&self) -> &Id {
        match self {
            Self::Collect { object, .. }
            | Self::Release { object, .. }
            | Self::Unblock { object }
            | Self::Finish { object, .. }
            | Self::Orphan { object } => object,
        }
    }
}

#[derive(Debug, Clone)]
struct Node {
    id: Id,
    owners: Vec<OwnerRef>,
    deleting: bool,
    foreground: bool,
    orphan: bool,
}

impl Node {
    fn waits(&self) -> bool {
        self.deleting && self.foreground
    }
}

/// The state of an owner, from the view of a dependent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnerState {
    /// It is there.
    Solid,
    /// It exists, and is deleted once its dependents are gone.
    Waiting,
    /// It is not there.
    Absent,
}

/// All that is known.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    alive: HashMap<Uid, (ResourceId, Arc<str>)>,
    namespaces: HashSet<Arc<str>>,
    nodes: HashMap<Uid, Node>,
    dependents: HashMap<Uid, BTreeSet<Uid>>,
    /// Objects with an owner that is not there.
    suspects: BTreeSet<Uid>,
    /// Objects whose deletion waits for others.
    going: BTreeSet<Uid>,
    /// Objects about which something changed, and for which there may be something to do.
    touched: BTreeSet<Uid>,
    /// The last owners that orphaned their dependents. A dependent that was created while they went
    /// loses the reference, and is not deleted.
    orphaners: VecDeque<Uid>,
}

impl Graph {
    /// An object came or changed.
    pub fn set(&mut self, resource: ResourceId, meta: &Meta) {
        let uid = Uid::of(&meta.uid);
        let namespace = self.namespace(&meta.namespace);
        // Other finalizers may keep it after that of the orphans is gone.
        self.remember_orphaner(uid);
        let new = self.alive.insert(uid, (resource, namespace)).is_none();
        self.place(uid, resource, meta);
        if new {
            self.look_again(uid);
        }
    }

    /// The object of a UID is gone.
    pub fn gone(&mut self, uid: &str) {
        self.remove(Uid::of(uid));
    }

    /// All objects of a kind; what is not among them is gone.
    pub fn listed(&mut self, resource: ResourceId, all: &[Meta]) {
        let there: HashSet<Uid> = all.iter().map(|meta| Uid::of(&meta.uid)).collect();
        let missing = self
            .alive
            .iter()
            .filter(|(uid, (of, _))| *of == resource && !there.contains(uid));
        let missing: Vec<Uid> = missing.map(|(uid, _)| *uid).collect();
        for uid in missing {
            self.remove(uid);
        }
        for meta in all {
            self.set(resource, meta);
        }
    }

    /// How many objects are known.
    pub fn len(&self) -> usize {
        self.alive.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.alive.is_empty()
    }

    /// The namespace of a reference's owner, if the owner exists in another namespace than the
    /// dependent.
    pub fn elsewhere(&self, owner: &OwnerRef, namespace: &str) -> bool {
        let found = self.alive.get(&Uid::of(&owner.uid));
        found.is_some_and(|(_, own)| !own.is_empty() && **own != *namespace)
    }

    /// Keys of the objects whose action may have changed since the last call.
    pub fn touched(&mut self) -> Vec<Key> {
        let touched = std::mem::take(&mut self.touched).into_iter();
        touched.map(Uid::key).collect()
    }

    /// The action for the object of a key.
    pub fn action(&self, key: &Key) -> Option<Action> {
        self.action_on(Uid::of(&key.name))
    }

    /// All that is to be done, for checks: a plan asks for one object.
    pub fn actions(&self) -> Vec<Action> {
        let owned = self.going.iter().flat_map(|uid| self.owned(*uid));
        let mut all: BTreeSet<Uid> = owned.map(|(uid, _)| uid).collect();
        all.extend(self.going.iter().chain(&self.suspects));
        all.into_iter()
            .filter_map(|uid| self.action_on(uid))
            .collect()
    }

    fn action_on(&self, uid: Uid) -> Option<Action> {
        let node = self.nodes.get(&uid)?;
        if self.going.contains(&uid) {
            return self.finish(uid, node);
        }
        let owners = || node.owners.iter().map(|owner| Uid::of(&owner.uid));
        let awaited = || owners().any(|owner| self.asks_dependents(owner));
        (self.suspects.contains(&uid) || awaited())
            .then(|| self.judge(uid))
            .flatten()
    }

    /// Whether an object waits for those that it owns and that block it.
    fn asks_dependents(&self, uid: Uid) -> bool {
        let waits = self
            .nodes
            .get(&uid)
            .is_some_and(|node| node.waits() && !node.orphan);
        waits && self.is_blocked(uid)
    }

    fn is_blocked(&self, uid: Uid) -> bool {
        let blocks = |owner: &OwnerRef| owner.block && Uid::of(&owner.uid) == uid;
        self.owned(uid)
            .any(|(_, node)| node.owners.iter().any(blocks))
    }

    /// Notes that there may be something to do with an object.
    fn touch(&mut self, uid: Uid) {
        let node = self.nodes.get(&uid);
        let mut owners = node.iter().flat_map(|node| &node.owners);
        let concerned = self.going.contains(&uid)
            || self.suspects.contains(&uid)
            || owners.any(|owner| self.going.contains(&Uid::of(&owner.uid)));
        if concerned {
            self.touched.insert(uid);
        }
    }

    /// Marks an object that changed, and its owners, for a new check. If it begins to block an
    /// owner's deletion, marks the owner's other dependents, too.
    fn touch_around(&mut self, uid: Uid, before: &[OwnerRef], after: &[OwnerRef]) {
        self.touch(uid);
        for owner in before.iter().chain(after) {
            self.touch(Uid::of(&owner.uid));
        }
        for owner in after.iter().filter(|owner| owner.block) {
            let blocked = before.iter().any(|own| own.block && own.uid == owner.uid);
            let owner = Uid::of(&owner.uid);
            if !blocked && self.going.contains(&owner) {
                let others: Vec<Uid> = self.owned(owner).map(|(uid, _)| uid).collect();
                for other in others {
                    self.touch(other);
                }
            }
        }
    }

    fn namespace(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.namespaces.get(name) {
            return Arc::clone(known);
        }
        let new: Arc<str> = name.into();
        self.namespaces.insert(Arc::clone(&new));
        new
    }

    /// Stores the part of an object that the graph needs.
    fn place(&mut self, uid: Uid, resource: ResourceId, meta: &Meta) {
        let has = |name: &str| meta.finalizers.iter().any(|finalizer| finalizer == name);
        let (foreground, orphan, deleting) = (
            has(FOREGROUND),
            has(ORPHAN),
            meta.deletion_timestamp.is_some(),
        );
        let known = self.nodes.get(&uid);
        let waited = known.is_some_and(Node::waits);
        let orphaning = known.is_some_and(|node| node.orphan);
        let before = known.map(|node| node.owners.clone()).unwrap_or_default();
        self.unlink(uid);
        if !meta.owner_references.is_empty() || deleting && (foreground || orphan) {
            let id = Id {
                resource,
                namespace: meta.namespace.clone(),
                name: meta.name.clone(),
                uid: meta.uid.clone(),
            };
            for owner in &meta.owner_references {
                self.dependents
                    .entry(Uid::of(&owner.uid))
                    .or_default()
                    .insert(uid);
            }
            if deleting && (foreground || orphan) {
                self.going.insert(uid);
            }
            let owners = meta.owner_references.clone();
            self.nodes.insert(
                uid,
                Node {
                    id,
                    owners,
                    deleting,
                    foreground,
                    orphan,
                },
            );
        }
        self.suspect(uid);
        self.touch_around(uid, &before, &meta.owner_references);
        if waited != (deleting && foreground) || orphaning != orphan {
            self.look_again(uid);
        }
    }

    fn unlink(&mut self, uid: Uid) {
        self.going.remove(&uid);
        self.suspects.remove(&uid);
        let Some(node) = self.nodes.remove(&uid) else {
            return;
        };
        for owner in &node.owners {
            let owner = Uid::of(&owner.uid);
            if let Some(all) = self.dependents.get_mut(&owner) {
                all.remove(&uid);
                if all.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
        }
    }

    /// Remembers an object that orphans its dependents, before it changes or goes.
    fn remember_orphaner(&mut self, uid: Uid) {
        let known = self.nodes.get(&uid);
        let orphans = known.is_some_and(|node| node.deleting && node.orphan);
        if orphans && !self.orphaners.contains(&uid) {
            let excess = (self.orphaners.len() + 1).saturating_sub(ORPHANERS);
            self.orphaners.drain(..excess);
            self.orphaners.push_back(uid);
        }
    }

    fn remove(&mut self, uid: Uid) {
        self.remember_orphaner(uid);
        let known = self.nodes.get(&uid);
        let before = known.map(|node| node.owners.clone()).unwrap_or_default();
        self.alive.remove(&uid);
        self.unlink(uid);
        self.touch_around(uid, &before, &[]);
        self.look_again(uid);
    }

    /// Marks the dependents of an object for a new check.
    fn look_again(&mut self, owner: Uid) {
        for uid in self.dependents.get(&owner).cloned().into_iter().flatten() {
            self.suspect(uid);
            self.touch(uid);
        }
    }

    fn suspect(&mut self, uid: Uid) {
        let absent = self.nodes.get(&uid).is_some_and(|node| {
            !node.deleting
                && node
                    .owners
                    .iter()
                    .any(|owner| self.standing(node, owner) == OwnerState::Absent)
        });
        if absent {
            self.suspects.insert(uid);
        } else {
            self.suspects.remove(&uid);
        }
    }

    fn standing(&self, node: &Node, owner: &OwnerRef) -> OwnerState {
        let uid = Uid::of(&owner.uid);
        let Some((_, namespace)) = self.alive.get(&uid) else {
            return OwnerState::Absent;
        };
        // An owner in another namespace does not count (upstream); for a cluster-scoped dependent
        // that can't be known.
        if !namespace.is_empty()
            && !node.id.namespace.is_empty()
            && **namespace != *node.id.namespace
        {
            return OwnerState::Absent;
        }
        match self.nodes.get(&uid) {
            Some(owner) if owner.waits() => OwnerState::Waiting,
            Some(_) | None => OwnerState::Solid,
        }
    }

    fn owned(&self, uid: Uid) -> impl Iterator<Item = (Uid, &Node)> {
        let all = self.dependents.get(&uid).into_iter().flatten();
        all.filter_map(|uid| self.nodes.get(uid).map(|node| (*uid, node)))
    }

    /// The action for an object whose owners may be gone or being deleted.
    fn judge(&self, uid: Uid) -> Option<Action> {
        let node = self.nodes.get(&uid).filter(|node| !node.deleting)?;
        let of = |standing: OwnerState| {
            let owners = node
                .owners
                .iter()
                .filter(move |owner| self.standing(node, owner) == standing);
            owners.cloned().collect::<Vec<OwnerRef>>()
        };
        let (solid, waiting, absent) = (
            of(OwnerState::Solid),
            of(OwnerState::Waiting),
            of(OwnerState::Absent),
        );
        let object = node.id.clone();
        let orphaned: Vec<OwnerRef> = absent
            .iter()
            .filter(|owner| self.orphaners.contains(&Uid::of(&owner.uid)))
            .cloned()
            .collect();
        if !orphaned.is_empty() {
            return Some(Action::Release {
                object,
                owners: orphaned.iter().map(|owner| owner.uid.clone()).collect(),
                absent: orphaned,
            });
        }
        if !solid.is_empty() {
            let owners: Vec<String> = waiting
                .iter()
                .chain(&absent)
                .map(|owner| owner.uid.clone())
                .collect();
            return (!owners.is_empty()).then_some(Action::Release {
                object,
                owners,
                absent,
            });
        }
        if waiting.is_empty() && absent.is_empty() {
            return None;
        }
        if !waiting.is_empty() && self.owned(uid).next().is_some() {
            if self.owned(uid).any(|(_, node)| node.waits())
                && node.owners.iter().any(|owner| owner.block)
            {
                return Some(Action::Unblock { object });
            }
            return Some(Action::Collect {
                object,
                policy: "Foreground",
                absent,
            });
        }
        let policy = match (node.orphan, node.foreground) {
            (true, _) => "Orphan",
            (false, true) => "Foreground",
            (false, false) => "Background",
        };
        Some(Action::Collect {
            object,
            policy,
            absent,
        })
    }

    /// The action for an object whose deletion waits for others; `None` while others block it.
    fn finish(&self, uid: Uid, node: &Node) -> Option<Action> {
        let object = node.id.clone();
        if node.orphan {
            return Some(Action::Orphan { object });
        }
        (!self.is_blocked(uid)).then_some(Action::Finish {
            object,
            finalizer: FOREGROUND,
        })
    }
}
