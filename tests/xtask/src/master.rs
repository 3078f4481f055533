//! `cargo xtask master` and `cargo xtask check`: our own programs on this host, in the foreground.

use crate::build;
use crate::host::{packages, repository};
use crate::steps::{Failure, Outcome, watched};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Runs a master in the foreground; clients and suites can be pointed at it.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    packages()?;
    foreground("master-daemon", "master", "run", arguments)
}

/// Checks documents.
pub(crate) fn check(files: &[PathBuf]) -> Outcome {
    foreground("master-admin", "pratique", "check", files)
}

/// Builds one program and becomes it, so that signals reach it and its exit code is ours.
fn foreground(
    package: &str,
    program: &str,
    command: &str,
    arguments: &[impl AsRef<OsStr>],
) -> Outcome {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args([
            "build",
            "--release",
            "--locked",
            "--quiet",
            "--package",
            package,
        ])
        .current_dir(repository());
    watched(cargo, "the compiler's message is above")?;
    let path = build::target().join("release").join(program);
    let error = Command::new(&path).arg(command).args(arguments).exec();
    Err(Failure::new(
        format!("cannot start {}: {error}", path.display()),
        "",
    ))
}
