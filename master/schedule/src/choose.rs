//! The decision: the node of a pod, or the reason why there is none.

use crate::node::NodeInfo;
use crate::request::PodRequest;
use crate::resources::{CPU, MEMORY, PODS};
use crate::snapshot::{Load, Snapshot};
use crate::taints::NodeTaint;
use crate::words::Unschedulable;
use config_kube::Amount;
use config_kube::taints::UNSCHEDULABLE;
use std::collections::BTreeMap;

/// The result of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The node's name.
    pub node: String,
    /// The number of feasible nodes.
    pub feasible: usize,
}

/// Highest score of one plugin.
const FULL: f64 = 100.0;
/// Weight of free resources (upstream: `NodeResourcesFit`, 1).
const WEIGHT_ROOM: f64 = 1.0;
/// Weight of few replicas of the same owner (upstream: `PodTopologySpread`, 2).
const WEIGHT_SPREAD: f64 = 2.0;
/// Weight of preferred node affinity (upstream: `NodeAffinity`, 2).
const WEIGHT_NODE_AFFINITY: f64 = 2.0;
/// Weight of few `PreferNoSchedule` taints (upstream: `TaintToleration`, 3).
const WEIGHT_TAINTS: f64 = 3.0;

/// Chooses a node. Pure: the same pod and snapshot give the same node.
///
/// Guarantees: the node is in the snapshot, is not cordoned, has no taint that the pod does not
/// tolerate, matches the pod's selectors, has the pod's host ports free, and has room for the pod's
/// requests beside all pods placed there.
///
/// # Errors
/// No node is feasible, or the pod needs a feature that is not supported.
pub fn choose(pod: &PodRequest, snapshot: &Snapshot) -> Result<Placement, Unschedulable> {
    if !pod.not_yet.is_empty() {
        return Err(Unschedulable::NotYet(pod.not_yet.clone()));
    }
    let mut nodes = 0;
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut feasible: Vec<(&NodeInfo, &Load)> = Vec::new();
    for (info, load) in snapshot.nodes_with_load() {
        nodes += 1;
        let against = against(pod, info, load);
        if against.is_empty() {
            feasible.push((info, load));
        }
        for reason in against {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    if nodes == 0 {
        return Err(Unschedulable::NoNodes);
    }
    match best(pod, &feasible) {
        Some(info) => Ok(Placement {
            node: info.name.clone(),
            feasible: feasible.len(),
        }),
        None => Err(Unschedulable::NoneFits { nodes, reasons }),
    }
}

/// Why a node is not feasible: the first obstacle, or all resources that are insufficient.
fn against(pod: &PodRequest, info: &NodeInfo, load: &Load) -> Vec<String> {
    let cordon = NodeTaint::found(UNSCHEDULABLE);
    if info.cordoned && !cordon.tolerated(&pod.tolerations) {
        return vec!["node(s) were unschedulable".to_owned()];
    }
    let refusing = |taint: &&NodeTaint| taint.forbids() && !taint.tolerated(&pod.tolerations);
    if let Some(taint) = info.taints.iter().find(refusing) {
        return vec![format!(
            "node(s) had untolerated taint {{{}: {}}}",
            taint.key(),
            taint.value()
        )];
    }
    if !pod.node_preferences.allow(&info.name, &info.labels) {
        return vec!["node(s) didn't match Pod's node affinity/selector".to_owned()];
    }
    if pod
        .demand
        .ports
        .iter()
        .any(|port| load.ports.iter().any(|taken| taken.collides(port)))
    {
        return vec!["node(s) didn't have free ports for the requested pod ports".to_owned()];
    }
    let mut short = Vec::new();
    if info.allocatable.get(PODS).ceil_units() <= i64::try_from(load.pods).unwrap_or(i64::MAX) {
        short.push("Too many pods".to_owned());
    }
    for (name, needed) in pod.demand.needed.iter() {
        if needed > Amount::ZERO && load.needed.get(name) + needed > info.allocatable.get(name) {
            short.push(format!("Insufficient {name}"));
        }
    }
    short
}

/// The node with the highest score. Among equal ones, each pod decides by its own hash, so that
/// many pods do not all choose the same node.
fn best<'n>(pod: &PodRequest, feasible: &[(&'n NodeInfo, &Load)]) -> Option<&'n NodeInfo> {
    let replicas = |load: &Load| {
        pod.demand
            .owner
            .as_ref()
            .and_then(|owner| load.replicas.get(owner))
            .copied()
            .unwrap_or(0)
    };
    let node_preferences = |info: &NodeInfo| pod.node_preferences.weight(&info.name, &info.labels);
    let taints = |info: &NodeInfo| {
        info.taints
            .iter()
            .filter(|taint| !taint.forbids() && !taint.tolerated(&pod.tolerations))
            .count()
    };
    let most_replicas = feasible
        .iter()
        .map(|(_, load)| replicas(load))
        .max()
        .unwrap_or(0);
    let most_wishes = feasible
        .iter()
        .map(|(info, _)| node_preferences(info))
        .max()
        .unwrap_or(0);
    let most_taints = feasible
        .iter()
        .map(|(info, _)| taints(info))
        .max()
        .unwrap_or(0);
    let mark = |(info, load): &(&NodeInfo, &Load)| {
        WEIGHT_ROOM * room(pod, info, load)
            + WEIGHT_SPREAD * (FULL - share(replicas(load), most_replicas))
            + WEIGHT_NODE_AFFINITY
                * share(
                    usize::try_from(node_preferences(info)).unwrap_or(0),
                    usize::try_from(most_wishes).unwrap_or(0),
                )
            + WEIGHT_TAINTS * (FULL - share(taints(info), most_taints))
    };
    feasible
        .iter()
        .max_by(|left, right| {
            let lot = |info: &NodeInfo| hash(&[pod.uid.as_bytes(), info.name.as_bytes()]);
            mark(left)
                .total_cmp(&mark(right))
                .then_with(|| lot(left.0).cmp(&lot(right.0)))
        })
        .map(|(info, _)| *info)
}

/// Free share of a node's CPU and memory with the pod on it: the mean, 0 to 100.
fn room(pod: &PodRequest, info: &NodeInfo, load: &Load) -> f64 {
    let free = |name: &str| {
        let used = load.scored.get(name) + pod.demand.scored.get(name);
        (1.0 - used.share_of(info.allocatable.get(name))).clamp(0.0, 1.0)
    };
    FULL * (free(CPU) + free(MEMORY)) / 2.0
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a mark needs no more than 52 bits"
)]
fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        0.0
    } else {
        FULL * part as f64 / whole as f64
    }
}

/// FNV-1a with a final mix: a tie-break that is the same on every machine.
fn hash(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
