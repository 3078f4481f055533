//! The Python client that tests judge the API server by, in an environment of its own.

use crate::host::workshop;
use crate::steps::{Outcome, watched};
use std::process::Command;

/// The client, at the version that tests were written against.
const CLIENT: &str = "kubernetes==37.0.2";

/// Makes the environment; quick where it is complete.
pub(crate) fn client() -> Outcome {
    let folder = workshop().join("tools/python");
    let python = folder.join("bin/python3");
    let complete = Command::new(&python)
        .args([
            "-c",
            "import importlib.metadata as m; raise SystemExit(m.version('kubernetes') != '37.0.2')",
        ])
        .status()
        .is_ok_and(|status| status.success());
    if complete {
        return Ok(());
    }
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv", "--clear"]).arg(&folder);
    watched(environment, "install Debian's python3-venv")?;
    let mut install = Command::new(&python);
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        CLIENT,
    ]);
    watched(
        install,
        "see that the package index can be reached, then run the same command again",
    )
}
