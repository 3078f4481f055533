//! Spreads pods over topology domains (upstream: `PodTopologySpread`, with the system's default
//! constraints for pods that have none).

use super::plugin::{Candidate, Filter, MAX_NODE_SCORE, Obstacle, Plugin, PodMove};
use crate::event::{ClusterEvent, EventKind, PodUsage};
use crate::node::NodeId;
use crate::node::NodeInfo;
use crate::request::{Demand, PodRequest};
use crate::snapshot::Snapshot;
use crate::terms::{Labels, Spread};
use crate::topology::{FAILURE_ZONE, Tally};
use std::cell::RefCell;
use std::collections::BTreeMap;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "PodTopologySpread",
    weight: 2,
    filter: Some(|pod, snapshot| {
        let asks = pod.spreads.iter().any(|spread| spread.hard);
        asks.then(|| Box::new(Hard::of(pod, snapshot)) as Box<dyn Filter>)
    }),
    score: Some(score),
    events: &[
        EventKind::Node,
        EventKind::NodeGone,
        EventKind::Placed,
        EventKind::Left,
    ],
    wakes,
};

/// Skew of the system's default constraints: over nodes, and over zones.
const NODES_SKEW: i64 = 3;
const ZONES_SKEW: i64 = 5;

/// Whether all nodes' pods count for a constraint.
fn counts_all(spread: &Spread, pod: &PodRequest) -> bool {
    let by_selectors = spread.by_selectors && pod.node_preferences.requires();
    !(spread.by_taints || by_selectors)
}

/// Whether the pod tolerates a node's taints.
fn tolerates(pod: &PodRequest, node: &NodeInfo) -> bool {
    let mut taints = node.taints.iter();
    taints.all(|taint| !taint.forbids() || taint.tolerated(&pod.tolerations))
}

/// A cached answer about each node, so that it is computed once for all constraints.
#[derive(Debug, Default)]
struct FoundOnce(RefCell<Vec<Option<bool>>>);

impl FoundOnce {
    fn of(&self, node: NodeId, find: impl FnOnce() -> bool) -> bool {
        let known = self.0.borrow().get(node.0).copied().flatten();
        known.unwrap_or_else(|| {
            let found = find();
            let mut all = self.0.borrow_mut();
            if all.len() <= node.0 {
                all.resize(node.0 + 1, None);
            }
            all[node.0] = Some(found);
            found
        })
    }
}

/// Which nodes the constraints of a pod count.
struct Counting<'a> {
    pod: &'a PodRequest,
    /// A tally for the topology of each constraint; `None` where no node has its label.
    tallies: &'a [Option<Tally<'a>>],
    in_domains: FoundOnce,
    allowed: FoundOnce,
    tolerated: FoundOnce,
}

impl<'a> Counting<'a> {
    fn of(pod: &'a PodRequest, tallies: &'a [Option<Tally<'a>>]) -> Self {
        Self {
            pod,
            tallies,
            in_domains: FoundOnce::default(),
            allowed: FoundOnce::default(),
            tolerated: FoundOnce::default(),
        }
    }

    /// Whether a node has the topology labels of all constraints.
    fn has_all(&self, node: NodeId) -> bool {
        self.in_domains.of(node, || {
            let mut tallies = self.tallies.iter();
            tallies.all(|tally| tally.as_ref().is_some_and(|tally| tally.has_domain(node)))
        })
    }

    /// Whether a node's pods count for a constraint.
    fn counts(&self, spread: &Spread, id: NodeId, node: &NodeInfo) -> bool {
        let pod = self.pod;
        let allowed = || {
            let allow = || pod.node_preferences.allow(&node.name, &node.labels);
            self.allowed.of(id, allow)
        };
        let tolerated = || self.tolerated.of(id, || tolerates(pod, node));
        (!spread.by_selectors || allowed()) && (!spread.by_taints || tolerated())
    }
}

/// Counts the selected pods of each domain that is open in the tally. Pods that are being deleted
/// do not count.
fn fill(spread: &Spread, counting: &Counting<'_>, snapshot: &Snapshot, tally: &mut Tally<'_>) {
    let pod = counting.pod;
    let namespace = &pod.demand.namespace;
    let reads_own = spread.reads_own_labels();
    let selects = |labels: &Labels| spread.selects(labels);
    let selected = snapshot.groups().selected(namespace, reads_own, selects);
    let all = counts_all(spread, pod);
    let counts = |id| {
        let node = snapshot.node(id);
        all || node.is_some_and(|node| counting.counts(spread, id, node))
    };
    for (id, count) in selected {
        if counting.has_all(id) && counts(id) {
            let staying = i64::try_from(count.staying());
            tally.add_if_open(id, staying.unwrap_or(i64::MAX));
        }
    }
}

/// The constraints that refuse nodes.
struct Hard<'a> {
    pod: &'a PodRequest,
    snapshot: &'a Snapshot,
    constraints: Vec<Counted<'a>>,
}

