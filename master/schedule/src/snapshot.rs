//! The scheduler's view of the cluster: nodes, and the pods on them or assumed there.

use crate::event::{NodeChange, PodUsage};
use crate::groups::PodGroups;
use crate::key::PodKey;
use crate::node::{NodeId, NodeInfo};
use crate::nodes::{Candidate, Nodes};
use crate::request::{Demand, PodRequest};
use crate::services::{ServiceSelector, Services};
use crate::storage::{Bindings, Storage, VolumeRequirements};
use crate::terms::{Labels, Namespaces};
use crate::topology::Topologies;
use master_client::Key;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placed {
    node: NodeId,
    uid: Box<str>,
    generation: Option<i64>,
    demand: Arc<Demand>,
    priority: i32,
    /// When it was started, in Unix seconds.
    since: i64,
    leaving: bool,
    /// Whether it has been preempted.
    preempted: bool,
    assumed: bool,
}

/// A place that is or was kept for a pod.
#[derive(Debug, Clone)]
pub(crate) struct KeptPlace {
    pub(crate) key: PodKey,
    pub(crate) uid: String,
    pub(crate) priority: i32,
    pub(crate) node: Arc<str>,
    /// The usage that counts there for the pod.
    pub(crate) usage: PodUsage,
}

impl Placed {
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn lower<'s>(&'s self, key: &'s PodKey) -> PreemptiblePod<'s> {
        PreemptiblePod {
            key,
            uid: &self.uid,
            generation: self.generation,
            demand: &self.demand,
            priority: self.priority,
            since: self.since,
            leaving: self.leaving,
        }
    }
}

/// A pod that may be preempted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreemptiblePod<'s> {
    pub(crate) key: &'s PodKey,
    pub(crate) uid: &'s str,
    pub(crate) generation: Option<i64>,
    pub(crate) demand: &'s Demand,
    pub(crate) priority: i32,
    /// When it was started, in Unix seconds.
    pub(crate) since: i64,
    /// Whether it is being deleted.
    pub(crate) leaving: bool,
}

/// Nodes and placed pods. Invariant: the load of each node is the sum of the placed pods on it, and
/// the groups hold the same pods.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    nodes: Nodes,
    placed: HashMap<PodKey, Placed>,
    groups: PodGroups,
    namespaces: Namespaces,
    services: Services,
    storage: Storage,
    /// How many pods use a claim.
    claims: HashMap<Key, usize>,
    /// How many nodes have an image, by its name.
    images: HashMap<Box<str>, usize>,
    /// Places kept for pods that wait for their victims to end: they count on those nodes already,
    /// beside the victims.
    reserved: HashMap<PodKey, Placed>,
    /// How many pods are placed, by priority.
    priorities: BTreeMap<i32, usize>,
    /// The position in the order of nodes at which the next decision starts.
    start: usize,
}

impl Snapshot {
    /// Adds or updates a node; returns whether anything changed that matters for scheduling.
    pub fn set_node(&mut self, info: NodeInfo) -> bool {
        self.change_node(info).is_some()
    }

    /// The same; returns what changed.
    pub(crate) fn change_node(&mut self, info: NodeInfo) -> Option<NodeChange> {
        let id = self.nodes.number(&info.name);
        if self.nodes.info(id) == Some(&info) {
            return None;
        }
        for image in info.images.keys() {
            *self.images.entry(image.clone()).or_default() += 1;
        }
        let before = self.nodes.set(id, Some(info.clone()));
        self.forget_images(before.as_ref());
        Some(NodeChange { before, now: info })
    }

    /// Removes a node; returns what it was. Its pods count until they are removed too.
    pub fn remove_node(&mut self, name: &str) -> Option<NodeInfo> {
        let id = self.nodes.find(name)?;
        let before = self.nodes.set(id, None);
        self.forget_images(before.as_ref());
        self.nodes.drop_empty(id);
        before
    }

