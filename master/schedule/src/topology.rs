//! Topology domains: nodes with the same value of a label are one domain of that label's topology.

use crate::node::NodeId;
use std::collections::HashMap;
use std::sync::Arc;

/// The key of the failure zones' topology, which takes two labels together. No label has an empty
/// name.
pub(crate) const FAILURE_ZONE: &str = "";

/// The number of a topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TopologyId(usize);

/// The number of a domain within its topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DomainId(usize);

/// Domains of one label.
#[derive(Debug, Clone, Default)]
struct Topology {
    by_value: HashMap<Arc<str>, DomainId>,
    /// The value of each domain, and how many nodes are there.
    domains: Vec<(Arc<str>, usize)>,
    free: Vec<DomainId>,
}

impl Topology {
    fn enter(&mut self, value: &str) -> DomainId {
        if let Some(id) = self.by_value.get(value) {
            self.domains[id.0].1 += 1;
            return *id;
        }
        let value: Arc<str> = value.into();
        let domain = (Arc::clone(&value), 1);
        let id = if let Some(id) = self.free.pop() {
            self.domains[id.0] = domain;
            id
        } else {
            self.domains.push(domain);
            DomainId(self.domains.len() - 1)
        };
        self.by_value.insert(value, id);
        id
    }

    fn leave(&mut self, id: DomainId) {
        let (value, nodes) = &mut self.domains[id.0];
        *nodes -= 1;
        if *nodes == 0 {
            self.by_value.remove(value);
            self.free.push(id);
        }
    }
}

/// Domains by each label that a node has. Numbers of labels and values that no node has any more
/// are reused, so that the size depends on the present labels only.
#[derive(Debug, Clone, Default)]
pub(crate) struct Topologies {
    by_key: HashMap<Box<str>, TopologyId>,
    by_number: Vec<Topology>,
    free: Vec<TopologyId>,
    /// The domains of each node, by its number; sorted.
    of: Vec<Vec<(TopologyId, DomainId)>>,
}

impl Topologies {
    /// Moves a node to the domains of its labels.
    pub(crate) fn set<'l>(
        &mut self,
        node: NodeId,
        labels: impl IntoIterator<Item = (&'l str, &'l str)>,
    ) {
        let at = node.0;
        if self.of.len() <= at {
            self.of.resize(at + 1, Vec::new());
        }
        let before = std::mem::take(&mut self.of[at]);
        let labels = labels.into_iter();
        let mut after: Vec<_> = labels
            .map(|(key, value)| {
                let topology = self.number(key);
                (topology, self.by_number[topology.0].enter(value))
            })
            .collect();
        after.sort_unstable_by_key(|(topology, _)| *topology);
        self.of[at] = after;
        for (topology, domain) in before {
            self.by_number[topology.0].leave(domain);
            if self.by_number[topology.0].by_value.is_empty() {
                self.by_key.retain(|_, known| *known != topology);
                self.by_number[topology.0] = Topology::default();
                self.free.push(topology);
            }
        }
    }

    fn number(&mut self, key: &str) -> TopologyId {
        if let Some(id) = self.by_key.get(key) {
            return *id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.by_number.push(Topology::default());
            TopologyId(self.by_number.len() - 1)
        });
        self.by_key.insert(key.into(), id);
        id
    }

    /// An empty tally for the topology of a label; `None` if no node has the label.
    pub(crate) fn tally(&self, key: &str) -> Option<Tally<'_>> {
        let topology = *self.by_key.get(key)?;
        Some(Tally {
            all: self,
            topology,
            numbers: vec![None; self.by_number[topology.0].domains.len()],
            open: 0,
        })
    }

    fn domain(&self, topology: TopologyId, node: NodeId) -> Option<DomainId> {
        let domains = self.of.get(node.0)?;
        let at = domains.binary_search_by_key(&topology, |(known, _)| *known);
        at.ok().map(|at| domains[at].1)
    }
}

/// A number for each domain of a topology; `None` for a domain that was not opened.
#[derive(Debug, Clone)]
pub(crate) struct Tally<'s> {
    all: &'s Topologies,
    topology: TopologyId,
    numbers: Vec<Option<i64>>,
    /// How many domains have a number.
    open: usize,
}