struct Counted<'a> {
    spread: &'a Spread,
    /// Pods by domain; `None` where no node has the label.
    pods: Option<Tally<'a>>,
    /// Pods of the emptiest domain; 0 if there are too few domains.
    least: i64,
    /// Whether there are fewer domains than `minDomains`.
    too_few: bool,
    /// How many domains have each number of pods, for [`Self::add`]; empty until the first call.
    sizes: BTreeMap<i64, usize>,
    /// 1 if the constraint selects the pod itself, else 0.
    own: i64,
}

impl Counted<'_> {
    /// Adds to the pods of a node's domain.
    fn add(&mut self, node: NodeId, more: i64) {
        let Some(pods) = &mut self.pods else { return };
        let Some(before) = pods.get(node) else { return };
        if self.sizes.is_empty() {
            for number in pods.numbers() {
                *self.sizes.entry(number).or_default() += 1;
            }
        }
        pods.add_if_open(node, more);
        if let Some(domains) = self.sizes.get_mut(&before) {
            *domains -= 1;
            if *domains == 0 {
                self.sizes.remove(&before);
            }
        }
        *self.sizes.entry(before + more).or_default() += 1;
        if !self.too_few {
            self.least = self.sizes.keys().next().copied().unwrap_or_default();
        }
    }

    /// Whether a node's pods count.
    fn counts(&self, pod: &PodRequest, node: Option<&NodeInfo>) -> bool {
        let allowed = |node: &NodeInfo| {
            let allow = || pod.node_preferences.allow(&node.name, &node.labels);
            (!self.spread.by_selectors || allow())
                && (!self.spread.by_taints || tolerates(pod, node))
        };
        counts_all(self.spread, pod) || node.is_some_and(allowed)
    }
}

impl<'a> Hard<'a> {
    fn of(pod: &'a PodRequest, snapshot: &'a Snapshot) -> Self {
        let hard: Vec<&Spread> = pod.spreads.iter().filter(|spread| spread.hard).collect();
        let empty: Vec<Option<Tally<'a>>> = hard
            .iter()
            .map(|spread| snapshot.topologies().tally(&spread.topology))
            .collect();
        let counting = Counting::of(pod, &empty);
        let counted = hard.iter().zip(&empty).map(|(spread, tally)| {
            let mut pods = tally.clone();
            if let Some(pods) = &mut pods {
                if empty.len() == 1 && counts_all(spread, pod) {
                    pods.open_all();
                } else {
                    let nodes = snapshot.candidates();
                    for node in nodes.filter(|node| counting.has_all(node.id)) {
                        if counting.counts(spread, node.id, node.info) {
                            pods.open(node.id);
                        }
                    }
                }
                fill(spread, &counting, snapshot, pods);
            }
            let domains = || pods.iter().flat_map(Tally::numbers);
            let least = domains().min().unwrap_or_default();
            let too_few = domains().count() < spread.min_domains;
            Counted {
                least: if too_few { 0 } else { least },
                too_few,
                sizes: BTreeMap::new(),
                own: i64::from(spread.selects(&pod.demand.labels)),
                pods,
                spread,
            }
        });
        let constraints = counted.collect();
        Self {
            pod,
            snapshot,
            constraints,
        }
    }

    /// Whether a node has the topology labels of all constraints.
    fn has_all(&self, node: NodeId) -> bool {
        let mut tallies = self.constraints.iter().map(|counted| &counted.pods);
        tallies.all(|tally| tally.as_ref().is_some_and(|tally| tally.has_domain(node)))
    }
}

impl Filter for Hard<'_> {
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        for counted in &self.constraints {
            let pods = counted.pods.as_ref();
            let Some(pods) = pods.filter(|pods| pods.has_domain(node.id)) else {
                let reason =
                    "node(s) didn't match pod topology spread constraints (missing required label)";
                return found.push(Obstacle::lasting(reason));
            };
            let pods = pods.get(node.id).unwrap_or_default();
            if pods + counted.own - counted.least > counted.spread.skew {
                let reason = "node(s) didn't match pod topology spread constraints";
                return found.push(Obstacle::passing(reason));
            }
        }
    }

    fn follow(&mut self, moved: &PodMove<'_>) {
        let Demand {
            namespace, labels, ..
        } = moved.pod;
        // Pods that are being deleted do not count.
        let may_count = !moved.leaving && *namespace == self.pod.demand.namespace;
        if !may_count || !self.has_all(moved.node) {
            return;
        }
        let node = self.snapshot.node(moved.node);
        for counted in &mut self.constraints {
            if counted.spread.selects(labels) && counted.counts(self.pod, node) {
                counted.add(moved.node, moved.change);
            }
        }
    }
}

