//! Checks that a node has enough free resources, and scores by how much is used (upstream:
//! `NodeResourcesFit`).

use super::plugin::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{ClusterEvent, EventKind};
use crate::profile::Profile;
use crate::request::PodRequest;
use crate::resources::{ResourceName, Resources};
use crate::snapshot::Snapshot;
use config_kube::Amount;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesFit",
    weight: 1,
    filter: Some(|pod, _| Some(Box::new(Fit::of(&pod.demand.needed)))),
    score: Some(|pod, _, candidates| Some(score(pod, candidates))),
    events: &[EventKind::Node, EventKind::Left, EventKind::Freed],
    wakes,
};

/// What the pod needs of each resource, in the order of [`Resources::iter`]: more than zero.
struct Fit<'a>(Vec<(ResourceName<'a>, Amount)>);

impl<'a> Fit<'a> {
    fn of(needed: &'a Resources) -> Self {
        let needed = needed.iter().filter(|(_, needed)| *needed > Amount::ZERO);
        Self(needed.map(|(name, needed)| (name.into(), needed)).collect())
    }
}

impl Filter for Fit<'_> {
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        let Candidate {
            info: node, load, ..
        } = node;
        let pods = i64::try_from(load.pods).unwrap_or(i64::MAX);
        if node.most_pods <= pods {
            found.push(Obstacle::passing("Too many pods"));
        }
        for &(name, needed) in &self.0 {
            let most = node.allocatable.amount(name);
            if load.needed.amount(name) + needed > most {
                found.push(Obstacle {
                    reason: format!("Insufficient {}", name.text()).into(),
                    // An empty node would be too small as well: preemption cannot help.
                    lasting: needed > most,
                });
            }
        }
    }
}

/// The weighted mean of the resources' scores by the strategy of the pod's profile, as if the pod
/// were on the node.
fn score(pod: &PodRequest, candidates: &[Candidate<'_>]) -> Vec<i64> {
    let Profile {
        strategy, weights, ..
    } = &*pod.profile;
    let needed = weights.iter().filter_map(|(name, weight)| {
        let name = ResourceName::from(name.as_str());
        let needed = weighed(name, &pod.demand.scored, &pod.demand.needed);
        // Resources that the pod does not request do not count (upstream: only extended ones).
        let counts =
            needed > Amount::ZERO || matches!(name, ResourceName::Cpu | ResourceName::Memory);
        counts.then_some((name, *weight, needed))
    });
    let needed: Vec<_> = needed.collect();
    let score = |Candidate { info, load, .. }: &Candidate<'_>| {
        let (mut sum, mut count) = (0, 0);
        for &(name, weight, needed) in &needed {
            let used = weighed(name, &load.scored, &load.needed) + needed;
            if let Some(score) = strategy.score(used, info.allocatable.amount(name)) {
                sum += weight * score;
                if score > 0 || strategy.counts_nought() {
                    count += weight;
                }
            }
        }
        strategy.mean(sum, count)
    };
    candidates.iter().map(score).collect()
}

/// The amount of a resource that counts in scores. For CPU and memory this includes assumed values
/// for containers without requests.
fn weighed(name: ResourceName<'_>, scored: &Resources, needed: &Resources) -> Amount {
    match name {
        ResourceName::Cpu | ResourceName::Memory => scored.amount(name),
        ResourceName::Other(_) => needed.amount(name),
    }
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, _: &Snapshot) -> bool {
    match event {
        // Any pod that leaves frees at least its place in the node's limit of pods.
        ClusterEvent::Left(_) | ClusterEvent::Anything => true,
        ClusterEvent::Node(node) => {
            let mut needed = pod.demand.needed.iter();
            needed.all(|(name, needed)| needed <= node.now.allocatable.get(name))
        }
        ClusterEvent::Freed(freed) => {
            let mut freed = freed.iter();
            freed.any(|(name, _)| pod.demand.needed.get(name) > Amount::ZERO)
        }
        ClusterEvent::NodeGone(_)
        | ClusterEvent::Placed(_)
        | ClusterEvent::Namespace
        | ClusterEvent::Claim(_)
        | ClusterEvent::Volume
        | ClusterEvent::Class
        | ClusterEvent::Capacity => false,
    }
}
