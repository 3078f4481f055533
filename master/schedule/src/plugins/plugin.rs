//! The type of a plugin, and helpers that the plugins share.

use crate::event::{ClusterEvent, EventKind};
use crate::node::NodeId;
pub(crate) use crate::nodes::Candidate;
use crate::request::{Demand, PodRequest};
use crate::snapshot::Snapshot;
use std::borrow::Cow;

/// Highest score of one plugin on a node.
pub(super) const MAX_NODE_SCORE: i64 = 100;

/// Why a node is not feasible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    /// In upstream's words.
    pub(crate) reason: Cow<'static, str>,
    /// Whether it remains even if all pods on the node are preempted.
    pub(crate) lasting: bool,
}

impl Obstacle {
    /// An obstacle that preemption can remove.
    pub(super) fn passing(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason: reason.into(),
            lasting: false,
        }
    }

    /// An obstacle that preemption cannot remove.
    pub(super) fn lasting(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason: reason.into(),
            lasting: true,
        }
    }
}

/// A step of preemption's dry run: a pod is taken off its node, or put back there. The pod counted
/// when the filters were made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PodMove<'a> {
    pub(crate) node: NodeId,
    pub(crate) pod: &'a Demand,
    /// Whether the pod is being deleted.
    pub(crate) leaving: bool,
    /// By how much the number of pods on the node changes: -1 or 1.
    pub(crate) change: i64,
}

/// A plugin's data about one pod, to check nodes with.
pub(crate) trait Filter {
    /// Adds the reasons why the pod can't run on a node.
    fn check(&self, node: &Candidate<'_>, found: &mut Vec<Obstacle>);

    /// Counts a pod that is taken off its node or put back there (upstream: `PreFilterExtensions`).
    /// Afterwards the filter checks nodes as one that is made from a snapshot with that change, at
    /// a cost that grows neither with the nodes nor with their pods. A filter that reads pods only
    /// from [`Candidate::load`] has nothing to do.
    fn follow(&mut self, _moved: &PodMove<'_>) {}
}

/// Makes the filter for a pod; `None` if every node passes.
pub(super) type Filters = for<'a> fn(&'a PodRequest, &'a Snapshot) -> Option<Box<dyn Filter + 'a>>;
/// Scores of candidates from 0 to [`MAX_NODE_SCORE`], in their order; `None` if all are equal.
pub(super) type Scores = fn(&PodRequest, &Snapshot, &[Candidate<'_>]) -> Option<Vec<i64>>;

/// A plugin: the constant `PLUGIN` of each file in this folder.
pub(crate) struct Plugin {
    /// Upstream's name.
    pub(crate) name: &'static str,
    /// The factor of its scores.
    pub(super) weight: i64,
    pub(super) filter: Option<Filters>,
    pub(super) score: Option<Scores>,
    /// The kinds of events that may help a pod which it refused.
    pub(super) events: &'static [EventKind],
    /// Whether an event of such a kind helps a pod that it refused.
    pub(super) wakes: fn(&PodRequest, &ClusterEvent, &Snapshot) -> bool,
}

/// Scores as shares of the highest (upstream's `DefaultNormalizeScore`); none where it is zero.
pub(super) fn shares(mut scores: Vec<i64>) -> Option<Vec<i64>> {
    let highest = scores.iter().copied().max().filter(|most| *most > 0)?;
    for score in &mut scores {
        *score = MAX_NODE_SCORE * *score / highest;
    }
    Some(scores)
}

/// No event helps.
pub(super) fn never(_: &PodRequest, _: &ClusterEvent, _: &Snapshot) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_highest() {
        assert_eq!(shares(vec![1, 3, 0]), Some(vec![33, 100, 0]));
        assert_eq!(shares(vec![0, 0]), None);
    }
}