    fn forget_images(&mut self, node: Option<&NodeInfo>) {
        for image in node.iter().flat_map(|node| node.images.keys()) {
            if let Some(count) = self.images.get_mut(image) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.images.remove(image);
                }
            }
        }
    }

    /// Sets a namespace's labels, by which affinity may select it; returns whether they changed.
    pub fn set_namespace(&mut self, name: String, labels: BTreeMap<String, String>) -> bool {
        self.namespaces.insert(name, labels.clone()) != Some(labels)
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    /// Keeps only the namespaces with these names.
    pub(crate) fn retain_namespaces(&mut self, keep: impl Fn(&str) -> bool) {
        self.namespaces.retain(|name, _: &mut Labels| keep(name));
    }

    /// Claims, volumes and classes.
    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Claims, volumes and classes, for changes.
    pub fn storage_mut(&mut self) -> &mut Storage {
        &mut self.storage
    }

    /// How many of the pods that count somewhere use a claim.
    pub(crate) fn claim_users(&self, claim: &Key) -> usize {
        self.claims.get(claim).copied().unwrap_or_default()
    }

    /// The writes that a pod's claims need before the pod can be bound to a node; `None` if they
    /// need none.
    pub(crate) fn bindings(&self, pod: &PodRequest, node: &str) -> Option<Bindings> {
        let node = self.nodes.info(self.nodes.find(node)?)?;
        let required = VolumeRequirements::of(pod, &self.storage).ok()?;
        required
            .bindings(node)
            .ok()
            .filter(|bindings| *bindings != Bindings::default())
    }

    /// Sets a Service's selector, by which pods without constraints are spread.
    pub fn set_service(&mut self, key: Key, selector: ServiceSelector) {
        self.services.set(key, selector);
    }

    /// Removes a Service.
    pub fn remove_service(&mut self, key: &Key) {
        self.services.remove(key);
    }

    /// Removes all Services.
    pub(crate) fn clear_services(&mut self) {
        self.services = Services::default();
    }

    pub(crate) fn services(&self) -> &Services {
        &self.services
    }

    pub(crate) fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    pub(crate) fn groups(&self) -> &PodGroups {
        &self.groups
    }

    pub(crate) fn topologies(&self) -> &Topologies {
        self.nodes.topologies()
    }

    /// A node, if it is known.
    pub(crate) fn node(&self, id: NodeId) -> Option<&NodeInfo> {
        self.nodes.info(id)
    }

    /// How many nodes have an image.
    pub(crate) fn nodes_with_image(&self, image: &str) -> usize {
        self.images.get(image).copied().unwrap_or_default()
    }

    /// The names of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.candidates().map(|node| node.info.name.as_str())
    }

    /// How many nodes are known.
    pub(crate) fn count_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// All nodes with their loads, from the one at which the next decision starts.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        self.nodes.candidates(self.start)
    }

    /// A known node with its load.
    pub(crate) fn candidate(&self, id: NodeId) -> Option<Candidate<'_>> {
        self.nodes.candidate(id)
    }

    pub(crate) fn name(&self, id: NodeId) -> &str {
        self.nodes.name(id)
    }

    /// The node on which a place is kept for a pod.
    pub(crate) fn reserved_for(&self, key: &PodKey) -> Option<NodeId> {
        Some(self.reserved.get(key)?.node)
    }

    /// The node on which a pod counts, because it is placed there or a place is kept for it.
    pub(crate) fn counts_on(&self, key: &PodKey) -> Option<&str> {
        let placed = self.placed.get(key).or_else(|| self.reserved.get(key))?;
        Some(self.name(placed.node))
    }

    /// Places a pod on a node, as the API shows it; returns whether that can change decisions about
    /// other pods.
    pub fn place(&mut self, request: PodRequest, node: &str) -> bool {
        let known = self.placed.get(&request.key).is_some_and(|placed| {
            self.nodes.find(node) == Some(placed.node)
                && placed.leaving == request.leaving
                && placed.preempted == request.preempted
                && placed.priority == request.priority
                && (Arc::ptr_eq(&placed.demand, &request.demand) || placed.demand == request.demand)
        });
        if known && let Some(placed) = self.placed.get_mut(&request.key) {
            placed.uid = request.uid.into();
            placed.generation = request.generation;
            placed.assumed = false;
            return false;
        }
        self.put(request, node, false);
        true
    }

    /// The demand of a placed pod.
    pub(crate) fn demand(&self, key: &PodKey) -> Option<Arc<Demand>> {
        self.placed
            .get(key)
            .map(|placed| Arc::clone(&placed.demand))
    }

    /// Assumes a pod on a node: it counts there from now on.
    pub fn assume(&mut self, request: PodRequest, node: &str) {
        self.put(request, node, true);
    }

    /// Starts the next decision's search after the `looked` nodes that this one has filtered.
    pub(crate) fn turn(&mut self, looked: usize) {
        self.start = (self.start + looked) % self.nodes.len().max(1);
    }

    /// The bind of an assumed pod failed: it no longer counts, unless the API has shown it on a
    /// node meanwhile. Returns what it used there.
    pub fn forget(&mut self, key: &PodKey, uid: &str) -> Option<PodUsage> {
        let placed = self.placed.get(key)?;
        if placed.assumed && *placed.uid == *uid {
            self.remove(key)
        } else {
            None
        }
    }

    /// Removes a pod that was deleted or has ended; returns what it used on its node.
    pub fn remove(&mut self, key: &PodKey) -> Option<PodUsage> {
        let placed = self.placed.remove(key)?;
        if let Some(count) = self.priorities.get_mut(&placed.priority) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.priorities.remove(&placed.priority);
            }
        }
        self.unload(&placed);
        self.nodes.drop_empty(placed.node);
        Some(PodUsage(placed.demand))
    }

    /// Keeps a place for a pod on the node where its victims end.
    pub(crate) fn reserve(&mut self, request: PodRequest, node: &str) {
        self.release(&request.key);
        let key = request.key.clone();
        let placed = self.placed_on(request, node, true);
        self.load(&placed);
        self.reserved.insert(key, placed);
    }

    /// The place that is kept for a pod.
    pub(crate) fn kept_place(&self, key: &PodKey) -> Option<KeptPlace> {
        let placed = self.reserved.get(key)?;
        Some(KeptPlace {
            key: key.clone(),
            uid: placed.uid.to_string(),
            priority: placed.priority,
            node: Arc::clone(self.nodes.name(placed.node)),
            usage: PodUsage(Arc::clone(&placed.demand)),
        })
    }

    /// Gives up the place that is kept for a pod; returns it.
    pub(crate) fn release(&mut self, key: &PodKey) -> Option<KeptPlace> {
        let place = self.kept_place(key)?;
        let placed = self.reserved.remove(key)?;
        self.unload(&placed);
        self.nodes.drop_empty(placed.node);
        Some(place)
    }

    /// Gives up the places on a node that are kept for pods of lower priority; returns them.
    pub(crate) fn displace(&mut self, node: &str, priority: i32) -> Vec<KeptPlace> {
        let node = self.nodes.find(node);
        let on_it = |placed: &Placed| Some(placed.node) == node && placed.priority < priority;
        let displaced = self.reserved.iter().filter(|(_, placed)| on_it(placed));
        let displaced: Vec<PodKey> = displaced.map(|(key, _)| key.clone()).collect();
        let places = displaced.iter().filter_map(|key| self.release(key));
        places.collect()
    }

    /// Keeps places only for the pods with these keys.
    pub(crate) fn retain_reserved(&mut self, keep: impl Fn(&PodKey) -> bool) {
        let gone = self.reserved.keys().filter(|key| !keep(key));
        let gone: Vec<PodKey> = gone.cloned().collect();
        for key in &gone {
            self.release(key);
        }
    }

    /// Removes the places that are kept for a pod itself and for pods of lower priority, to be put
    /// back.
    pub(crate) fn take_reserved(&mut self, pod: &PodRequest) -> Vec<(PodKey, Placed)> {
        if self.reserved.is_empty() {
            return Vec::new();
        }
        let taken =
            |key: &PodKey, placed: &mut Placed| *key == pod.key || placed.priority < pod.priority;
        let taken: Vec<_> = self.reserved.extract_if(taken).collect();
        for (_, placed) in &taken {
            self.unload(placed);
        }
        taken
    }

    /// Puts back places that were taken.
    pub(crate) fn restore_reserved(&mut self, taken: Vec<(PodKey, Placed)>) {
        for (key, placed) in taken {
            self.load(&placed);
            self.reserved.insert(key, placed);
        }
    }

    /// Whether preempted pods of a lower priority are still ending on a node.
    pub(crate) fn has_victims(&self, node: NodeId, priority: i32) -> bool {
        let mut placed = self.placed.values();
        placed.any(|pod| pod.preempted && pod.priority < priority && pod.node == node)
    }

    /// The lowest priority of placed pods.
    pub(crate) fn lowest_priority(&self) -> Option<i32> {
        self.priorities.keys().next().copied()
    }

    /// Placed pods with a lower priority.
    pub(crate) fn lower_than(&self, priority: i32) -> impl Iterator<Item = (&PodKey, &Placed)> {
        let placed = self.placed.iter();
        placed.filter(move |(_, placed)| placed.priority < priority)
    }

    fn load(&mut self, placed: &Placed) {
        let Placed {
            node,
            demand,
            leaving,
            ..
        } = placed;
        self.groups.add(demand, *node, *leaving);
        self.nodes.load_mut(*node).add(demand);
        for claim in &demand.claims {
            *self.claims.entry(claim.clone()).or_default() += 1;
        }
    }

    /// The node keeps its number, so that the place can be put back.
    fn unload(&mut self, placed: &Placed) {
        let Placed {
            node,
            demand,
            leaving,
            ..
        } = placed;
        self.groups.remove(demand, *node, *leaving);
        self.nodes.load_mut(*node).remove(demand);
        for claim in &demand.claims {
            if let Some(count) = self.claims.get_mut(claim) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.claims.remove(claim);
                }
            }
        }
    }

    /// Whether a pod counts on a node.
    pub fn holds(&self, key: &PodKey, uid: &str) -> bool {
        self.placed
            .get(key)
            .is_some_and(|placed| *placed.uid == *uid)
    }

    /// The node on which a pod is assumed, if the API has not shown it there yet.
    pub(crate) fn assumed_on(&self, key: &PodKey, uid: &str) -> Option<String> {
        let placed = self.placed.get(key)?;
        let is_assumed = placed.assumed && *placed.uid == *uid;
        is_assumed.then(|| self.nodes.name(placed.node).to_string())
    }

    /// Keys of the pods that count on a node.
    pub(crate) fn placed(&self) -> Vec<PodKey> {
        self.placed.keys().cloned().collect()
    }

    fn put(&mut self, request: PodRequest, node: &str, assumed: bool) {
        self.remove(&request.key);
        let key = request.key.clone();
        let placed = self.placed_on(request, node, assumed);
        self.load(&placed);
        *self.priorities.entry(placed.priority).or_default() += 1;
        self.placed.insert(key, placed);
    }

    fn placed_on(&mut self, request: PodRequest, node: &str, assumed: bool) -> Placed {
        Placed {
            node: self.nodes.number(node),
            uid: request.uid.into(),
            generation: request.generation,
            demand: request.demand,
            priority: request.priority,
            since: request.since,
            leaving: request.leaving,
            preempted: request.preempted,
            assumed,
        }
    }
}
