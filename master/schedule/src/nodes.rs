//! The nodes of a snapshot. Each has a number, so that counting by node compares no names.

use crate::node::{HostPorts, NodeId, NodeInfo};
use crate::request::Demand;
use crate::resources::Resources;
use crate::topology::{FAILURE_ZONE, Topologies};
use master_client::Key;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

/// The sum of what the pods of one node use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) pods: usize,
    pub(crate) needed: Resources,
    pub(crate) scored: Resources,
    pub(crate) ports: HostPorts,
    /// The claims of its pods, and how many of them use each.
    pub(crate) claims: HashMap<Key, usize>,
}

impl Load {
    pub(crate) fn add(&mut self, pod: &Demand) {
        self.pods += 1;
        self.needed.add(&pod.needed);
        self.scored.add(&pod.scored);
        pod.ports.iter().for_each(|port| self.ports.add(port));
        for claim in &pod.claims {
            *self.claims.entry(claim.clone()).or_default() += 1;
        }
    }

    pub(crate) fn remove(&mut self, pod: &Demand) {
        self.pods = self.pods.saturating_sub(1);
        self.needed.remove(&pod.needed);
        self.scored.remove(&pod.scored);
        pod.ports.iter().for_each(|port| self.ports.remove(port));
        for claim in &pod.claims {
            if let Some(count) = self.claims.get_mut(claim) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.claims.remove(claim);
                }
            }
        }
    }
}

/// A node and its load. The load may arrive before its node: pods and nodes are followed
/// separately.
#[derive(Debug, Clone, Default)]
struct Slot {
    name: Arc<str>,
    info: Option<NodeInfo>,
    load: Load,
}

/// A node that may be chosen, with its load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'s> {
    pub(crate) id: NodeId,
    pub(crate) info: &'s NodeInfo,
    pub(crate) load: &'s Load,
}

/// Nodes by number. Invariant: topologies and order are those of the known nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nodes {
    slots: Vec<Slot>,
    free: Vec<NodeId>,
    by_name: HashMap<Arc<str>, NodeId>,
    topologies: Topologies,
    /// The known nodes, one of each zone in turns; computed at the first use after a node
    /// was added, deleted or changed its zone.
    order: OnceLock<Vec<NodeId>>,
}

impl Nodes {
    /// The number of a node's name; assigns one if it has none.
    pub(crate) fn number(&mut self, name: &str) -> NodeId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let name: Arc<str> = name.into();
        let slot = Slot {
            name: Arc::clone(&name),
            ..Slot::default()
        };
        let id = if let Some(id) = self.free.pop() {
            self.slots[id.0] = slot;
            id
        } else {
            self.slots.push(slot);
            NodeId(self.slots.len() - 1)
        };
        self.by_name.insert(name, id);
        id
    }

    /// The number of a node's name, if it has one.
    pub(crate) fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn name(&self, id: NodeId) -> &Arc<str> {
        &self.slots[id.0].name
    }

    /// A node, if it is known.
    pub(crate) fn info(&self, id: NodeId) -> Option<&NodeInfo> {
        self.slots[id.0].info.as_ref()
    }

    pub(crate) fn load_mut(&mut self, id: NodeId) -> &mut Load {
        &mut self.slots[id.0].load
    }

    /// Sets or removes a node; returns what it was.
    pub(crate) fn set(&mut self, id: NodeId, info: Option<NodeInfo>) -> Option<NodeInfo> {
        let (after, slot) = (info.as_ref(), &self.slots[id.0]);
        let before = slot.info.as_ref();
        if before.map(|info| &info.zone) != after.map(|info| &info.zone) {
            self.order.take();
        }
        let same = match (before, after) {
            (Some(before), Some(after)) => before.labels == after.labels,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !same {
            let labels = after.into_iter().flat_map(|info| &info.labels);
            let labels = labels.map(|(key, value)| (key.as_str(), value.as_str()));
            let zone = after.and_then(|info| info.zone.as_deref());
            let zone = zone.map(|zone| (FAILURE_ZONE, zone));
            self.topologies.set(id, labels.chain(zone));
        }
        std::mem::replace(&mut self.slots[id.0].info, info)
    }

    /// Frees a number that has neither a node nor a pod.
    pub(crate) fn drop_empty(&mut self, id: NodeId) {
        let slot = &mut self.slots[id.0];
        if slot.info.is_none() && slot.load.pods == 0 && self.by_name.remove(&slot.name).is_some() {
            *slot = Slot::default();
            self.free.push(id);
        }
    }

    /// How many nodes are known.
    pub(crate) fn len(&self) -> usize {
        self.order().len()
    }

    pub(crate) fn topologies(&self) -> &Topologies {
        &self.topologies
    }

    /// A known node with its load.
    pub(crate) fn candidate(&self, id: NodeId) -> Option<Candidate<'_>> {
        let Slot { info, load, .. } = &self.slots[id.0];
        let info = info.as_ref()?;
        Some(Candidate { id, info, load })
    }

    /// All known nodes, from the one at `start` on.
    pub(crate) fn candidates(&self, start: usize) -> impl Iterator<Item = Candidate<'_>> {
        let order = self.order();
        let (before, from) = order.split_at(start.checked_rem(order.len()).unwrap_or_default());
        from.iter()
            .chain(before)
            .filter_map(|id| self.candidate(*id))
    }

    /// One node of each zone in turns, so that the first nodes are in all zones (upstream:
    /// `nodeTree`); by name within a zone.
    fn order(&self) -> &[NodeId] {
        self.order.get_or_init(|| {
            let mut zones: BTreeMap<Option<&str>, BTreeMap<&str, NodeId>> = BTreeMap::new();
            for (at, slot) in self.slots.iter().enumerate() {
                if let Some(info) = &slot.info {
                    let zone = zones.entry(info.zone.as_deref()).or_default();
                    zone.insert(&slot.name, NodeId(at));
                }
            }
            let mut turns: Vec<(usize, NodeId)> = Vec::new();
            for zone in zones.into_values() {
                turns.extend(zone.into_values().enumerate());
            }
            // Stable: within a turn the zones keep their order.
            turns.sort_by_key(|(turn, _)| *turn);
            turns.into_iter().map(|(_, id)| id).collect()
        })
    }
}
