//! `cargo xtask bench node`: how fast pods come to run, what they cost the agent, and how fast
//! commands, forwarded ports and logs are. The module `pace` of the `node` tests measures, with the
//! real containerd and kubectl; here it gets more of everything. Needs root.

use super::measure;
use crate::steps::Outcome;
use crate::{build, host};

/// Prints times, rates and memory, for a node of `pods` pods.
pub(super) fn node(pods: u32) -> Outcome {
    host::check()?;
    host::packages()?;
    build::tools_tree()?;
    let numbers = [
        ("PACE_STARTS", 30),
        ("PACE_PODS", pods),
        ("PACE_IDLE_SECONDS", 20),
        ("PACE_COMMANDS", 200),
        ("PACE_MIB", 1_000),
        // Fewer than fill the log files that are kept: of those that are removed before they are
        // read, lines are lost.
        ("PACE_LINES", 100_000),
    ];
    // One process for each, so that none has the memory of another.
    for part in [
        "pods_come_to_run",
        "commands_run_one_after_another",
        "a_forwarded_port_carries_a_file",
        "a_log_is_followed",
    ] {
        let name = format!("pace::{part}");
        let pace = ["--release", "-p", "tests-cluster", "--test", "node", &name];
        measure(&pace, &numbers)?;
    }
    Ok(())
}
