//! Counts of pods by labels and node, so that affinity and spread need not look at each pod.

use crate::node::NodeId;
use crate::request::Demand;
use crate::terms::{Affinity, Labels};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Pods on one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) all: usize,
    /// Of these, those that are being deleted.
    pub(crate) leaving: usize,
}

impl Count {
    /// Those that are not being deleted.
    pub(crate) fn staying(self) -> usize {
        self.all - self.leaving
    }
}

/// Pods by node.
type ByNode = HashMap<NodeId, Count, BuildHasherDefault<NumberHasher>>;
/// Pods by their labels and node.
type ByLabels = HashMap<Arc<Labels>, ByNode>;

/// Hashes numbers of nodes by one multiplication: each decision looks up hundreds. No client
/// chooses the numbers, so the hash need not resist collisions made on purpose.
#[derive(Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize(usize::from(*byte));
        }
    }

    fn write_usize(&mut self, number: usize) {
        // 2^64 by the golden ratio: numbers in sequence are spread over the whole range.
        self.0 = (self.0 ^ number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Pods by namespace, labels and node; replicas also by owner, and pods with affinity or
/// anti-affinity also by their terms. Invariant: it holds the placed pods, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodGroups {
    by_labels: HashMap<Box<str>, ByLabels>,
    /// Replicas, by their owner's UID.
    by_owner: HashMap<String, ByLabels>,
    /// Pods with affinity or anti-affinity, by their terms: replicas have the same terms, even
    /// where each has a label of its own.
    asking: HashMap<Affinity, ByNode>,
}

/// Pods with the same affinity terms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AffinityGroup<'a> {
    pub(crate) affinity: &'a Affinity,
    nodes: &'a ByNode,
}

impl<'a> AffinityGroup<'a> {
    /// Nodes on which they are, and how many on each.
    pub(crate) fn nodes(self) -> impl Iterator<Item = (NodeId, Count)> + 'a {
        self.nodes.iter().map(|(node, count)| (*node, *count))
    }
}

/// Similar pods, counted by node. Those that are being deleted do not count.
#[derive(Debug, Clone)]
pub(crate) struct AlikePods<'a>(Cow<'a, ByNode>);

impl AlikePods<'_> {
    /// How many are on a node.
    pub(crate) fn on(&self, node: NodeId) -> usize {
        self.0.get(&node).copied().unwrap_or_default().staying()
    }

    /// Nodes on which they are, and how many on each.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeId, usize)> {
        self.0.iter().map(|(node, count)| (*node, count.staying()))
    }
}

/// Adds a pod to the group of its labels.
fn enter(groups: &mut ByLabels, labels: &Arc<Labels>, add: impl FnOnce(&mut ByNode)) {
    match groups.get_mut(labels) {
        Some(nodes) => add(nodes),
        None => add(groups.entry(Arc::clone(labels)).or_default()),
    }
}

/// Removes a pod from its node; returns whether the group is empty.
fn take(nodes: &mut ByNode, node: NodeId, leaving: bool) -> bool {
    if let Some(count) = nodes.get_mut(&node) {
        count.all = count.all.saturating_sub(1);
        count.leaving = count.leaving.saturating_sub(usize::from(leaving));
        if count.all == 0 {
            nodes.remove(&node);
        }
    }
    nodes.is_empty()
}

/// Removes a pod from the group of its labels; returns whether there are no groups left.
fn leave(groups: &mut ByLabels, labels: &Labels, node: NodeId, leaving: bool) -> bool {
    if let Some(nodes) = groups.get_mut(labels)
        && take(nodes, node, leaving)
    {
        groups.remove(labels);
    }
    groups.is_empty()
}

impl PodGroups {
    pub(crate) fn add(&mut self, demand: &Demand, node: NodeId, leaving: bool) {
        let add = |nodes: &mut ByNode| {
            let count = nodes.entry(node).or_default();
            count.all += 1;
            count.leaving += usize::from(leaving);
        };
        let namespace = match self.by_labels.get_mut(&*demand.namespace) {
            Some(namespace) => namespace,
            None => self.by_labels.entry(demand.namespace.clone()).or_default(),
        };
        enter(namespace, &demand.labels, add);
        if let Some(owner) = &demand.owner {
            let own = match self.by_owner.get_mut(owner) {
                Some(own) => own,
                None => self.by_owner.entry(owner.clone()).or_default(),
            };
            enter(own, &demand.labels, add);
        }
        if !demand.affinity.is_empty() {
            match self.asking.get_mut(&demand.affinity) {
                Some(nodes) => add(nodes),
                None => add(self.asking.entry(demand.affinity.clone()).or_default()),
            }
        }
    }

    pub(crate) fn remove(&mut self, demand: &Demand, node: NodeId, leaving: bool) {
        if let Some(namespace) = self.by_labels.get_mut(&*demand.namespace)
            && leave(namespace, &demand.labels, node, leaving)
        {
            self.by_labels.remove(&*demand.namespace);
        }
        if let Some(owner) = &demand.owner
            && let Some(own) = self.by_owner.get_mut(owner)
            && leave(own, &demand.labels, node, leaving)
        {
            self.by_owner.remove(owner);
        }
        if !demand.affinity.is_empty()
            && let Some(nodes) = self.asking.get_mut(&demand.affinity)
            && take(nodes, node, leaving)
        {
            self.asking.remove(&demand.affinity);
        }
    }

    /// Pods of a namespace whose labels are selected, by node.
    pub(crate) fn selected<'a>(
        &'a self,
        namespace: &str,
        selects: impl Fn(&Labels) -> bool + 'a,
    ) -> impl Iterator<Item = (NodeId, Count)> {
        let groups = self.by_labels.get(namespace).into_iter().flatten();
        let selected = groups.filter(move |(labels, _)| selects(labels));
        selected.flat_map(|(_, nodes)| nodes.iter().map(|(node, count)| (*node, *count)))
    }

    /// Pods that have the `wanted` labels: those of the pod's owner, or if it has none, of its
    /// namespace. Pods of a ReplicaSet have the same labels, so usually there is one group and
    /// nothing to add up.
    pub(crate) fn alike(&self, pod: &Demand, wanted: &BTreeMap<&str, &str>) -> AlikePods<'_> {
        let groups = match &pod.owner {
            Some(owner) => self.by_owner.get(owner),
            None => self.by_labels.get(&*pod.namespace),
        };
        let has = |labels: &Labels| {
            let mut wanted = wanted.iter();
            wanted.all(|(key, value)| labels.get(*key).is_some_and(|own| own == value))
        };
        let groups = groups.into_iter().flatten();
        let mut alike = groups.filter(|(labels, _)| has(labels));
        let mut all = match alike.next() {
            Some((_, nodes)) => Cow::Borrowed(nodes),
            None => Cow::default(),
        };
        for (node, count) in alike.flat_map(|(_, nodes)| nodes) {
            let sum = all.to_mut().entry(*node).or_default();
            sum.all += count.all;
            sum.leaving += count.leaving;
        }
        AlikePods(all)
    }

    /// All namespaces with pods.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.by_labels.keys().map(|name| &**name)
    }

    /// Pods with affinity or anti-affinity, by their terms.
    pub(crate) fn asking(&self) -> impl Iterator<Item = AffinityGroup<'_>> {
        let asking = self.asking.iter();
        asking.map(|(affinity, nodes)| AffinityGroup { affinity, nodes })
    }

    /// Whether there are no such pods.
    pub(crate) fn nobody_asks(&self) -> bool {
        self.asking.is_empty()
    }
}
