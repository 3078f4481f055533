//! The spread of pods over places (upstream: `PodTopologySpread`, with the defaults of the system for pods that ask for
//! nothing).

use super::{Candidate, FULL, Filter, Obstacle, Plugin};
use crate::event::{Event, Kind};
use crate::node::NodeInfo;
use crate::request::PodRequest;
use crate::snapshot::{Load, Snapshot};
use crate::terms::Spread;
use std::collections::{HashMap, HashSet};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "PodTopologySpread",
    weight: 2,
    filter: Some(|pod, snapshot| {
        let asks = pod.spreads.iter().any(|spread| spread.hard);
        asks.then(|| Box::new(Hard::of(pod, snapshot)) as Box<dyn Filter>)
    }),
    score: Some(score),
    hears: &[Kind::Node, Kind::Placed, Kind::Left],
    wakes,
};

/// Skew of the system's default constraints: over nodes, and over zones.
const NODES_SKEW: i64 = 3;
const ZONES_SKEW: i64 = 5;

/// A place's pods, by the value of a label of its nodes.
type Places<'s> = HashMap<&'s str, i64>;

/// Whether a node's pods count for a constraint.
fn counts(spread: &Spread, pod: &PodRequest, node: &NodeInfo) -> bool {
    let allowed = || pod.node_preferences.allow(&node.name, &node.labels);
    let mut taints = node.taints.iter();
    let mut refused = || taints.any(|taint| taint.forbids() && !taint.tolerated(&pod.tolerations));
    (!spread.by_selectors || allowed()) && (!spread.by_taints || !refused())
}

/// Pods like it by place, those that are being deleted not counted. Places are those of `places`.
fn fill<'s>(
    spread: &Spread,
    pod: &PodRequest,
    snapshot: &'s Snapshot,
    places: &mut Places<'s>,
    keys: &[&str],
) {
    let namespace = &pod.demand.namespace;
    let selected = snapshot
        .groups()
        .selected(namespace, |labels| spread.selects(labels));
    for (name, count) in selected {
        let Some(node) = snapshot.node(name) else {
            continue;
        };
        if keys.iter().all(|key| node.labels.contains_key(*key))
            && let Some(place) = node.labels.get(&spread.topology)
            && let Some(pods) = places.get_mut(place.as_str())
            && counts(spread, pod, node)
        {
            *pods += i64::try_from(count.all - count.leaving).unwrap_or(i64::MAX);
        }
    }
}

/// The constraints that refuse nodes.
struct Hard<'a>(Vec<Counted<'a>>);

struct Counted<'a> {
    spread: &'a Spread,
    places: Places<'a>,
    /// Pods of the emptiest place.
    least: i64,
    /// Whether the pod itself counts.
    own: i64,
}

impl<'a> Hard<'a> {
    fn of(pod: &'a PodRequest, snapshot: &'a Snapshot) -> Self {
        let hard: Vec<&Spread> = pod.spreads.iter().filter(|spread| spread.hard).collect();
        let keys: Vec<&str> = hard.iter().map(|spread| spread.topology.as_str()).collect();
        let counted = hard.iter().map(|spread| {
            let mut places = Places::new();
            for (node, _) in snapshot.nodes_with_load() {
                if keys.iter().all(|key| node.labels.contains_key(*key))
                    && counts(spread, pod, node)
                    && let Some(place) = node.labels.get(&spread.topology)
                {
                    places.entry(place).or_default();
                }
            }
            fill(spread, pod, snapshot, &mut places, &keys);
            let least = places.values().copied().min().unwrap_or_default();
            Counted {
                least: if places.len() < spread.least_places {
                    0
                } else {
                    least
                },
                own: i64::from(spread.selects(&pod.demand.labels)),
                places,
                spread,
            }
        });
        Self(counted.collect())
    }
}

