//! Node IPAM: each node gets a part of the cluster's ranges for the addresses of its pods
//! (`spec.podCIDRs`), one of each range.
//!
//! Only the Nodes record the allocations: a part is free if no Node has an address of it. So a
//! restarted master assigns no part twice, and a part is released with its Node.
//! All nodes share one key, because two concurrent plans could assign one part to two nodes.

use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use master_client::{ApiError, Key, NewEvent, Patch, Severity, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::pod_range::PodRange;
use master_control::setup::Setup;
use master_control::views::node::NodeView;
use master_control::writer::Writer;
use master_schema::validate::net::Range;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Upstream's reason if no part is free.
const NOT_AVAILABLE: &str = "CIDRNotAvailable";

/// A node's ranges, and those that were written for it but are not seen yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its ranges.
    pub ranges: Vec<Range>,
    /// Whether its `spec.podCIDRs` has entries, readable or not.
    pub has: bool,
    /// Ranges of a write whose result is not seen yet; the next write has the same.
    pub asked: Vec<Range>,
}

/// All nodes and the ranges of the cluster.
#[derive(Debug)]
pub struct Facts {
    ranges: Vec<PodRange>,
    nodes: Vec<Claim>,
    last: Vec<usize>,
}

/// The action for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Assigns ranges.
    Give {
        /// The object's name.
        name: String,
        /// Its UID.
        uid: String,
        /// The ranges, in the order of the cluster's.
        ranges: Vec<Range>,
    },
    /// Records the event that no part is free.
    Event {
        /// The object's name.
        name: String,
        /// Its UID.
        uid: String,
        /// The range that is exhausted.
        range: Range,
    },
}

#[derive(Debug, Default)]
struct Memory {
    /// Written ranges that are not seen yet, by the node's UID.
    asked: BTreeMap<String, Vec<Range>>,
    /// The number of the last assigned part of each range.
    last: Vec<usize>,
}

impl Memory {
    /// Notes a write. A repeated one is not the last assigned: parts that were released after it
    /// would be the next ones.
    fn note(&mut self, ranges: &[PodRange], uid: &str, given: &[Range]) {
        let before = self.asked.insert(uid.to_owned(), given.to_vec());
        if before.is_none() {
            let last = ranges.iter().zip(given);
            self.last = last.map(|(of, part)| of.parts_of(*part).start).collect();
        }
    }
}

/// The controller. It has one key.
#[derive(Debug)]
pub struct NodeIpam {
    ranges: Vec<PodRange>,
    nodes: Store<NodeView>,
    memory: Mutex<Memory>,
}

impl NodeIpam {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Controller for NodeIpam {
    const NAME: &'static str = "node-ipam-controller";
    const COMPONENT: &'static str = "cidrAllocator";
    const RIGHTS: &'static [Right] = &[
        right("", "nodes", &["list", "watch", "patch"]),
        right("", "events", &["create", "patch"]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        let all = Key::cluster("nodes");
        let changed = all.clone();
        let nodes = setup.follow(move |delta, keys| {
            if delta.differs(|node: &NodeView| (node.uid.clone(), node.pod_cidrs.clone())) {
                keys.push(changed.clone());
            }
        });
        setup.always([all]);
        Self {
            ranges: setup.options().pod_ranges.clone(),
            nodes,
            memory: Mutex::default(),
        }
    }

