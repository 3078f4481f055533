//! The plugins of the default profile, in the order in which they check a node, with upstream's
//! weights.
//!
//! A plugin is a line of [`PROFILE`] and a file. For each pod it returns a filter for nodes only if
//! the pod has something to check: otherwise it costs nothing for each node.

mod balanced_allocation;
#[cfg(test)]
mod follow_tests;
mod image_locality;
mod node_affinity;
mod plugin;
mod pod_affinity;
mod ports;
mod resources_fit;
mod taints;
mod topology_spread;
mod unschedulable;
mod volume_binding;
mod volume_limits;
mod volume_restrictions;
mod volume_zone;

use crate::event::{ClusterEvent, EventKind};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;
use crate::storage::VolumeRequirements;
pub(crate) use plugin::{Candidate, Filter, Obstacle, Plugin, PodMove};

/// The default profile.
pub(crate) static PROFILE: [Plugin; 13] = [
    unschedulable::PLUGIN,
    taints::PLUGIN,
    node_affinity::PLUGIN,
    ports::PLUGIN,
    resources_fit::PLUGIN,
    volume_restrictions::PLUGIN,
    volume_limits::PLUGIN,
    volume_binding::PLUGIN,
    volume_zone::PLUGIN,
    topology_spread::PLUGIN,
    pod_affinity::PLUGIN,
    balanced_allocation::PLUGIN,
    image_locality::PLUGIN,
];

/// A set of plugins of the profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Plugins(u32);

impl Plugins {
    /// All of them.
    pub const ALL: Self = Self(u32::MAX);

    /// One of them, by its name.
    pub(crate) fn named(name: &str) -> Self {
        let mut one = Self::default();
        for (at, plugin) in PROFILE.iter().enumerate() {
            if plugin.name == name {
                one.insert(at);
            }
        }
        one
    }

    fn insert(&mut self, at: usize) {
        self.0 |= 1 << at;
    }

    /// Names of the plugins in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        self.members().map(|plugin| plugin.name)
    }

    /// Plugins whose refusals an event of this kind may remove.
    pub(crate) fn concerned_by(kind: EventKind) -> Self {
        let mut concerned_by = Self::default();
        for (at, plugin) in PROFILE.iter().enumerate() {
            if kind == EventKind::Anything || plugin.events.contains(&kind) {
                concerned_by.insert(at);
            }
        }
        concerned_by
    }

    /// Whether the sets have a plugin in common.
    pub(crate) fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn members(self) -> impl Iterator<Item = &'static Plugin> {
        let all = PROFILE.iter().enumerate();
        all.filter(move |(at, _)| self.0 & (1 << at) != 0)
            .map(|(_, plugin)| plugin)
    }

    /// Whether a pod that these plugins refused may find a node after an event.
    pub(crate) fn wake(self, pod: &PodRequest, event: &ClusterEvent, snapshot: &Snapshot) -> bool {
        if let ClusterEvent::Left(left) = event
            && !left.concerns(pod)
        {
            return false;
        }
        let kind = event.kind();
        kind == EventKind::Anything
            || self
                .members()
                .any(|plugin| plugin.events.contains(&kind) && (plugin.wakes)(pod, event, snapshot))
    }
}

/// The plugin that waits for a pod's volumes.
pub(crate) fn volumes() -> Plugins {
    Plugins::named("VolumeBinding")
}

/// Why no node at all can take the pod (upstream: `PreFilter`), and the plugin that rejects it;
/// `None` if each node has to be filtered.
pub(crate) fn pre_filter(pod: &PodRequest, snapshot: &Snapshot) -> Option<(String, Plugins)> {
    let fault = VolumeRequirements::of(pod, snapshot.storage()).err()?;
    Some((fault, volumes()))
}

/// The filters that apply to a pod, each with its plugin's number.
pub(crate) struct Prepared<'a>(Vec<(usize, Box<dyn Filter + 'a>)>);

impl<'a> Prepared<'a> {
    pub(crate) fn of(pod: &'a PodRequest, snapshot: &'a Snapshot) -> Self {
        let all = PROFILE.iter().enumerate();
        let filters = all.filter_map(|(at, plugin)| {
            let filter = plugin.filter.and_then(|filter| filter(pod, snapshot))?;
            Some((at, filter))
        });
        Self(filters.collect())
    }

    /// The obstacles that the first refusing plugin finds; that plugin is added to `refusing`.
    pub(crate) fn first_obstacle(
        &self,
        node: &Candidate<'_>,
        refusing: &mut Plugins,
    ) -> Vec<Obstacle> {
        let mut found = Vec::new();
        for (at, filter) in &self.0 {
            filter.check(node, &mut found);
            if !found.is_empty() {
                refusing.insert(*at);
                break;
            }
        }
        found
    }

    /// Counts a pod that is taken off its node or put back there, see [`Filter::follow`].
    pub(crate) fn follow(&mut self, moved: &PodMove<'_>) {
        for (_, filter) in &mut self.0 {
            filter.follow(moved);
        }
    }
}

/// Sums of the candidates' scores, in their order.
pub(crate) fn scores(
    pod: &PodRequest,
    snapshot: &Snapshot,
    candidates: &[Candidate<'_>],
) -> Vec<i64> {
    let mut sums = vec![0; candidates.len()];
    for plugin in &PROFILE {
        let scores = plugin
            .score
            .and_then(|score| score(pod, snapshot, candidates));
        let Some(scores) = scores else { continue };
        for (sum, score) in sums.iter_mut().zip(scores) {
            *sum += plugin.weight * score;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_upstreams_default_profile() {
        let weights = PROFILE.iter().filter(|plugin| plugin.score.is_some());
        let mut weights: Vec<_> = weights.map(|plugin| (plugin.name, plugin.weight)).collect();
        weights.sort_unstable();
        assert_eq!(
            weights,
            [
                ("ImageLocality", 1),
                ("InterPodAffinity", 2),
                ("NodeAffinity", 2),
                ("NodeResourcesBalancedAllocation", 1),
                ("NodeResourcesFit", 1),
                ("PodTopologySpread", 2),
                ("TaintToleration", 3),
            ]
        );
    }
}