fn score(pod: &PodRequest, snapshot: &Snapshot, candidates: &[Candidate<'_>]) -> Option<Vec<i64>> {
    if pod.spreads.is_empty() {
        return usual(pod, snapshot, candidates);
    }
    let soft: Vec<&Spread> = pod.spreads.iter().filter(|spread| !spread.hard).collect();
    if soft.is_empty() {
        return None;
    }
    let empty: Vec<Option<Tally<'_>>> = soft
        .iter()
        .map(|spread| snapshot.topologies().tally(&spread.topology))
        .collect();
    let counting = Counting::of(pod, &empty);
    let mut sums: Vec<Option<f64>> = candidates
        .iter()
        .map(|node| counting.has_all(node.id).then_some(0.0))
        .collect();
    for (spread, pods) in soft.iter().zip(&empty) {
        let Some(mut pods) = pods.clone() else {
            continue;
        };
        let among = candidates.iter().zip(&sums);
        for (node, _) in among.filter(|(_, sum)| sum.is_some()) {
            pods.open(node.id);
        }
        fill(spread, &counting, snapshot, &mut pods);
        let weight = weight(pods.numbers().count());
        for (sum, node) in sums.iter_mut().zip(candidates) {
            if let Some(sum) = sum {
                *sum += cost(pods.get(node.id).unwrap_or_default(), weight, spread.skew);
            }
        }
    }
    Some(normal(&sums))
}

/// The default spread of a pod without constraints: over nodes and, less so, over zones, among the
/// pods of the same Services. A pod that a ReplicaSet, ReplicationController or StatefulSet owns is
/// spread among the replicas only. Upstream finds replicas by the selector of their owner
/// (`DefaultSelector`); the owner's UID finds the same pods, as the owner adopts all that it
/// selects.
fn usual(pod: &PodRequest, snapshot: &Snapshot, candidates: &[Candidate<'_>]) -> Option<Vec<i64>> {
    let demand = &*pod.demand;
    let selected = snapshot.services().selecting(demand);
    if demand.owner.is_none() && selected.is_empty() {
        return None;
    }
    let whole = |pods: usize| i64::try_from(pods).unwrap_or(i64::MAX);
    let alike = snapshot.groups().alike(demand, &selected);
    let everywhere = !pod.node_preferences.requires();
    let counts = |node: &NodeInfo| pod.node_preferences.allow(&node.name, &node.labels);
    let mut zones = snapshot.topologies().tally(FAILURE_ZONE);
    if alike.is_empty() && are_all_in_zones_or_none(zones.as_ref(), candidates) {
        return None;
    }
    if let Some(zones) = &mut zones {
        for node in candidates {
            zones.open(node.id);
        }
        for (node, pods) in alike.nodes() {
            if everywhere || snapshot.node(node).is_some_and(counts) {
                zones.add_if_open(node, whole(pods));
            }
        }
    }
    let domains = zones.iter().flat_map(Tally::numbers).count();
    let (over_nodes, over_zones) = (weight(candidates.len()), weight(domains));
    let sum = |node: &Candidate<'_>| {
        let here = whole(alike.on(node.id));
        // The zone of each candidate is open.
        let in_zone = zones.as_ref().and_then(|zones| zones.get(node.id));
        let zone = in_zone.map_or(0.0, |pods| cost(pods, over_zones, ZONES_SKEW));
        Some(cost(here, over_nodes, NODES_SKEW) + zone)
    };
    let sums: Vec<_> = candidates.iter().map(sum).collect();
    Some(normal(&sums))
}

/// Without pods to spread from, such candidates have the same cost.
fn are_all_in_zones_or_none(zones: Option<&Tally<'_>>, candidates: &[Candidate<'_>]) -> bool {
    let Some(zones) = zones else { return true };
    let mut in_zones = candidates.iter().map(|node| zones.has_domain(node.id));
    in_zones
        .next()
        .is_none_or(|first| in_zones.all(|is_in_zone| is_in_zone == first))
}

/// The weight of a pod in a topology domain, which grows with the number of domains.
#[allow(
    clippy::cast_precision_loss,
    reason = "there are fewer places than 2^52"
)]
fn weight(domains: usize) -> f64 {
    ((domains + 2) as f64).ln()
}

/// The cost of a domain by its number of pods.
#[allow(clippy::cast_precision_loss, reason = "there are fewer pods than 2^52")]
fn cost(pods: i64, weight: f64, skew: i64) -> f64 {
    pods as f64 * weight + (skew - 1) as f64
}