    fn facts(&self, _: &Key, _: Now) -> Option<Facts> {
        if self.ranges.is_empty() {
            return None;
        }
        let all = self.nodes.all();
        let mut memory = self.memory();
        // A write is forgotten once it was seen or its node is deleted.
        let waiting = all.iter().filter(|(_, node)| node.pod_cidrs.is_empty());
        let waiting: BTreeSet<&str> = waiting.map(|(_, node)| node.uid.as_str()).collect();
        memory.asked.retain(|uid, _| waiting.contains(uid.as_str()));
        let claim = |name: &str, node: &NodeView| Claim {
            name: name.to_owned(),
            uid: node.uid.clone(),
            ranges: node
                .pod_cidrs
                .iter()
                .filter_map(|text| Range::parse(text))
                .collect(),
            has: !node.pod_cidrs.is_empty(),
            asked: memory.asked.get(&node.uid).cloned().unwrap_or_default(),
        };
        let nodes = all.iter().map(|(key, node)| claim(&key.name, node));
        Some(Facts {
            ranges: self.ranges.clone(),
            nodes: nodes.collect(),
            last: memory.last.clone(),
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Action> {
        Plan {
            actions: give(&facts.ranges, &facts.nodes, &facts.last),
            requeue: None,
        }
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        match action {
            Action::Give { name, uid, ranges } => {
                self.remember(&uid, &ranges);
                let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
                let patch = json!({
                    "metadata": {"uid": uid}, "spec": {"podCIDR": texts.first(), "podCIDRs": texts},
                });
                let key = Key::cluster(&name);
                let patch = Patch::Merge(patch);
                writer.patch::<Node>(&key, &patch).await?;
                tracing::info!(
                    node = name,
                    ranges = texts.join(","),
                    "assigned pod CIDRs to a node"
                );
                Ok(())
            }
            Action::Event { name, uid, range } => {
                record_event(writer, &name, uid, range).await;
                Ok(())
            }
        }
    }
}

impl NodeIpam {
    fn remember(&self, uid: &str, given: &[Range]) {
        self.memory().note(&self.ranges, uid, given);
    }
}

/// Assigns parts to the nodes that have none. Nodes get the next free part after the last assigned
/// one, so that a released part is unused for as long as possible. An unseen write is repeated,
/// after all others: the API may refuse it for good (by a webhook, say), and the first write that
/// fails ends the run.
///
/// Guarantees: no part overlaps a node's range, ranges written for another node, or another part; a
/// node gets a part of each range or nothing.
fn give(ranges: &[PodRange], nodes: &[Claim], last: &[usize]) -> Vec<Action> {
    let mut tables: Vec<Table> = ranges
        .iter()
        .enumerate()
        .map(|(number, range)| Table::new(*range, last.get(number).copied()))
        .collect();
    for node in nodes {
        for range in node.ranges.iter().chain(&node.asked) {
            for table in &mut tables {
                table.take(*range);
            }
        }
    }
    let (mut given, mut events, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
    for node in nodes.iter().filter(|node| !node.has) {
        let (name, uid) = (node.name.clone(), node.uid.clone());
        if !node.asked.is_empty() {
            let ranges = node.asked.clone();
            repeated.push(Action::Give { name, uid, ranges });
            continue;
        }
        if let Some(full) = tables.iter().find(|table| table.next().is_none()) {
            let range = full.of.range();
            events.push(Action::Event { name, uid, range });
            continue;
        }
        let ranges = tables.iter_mut().filter_map(Table::give).collect();
        given.push(Action::Give { name, uid, ranges });
    }
    given.extend(events);
    given.extend(repeated);
    given
}

/// The taken parts of a range.
#[derive(Debug)]
struct Table {
    of: PodRange,
    taken: Vec<bool>,
    from: usize,
}

impl Table {
    fn new(of: PodRange, last: Option<usize>) -> Self {
        Self {
            of,
            taken: vec![false; of.parts()],
            from: last.map_or(0, |last| last.saturating_add(1)),
        }
    }

    fn take(&mut self, range: Range) {
        let parts = self.of.parts_of(range);
        if let Some(parts) = self.taken.get_mut(parts) {
            parts.fill(true);
        }
    }

    /// The next free part; after the last one the search continues at the first.
    fn next(&self) -> Option<usize> {
        let from = self.from.min(self.taken.len());
        let order = (from..self.taken.len()).chain(0..from);
        order
            .into_iter()
            .find(|number| self.taken.get(*number) == Some(&false))
    }

    fn give(&mut self) -> Option<Range> {
        let number = self.next()?;
        *self.taken.get_mut(number)? = true;
        self.from = number.saturating_add(1);
        self.of.part(number)
    }
}

async fn record_event(writer: &Writer, name: &str, uid: String, range: Range) {
    tracing::warn!(node = name, %range, "the cluster's range of pod addresses has no free part for the node; delete Nodes that are gone");
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        uid: Some(uid),
        ..ObjectMeta::default()
    };
    let about = Node {
        metadata,
        ..Node::default()
    };
    let event = NewEvent {
        severity: Severity::Normal,
        reason: NOT_AVAILABLE,
        action: "AllocatingCIDR",
        message: format!("Node {name} status is now: {NOT_AVAILABLE}"),
    };
    writer.recorder().record(&about, &event).await;
}

#[cfg(test)]
#[path = "node_ipam_tests.rs"]
mod tests;