impl Filter for Hard<'_> {
    fn look(&self, node: &NodeInfo, _: &Load, found: &mut Vec<Obstacle>) {
        for counted in &self.0 {
            let Some(place) = node.labels.get(&counted.spread.topology) else {
                let reason =
                    "node(s) didn't match pod topology spread constraints (missing required label)";
                return found.push(Obstacle::lasting(reason));
            };
            let pods = counted.places.get(place.as_str());
            let pods = pods.copied().unwrap_or_default();
            if pods + counted.own - counted.least > counted.spread.skew {
                let reason = "node(s) didn't match pod topology spread constraints";
                return found.push(Obstacle::passing(reason));
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
    let keys: Vec<&str> = soft.iter().map(|spread| spread.topology.as_str()).collect();
    let has_all = |node: &NodeInfo| keys.iter().all(|key| node.labels.contains_key(*key));
    let mut sums: Vec<Option<f64>> = candidates
        .iter()
        .map(|(node, _)| has_all(node).then_some(0.0))
        .collect();
    for spread in soft {
        // Among nodes of the snapshot, which live as long as what is counted.
        let among = candidates.iter().filter(|(node, _)| has_all(node));
        let among = among.filter_map(|(node, _)| snapshot.node(&node.name));
        let mut places: Places<'_> = among
            .filter_map(|node| node.labels.get(&spread.topology))
            .map(|place| (place.as_str(), 0))
            .collect();
        fill(spread, pod, snapshot, &mut places, &keys);
        let weight = weight(places.len());
        for (sum, (node, _)) in sums.iter_mut().zip(candidates) {
            let place = node.labels.get(&spread.topology);
            if let (Some(sum), Some(place)) = (sum, place) {
                let pods = places.get(place.as_str()).copied();
                *sum += cost(pods.unwrap_or_default(), weight, spread.skew);
            }
        }
    }
    Some(normal(&sums))
}

/// Without constraints: replicas of one owner are spread over nodes and, less so, over zones.
fn usual(pod: &PodRequest, snapshot: &Snapshot, candidates: &[Candidate<'_>]) -> Option<Vec<i64>> {
    let owner = pod.demand.owner.as_ref()?;
    let replicas = |load: &Load| {
        let replicas = load.replicas.get(owner).copied();
        i64::try_from(replicas.unwrap_or_default()).unwrap_or(i64::MAX)
    };
    let mut zones: Vec<(&str, i64)> = Vec::new();
    for (node, load) in snapshot.nodes_with_load() {
        if let Some(zone) = node.zone.as_deref() {
            match zones.iter_mut().find(|(known, _)| *known == zone) {
                Some((_, pods)) => *pods += replicas(load),
                None => zones.push((zone, replicas(load))),
            }
        }
    }
    let places: HashSet<&str> = candidates
        .iter()
        .filter_map(|(node, _)| node.zone.as_deref())
        .collect();
    let (over_nodes, over_zones) = (weight(candidates.len()), weight(places.len()));
    let sum = |(node, load): &Candidate<'_>| {
        let zone = node.zone.as_deref();
        let zone = zone.and_then(|zone| zones.iter().find(|(known, _)| *known == zone));
        let zone = zone.map_or(0.0, |(_, pods)| cost(*pods, over_zones, ZONES_SKEW));
        Some(cost(replicas(load), over_nodes, NODES_SKEW) + zone)
    };
    let sums: Vec<_> = candidates.iter().map(sum).collect();
    Some(normal(&sums))
}

/// What a pod more or less in one of so many places weighs: the more places, the more.
#[allow(
    clippy::cast_precision_loss,
    reason = "there are fewer places than 2^52"
)]
fn weight(places: usize) -> f64 {
    ((places + 2) as f64).ln()
}

/// What pods that are there cost a place.
#[allow(clippy::cast_precision_loss, reason = "there are fewer pods than 2^52")]
fn cost(pods: i64, weight: f64, skew: i64) -> f64 {
    pods as f64 * weight + (skew - 1) as f64
}

/// The less a place costs, the better; a node in no place is the worst.
#[allow(
    clippy::cast_possible_truncation,
    reason = "costs are rounded on purpose"
)]
fn normal(sums: &[Option<f64>]) -> Vec<i64> {
    let costs = sums.iter().map(|sum| sum.map(|sum| sum.round() as i64));
    let costs: Vec<Option<i64>> = costs.collect();
    let most = costs.iter().flatten().copied().max().unwrap_or_default();
    let least = costs.iter().flatten().copied().min().unwrap_or_default();
    let score = |cost: Option<i64>| match cost {
        None => 0,
        Some(_) if most == 0 => FULL,
        Some(cost) => FULL * (most + least - cost) / most,
    };
    costs.into_iter().map(score).collect()
}

fn wakes(pod: &PodRequest, event: &Event, _: &Snapshot) -> bool {
    let hard = || pod.spreads.iter().filter(|spread| spread.hard);
    match event {
        // Each pod that comes or goes in one place changes what is allowed in others.
        Event::Placed(pods) | Event::Left(pods) => {
            pods.0.namespace == pod.demand.namespace
                && hard().any(|spread| spread.selects(&pods.0.labels))
        }
        Event::Node(node) => hard().all(|spread| node.labels.contains_key(&spread.topology)),
        Event::Anything => true,
        Event::Namespace => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
