//! The graph of owners of objects of all kinds, with the minimum of data for each object.
//!
//! It has the UID of every object (to know that it exists), and the names and references of objects
//! with owners and of those whose deletion waits for others. Only this determines the action
//! ([`Graph::action`]), which stays the same until the graph changes.
//!
//! Each owner knows how many of its dependents block it and wait, and each object how many of its
//! owners are absent and go, so that no question about one object goes through all its relatives.

mod uid;

use master_client::{Key, Meta, OwnerRef};
use master_control::every_kind::ResourceId;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use uid::Uid;

/// Waits until those that it owns, and that block it, are gone.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Waits until no object names it as an owner any more.
pub(crate) const ORPHAN: &str = "orphan";
/// How many owners that orphaned their dependents are remembered.
const ORPHANERS: usize = 4_096;

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

/// All references of an object that have the same UID.
#[derive(Debug, Clone)]
struct Link {
    owner: Uid,
    /// Whether one of them blocks the owner's deletion.
    block: bool,
    /// Whether the owner is not there.
    absent: bool,
}

/// A reference with its UID as a number.
#[derive(Debug, Clone)]
struct Owner {
    uid: Uid,
    reference: OwnerRef,
}

#[derive(Debug, Clone)]
struct Node {
    id: Id,
    /// The references as the object has them: several may have one UID and different names.
    owners: Vec<Owner>,
    /// The owners, by UID, each once.
    links: Vec<Link>,
    /// How many of the links are absent.
    absent: usize,
    /// How many of the links are to objects whose deletion waits for others.
    going: usize,
    deleting: bool,
    foreground: bool,
    orphan: bool,
}

impl Node {
    fn waits(&self) -> bool {
        self.deleting && self.foreground
    }

    /// Whether the object says the same about all that the graph stores.
    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
            && (self.deleting, self.foreground, self.orphan)
                == (other.deleting, other.foreground, other.orphan)
            && self.owners.len() == other.owners.len()
            && self
                .owners
                .iter()
                .zip(&other.owners)
                .all(|(own, other)| own.reference == other.reference)
    }

    fn link(&self, owner: Uid) -> Option<&Link> {
        let place = self.links.binary_search_by_key(&owner, |link| link.owner);
        place.ok().and_then(|place| self.links.get(place))
    }
}

/// The objects that name an owner.
#[derive(Debug, Clone, Default)]
struct Dependents {
    all: BTreeSet<Uid>,
    /// How many of them block the owner's deletion.
    blocking: usize,
    /// How many of them wait for those that they own.
    waiting: usize,
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
    alive: Alive,
    namespaces: HashSet<Arc<str>>,
    nodes: HashMap<Uid, Node>,
    dependents: HashMap<Uid, Dependents>,
    /// Objects with an owner that is not there.
    suspects: BTreeSet<Uid>,
    /// Objects whose deletion waits for others.
    going: BTreeSet<Uid>,
    /// Objects about which something changed, and for which there may be something to do.
    touched: BTreeSet<Uid>,
    /// Objects with an owner of a kind that nobody serves.
    held: BTreeSet<Uid>,
    /// Objects with a reference that can't be resolved: their owners are not judged.
    unresolvable: BTreeSet<Uid>,
    /// Kinds that were listed.
    listed: BTreeSet<ResourceId>,
    /// The last owners that orphaned their dependents. A dependent that was created while they went
    /// loses the reference, and is not deleted.
    orphaners: VecDeque<Uid>,
    /// The same, to look one up.
    orphaned: HashSet<Uid>,
}

type Alive = HashMap<Uid, (ResourceId, Arc<str>)>;

/// Whether an owner is not there for a dependent in a namespace. An owner in another namespace does
/// not count (upstream), and no namespaced owner counts for a cluster-scoped dependent.
fn is_absent(alive: &Alive, owner: Uid, dependent: &str) -> bool {
    let found = alive.get(&owner);
    found.is_none_or(|(_, own)| !own.is_empty() && **own != *dependent)
}

impl Graph {
    /// An object came or changed.
    pub fn set(&mut self, resource: ResourceId, meta: &Meta) {
        let uid = Uid::of(&meta.uid);
        let namespace = self.namespace(&meta.namespace);
        // Other finalizers may keep it after that of the orphans is gone.
        self.remember_orphaner(uid);
        let known = self.alive.insert(uid, (resource, Arc::clone(&namespace)));
        let new = known.is_none_or(|(_, known)| known != namespace);
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
        if self.listed.insert(resource) {
            self.touched.append(&mut self.held);
        }
    }

    /// Notes that nothing can be done with an object before a further kind is served: its first
    /// list touches the object.
    pub fn hold(&mut self, object: &Id) {
        let uid = Uid::of(&object.uid);
        if self.nodes.contains_key(&uid) {
            self.held.insert(uid);
        }
    }

