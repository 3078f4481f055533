//! Profiles: the names by which pods ask for this scheduler, and how each weighs the resources of
//! nodes (upstream: `KubeSchedulerProfile`, and `scoringStrategy` of `NodeResourcesFit`).

use crate::NAME;
use crate::resources::{CPU, MEMORY, free_percent, used_percent};
use config_kube::Amount;
use std::sync::{Arc, LazyLock};

/// Highest score in a shape's points (upstream: `MaxCustomPriorityScore`).
const HIGHEST: i64 = 10;
/// Factor from such a score to the range of other plugins, 0 to 100.
const SCALE: i64 = 100 / HIGHEST;

static DEFAULT_PROFILE: LazyLock<Arc<Profile>> = LazyLock::new(|| {
    Arc::new(Profile {
        name: NAME.to_owned(),
        strategy: Strategy::LeastAllocated,
        weights: vec![(CPU.to_owned(), 1), (MEMORY.to_owned(), 1)],
    })
});

/// A profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The `spec.schedulerName` of its pods, and the component of its events.
    pub name: String,
    /// How a node's use of one resource becomes a score.
    pub strategy: Strategy,
    /// The resources that count, and how much each does.
    pub weights: Vec<(String, i64)>,
}

/// How a node's use of one resource becomes a score, from 0 to 100.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// The more is free, the better: pods spread over nodes.
    LeastAllocated,
    /// The less is free, the better: nodes are filled one after another.
    MostAllocated,
    /// By a polyline through these points.
    RequestedToCapacityRatio(Vec<Point>),
}

/// A point of the polyline: the score at a utilization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Used part of the resource in per cent. Points are sorted by it.
    pub utilization: i64,
    /// From 0 to 10.
    pub score: i64,
}

impl Profile {
    /// The default profile, with the name [`NAME`]: `LeastAllocated`, with the same weight for CPU
    /// and memory.
    pub fn default_profile() -> Arc<Self> {
        Arc::clone(&DEFAULT_PROFILE)
    }
}

impl Strategy {
    /// The score of one resource on a node, from its used and its allocatable amount; `None` if the
    /// node has none of it. Each strategy computes only the share that it needs: this runs for
    /// hundreds of nodes in each decision.
    pub(crate) fn score(&self, used: Amount, allocatable: Amount) -> Option<i64> {
        match self {
            Self::LeastAllocated => free_percent(used, allocatable),
            Self::MostAllocated => used_percent(used, allocatable),
            Self::RequestedToCapacityRatio(shape) => {
                used_percent(used, allocatable).map(|used| SCALE * along(shape, used))
            }
        }
    }

    /// The weighted mean of all resources' scores, from the sum of the weighted scores and the sum
    /// of the weights.
    pub(crate) fn mean(&self, sum: i64, weights: i64) -> i64 {
        match self {
            _ if weights == 0 => 0,
            Self::LeastAllocated | Self::MostAllocated => sum / weights,
            // Rounded to the nearest, as upstream does for this strategy only.
            Self::RequestedToCapacityRatio(_) => (2 * sum + weights) / (2 * weights),
        }
    }

    /// Whether the weight of a resource with the score 0 counts in the mean.
    pub(crate) fn counts_nought(&self) -> bool {
        match self {
            Self::LeastAllocated | Self::MostAllocated => true,
            Self::RequestedToCapacityRatio(_) => false,
        }
    }
}

/// The score at a utilization, on the polyline through these points; before the first point and
/// after the last it is constant.
fn along(shape: &[Point], used: i64) -> i64 {
    let Some(next) = shape.iter().position(|point| used <= point.utilization) else {
        return shape.last().map_or(0, |last| last.score);
    };
    let end = shape[next];
    let Some(start) = next.checked_sub(1).map(|before| shape[before]) else {
        return end.score;
    };
    start.score
        + (end.score - start.score) * (used - start.utilization)
            / (end.utilization - start.utilization)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(points: &[(i64, i64)]) -> Vec<Point> {
        let point = |&(utilization, score): &(i64, i64)| Point { utilization, score };
        points.iter().map(point).collect()
    }

    /// Values of upstream's documentation: bin packing from nothing to ten, and its reverse.
    #[test]
    fn a_line_is_level_outside_its_points_and_straight_between_them() {
        let packing = shape(&[(0, 0), (100, 10)]);
        assert_eq!(
            [0, 9, 10, 55, 99, 100, 101].map(|used| along(&packing, used)),
            [0, 0, 1, 5, 9, 10, 10]
        );
        let spreading = shape(&[(0, 10), (100, 0)]);
        assert_eq!([0, 50, 100].map(|used| along(&spreading, used)), [10, 5, 0]);
        let bent = shape(&[(40, 2), (60, 10), (80, 0)]);
        assert_eq!(
            [0, 40, 50, 60, 70, 80, 90].map(|used| along(&bent, used)),
            [2, 2, 6, 10, 5, 0, 0]
        );
    }

    #[test]
    fn a_strategy_scores_the_share_that_it_prefers() {
        let ratio = Strategy::RequestedToCapacityRatio(shape(&[(0, 0), (100, 10)]));
        let strategies = [Strategy::LeastAllocated, Strategy::MostAllocated, ratio];
        let scores = |used: i64, whole: i64| {
            let [used, whole] = [used, whole].map(Amount::units);
            strategies.each_ref().map(|one| one.score(used, whole))
        };
        assert_eq!(scores(0, 4), [Some(100), Some(0), Some(0)]);
        assert_eq!(scores(1, 3), [Some(66), Some(33), Some(30)]);
        assert_eq!(scores(5, 4), [Some(0), Some(100), Some(100)]);
        assert_eq!(scores(0, 0), [None; 3]);
    }

    #[test]
    fn only_the_ratio_is_rounded_to_the_nearest() {
        assert_eq!(Strategy::LeastAllocated.mean(199, 2), 99);
        assert_eq!(Strategy::MostAllocated.mean(199, 2), 99);
        let ratio = Strategy::RequestedToCapacityRatio(shape(&[(0, 0), (100, 10)]));
        assert_eq!((ratio.mean(199, 2), ratio.mean(0, 0)), (100, 0));
    }
}
