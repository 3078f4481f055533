//! Resources of nodes, and how much of them is left (upstream: `NodeResourcesFit` with `LeastAllocated`).

use super::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{Event, Kind};
use crate::request::{Demand, PodRequest};
use crate::resources::{CPU, MEMORY, free_percent};
use crate::snapshot::Snapshot;
use config_kube::Amount;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NodeResourcesFit",
    weight: 1,
    filter: Some(|pod, _| Some(Box::new(Fit(&pod.demand)))),
    score: Some(|pod, _, candidates| Some(score(pod, candidates))),
    hears: &[Kind::Node, Kind::Left],
    wakes,
};

struct Fit<'a>(&'a Demand);

impl Filter for Fit<'_> {
    fn look(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        let Candidate {
            info: node, load, ..
        } = node;
        let pods = i64::try_from(load.pods).unwrap_or(i64::MAX);
        if node.most_pods <= pods {
            found.push(Obstacle::passing("Too many pods"));
        }
        for (name, needed) in self.0.needed.iter() {
            let most = node.allocatable.get(name);
            if needed > Amount::ZERO && load.needed.get(name) + needed > most {
                found.push(Obstacle {
                    reason: format!("Insufficient {name}").into(),
                    // Not even an empty node has so much.
                    lasting: needed > most,
                });
            }
        }
    }
}

/// The freer a node is with the pod on it, the better: the mean of what is left of its processors and memory.
fn score(pod: &PodRequest, candidates: &[Candidate<'_>]) -> Vec<i64> {
    let asked = [CPU, MEMORY].map(|name| (name, pod.demand.scored.get(name)));
    let score = |Candidate { info, load, .. }: &Candidate<'_>| {
        let (mut sum, mut count) = (0, 0);
        for (name, asked) in asked {
            if let Some(free) =
                free_percent(load.scored.get(name) + asked, info.allocatable.get(name))
            {
                sum += free;
                count += 1;
            }
        }
        if count == 0 { 0 } else { sum / count }
    };
    candidates.iter().map(score).collect()
}

fn wakes(pod: &PodRequest, event: &Event, _: &Snapshot) -> bool {
    match event {
        // If it uses nothing else of what is scarce, it leaves its place among the node's pods.
        Event::Left(_) | Event::Anything => true,
        Event::Node(node) => {
            let mut needed = pod.demand.needed.iter();
            needed.all(|(name, needed)| needed <= node.allocatable.get(name))
        }
        Event::Placed(_) | Event::Namespace | Event::Claim(_) | Event::Volume | Event::Class => {
            false
        }
    }
}
