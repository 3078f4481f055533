//! Checks that a node reaches the volumes of a pod's claims, or can get volumes for unbound ones
//! (upstream: `VolumeBinding`).

use super::plugin::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{ClusterEvent, EventKind};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use crate::storage::{NoBindings, VolumeRequirements};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "VolumeBinding",
    weight: 0,
    filter: Some(|pod, snapshot| {
        // Reasons against every node were found before any node is checked (`pre_filter`).
        let required = VolumeRequirements::of(pod, snapshot.storage()).ok()?;
        (!required.is_empty()).then(|| Box::new(Volumes(required)) as Box<dyn Filter>)
    }),
    score: None,
    events: &[
        EventKind::Node,
        EventKind::Claim,
        EventKind::Volume,
        EventKind::Class,
        EventKind::Capacity,
    ],
    wakes,
};

struct Volumes<'a>(VolumeRequirements<'a>);

impl Filter for Volumes<'_> {
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        if let Some(reason) = self.0.conflict(node.info) {
            found.push(Obstacle::lasting(reason));
        } else if let Err(none) = self.0.bindings(node.info) {
            found.push(Obstacle::lasting(match none {
                NoBindings::NoVolume => "node(s) didn't find available persistent volumes to bind",
                NoBindings::NoSpace => "node(s) did not have enough free storage",
            }));
        }
    }
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, snapshot: &Snapshot) -> bool {
    match event {
        ClusterEvent::Claim(key) => {
            let mut claims = pod.claims.iter();
            let claim = snapshot.storage().claim(key);
            // While a volume is provisioned on the chosen node there is nothing new to decide.
            let decided = claim.is_some_and(|claim| claim.is_bound() || claim.node.is_empty());
            decided && claims.any(|own| own.key == *key)
        }
        ClusterEvent::Volume
        | ClusterEvent::Class
        | ClusterEvent::Capacity
        | ClusterEvent::Node(_)
        | ClusterEvent::Anything => !pod.claims.is_empty(),
        ClusterEvent::NodeGone(_)
        | ClusterEvent::Placed(_)
        | ClusterEvent::Left(_)
        | ClusterEvent::Freed(_)
        | ClusterEvent::Namespace => false,
    }
}
