//! Lets only one pod use a claim with `ReadWriteOncePod` (upstream: `VolumeRestrictions`, for the
//! kinds of volumes that this distribution mounts).

use super::plugin::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{ClusterEvent, EventKind};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use master_client::Key;
use std::collections::HashSet;

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
    events: &[EventKind::Left, EventKind::Claim],
    wakes,
};

/// Another pod uses a claim that is for one pod only.
struct Taken;

impl Filter for Taken {
    fn check(&self, _: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        let reason = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
        found.push(Obstacle::passing(reason));
    }
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, _: &Snapshot) -> bool {
    let mut claims = pod.claims.iter();
    match event {
        ClusterEvent::Left(held) if !pod.claims.is_empty() => {
            let held: HashSet<&Key> = held.usage.0.claims.iter().collect();
            claims.any(|own| held.contains(&own.key))
        }
        ClusterEvent::Claim(key) => claims.any(|own| own.key == *key),
        ClusterEvent::Anything => true,
        ClusterEvent::Left(_)
        | ClusterEvent::Node(_)
        | ClusterEvent::NodeGone(_)
        | ClusterEvent::Placed(_)
        | ClusterEvent::Freed(_)
        | ClusterEvent::Namespace
        | ClusterEvent::Volume
        | ClusterEvent::Class
        | ClusterEvent::Capacity => false,
    }
}
