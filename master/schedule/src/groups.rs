//! Where pods are, by their labels: what affinity and spread count, without a look at each pod.

use crate::request::Demand;
use crate::terms::{Affinity, Labels};
use std::collections::HashMap;
use std::sync::Arc;

/// Pods on one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) all: usize,
    /// Of these, those that are being deleted.
    pub(crate) leaving: usize,
}

/// Pods by node.
type ByNode = HashMap<Arc<str>, Count>;

/// Pods by namespace, labels and node; and once more those that ask something of the places of others. Invariant: it holds the
/// placed pods, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups {
    by_labels: HashMap<Box<str>, HashMap<Labels, ByNode>>,
    /// By the address of what they ask, which replicas share; it stays the same as long as the group holds it.
    asking: HashMap<usize, Asking>,
}

/// Pods that ask the same of the places of others.
#[derive(Debug, Clone)]
pub(crate) struct Asking {
    pub(crate) demand: Arc<Demand>,
    nodes: ByNode,
}

impl Asking {
    pub(crate) fn affinity(&self) -> &Affinity {
        &self.demand.affinity
    }

    /// Nodes on which they are, and how many on each.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&Arc<str>, Count)> {
        self.nodes.iter().map(|(node, count)| (node, *count))
    }
}

impl Groups {
    pub(crate) fn add(&mut self, demand: &Arc<Demand>, node: &Arc<str>, leaving: bool) {
        let add = |nodes: &mut ByNode| {
            let count = nodes.entry(Arc::clone(node)).or_default();
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
        if !demand.affinity.is_empty() {
            let asking = self.asking.entry(address(demand));
            let asking = asking.or_insert_with(|| Asking {
                demand: Arc::clone(demand),
                nodes: ByNode::new(),
            });
            add(&mut asking.nodes);
        }
    }

    pub(crate) fn remove(&mut self, demand: &Arc<Demand>, node: &str, leaving: bool) {
        /// Whether none are left.
        fn take(nodes: &mut ByNode, node: &str, leaving: bool) -> bool {
            if let Some(count) = nodes.get_mut(node) {
                count.all = count.all.saturating_sub(1);
                count.leaving = count.leaving.saturating_sub(usize::from(leaving));
                if count.all == 0 {
                    nodes.remove(node);
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
        if !demand.affinity.is_empty()
            && let Some(asking) = self.asking.get_mut(&address(demand))
            && take(&mut asking.nodes, node, leaving)
        {
            self.asking.remove(&address(demand));
        }
    }

    /// Pods of a namespace whose labels are selected, by node.
    pub(crate) fn selected<'a>(
        &'a self,
        namespace: &str,
        selects: impl Fn(&Labels) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a Arc<str>, Count)> {
        let groups = self.by_labels.get(namespace).into_iter().flatten();
        let selected = groups.filter(move |(labels, _)| selects(labels));
        selected.flat_map(|(_, nodes)| nodes.iter().map(|(node, count)| (node, *count)))
    }

    /// All namespaces in which pods are.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.by_labels.keys().map(|name| &**name)
    }

    /// Pods that ask something of the places of others.
    pub(crate) fn asking(&self) -> impl Iterator<Item = &Asking> {
        self.asking.values()
    }

    /// Whether there are no such pods.
    pub(crate) fn nobody_asks(&self) -> bool {
        self.asking.is_empty()
    }
}

fn address(demand: &Arc<Demand>) -> usize {
    Arc::as_ptr(demand).addr()
}
