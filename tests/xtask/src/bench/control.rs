//! `cargo xtask bench control`: what controllers and the scheduler cost in a large cluster. Tests
//! measure, in one process with the API server and its store: `scale` and `pace` of
//! `master/controllers`, and `pace` and `throughput` of `master/schedule`. Here they get more pods.

use super::measure;
use crate::steps::Outcome;
use std::fmt::Display;

/// A cluster in which pods are bound.
#[derive(Clone, Copy)]
struct Cluster {
    nodes: u32,
    pods: u32,
    /// Whether the pods exist before the scheduler starts.
    backlog: bool,
}

const SMALL: Cluster = Cluster {
    nodes: 1_000,
    pods: 5_000,
    backlog: false,
};
const LARGE: Cluster = Cluster {
    nodes: 5_000,
    pods: 50_000,
    backlog: true,
};

/// The constraints of pods that cost the scheduler most: anti-affinity within their application by
/// node, and an even spread over zones.
const SHAPES: [&str; 2] = ["anti", "spread"];

/// Nodes, replicas of a Deployment, Jobs, and objects of a namespace.
const WORKLOADS: [(&str, u32); 4] = [
    ("PACE_NODES", 100),
    ("PACE_REPLICAS", 1_000),
    ("PACE_JOBS", 1_000),
    ("PACE_OBJECTS", 10_000),
];

/// Prints the share of a core that idle controllers take, and fails if a changed pod leads to plans
/// of other keys; then how fast workloads reach what their specs say, the cost of the scheduler's
/// decisions, and how many pods it binds.
pub(super) fn control(pods: u32) -> Outcome {
    let idle = ["--release", "-p", "master-controllers", "--test", "scale"];
    measure(&idle, &[("PRATIQUE_PODS", pods)])?;
    let workloads = ["--release", "-p", "master-controllers", "--test", "pace"];
    measure(&workloads, &WORKLOADS)?;
    for cluster in [SMALL, LARGE] {
        bound("pace", cluster, "")?;
        bound("throughput", cluster, "")?;
    }
    for shape in SHAPES {
        bound("throughput", LARGE, shape)?;
    }
    Ok(())
}

/// Runs a test of the scheduler, with pods of a shape; none: they ask for nothing.
fn bound(test: &str, cluster: Cluster, shape: &str) -> Outcome {
    let backlog = u32::from(cluster.backlog);
    let values: [(&str, &dyn Display); 4] = [
        ("PACE_NODES", &cluster.nodes),
        ("PACE_PODS", &cluster.pods),
        ("PACE_BACKLOG", &backlog),
        ("PACE_SHAPE", &shape),
    ];
    // With the master's allocator.
    let allocator = ["--features", "jemalloc"];
    let measured = ["--release", "-p", "master-schedule", "--test", test];
    measure(&[&measured[..], &allocator].concat(), &values)
}
