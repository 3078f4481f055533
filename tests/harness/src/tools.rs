//! Finds the tools: the tree of Debian packages that `image-build tools` unpacked, wrapped to run
//! on this host.

use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable that names another tools tree.
pub const TOOLS_VARIABLE: &str = "PRATIQUE_TOOLS";

/// A tools tree.
#[derive(Debug, Clone)]
pub struct Tools {
    root: PathBuf,
}

impl Tools {
    /// The tree named by `PRATIQUE_TOOLS`, else `.pratique/tools` under `repository`.
    pub fn find(repository: &Path) -> Result<Self> {
        let root = std::env::var_os(TOOLS_VARIABLE)
            .map_or_else(|| repository.join(".pratique/tools"), PathBuf::from);
        let tools = Self { root };
        if tools.bin().join("qemu-system-x86_64").exists() {
            return Ok(tools);
        }
        Err(Error::Missing(format!(
            "no tools in {}: run `cargo xtask tools` first, which unpacks them",
            tools.root.display()
        )))
    }

    /// The folder to put first in PATH.
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// A file of the tree, by its path on a Debian system.
    pub fn file(&self, path: &str) -> PathBuf {
        self.root.join("root").join(path.trim_start_matches('/'))
    }

    /// A command of the tree, with the tree first in PATH.
    ///
    /// Where the environment variable `PRATIQUE_KUBECTL` has the absolute path of a file, that is
    /// the kubectl.
    pub fn command(&self, program: &str) -> Command {
        let own = self.bin().join(program);
        let other = std::env::var_os("PRATIQUE_KUBECTL").filter(|_| program == "kubectl");
        let mut command = Command::new(match other {
            Some(other) => PathBuf::from(other),
            None if own.exists() => own,
            None => PathBuf::from(program),
        });
        command.env("PATH", self.path());
        command
    }

    /// PATH with the tree first.
    pub fn path(&self) -> String {
        let rest = std::env::var("PATH").unwrap_or_default();
        format!("{}:{rest}", self.bin().display())
    }
}
