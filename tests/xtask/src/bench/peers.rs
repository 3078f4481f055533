//! `cargo xtask bench peers`: what many machines cost a node as peers of its tunnel. The hosts'
//! kernel has no WireGuard, so a test program of `agent/cluster` (`peers`) runs in a machine with
//! the images' kernel, where those that answer are network namespaces. It shows there, too, that no
//! packet is lost by an agent that is killed.

use super::bare::Bare;
use crate::host;
use crate::steps::{Failure, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests_harness::process::run;
use tests_harness::tools::Tools;

/// How long the guest may measure.
const LIMIT: Duration = Duration::from_secs(3600);
/// In MiB: a namespace with its links takes half of one.
const MEMORY: u32 = 2048;
/// How often one peer goes and comes.
const CHANGES: u32 = 20;
/// Modules that the agent needs for the pod network, beside those that they depend on.
const MODULES: [&str; 13] = [
    "wireguard",
    "veth",
    "nf_tables",
    "nft_chain_nat",
    "nft_ct",
    "nft_nat",
    "nft_masq",
    "nft_connlimit",
    "nft_limit",
    "nft_reject_inet",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "nft_hash",
];

/// Prints times and memory for a tunnel with `machines` peers, of which `answering` are network
/// namespaces that answer. `program`: the test, if it is built already.
pub(super) fn peers(machines: u32, answering: u32, program: Option<&Path>) -> Outcome {
    let program = if let Some(program) = program {
        program.to_owned()
    } else {
        host::check()?;
        build()?
    };
    let tools = Tools::find(&host::repository())?;
    let bare = Bare::new(&tools, "peers")?;
    bare.program(&program, "peers")?;
    bare.modules(&MODULES)?;
    let command = format!(
        "PEERS_MACHINES={machines} PEERS_ANSWERING={answering} PEERS_CHANGES={CHANGES} /bin/peers --nocapture --test-threads=1"
    );
    let said = bare.run(&command, MEMORY, &[], LIMIT)?;
    print!("{said}");
    let whole = said.contains("has asked the node") && said.contains("agents were killed");
    if whole && said.contains("test result: ok") {
        return Ok(());
    }
    Err(Failure::new("the guest did not measure", bare.hint()))
}

/// Compiles the test, and finds it.
fn build() -> Outcome<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(host::repository()).args([
        "test",
        "--locked",
        "--release",
        "-p",
        "agent-cluster",
        "--test",
        "peers",
        "--no-run",
        "--message-format=json",
    ]);
    let said = run(build)?;
    let program = said.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message.get("executable")?.as_str().map(PathBuf::from)
    });
    program.ok_or_else(|| Failure::new("cargo named no program", "run it by hand to see why"))
}
