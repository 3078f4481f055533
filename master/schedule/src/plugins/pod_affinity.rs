//! Affinity and anti-affinity to pods in the same topology domain (upstream: `InterPodAffinity`).

use super::plugin::{Candidate, Filter, MAX_NODE_SCORE, Obstacle, Plugin, PodMove};
use crate::event::{ClusterEvent, EventKind, PodUsage};
use crate::groups::Count;
use crate::node::{NodeId, NodeInfo};
use crate::request::{Demand, PodRequest};
use crate::snapshot::Snapshot;
use crate::terms::Term;
use crate::topology::Tally;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "InterPodAffinity",
    weight: 2,
    filter: Some(|pod, snapshot| {
        let own = &pod.demand.affinity;
        if own.required.is_empty() && own.refused.is_empty() && snapshot.groups().nobody_asks() {
            return None;
        }
        let required_terms = Required::of(pod, snapshot);
        (!required_terms.is_idle()).then(|| Box::new(required_terms) as Box<dyn Filter>)
    }),
    score: Some(score),
    events: &[
        EventKind::Node,
        EventKind::Placed,
        EventKind::Left,
        EventKind::Namespace,
    ],
    wakes,
};

/// Weight of an existing pod's required affinity to the pod, in scores (upstream's
/// `hardPodAffinityWeight`).
const REQUIRED_WEIGHT: i64 = 1;

/// A number for each topology domain, by the label of the topology. Labels that no node has are
/// left out.
struct DomainTallies<'a> {
    snapshot: &'a Snapshot,
    tallies: BTreeMap<&'a str, Tally<'a>>,
}

impl<'a> DomainTallies<'a> {
    fn of(snapshot: &'a Snapshot) -> Self {
        Self {
            snapshot,
            tallies: BTreeMap::new(),
        }
    }

    fn tally(&mut self, topology: &'a str) -> Option<&mut Tally<'a>> {
        match self.tallies.entry(topology) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => Some(new.insert(self.snapshot.topologies().tally(topology)?)),
        }
    }

    /// Adds the number of pods on each node, multiplied by a weight, to the node's domain.
    fn add(&mut self, topology: &'a str, weight: i64, pods: impl Iterator<Item = (NodeId, Count)>) {
        if let Some(tally) = self.tally(topology) {
            for (node, count) in pods {
                tally.add(node, weight * number(count));
            }
        }
    }

    /// Adds to the number of a node's domain. A domain whose number becomes zero is as one to which
    /// nothing was added.
    fn change(&mut self, topology: &str, node: NodeId, change: i64) {
        if let Some(tally) = self.tallies.get_mut(topology) {
            tally.add_or_close(node, change);
        }
    }

    fn get(&self, topology: &str, node: NodeId) -> Option<i64> {
        self.tallies.get(topology)?.get(node)
    }

    /// The sum over all domains of a node.
    fn sum(&self, node: NodeId) -> i64 {
        let numbers = self.tallies.values().filter_map(|tally| tally.get(node));
        numbers.sum()
    }

    /// Whether any pod was added to a domain of a node.
    fn has_some(&self, node: NodeId) -> bool {
        let mut tallies = self.tallies.values();
        tallies.any(|tally| tally.get(node) > Some(0))
    }

    /// Whether nothing was added.
    fn is_empty(&self) -> bool {
        let mut tallies = self.tallies.values();
        tallies.all(Tally::is_empty)
    }
}

/// Pods that all of these terms select, by node.
fn meant<'a>(
    terms: &'a [&'a Term],
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = (NodeId, Count)> {
    let (groups, known) = (snapshot.groups(), snapshot.namespaces());
    let namespaces = groups.namespaces().filter(move |namespace| {
        let mut terms = terms.iter();
        terms.all(|term| term.selects_namespace(known, namespace))
    });
    let reads_own = terms.iter().any(|term| term.reads_own_labels());
    namespaces.flat_map(move |namespace| {
        groups.selected(namespace, reads_own, move |labels| {
            terms.iter().all(|term| term.selects_labels(labels))
        })
    })
}

fn number(count: Count) -> i64 {
    i64::try_from(count.all).unwrap_or(i64::MAX)
}

/// Whether a term selects a pod.
fn means(term: &Term, pod: &Demand, snapshot: &Snapshot) -> bool {
    term.selects(snapshot.namespaces(), &pod.namespace, &pod.labels)
}

/// The required affinity and anti-affinity of a pod.
struct Required<'a> {
    pod: &'a Demand,
    snapshot: &'a Snapshot,
    /// The topologies of the required terms, each once.
    topologies: BTreeSet<&'a str>,
    /// Pods that all required affinity terms select.
    wanted: DomainTallies<'a>,
    /// Pods that its anti-affinity selects.
    refused: DomainTallies<'a>,
    /// Pods whose anti-affinity selects it.
    refusing: DomainTallies<'a>,
    /// Whether its affinity terms select itself, so that it may be the first of its kind.
    selects_itself: bool,
}