/// Scores from costs: the lower the cost, the higher the score; a node in no domain scores 0.
fn normal(sums: &[Option<f64>]) -> Vec<i64> {
    let costs = sums.iter().map(|sum| sum.map(nearest));
    let costs: Vec<Option<i64>> = costs.collect();
    let most = costs.iter().flatten().copied().max().unwrap_or_default();
    let least = costs.iter().flatten().copied().min().unwrap_or_default();
    let score = |cost: Option<i64>| match cost {
        None => 0,
        Some(_) if most == 0 => MAX_NODE_SCORE,
        Some(cost) => MAX_NODE_SCORE * (most + least - cost) / most,
    };
    costs.into_iter().map(score).collect()
}

/// The nearest integer to a cost, which is not negative and below 2^52; halves are rounded up.
/// `f64::round` gives the same, by a function call: the oldest processors of this kind, for which
/// this is compiled, have no instruction for it.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "costs are rounded on purpose, and exact below 2^52"
)]
fn nearest(cost: f64) -> i64 {
    let whole = cost as i64;
    whole + i64::from(cost - whole as f64 >= 0.5)
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, _: &Snapshot) -> bool {
    let hard = || pod.spreads.iter().filter(|spread| spread.hard);
    let counts = |pods: &PodUsage| {
        pods.0.namespace == pod.demand.namespace
            && hard().any(|spread| spread.selects(&pods.0.labels))
    };
    // A node can add or remove a domain, and so change which one is the emptiest.
    let has_all = |node: &NodeInfo| hard().all(|spread| node.labels.contains_key(&spread.topology));
    match event {
        // Each pod that is added to a domain, leaves it or no longer matches changes what other
        // domains may have.
        ClusterEvent::Placed(pods) => counts(&pods.now) || pods.before.as_ref().is_some_and(counts),
        ClusterEvent::Left(pods) => counts(&pods.usage),
        ClusterEvent::Node(node) => node.ever(has_all),
        ClusterEvent::NodeGone(node) => has_all(node),
        ClusterEvent::Anything => true,
        ClusterEvent::Freed(_)
        | ClusterEvent::Namespace
        | ClusterEvent::Claim(_)
        | ClusterEvent::Volume
        | ClusterEvent::Class
        | ClusterEvent::Capacity => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// A replica of one ReplicaSet.
    fn replica(name: &str) -> PodRequest {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "a", "controller": true}]);
        let metadata =
            json!({"namespace": "d", "name": name, "uid": name, "ownerReferences": owner});
        let pod = json!({"metadata": metadata, "spec": {"containers": []}});
        PodRequest::of(&serde_json::from_value(pod).expect("a pod"))
    }

    /// The scores of two nodes in these zones, of which the first has a replica or none has.
    fn scores(zones: [Option<&str>; 2], has_replica: bool) -> Option<Vec<i64>> {
        let mut snapshot = Snapshot::default();
        for (at, zone) in zones.iter().enumerate() {
            let mut node = json!({"metadata": {"name": format!("n{at}")}});
            if let Some(zone) = zone {
                node["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": zone});
            }
            let node = serde_json::from_value(node).expect("a node");
            snapshot.set_node(NodeInfo::of(&node));
        }
        if has_replica {
            snapshot.assume(replica("first"), "n0");
        }
        let nodes: Vec<Candidate<'_>> = snapshot.candidates().collect();
        score(&replica("p"), &snapshot, &nodes)
    }

    #[test]
    fn the_first_replica_is_scored_only_where_some_nodes_are_in_no_zone() {
        assert_eq!(scores([Some("a"), Some("b")], false), None);
        assert_eq!(scores([None, None], false), None);
        assert_eq!(scores([None, Some("a")], false), Some(vec![100, 33]));
        assert!(scores([Some("a"), Some("b")], true).is_some());
        assert!(scores([None, None], true).is_some());
    }

    proptest! {
        #[test]
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "rounded costs are compared"
        )]
        fn a_cost_is_rounded_as_the_standard_library_does(
            pods in 0..1_000_000_i64, more in 0..1_000_000_i64, domains in 0..20_000_usize,
        ) {
            let half = pods as f64 + 0.5;
            let sum = cost(pods, weight(domains), 3) + cost(more, weight(3), 5);
            for cost in [sum, half, half.next_up(), half.next_down()] {
                prop_assert_eq!(nearest(cost), cost.round() as i64);
            }
        }
    }

    #[test]
    fn the_emptier_place_scores_higher_and_no_place_nothing() {
        assert_eq!(
            normal(&[Some(2.0), Some(1.0), Some(0.0), None]),
            [0, 50, 100, 0]
        );
        assert_eq!(normal(&[Some(0.0), Some(0.0)]), [100, 100]);
        assert_eq!(normal(&[Some(4.0), Some(4.0)]), [100, 100]);
    }

    #[test]
    fn a_cost_is_as_upstream_documents() {
        assert!((cost(3, weight(8), 3) - (3.0 * 10.0_f64.ln() + 2.0)).abs() < 1e-12);
    }
}
