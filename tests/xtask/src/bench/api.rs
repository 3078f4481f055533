//! `cargo xtask bench api` and `cargo xtask soak`: the load generator against the release master on
//! loopback.

use crate::build;
use crate::host::{self, repository};
use crate::steps::{Outcome, Steps, watched};
use std::process::Command;

/// Latency, throughput, CPU and memory of the API; `only` some parts of it.
pub(super) fn api(only: Option<&str>) -> Outcome {
    let only = only.map(|names| ["--only".to_owned(), names.to_owned()]);
    load("bench", only.as_ref().map_or(&[], |words| &words[..]))
}

/// Runs concurrent clients and kills the server for `minutes`, then checks what the clients saw.
pub(crate) fn soak(minutes: u64) -> Outcome {
    load("soak", &["--minutes".to_owned(), minutes.to_string()])
}

fn load(command: &str, words: &[String]) -> Outcome {
    let mut steps = Steps::new();
    steps.step("packages", host::packages)?;
    steps.step("master and load generator", || {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([
            "build",
            "--release",
            "--locked",
            "--package",
            "master-daemon",
            "--package",
            "tests-load",
        ]);
        cargo.current_dir(repository());
        watched(cargo, "the compiler's message is above")
    })?;
    let release = build::target().join("release");
    let mut program = Command::new(release.join("load"));
    program
        .arg(command)
        .arg("--master")
        .arg(release.join("master"))
        .args(words);
    watched(program, "the message is above")
}
