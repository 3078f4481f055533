//! The programs that `cargo xtask test build` makes, for tests that run them on this host.

use crate::{Error, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the programs.
pub fn folder() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    repository.unwrap_or(Path::new("/")).join(".pratique/bin")
}

/// A program by its name.
///
/// # Errors
/// It is not built.
pub fn built(name: &str) -> Result<PathBuf> {
    let program = folder().join(name);
    if program.exists() {
        return Ok(program);
    }
    Err(Error::Missing(format!(
        "no {}: run `cargo xtask test build` first",
        program.display()
    )))
}

/// A master on this host, which is not started: its document is `cluster.toml` in a folder, its
/// data are in `data` there.
pub fn master(program: &Path, folder: &Path, listen: SocketAddr) -> Command {
    let mut master = Command::new(program);
    master
        .arg("run")
        .arg("--config")
        .arg(folder.join("cluster.toml"))
        .arg("--data")
        .arg(folder.join("data"))
        .arg("--listen")
        .arg(listen.to_string());
    master
}
