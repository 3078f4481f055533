//! Places that pods share or do not share (upstream: `InterPodAffinity`).

use super::{Candidate, FULL, Filter, Obstacle, Plugin};
use crate::event::{Event, Kind};
use crate::groups::Count;
use crate::node::NodeInfo;
use crate::request::{Demand, PodRequest};
use crate::snapshot::{Load, Snapshot};
use crate::terms::Term;
use std::collections::HashMap;
use std::sync::Arc;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "InterPodAffinity",
    weight: 2,
    filter: Some(|pod, snapshot| {
        let own = &pod.demand.affinity;
        if own.required.is_empty() && own.refused.is_empty() && snapshot.groups().nobody_asks() {
            return None;
        }
        let places = Required::of(pod, snapshot);
        (!places.is_idle()).then(|| Box::new(places) as Box<dyn Filter>)
    }),
    score: Some(score),
    hears: &[Kind::Node, Kind::Placed, Kind::Left, Kind::Namespace],
    wakes,
};

/// What a pod counts for that another one must be near (upstream's `hardPodAffinityWeight`).
const REQUIRED_WEIGHT: i64 = 1;

/// Numbers by label and value of nodes.
type Places<'a> = HashMap<&'a str, HashMap<&'a str, i64>>;

fn add<'a>(places: &mut Places<'a>, topology: &'a str, node: &'a NodeInfo, number: i64) {
    if let Some(place) = node.labels.get(topology) {
        let values = places.entry(topology).or_default();
        *values.entry(place).or_default() += number;
    }
}

fn get(places: &Places<'_>, topology: &str, node: &NodeInfo) -> Option<i64> {
    places
        .get(topology)?
        .get(node.labels.get(topology)?.as_str())
        .copied()
}

/// Pods that all these terms mean, by node.
fn meant<'a>(
    terms: &'a [&'a Term],
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = (&'a Arc<str>, Count)> {
    let (groups, known) = (snapshot.groups(), snapshot.namespaces());
    let namespaces = groups.namespaces().filter(move |namespace| {
        let mut terms = terms.iter();
        terms.all(|term| term.selects_namespace(known, namespace))
    });
    namespaces.flat_map(move |namespace| {
        groups.selected(namespace, move |labels| {
            terms.iter().all(|term| term.selects_labels(labels))
        })
    })
}

fn number(count: Count) -> i64 {
    i64::try_from(count.all).unwrap_or(i64::MAX)
}

/// Whether a term means a pod.
fn means(term: &Term, pod: &Demand, snapshot: &Snapshot) -> bool {
    term.selects(snapshot.namespaces(), &pod.namespace, &pod.labels)
}

/// What must and must not be in a place.
struct Required<'a> {
    pod: &'a Demand,
    /// Pods that all required terms mean.
    wanted: Places<'a>,
    /// Pods that it refuses.
    refused: Places<'a>,
    /// Pods that refuse it.
    refusing: Places<'a>,
    /// Whether it means itself, so that it may be the first one.
    own: bool,
}

impl<'a> Required<'a> {
    fn of(pod: &'a PodRequest, snapshot: &'a Snapshot) -> Self {
        let demand = &*pod.demand;
        let affinity = &demand.affinity;
        let mut new = Self {
            pod: demand,
            wanted: Places::new(),
            refused: Places::new(),
            refusing: Places::new(),
            own: affinity
                .required
                .iter()
                .all(|term| means(term, demand, snapshot)),
        };
        let required: Vec<&Term> = affinity.required.iter().collect();
        if !required.is_empty() {
            for (name, count) in meant(&required, snapshot) {
                let Some(node) = snapshot.node(name) else {
                    continue;
                };
                for term in &affinity.required {
                    add(&mut new.wanted, &term.topology, node, number(count));
                }
            }
        }
        for term in &affinity.refused {
            for (name, count) in meant(&[term], snapshot) {
                if let Some(node) = snapshot.node(name) {
                    add(&mut new.refused, &term.topology, node, number(count));
                }
            }
        }
        for asking in snapshot.groups().asking() {
            let terms = asking.affinity().refused.iter();
            for term in terms.filter(|term| means(term, demand, snapshot)) {
                for (name, count) in asking.nodes() {
                    if let Some(node) = snapshot.node(name) {
                        add(&mut new.refusing, &term.topology, node, number(count));
                    }
                }
            }
        }
        new
    }

