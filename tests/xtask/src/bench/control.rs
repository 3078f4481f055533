//! `cargo xtask bench control`: what controllers cost in a large cluster. The test `scale` of `master/control` measures, in one
//! process with the API server and its store; here it gets more pods.

use crate::host::repository;
use crate::steps::{Failure, Outcome};
use std::process::Command;

const USAGE: &str = "usage: cargo xtask bench control [--pods N]";
/// Pods where no number is given.
const PODS: u32 = 50_000;

/// Prints the share of a core that idle controllers take, and fails where a changed pod leads to plans of other keys.
pub(super) fn control(words: &[String]) -> Outcome {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let pods = match words.as_slice() {
        [] => Some(PODS),
        ["--pods", number] => number.parse().ok(),
        _ => None,
    };
    let Some(pods) = pods else {
        return Err(Failure::usage(
            "bench control takes a number of pods",
            USAGE,
        ));
    };
    let test = [
        "test",
        "--locked",
        "-p",
        "master-control",
        "--test",
        "scale",
    ];
    let status = Command::new(env!("CARGO"))
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
