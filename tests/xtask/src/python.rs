//! Python's packages by which tests judge the API server and the agent, in an environment of their
//! own: a client of the API, and what a CSI driver of another stack is made of.

use crate::host::workshop;
use crate::steps::{Outcome, watched};
use std::path::Path;
use std::process::{Command, Stdio};

/// Packages, at the versions that tests were written against. What they need comes with them.
const PACKAGES: &[&str] = &["kubernetes==37.0.2", "grpcio==1.85.3", "protobuf==7.36.2"];
/// A driver, of which a file with the description of CSI's messages is read: what it needs stays
/// away.
const MESSAGES: &str = "ember-csi==0.9.1";
/// Fails where one of its arguments is not installed.
const CHECK: &str = "import importlib.metadata as m, sys; \
    raise SystemExit(any(m.version(n) != v for n, v in (w.split('==') for w in sys.argv[1:])))";

/// Makes the environment; quick where it is complete.
pub(crate) fn packages() -> Outcome {
    let folder = workshop().join("tools/python");
    let python = folder.join("bin/python3");
    let complete = Command::new(&python)
        .args(["-c", CHECK])
        .args(PACKAGES)
        .arg(MESSAGES)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if complete {
        return Ok(());
    }
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv", "--clear"]).arg(&folder);
    watched(environment, "install Debian's python3-venv")?;
    // To compile these takes longer than all tests.
    let built = ["--only-binary=grpcio,protobuf"];
    install(&python, &[&built[..], PACKAGES].concat())?;
    install(&python, &["--no-deps", "--only-binary=:all:", MESSAGES])
}

fn install(python: &Path, words: &[&str]) -> Outcome {
    let mut command = Command::new(python);
    command
        .args(["-m", "pip", "install", "--quiet"])
        .arg("--disable-pip-version-check")
        .args(words);
    watched(
        command,
        "see that the package index can be reached, then run the same command again",
    )
}
