//! Volumes of a pod's claims, bound or still to be had on its node (upstream: `VolumeBinding`).

use super::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{Event, Kind};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use crate::storage::{NoBindings, Wishes};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "VolumeBinding",
    weight: 0,
    filter: Some(|pod, snapshot| {
        // What stands against every node was found before nodes are looked at.
        let wishes = Wishes::of(pod, snapshot.storage()).ok()?;
        (!wishes.is_empty()).then(|| Box::new(Volumes(wishes)) as Box<dyn Filter>)
    }),
    score: None,
    hears: &[
        Kind::Node,
        Kind::Claim,
        Kind::Volume,
        Kind::Class,
        Kind::Capacity,
    ],
    wakes,
};

struct Volumes<'a>(Wishes<'a>);

impl Filter for Volumes<'_> {
    fn look(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
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

fn wakes(pod: &PodRequest, event: &Event, snapshot: &Snapshot) -> bool {
    match event {
        Event::Claim(key) => {
            let mut claims = pod.claims.iter();
            let claim = snapshot.storage().claim(key);
            // While a volume is provisioned on the chosen node there is nothing new to decide.
            let decided = claim.is_some_and(|claim| claim.is_bound() || claim.node.is_empty());
            decided && claims.any(|own| own.key == *key)
        }
        Event::Volume | Event::Class | Event::Capacity | Event::Node(_) | Event::Anything => {
            !pod.claims.is_empty()
        }
        Event::NodeGone(_)
        | Event::Placed(_)
        | Event::Left(_)
        | Event::Freed(_)
        | Event::Namespace => false,
    }
}
