//! The decision: the node for a pod, or the reason why no node fits.

use crate::node::{NodeId, hash};
use crate::plugins::{Candidate, Plugins, Prepared, pre_filter, scores};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use crate::unschedulable::Unschedulable;
use std::collections::HashMap;

/// The result of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The node's name.
    pub node: String,
    /// The number of feasible nodes that were found.
    pub feasible: usize,
    /// The number of nodes that were looked at.
    pub looked: usize,
}

impl Placement {
    /// Assumes the pod on the node that was chosen for it. The next decision starts after the
    /// nodes that this one has looked at, so that all nodes get their turn although each decision
    /// looks at a part only.
    pub fn assume(&self, request: PodRequest, snapshot: &mut Snapshot) {
        snapshot.turn(self.looked);
        snapshot.assume(request, &self.node);
    }
}

/// Feasible nodes below which all nodes are looked at (upstream: `minFeasibleNodesToFind`).
const LEAST_FEASIBLE: usize = 100;
/// The search ends after this share of nodes, in per cent, is found feasible: the share of a small
/// cluster, and the lowest one. It falls by one for every [`NODES_BY_PERCENT`] nodes (upstream's
/// adaptive `percentageOfNodesToScore`).
const MOST_PERCENT: usize = 50;
const LEAST_PERCENT: usize = 5;
const NODES_BY_PERCENT: usize = 125;

/// Chooses a node. Pure: the same pod and snapshot give the same node.
///
/// Where there are more than a hundred nodes, it chooses among a part of the feasible ones only, as
/// upstream does.
///
/// Guarantees: no plugin of the profile refuses the node, with all pods placed there counted; and a
/// pod is refused only after all nodes were checked.
///
/// # Errors
/// No node is feasible, or the pod needs a feature that is not supported.
pub fn choose(pod: &PodRequest, snapshot: &Snapshot) -> Result<Placement, Unschedulable> {
    if !pod.not_yet.is_empty() {
        return Err(Unschedulable::NotYet(pod.not_yet.clone()));
    }
    let nodes = snapshot.count_nodes();
    if nodes > 0
        && let Some((reason, refusing)) = pre_filter(pod, snapshot)
    {
        return Err(Unschedulable::Nowhere {
            nodes,
            reason,
            refusing,
        });
    }
    let enough = enough(nodes);
    let filters = Prepared::of(pod, snapshot);
    let mut refusing = Plugins::default();
    let mut reasons = HashMap::new();
    let mut feasible: Vec<Candidate<'_>> = Vec::with_capacity(enough);
    let mut looked = 0;
    for node in snapshot.candidates() {
        looked += 1;
        let first_obstacle = filters.first_obstacle(&node, &mut refusing);
        if first_obstacle.is_empty() {
            feasible.push(node);
            if feasible.len() == enough {
                break;
            }
        }
        for obstacle in first_obstacle {
            *reasons.entry(obstacle.reason).or_default() += 1;
        }
    }
    if nodes == 0 {
        return Err(Unschedulable::NoNodes);
    }
    match best(pod, snapshot, &feasible) {
        Some(node) => Ok(Placement {
            node: node.info.name.clone(),
            feasible: feasible.len(),
            looked,
        }),
        None => Err(Unschedulable::NoneFits {
            nodes,
            reasons: reasons
                .into_iter()
                .map(|(reason, nodes)| (reason.into_owned(), nodes))
                .collect(),
            refusing,
        }),
    }
}

/// The pod's placement on one certain node, if it fits there: its nominated node, which is tried
/// before all others (upstream: `evaluateNominatedNode`).
pub(crate) fn choose_on(pod: &PodRequest, snapshot: &Snapshot, node: NodeId) -> Option<Placement> {
    let node = snapshot.candidate(node)?;
    if pre_filter(pod, snapshot).is_some() {
        return None;
    }
    let filters = Prepared::of(pod, snapshot);
    let first_obstacle = filters.first_obstacle(&node, &mut Plugins::default());
    (pod.not_yet.is_empty() && first_obstacle.is_empty()).then(|| Placement {
        node: node.info.name.clone(),
        feasible: 1,
        looked: 0,
    })
}

/// The number of feasible nodes after which the search ends in a cluster of `nodes` nodes
/// (upstream: `numFeasibleNodesToFind`).
fn enough(nodes: usize) -> usize {
    let percent = MOST_PERCENT
        .saturating_sub(nodes / NODES_BY_PERCENT)
        .max(LEAST_PERCENT);
    (nodes * percent / 100).max(LEAST_FEASIBLE)
}

/// The node with the highest score. Among equal ones, each pod decides by its own hash, so that
/// many pods do not all choose the same node.
fn best<'n, 's>(
    pod: &PodRequest,
    snapshot: &Snapshot,
    feasible: &'n [Candidate<'s>],
) -> Option<&'n Candidate<'s>> {
    if let [only] = feasible {
        return Some(only);
    }
    let sums = scores(pod, snapshot, feasible);
    let most = sums.iter().copied().max()?;
    let best = sums.iter().zip(feasible).filter(|(sum, _)| **sum == most);
    let own = hash(pod.uid.as_bytes());
    best.map(|(_, node)| node)
        .max_by_key(|node| mix(own ^ node.info.hash))
}

/// Spreads differences of any bits over all bits.
fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As upstream documents: a half less one per cent for each 125 nodes, at least 5 % and 100
    /// nodes.
    #[test]
    fn as_many_nodes_are_enough_as_upstream_documents() {
        for (nodes, expected) in [
            (0, 100),
            (99, 100),
            (100, 100),
            (250, 120),
            (1000, 420),
            (5000, 500),
            (6000, 300),
            (15_000, 750),
        ] {
            assert_eq!(enough(nodes), expected, "{nodes}");
        }
    }
}
