//! `cargo xtask bench control`: what controllers and the scheduler cost in a large cluster. Tests
//! measure, in one process with the API server and its store: `scale` and `pace` of
//! `master/controllers`, and `pace` and `throughput` of `master/schedule`. Here they get more pods.

use super::measure;
use crate::steps::Outcome;

/// Nodes and pods of the clusters in which pods are bound, and whether the pods are there before
/// the scheduler begins.
const BOUND: [(u32, u32, bool); 2] = [(1_000, 5_000, false), (5_000, 50_000, true)];

/// Nodes, replicas of a Deployment, Jobs, and objects of a namespace.
const WORKLOADS: [(&str, u32); 4] = [
    ("PACE_NODES", 100),
    ("PACE_REPLICAS", 1_000),
    ("PACE_JOBS", 1_000),
    ("PACE_OBJECTS", 10_000),
];

/// Prints the share of a core that idle controllers take, and fails where a changed pod leads to
/// plans of other keys; then how soon workloads are what was asked for, the cost of the scheduler's
/// decisions, and how many pods it binds.
pub(super) fn control(pods: u32) -> Outcome {
    let idle = ["-p", "master-controllers", "--test", "scale"];
    measure(&idle, &[("PRATIQUE_PODS", pods)])?;
    let workloads = ["--release", "-p", "master-controllers", "--test", "pace"];
    measure(&workloads, &WORKLOADS)?;
    for (nodes, pods, backlog) in BOUND {
        let size = [
            ("PACE_NODES", nodes),
            ("PACE_PODS", pods),
            ("PACE_BACKLOG", u32::from(backlog)),
        ];
        for test in ["pace", "throughput"] {
            // With the master's allocator.
            let allocator = ["--features", "jemalloc"];
            let bound = ["--release", "-p", "master-schedule", "--test", test];
            measure(&[&bound[..], &allocator].concat(), &size)?;
        }
    }
    Ok(())
}
