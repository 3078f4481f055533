//! Where pods are, by their labels: what affinity and spread count, without a look at each pod.

use crate::node::NodeId;
use crate::request::Demand;
use crate::terms::{Affinity, Labels};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

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

/// Hashes numbers of nodes by one multiplication. No client chooses them, so they need no hash that
/// is hard to foresee; each decision looks up hundreds.
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

/// Pods by namespace, labels and node; once more by owner, and those that ask something of the
/// places of others. Invariant: it holds the placed pods, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodGroups {
    by_labels: HashMap<Box<str>, HashMap<Labels, ByNode>>,
    /// Replicas, by their owner's UID.
    by_owner: HashMap<String, ByNode>,
    /// Pods with affinity or anti-affinity, by their terms: replicas have the same terms, even
    /// where each has a label of its own.
    asking: HashMap<Affinity, ByNode>,
}

/// Pods that ask the same of the places of others.
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

/// Replicas of one owner by node, those that are being deleted not counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replicas<'a>(&'a ByNode);

impl<'a> Replicas<'a> {
    /// How many are on a node.
    pub(crate) fn on(self, node: NodeId) -> usize {
        self.0.get(&node).copied().unwrap_or_default().staying()
    }

    /// Nodes on which they are, and how many on each.
    pub(crate) fn nodes(self) -> impl Iterator<Item = (NodeId, usize)> + 'a {
        self.0.iter().map(|(node, count)| (*node, count.staying()))
    }
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
        match namespace.get_mut(&demand.labels) {
            Some(nodes) => add(nodes),
            None => add(namespace.entry(demand.labels.clone()).or_default()),
        }
        if let Some(owner) = &demand.owner {
            match self.by_owner.get_mut(owner) {
                Some(nodes) => add(nodes),
                None => add(self.by_owner.entry(owner.clone()).or_default()),
            }
        }
        if !demand.affinity.is_empty() {
            match self.asking.get_mut(&demand.affinity) {
                Some(nodes) => add(nodes),
                None => add(self.asking.entry(demand.affinity.clone()).or_default()),
            }
        }
    }

    pub(crate) fn remove(&mut self, demand: &Demand, node: NodeId, leaving: bool) {
        /// Whether none are left.
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
        if let Some(namespace) = self.by_labels.get_mut(&*demand.namespace)
            && let Some(nodes) = namespace.get_mut(&demand.labels)
            && take(nodes, node, leaving)
        {
            namespace.remove(&demand.labels);
            if namespace.is_empty() {
                self.by_labels.remove(&*demand.namespace);
            }
        }
        if let Some(owner) = &demand.owner
            && let Some(nodes) = self.by_owner.get_mut(owner)
            && take(nodes, node, leaving)
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

    /// Replicas of an owner; none where it has none.
    pub(crate) fn replicas(&self, owner: &str) -> Option<Replicas<'_>> {
        self.by_owner.get(owner).map(Replicas)
    }

    /// All namespaces in which pods are.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.by_labels.keys().map(|name| &**name)
    }

    /// Pods that ask something of the places of others.
    pub(crate) fn asking(&self) -> impl Iterator<Item = AffinityGroup<'_>> {
        let asking = self.asking.iter();
        asking.map(|(affinity, nodes)| AffinityGroup { affinity, nodes })
    }

    /// Whether there are no such pods.
    pub(crate) fn nobody_asks(&self) -> bool {
        self.asking.is_empty()
    }
}
