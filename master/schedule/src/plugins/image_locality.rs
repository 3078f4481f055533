//! Prefers nodes that have a pod's images already (upstream: `ImageLocality`).

use super::plugin::{Candidate, MAX_NODE_SCORE, Plugin, never};
use crate::request::PodRequest;
use crate::snapshot::Snapshot;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "ImageLocality",
    weight: 1,
    filter: None,
    score: Some(score),
    events: &[],
    wakes: never,
};

const MIB: i64 = 1 << 20;
/// Sum of bytes up to which the score is 0.
const MIN_BYTES: i64 = 23 * MIB;
/// Bytes for each container from which on the score is the highest.
const MAX_BYTES: i64 = 1000 * MIB;

/// Scores nodes by the bytes of the images that they have. Each image is weighed by the share of
/// nodes that have it, so that the first node with a new image does not attract all pods.
fn score(pod: &PodRequest, snapshot: &Snapshot, candidates: &[Candidate<'_>]) -> Option<Vec<i64>> {
    let images = pod.images.iter();
    let spread: Vec<(&str, usize)> = images
        .map(|image| (image.as_str(), snapshot.nodes_with_image(image)))
        .filter(|(_, nodes)| *nodes > 0)
        .collect();
    if spread.is_empty() {
        return None;
    }
    let nodes = snapshot.count_nodes();
    let containers = i64::try_from(pod.images.len()).unwrap_or(i64::MAX);
    let score = |node: &Candidate<'_>| {
        let had = spread.iter().filter_map(|(image, with)| {
            let bytes = node.info.images.get(*image)?;
            Some(weighed(*bytes, *with, nodes))
        });
        // Saturating: the kubelet reports the sizes, and a broken one may report any.
        locality(had.fold(0, i64::saturating_add), containers)
    };
    Some(candidates.iter().map(score).collect())
}

/// Bytes of an image by the share of nodes that have it.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "upstream counts with floating point here, and images are smaller than 2^52 bytes"
)]
fn weighed(bytes: i64, with: usize, nodes: usize) -> i64 {
    (bytes as f64 * (with as f64 / nodes.max(1) as f64)) as i64
}

fn locality(bytes: i64, containers: i64) -> i64 {
    let most = MAX_BYTES.saturating_mul(containers.max(1));
    MAX_NODE_SCORE * (bytes.clamp(MIN_BYTES, most) - MIN_BYTES) / (most - MIN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in upstream's cases: 40 and 300 MiB, or 250 MiB, each on one of two nodes.
    #[test]
    fn bytes_count_between_the_thresholds() {
        for (bytes, containers, expected) in [
            (20 * MIB, 1, 0),
            (23 * MIB, 1, 0),
            (1000 * MIB, 1, 100),
            (5000 * MIB, 1, 100),
            (170 * MIB, 2, 7),
            (1023 * MIB, 1, 100),
            (125 * MIB, 2, 5),
        ] {
            assert_eq!(
                locality(bytes, containers),
                expected,
                "{bytes} {containers}"
            );
        }
        assert_eq!(weighed(300, 1, 3), 100);
    }
}
