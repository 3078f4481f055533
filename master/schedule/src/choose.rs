//! The decision: the node of a pod, or the reason why there is none.

use crate::node::NodeInfo;
use crate::plugins::{Candidate, Plugins, Prepared, scores};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use crate::words::Unschedulable;
use std::collections::HashMap;

/// The result of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The node's name.
    pub node: String,
    /// The number of feasible nodes.
    pub feasible: usize,
}

/// Chooses a node. Pure: the same pod and snapshot give the same node.
///
/// Guarantees: nothing that a plugin of the profile looks at stands against the node, with all pods placed there counted.
///
/// # Errors
/// No node is feasible, or the pod needs a feature that is not supported.
pub fn choose(pod: &PodRequest, snapshot: &Snapshot) -> Result<Placement, Unschedulable> {
    if !pod.not_yet.is_empty() {
        return Err(Unschedulable::NotYet(pod.not_yet.clone()));
    }
    let filters = Prepared::of(pod, snapshot);
    let mut nodes = 0;
    let mut refusing = Plugins::default();
    let mut reasons = HashMap::new();
    let mut feasible: Vec<Candidate<'_>> = Vec::new();
    for (info, load) in snapshot.nodes_with_load() {
        nodes += 1;
        let against = filters.against(info, load, &mut refusing);
        if against.is_empty() {
            feasible.push((info, load));
        }
        for obstacle in against {
            *reasons.entry(obstacle.reason).or_default() += 1;
        }
    }
    if nodes == 0 {
        return Err(Unschedulable::NoNodes);
    }
    match best(pod, snapshot, &feasible) {
        Some(info) => Ok(Placement {
            node: info.name.clone(),
            feasible: feasible.len(),
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

/// The node with the highest score. Among equal ones, each pod decides by its own hash, so that
/// many pods do not all choose the same node.
fn best<'n>(
    pod: &PodRequest,
    snapshot: &Snapshot,
    feasible: &[Candidate<'n>],
) -> Option<&'n NodeInfo> {
    if let [(only, _)] = feasible {
        return Some(only);
    }
    let sums = scores(pod, snapshot, feasible);
    let most = sums.iter().copied().max()?;
    let best = sums.iter().zip(feasible).filter(|(sum, _)| **sum == most);
    let lot = |info: &NodeInfo| hash(&[pod.uid.as_bytes(), info.name.as_bytes()]);
    best.map(|(_, (info, _))| *info)
        .max_by_key(|info| lot(info))
}

/// FNV-1a with a final mix: a tie-break that is the same on every machine.
fn hash(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
