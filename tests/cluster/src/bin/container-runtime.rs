//! The runtime of a test's engine: init's, with the specifications that the test's agents write
//! beside this program.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let own = std::env::args_os().next().unwrap_or_default();
    let beside = Path::new(&own).parent().unwrap_or(Path::new("/"));
    agent_init::launch::crun(&beside.join("io"))
}
