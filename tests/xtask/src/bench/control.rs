//! `cargo xtask bench control`: what controllers cost in a large cluster. The test `scale` of `master/controllers` measures, in one
//! process with the API server and its store; here it gets more pods.

use crate::host::repository;
use crate::steps::{Failure, Outcome};
use std::process::Command;

/// Prints the share of a core that idle controllers take, and fails where a changed pod leads to plans of other keys.
pub(super) fn control(pods: u32) -> Outcome {
    let test = [
        "test",
        "--locked",
        "-p",
        "master-controllers",
        "--test",
        "scale",
    ];
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(repository())
        .args(test)
        .args(["--", "--nocapture"])
        .env("PRATIQUE_PODS", pods.to_string())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(
            format!("the measurement ended with {status}"),
            "what it printed says which controller planned too much",
        )),
        Err(error) => Err(Failure::new(
            format!("cargo cannot be started: {error}"),
            "run this by `cargo xtask`",
        )),
    }
}