    /// Notes that the owners of an object can't be judged before its references change, unless
    /// another action is due for it by now. Returns whether that was noted.
    pub fn give_up(&mut self, key: &Key, action: &Action) -> bool {
        let is_due = self.action(key).as_ref() == Some(action);
        if is_due {
            self.unresolvable.insert(Uid::of(&key.name));
        }
        is_due
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

    /// Keys of the objects whose action may have changed since the last call. A key is a UID in its
    /// object's namespace, by which a queue lets namespaces take turns.
    pub fn touched(&mut self) -> Vec<Key> {
        let touched = std::mem::take(&mut self.touched).into_iter();
        // There is nothing to do with one that is gone.
        let keys = touched.filter_map(|uid| Some(uid.key(&self.nodes.get(&uid)?.id.namespace)));
        keys.collect()
    }

    /// The action for the object of a key.
    pub fn action(&self, key: &Key) -> Option<Action> {
        self.action_on(Uid::of(&key.name))
    }

    /// All that is to be done, for checks: a plan asks for one object.
    pub fn actions(&self) -> Vec<Action> {
        let owned = self.going.iter().filter_map(|uid| self.dependents.get(uid));
        let mut all: BTreeSet<Uid> = owned
            .flat_map(|dependents| dependents.all.iter().copied())
            .collect();
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
        let mut links = node.links.iter();
        let awaited = node.going > 0 && links.any(|link| self.asks_dependents(link.owner));
        (self.suspects.contains(&uid) || awaited)
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
        self.dependents
            .get(&uid)
            .is_some_and(|dependents| dependents.blocking > 0)
    }

    /// Notes that there may be something to do with an object. What its owners do is nothing to one
    /// that is being deleted.
    fn touch(&mut self, uid: Uid) {
        let node = self.nodes.get(&uid);
        let concerned = self.going.contains(&uid)
            || self.suspects.contains(&uid)
            || node.is_some_and(|node| node.going > 0 && !node.deleting);
        if concerned {
            self.touched.insert(uid);
        }
    }

    /// Marks an object that changed, and its owners, for a new check. If it is the first that
    /// blocks an owner's deletion, marks the owner's other dependents, too.
    fn touch_around(&mut self, uid: Uid, before: Option<&Node>) {
        self.touch(uid);
        let mut owners: BTreeSet<Uid> = BTreeSet::new();
        let mut others: BTreeSet<Uid> = BTreeSet::new();
        let after = self.nodes.get(&uid);
        let links = before.into_iter().chain(after).flat_map(|node| &node.links);
        owners.extend(links.map(|link| link.owner));
        let blocked = |owner: Uid| {
            let link = before.and_then(|node| node.link(owner));
            link.is_some_and(|link| link.block)
        };
        let links = after.into_iter().flat_map(|node| &node.links);
        for link in links.filter(|link| link.block && !blocked(link.owner)) {
            if self.going.contains(&link.owner)
                && let Some(dependents) = self.dependents.get(&link.owner)
                && dependents.blocking == 1
            {
                others.extend(&dependents.all);
            }
        }
        for uid in owners.into_iter().chain(others) {
            self.touch(uid);
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
        let waits = deleting && (foreground || orphan);
        let node = (!meta.owner_references.is_empty() || waits).then(|| {
            let owners = meta.owner_references.iter().map(|reference| Owner {
                uid: Uid::of(&reference.uid),
                reference: reference.clone(),
            });
            let owners: Vec<Owner> = owners.collect();
            let links = self.links(&owners, &meta.namespace);
            Node {
                id: Id {
                    resource,
                    namespace: meta.namespace.clone(),
                    name: meta.name.clone(),
                    uid: meta.uid.clone(),
                },
                absent: links.iter().filter(|link| link.absent).count(),
                going: 0,
                owners,
                links,
                deleting,
                foreground,
                orphan,
            }
        });
        let known = self.nodes.get(&uid);
        let same = match (known, &node) {
            (Some(known), Some(node)) => known.is_same(node),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if same {
            // What failed for it may succeed now. Nothing changes for others.
            self.touch(uid);
            return;
        }
        let waited = known.is_some_and(Node::waits);
        let orphaning = known.is_some_and(|node| node.orphan);
        let before = self.unlink(uid);
        if let Some(node) = node {
            self.link(uid, node);
        }
        self.set_going(uid, waits);
        self.suspect(uid);
        self.touch_around(uid, before.as_ref());
        if waited != (deleting && foreground) || orphaning != orphan {
            self.look_again(uid);
        }
    }

    /// The owners of references, each once.
    fn links(&self, owners: &[Owner], namespace: &str) -> Vec<Link> {
        let mut blocks: BTreeMap<Uid, bool> = BTreeMap::new();
        for owner in owners {
            *blocks.entry(owner.uid).or_default() |= owner.reference.block;
        }
        let links = blocks.into_iter().map(|(owner, block)| Link {
            owner,
            block,
            absent: is_absent(&self.alive, owner, namespace),
        });
        links.collect()
    }

    /// Adds an object, and counts it at its owners.
    fn link(&mut self, uid: Uid, mut node: Node) {
        let waiting = usize::from(node.waits());
        for link in &node.links {
            let dependents = self.dependents.entry(link.owner).or_default();
            dependents.all.insert(uid);
            dependents.blocking += usize::from(link.block);
            dependents.waiting += waiting;
        }
        let going = |link: &&Link| self.going.contains(&link.owner);
        node.going = node.links.iter().filter(going).count();
        self.nodes.insert(uid, node);
    }

    /// Removes an object, and does not count it at its owners any more.
    fn unlink(&mut self, uid: Uid) -> Option<Node> {
        let node = self.nodes.remove(&uid)?;
        self.held.remove(&uid);
        self.unresolvable.remove(&uid);
        let waiting = usize::from(node.waits());
        for link in &node.links {
            if let Some(dependents) = self.dependents.get_mut(&link.owner) {
                dependents.all.remove(&uid);
                dependents.blocking -= usize::from(link.block);
                dependents.waiting -= waiting;
                if dependents.all.is_empty() {
                    self.dependents.remove(&link.owner);
                }
            }
        }
        Some(node)
    }

    /// Notes whether an object's deletion waits for others, and counts it at its dependents.
    fn set_going(&mut self, uid: Uid, going: bool) {
        let changed = if going {
            self.going.insert(uid)
        } else {
            self.going.remove(&uid)
        };
        if !changed {
            return;
        }
        let dependents = self.dependents.get(&uid);
        for dependent in dependents.into_iter().flat_map(|all| &all.all) {
            if let Some(node) = self.nodes.get_mut(dependent) {
                if going {
                    node.going += 1;
                } else {
                    node.going -= 1;
                }
            }
        }
    }

    /// Remembers an object that orphans its dependents, before it changes or goes.
    fn remember_orphaner(&mut self, uid: Uid) {
        let known = self.nodes.get(&uid);
        let orphans = known.is_some_and(|node| node.deleting && node.orphan);
        if orphans && self.orphaned.insert(uid) {
            let excess = (self.orphaners.len() + 1).saturating_sub(ORPHANERS);
            for oldest in self.orphaners.drain(..excess) {
                self.orphaned.remove(&oldest);
            }
            self.orphaners.push_back(uid);
        }
    }

    fn remove(&mut self, uid: Uid) {
        self.remember_orphaner(uid);
        self.alive.remove(&uid);
        let before = self.unlink(uid);
        self.set_going(uid, false);
        self.suspect(uid);
        self.touch_around(uid, before.as_ref());
        self.look_again(uid);
    }

    /// Marks the dependents of an object, which may have come or gone, for a new check.
    fn look_again(&mut self, owner: Uid) {
        let dependents = self.dependents.get(&owner);
        let all = dependents.map(|dependents| dependents.all.clone());
        for uid in all.into_iter().flatten() {
            self.note_absence(uid, owner);
            self.suspect(uid);
            self.touch(uid);
        }
    }

    /// Notes whether an owner is there for a dependent.
    fn note_absence(&mut self, dependent: Uid, owner: Uid) {
        let Some(node) = self.nodes.get_mut(&dependent) else {
            return;
        };
        let absent = is_absent(&self.alive, owner, &node.id.namespace);
        let place = node.links.binary_search_by_key(&owner, |link| link.owner);
        if let Ok(place) = place
            && let Some(link) = node.links.get_mut(place)
        {
            node.absent = node.absent + usize::from(absent) - usize::from(link.absent);
            link.absent = absent;
        }
    }

    fn suspect(&mut self, uid: Uid) {
        let node = self.nodes.get(&uid);
        if node.is_some_and(|node| !node.deleting && node.absent > 0) {
            self.suspects.insert(uid);
        } else {
            self.suspects.remove(&uid);
        }
    }

    fn owner_state(&self, node: &Node, owner: Uid) -> OwnerState {
        if is_absent(&self.alive, owner, &node.id.namespace) {
            return OwnerState::Absent;
        }
        match self.nodes.get(&owner) {
            Some(owner) if owner.waits() => OwnerState::Waiting,
            Some(_) | None => OwnerState::Solid,
        }
    }

    /// The action for an object whose owners may be gone or being deleted.
    fn judge(&self, uid: Uid) -> Option<Action> {
        let node = self.nodes.get(&uid)?;
        if node.deleting || self.unresolvable.contains(&uid) {
            return None;
        }
        let of = |state: OwnerState| {
            let owners = node
                .owners
                .iter()
                .filter(|owner| self.owner_state(node, owner.uid) == state);
            owners.cloned().collect::<Vec<Owner>>()
        };
        let (solid, waiting, absent) = (
            of(OwnerState::Solid),
            of(OwnerState::Waiting),
            of(OwnerState::Absent),
        );
        let object = node.id.clone();
        let orphaned: Vec<OwnerRef> = absent
            .iter()
            .filter(|owner| self.orphaned.contains(&owner.uid))
            .map(|owner| owner.reference.clone())
            .collect();
        let absent: Vec<OwnerRef> = absent.into_iter().map(|owner| owner.reference).collect();
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
                .map(|owner| &owner.reference)
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
        if !waiting.is_empty()
            && let Some(dependents) = self.dependents.get(&uid)
        {
            if dependents.waiting > 0 && node.links.iter().any(|link| link.block) {
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

#[cfg(test)]
mod tests;
