//! Lets only one pod use a claim with `ReadWriteOncePod` (upstream: `VolumeRestrictions`, for the
//! kinds of volumes that this distribution mounts).

use super::plugin::{Candidate, Filter, Obstacle, Plugin, PodMove};
use crate::event::{ClusterEvent, EventKind};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use master_client::Key;
use std::collections::{HashMap, HashSet};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "VolumeRestrictions",
    weight: 0,
    filter: Some(|pod, snapshot| {
        let taken = Taken::of(pod, snapshot);
        (!taken.0.is_empty()).then(|| Box::new(taken) as Box<dyn Filter>)
    }),
    score: None,
    events: &[EventKind::Left, EventKind::Claim],
    wakes,
};

/// The pod's claims that are for one pod only and that other pods use, and how many use each.
struct Taken<'a>(HashMap<&'a Key, i64>);

impl<'a> Taken<'a> {
    fn of(pod: &'a PodRequest, snapshot: &Snapshot) -> Self {
        let alone = |key: &Key| {
            let claim = snapshot.storage().claim(key);
            claim.is_some_and(|claim| claim.modes.iter().any(|mode| mode == "ReadWriteOncePod"))
        };
        let claims = pod.claims.iter().map(|own| &own.key);
        let taken = claims.filter_map(|key| {
            let users = i64::try_from(snapshot.claim_users(key)).unwrap_or(i64::MAX);
            (users > 0 && alone(key)).then_some((key, users))
        });
        Self(taken.collect())
    }
}

impl Filter for Taken<'_> {
    fn check(&self, _: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        if self.0.values().any(|users| *users > 0) {
            let reason = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
            found.push(Obstacle::passing(reason));
        }
    }

    fn follow(&mut self, moved: &PodMove<'_>) {
        for claim in &moved.pod.claims {
            if let Some(users) = self.0.get_mut(claim) {
                *users += moved.change;
            }
        }
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
