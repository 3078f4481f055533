//! Claims that one pod alone may use (upstream: `VolumeRestrictions`, as far as its kinds of
//! volumes are mounted here).

use super::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{Event, Kind};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "VolumeRestrictions",
    weight: 0,
    filter: Some(|pod, snapshot| {
        let mut claims = pod.claims.iter();
        let taken = claims.any(|own| {
            let claim = snapshot.storage().claim(&own.key);
            let alone = claim
                .is_some_and(|claim| claim.modes.iter().any(|mode| mode == "ReadWriteOncePod"));
            alone && snapshot.is_claim_used(&own.key)
        });
        taken.then(|| Box::new(Taken) as Box<dyn Filter>)
    }),
    score: None,
    hears: &[Kind::Left, Kind::Claim],
    wakes,
};

/// Another pod has a claim that is for one pod.
struct Taken;

impl Filter for Taken {
    fn look(&self, _: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        let reason = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
        found.push(Obstacle::passing(reason));
    }
}

fn wakes(pod: &PodRequest, event: &Event, _: &Snapshot) -> bool {
    let mut claims = pod.claims.iter();
    match event {
        Event::Left(held) => claims.any(|own| held.0.claims.contains(&own.key)),
        Event::Claim(key) => claims.any(|own| own.key == *key),
        Event::Anything => true,
        Event::Node(_)
        | Event::NodeGone(_)
        | Event::Placed(_)
        | Event::Freed(_)
        | Event::Namespace
        | Event::Volume
        | Event::Class
        | Event::Capacity => false,
    }
}