impl Tally<'_> {
    fn entry(&mut self, node: NodeId) -> Option<&mut Option<i64>> {
        let domain = self.all.domain(self.topology, node)?;
        self.numbers.get_mut(domain.0)
    }

    /// Opens the domain of a node: sets it to zero if it has no number yet.
    pub(crate) fn open(&mut self, node: NodeId) {
        self.add(node, 0);
    }

    /// Opens the domains of all nodes.
    pub(crate) fn open_all(&mut self) {
        let domains = &self.all.by_number[self.topology.0].domains;
        for (number, (_, nodes)) in self.numbers.iter_mut().zip(domains) {
            if *nodes > 0 && number.is_none() {
                *number = Some(0);
                self.open += 1;
            }
        }
    }

    /// Adds to the number of a node's domain.
    pub(crate) fn add(&mut self, node: NodeId, more: i64) {
        if let Some(number) = self.entry(node) {
            let is_new = number.is_none();
            *number.get_or_insert(0) += more;
            self.open += usize::from(is_new);
        }
    }

    /// Adds to the number of a node's domain. If that makes it zero, the domain is closed, as if
    /// nothing had been added to it.
    pub(crate) fn add_or_close(&mut self, node: NodeId, more: i64) {
        self.add(node, more);
        if let Some(number) = self.entry(node)
            && *number == Some(0)
        {
            *number = None;
            self.open -= 1;
        }
    }

    /// Adds to the number of a node's domain if that was opened before.
    pub(crate) fn add_if_open(&mut self, node: NodeId, more: i64) {
        if let Some(Some(number)) = self.entry(node) {
            *number += more;
        }
    }

    /// The number of a node's domain.
    pub(crate) fn get(&self, node: NodeId) -> Option<i64> {
        let domain = self.all.domain(self.topology, node)?;
        self.numbers.get(domain.0).copied().flatten()
    }

    /// Whether a node is in any domain of the topology.
    pub(crate) fn has_domain(&self, node: NodeId) -> bool {
        self.all.domain(self.topology, node).is_some()
    }

    /// Whether no domain is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// The numbers of all open domains.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = i64> {
        self.numbers.iter().copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Nodes;

    #[test]
    fn nodes_with_the_same_value_are_one_place() {
        let mut nodes = Nodes::default();
        let [one, other, third] = ["n1", "n2", "n3"].map(|name| nodes.number(name));
        let mut all = Topologies::default();
        all.set(one, [("zone", "a"), ("disk", "ssd")]);
        all.set(other, [("zone", "a")]);
        all.set(third, [("zone", "b")]);
        let mut pods = all.tally("zone").expect("nodes have it");
        pods.add(one, 3);
        pods.add_if_open(third, 1);
        assert_eq!(
            [one, other, third].map(|node| pods.get(node)),
            [Some(3), Some(3), None]
        );
        pods.add_or_close(third, 1);
        pods.add_or_close(other, -3);
        assert_eq!([one, third].map(|node| pods.get(node)), [None, Some(1)]);
        pods.add_or_close(third, -1);
        assert!(pods.is_empty());
        assert!(all.tally("rack").is_none());
        let disks = all.tally("disk").expect("a node has it");
        assert!(disks.has_domain(one) && !disks.has_domain(other));
    }

    #[test]
    fn what_no_node_has_is_given_up() {
        let mut nodes = Nodes::default();
        let [one, other] = ["n1", "n2"].map(|name| nodes.number(name));
        let mut all = Topologies::default();
        for turn in 0..10 {
            let own = format!("own-{turn}");
            all.set(one, [("zone", own.as_str()), (&own, "")]);
            all.set(other, [("zone", "a")]);
        }
        assert_eq!(all.by_key.len(), 2);
        assert!(all.by_number.len() <= 3 && all.by_number.iter().all(|one| one.domains.len() <= 3));
        all.set(one, []);
        all.set(other, []);
        assert!(all.by_key.is_empty() && all.free.len() == all.by_number.len());
    }
}
