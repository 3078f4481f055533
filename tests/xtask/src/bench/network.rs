//! `cargo xtask bench network`: what services, names, network policies and sandboxes cost one node
//! of a large cluster. Tests measure against this host's kernel, in network namespaces of their
//! own: `pace` of `agent/names`, `agent/cluster` and `agent/policy`. Here they get more of
//! everything. Needs root.

use super::measure;
use crate::steps::Outcome;

/// Pods of the node, which are as many as its sandboxes, and network policies over them.
const PODS: u32 = 100;
const POLICIES: u32 = 1_000;
/// Pods of other nodes.
const ELSEWHERE: u32 = 10_000;
/// Single changes of slices and policies, and questions of each client.
const CHANGES: u32 = 200;
const QUESTIONS: u32 = 20_000;
/// MiB that one pod sends to another in one go.
const MIB: u32 = 4_096;

/// Prints times and memory, for a cluster of `services` Services with two endpoints each.
pub(super) fn network(services: u32) -> Outcome {
    let numbers = [
        ("PACE_SERVICES", services),
        ("PACE_CHANGES", CHANGES),
        ("PACE_QUESTIONS", QUESTIONS),
        ("PACE_SANDBOXES", PODS),
        ("PACE_PODS", PODS),
        ("PACE_POLICIES", POLICIES),
        ("PACE_ELSEWHERE", ELSEWHERE),
        ("PACE_MIB", MIB),
    ];
    // One process for each, so that none has the memory of another.
    for test in [
        "services_of_a_large_cluster",
        "names_of_a_large_cluster",
        "names_of_endpoints_of_a_large_cluster",
        "policies_over_the_pods_of_a_node",
        "sandboxes_one_after_the_other",
        "a_pod_sends_to_another_of_its_node",
    ] {
        let pace = [
            "--release",
            "-p",
            "agent-names",
            "-p",
            "agent-cluster",
            "-p",
            "agent-policy",
            "--test",
            "pace",
            test,
        ];
        measure(&pace, &numbers)?;
    }
    Ok(())
}
