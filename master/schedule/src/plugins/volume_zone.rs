//! Keeps pods in the zone or region in their volumes' labels (upstream: `VolumeZone`).

use super::plugin::{Candidate, Filter, Obstacle, Plugin};
use crate::event::{ClusterEvent, EventKind};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use crate::storage::VolumeRequirements;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "VolumeZone",
    weight: 0,
    filter: Some(|pod, snapshot| {
        let required = VolumeRequirements::of(pod, snapshot.storage()).ok()?;
        let labels = required.volumes().flat_map(|volume| &volume.labels);
        let wanted: Vec<(&str, &str)> = labels
            .filter(|(key, _)| LABELS.contains(&key.as_str()))
            .map(|(key, values)| (key.as_str(), values.as_str()))
            .collect();
        (!wanted.is_empty()).then(|| Box::new(Zones(wanted)) as Box<dyn Filter>)
    }),
    score: None,
    events: &[
        EventKind::Node,
        EventKind::Claim,
        EventKind::Volume,
        EventKind::Class,
    ],
    wakes,
};

/// Labels of zones and regions, and their deprecated names.
const LABELS: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];
/// The separator between the zones of a volume that has several.
const BETWEEN: &str = "__";

struct Zones<'a>(Vec<(&'a str, &'a str)>);

impl Filter for Zones<'_> {
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>) {
        let labels = &node.info.labels;
        // A cluster of one zone labels nothing (upstream).
        if !LABELS.iter().any(|key| labels.contains_key(*key)) {
            return;
        }
        let is_in = |(key, values): &(&str, &str)| {
            let own = labels.get(*key);
            own.is_some_and(|own| values.split(BETWEEN).any(|value| value == own))
        };
        if !self.0.iter().all(is_in) {
            found.push(Obstacle::lasting("node(s) had no available volume zone"));
        }
    }
}

fn wakes(pod: &PodRequest, event: &ClusterEvent, _: &Snapshot) -> bool {
    match event {
        ClusterEvent::Claim(key) => pod.claims.iter().any(|own| own.key == *key),
        ClusterEvent::Volume
        | ClusterEvent::Class
        | ClusterEvent::Node(_)
        | ClusterEvent::Anything => !pod.claims.is_empty(),
        ClusterEvent::NodeGone(_)
        | ClusterEvent::Placed(_)
        | ClusterEvent::Left(_)
        | ClusterEvent::Freed(_)
        | ClusterEvent::Namespace
        | ClusterEvent::Capacity => false,
    }
}