impl<'a> Required<'a> {
    fn of(pod: &'a PodRequest, snapshot: &'a Snapshot) -> Self {
        let demand = &*pod.demand;
        let affinity = &demand.affinity;
        let topologies = affinity.required.iter().map(|term| &*term.topology);
        let mut new = Self {
            pod: demand,
            snapshot,
            topologies: topologies.collect(),
            wanted: DomainTallies::of(snapshot),
            refused: DomainTallies::of(snapshot),
            refusing: DomainTallies::of(snapshot),
            selects_itself: affinity
                .required
                .iter()
                .all(|term| means(term, demand, snapshot)),
        };
        // Once for all terms: each pod is compared with each of them here.
        let required: Vec<&Term> = affinity.required.iter().collect();
        let near: Vec<(NodeId, Count)> = if required.is_empty() {
            Vec::new()
        } else {
            meant(&required, snapshot).collect()
        };
        for &topology in &new.topologies {
            new.wanted.add(topology, 1, near.iter().copied());
        }
        for term in &affinity.refused {
            new.refused.add(&term.topology, 1, meant(&[term], snapshot));
        }
        for asking in snapshot.groups().asking() {
            let terms = asking.affinity.refused.iter();
            for term in terms.filter(|term| means(term, demand, snapshot)) {
                new.refusing.add(&term.topology, 1, asking.nodes());
            }
        }
        new
    }

    /// Whether it can refuse no node.
    fn is_idle(&self) -> bool {
        let affinity = &self.pod.affinity;
        affinity.required.is_empty() && affinity.refused.is_empty() && self.refusing.is_empty()
    }

    /// Whether its terms select itself, and no other pod that they select exists.
    fn is_first(&self) -> bool {
        self.selects_itself && self.wanted.is_empty()
    }

    fn is_near(&self, node: &Candidate<'_>) -> bool {
        let mut topologies = self.topologies.iter();
        if !topologies.all(|topology| node.info.labels.contains_key(*topology)) {
            return false;
        }
        let mut topologies = self.topologies.iter();
        self.is_first() || topologies.all(|topology| self.wanted.get(topology, node.id) > Some(0))
    }
}

impl Filter for Required<'_> {
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        if !self.is_near(node) {
            return found.push(Obstacle::lasting("node(s) didn't match pod affinity rules"));
        }
        if self.refused.has_some(node.id) {
            let reason = "node(s) didn't match pod anti-affinity rules";
            return found.push(Obstacle::passing(reason));
        }
        if self.refusing.has_some(node.id) {
            let reason = "node(s) didn't satisfy existing pods anti-affinity rules";
            found.push(Obstacle::passing(reason));
        }
    }

    fn follow(&mut self, moved: &PodMove<'_>) {
        let (own, snapshot) = (self.pod, self.snapshot);
        let PodMove {
            node, pod, change, ..
        } = *moved;
        let mut required = own.affinity.required.iter();
        if required.all(|term| means(term, pod, snapshot)) {
            for topology in &self.topologies {
                self.wanted.change(topology, node, change);
            }
        }
        let refused = own.affinity.refused.iter();
        for term in refused.filter(|term| means(term, pod, snapshot)) {
            self.refused.change(&term.topology, node, change);
        }
        let refusing = pod.affinity.refused.iter();
        for term in refusing.filter(|term| means(term, own, snapshot)) {
            self.refusing.change(&term.topology, node, change);
        }
    }
}

fn score(pod: &PodRequest, snapshot: &Snapshot, candidates: &[Candidate<'_>]) -> Option<Vec<i64>> {
    let own = &pod.demand.affinity.preferred;
    if own.is_empty() && snapshot.groups().nobody_asks() {
        return None;
    }
    let mut required_terms = DomainTallies::of(snapshot);
    for (weight, term) in own {
        required_terms.add(&term.topology, *weight, meant(&[term], snapshot));
    }
    for asking in snapshot.groups().asking() {
        let affinity = asking.affinity;
        let required = affinity.required.iter().map(|term| (REQUIRED_WEIGHT, term));
        let preferred = affinity
            .preferred
            .iter()
            .map(|(weight, term)| (*weight, term));
        let terms = required.chain(preferred);
        for (weight, term) in terms.filter(|(_, term)| means(term, &pod.demand, snapshot)) {
            required_terms.add(&term.topology, weight, asking.nodes());
        }
    }
    if required_terms.is_empty() {
        return None;
    }
    let sums = candidates.iter().map(|node| required_terms.sum(node.id));
    normal(sums.collect())
}

/// Scales the sums to scores: the lowest to 0, the highest to the maximum. `None` if all are equal.
fn normal(mut sums: Vec<i64>) -> Option<Vec<i64>> {
    let least = sums.iter().copied().min()?;
    let span = sums.iter().copied().max()? - least;
    for sum in &mut sums {
        *sum = MAX_NODE_SCORE * (*sum - least) / span.max(1);
    }
    (span > 0).then_some(sums)
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, snapshot: &Snapshot) -> bool {
    let own = &pod.demand.affinity;
    let means_any =
        |terms: &[Term], pod: &Demand| terms.iter().any(|term| means(term, pod, snapshot));
    let kept_it_off = |pods: &PodUsage| {
        means_any(&own.refused, &pods.0) || means_any(&pods.0.affinity.refused, &pod.demand)
    };
    match event {
        ClusterEvent::Placed(pods) => {
            means_any(&own.required, &pods.now.0) || pods.before.as_ref().is_some_and(kept_it_off)
        }
        ClusterEvent::Left(pods) => kept_it_off(&pods.usage),
        ClusterEvent::Node(node) => {
            let in_all = |node: &NodeInfo| {
                let mut required = own.required.iter();
                required.all(|term| node.labels.contains_key(&term.topology))
            };
            node.ever(in_all)
        }
        ClusterEvent::Namespace | ClusterEvent::Anything => true,
        ClusterEvent::NodeGone(_)
        | ClusterEvent::Freed(_)
        | ClusterEvent::Claim(_)
        | ClusterEvent::Volume
        | ClusterEvent::Class
        | ClusterEvent::Capacity => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_span_all_scores() {
        assert_eq!(normal(vec![-5, 0, 5]), Some(vec![0, 50, 100]));
        assert_eq!(normal(vec![3, 3]), None);
    }
}