    /// Whether nothing can stand against any node.
    fn is_idle(&self) -> bool {
        let affinity = &self.pod.affinity;
        affinity.required.is_empty() && affinity.refused.is_empty() && self.refusing.is_empty()
    }

    fn is_near(&self, node: &NodeInfo) -> bool {
        let required = &self.pod.affinity.required;
        if !required
            .iter()
            .all(|term| node.labels.contains_key(&term.topology))
        {
            return false;
        }
        let mut there = required
            .iter()
            .map(|term| get(&self.wanted, &term.topology, node));
        // The first of pods that want to be near each other finds none of them anywhere.
        there.all(|count| count.is_some_and(|count| count > 0))
            || (self.wanted.is_empty() && self.own)
    }
}

impl Filter for Required<'_> {
    fn look(&self, node: &NodeInfo, _: &Load, found: &mut Vec<Obstacle>) {
        if !self.is_near(node) {
            return found.push(Obstacle::lasting("node(s) didn't match pod affinity rules"));
        }
        let mut refused = self.pod.affinity.refused.iter();
        if refused.any(|term| get(&self.refused, &term.topology, node) > Some(0)) {
            let reason = "node(s) didn't match pod anti-affinity rules";
            return found.push(Obstacle::passing(reason));
        }
        let mut refusing = self.refusing.keys();
        if refusing.any(|topology| get(&self.refusing, topology, node) > Some(0)) {
            let reason = "node(s) didn't satisfy existing pods anti-affinity rules";
            found.push(Obstacle::passing(reason));
        }
    }
}

fn score(pod: &PodRequest, snapshot: &Snapshot, candidates: &[Candidate<'_>]) -> Option<Vec<i64>> {
    let own = &pod.demand.affinity.preferred;
    if own.is_empty() && snapshot.groups().nobody_asks() {
        return None;
    }
    let mut places = Places::new();
    for (weight, term) in own {
        for (name, count) in meant(&[term], snapshot) {
            if let Some(node) = snapshot.node(name) {
                add(&mut places, &term.topology, node, weight * number(count));
            }
        }
    }
    for asking in snapshot.groups().asking() {
        let affinity = asking.affinity();
        let required = affinity.required.iter().map(|term| (REQUIRED_WEIGHT, term));
        let preferred = affinity
            .preferred
            .iter()
            .map(|(weight, term)| (*weight, term));
        let mut terms = required.chain(preferred);
        let meaning = terms
            .by_ref()
            .filter(|(_, term)| means(term, &pod.demand, snapshot));
        for (weight, term) in meaning {
            for (name, count) in asking.nodes() {
                if let Some(node) = snapshot.node(name) {
                    add(&mut places, &term.topology, node, weight * number(count));
                }
            }
        }
    }
    if places.is_empty() {
        return None;
    }
    let sum = |(node, _): &Candidate<'_>| {
        let topologies = places.keys();
        topologies
            .filter_map(|topology| get(&places, topology, node))
            .sum()
    };
    normal(candidates.iter().map(sum).collect())
}

/// Sums from the lowest to the highest, as scores; none where all are equal.
fn normal(mut sums: Vec<i64>) -> Option<Vec<i64>> {
    let least = sums.iter().copied().min()?;
    let span = sums.iter().copied().max()? - least;
    for sum in &mut sums {
        *sum = FULL * (*sum - least) / span.max(1);
    }
    (span > 0).then_some(sums)
}

fn wakes(pod: &PodRequest, event: &Event, snapshot: &Snapshot) -> bool {
    let own = &pod.demand.affinity;
    let means_any =
        |terms: &[Term], pod: &Demand| terms.iter().any(|term| means(term, pod, snapshot));
    match event {
        Event::Placed(pods) => means_any(&own.required, &pods.0),
        Event::Left(pods) => {
            means_any(&own.refused, &pods.0) || means_any(&pods.0.affinity.refused, &pod.demand)
        }
        Event::Node(node) => {
            let mut required = own.required.iter();
            required.all(|term| node.labels.contains_key(&term.topology))
        }
        Event::Namespace | Event::Anything => true,
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
