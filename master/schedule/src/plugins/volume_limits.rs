//! Limits the volumes of a CSI driver on a node to the number in its CSINode (upstream:
//! `NodeVolumeLimits`). Volumes in a pod's own specification are not counted, as upstream.

use super::plugin::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{ClusterEvent, EventKind};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use crate::storage::Storage;
use master_claims::CsiVolume;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NodeVolumeLimits",
    weight: 0,
    filter: Some(|pod, snapshot| {
        let storage = snapshot.storage();
        if !storage.has_limits() {
            return None;
        }
        let claims = pod.claims.iter();
        let volumes: BTreeSet<CsiVolume> = claims
            .filter_map(|claim| storage.csi_volume(&claim.key))
            .collect();
        (!volumes.is_empty()).then(|| Box::new(Wanted { volumes, storage }) as Box<dyn Filter>)
    }),
    score: None,
    events: &[EventKind::Left, EventKind::Claim],
    wakes,
};

/// The volumes of a pod.
struct Wanted<'a> {
    volumes: BTreeSet<CsiVolume>,
    storage: &'a Storage,
}

impl Filter for Wanted<'_> {
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        let Some(limits) = self.storage.limits(&node.info.name) else {
            return;
        };
        let claims = node.load.claims.keys();
        let held: BTreeSet<CsiVolume> = claims
            .filter_map(|claim| self.storage.csi_volume(claim))
            .collect();
        // A volume that is already on the node does not count again.
        let new: Vec<&CsiVolume> = self.volumes.difference(&held).collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for volume in held.iter().chain(new.iter().copied()) {
            *counts.entry(&volume.driver).or_default() += 1;
        }
        let is_over = new.iter().any(|volume| {
            let count = counts.get(&*volume.driver).copied().unwrap_or_default();
            limits.of(&volume.driver).is_some_and(|most| count > most)
        });
        if is_over {
            found.push(Obstacle::passing("node(s) exceed max volume count"));
        }
    }
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, _: &Snapshot) -> bool {
    match event {
        ClusterEvent::Left(held) => !held.usage.0.claims.is_empty(),
        ClusterEvent::Claim(key) => pod.claims.iter().any(|own| own.key == *key),
        ClusterEvent::Anything => true,
        ClusterEvent::Node(_)
        | ClusterEvent::NodeGone(_)
        | ClusterEvent::Placed(_)
        | ClusterEvent::Freed(_)
        | ClusterEvent::Namespace
        | ClusterEvent::Volume
        | ClusterEvent::Class
        | ClusterEvent::Capacity => false,
    }
}
