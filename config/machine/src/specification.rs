//! Where a container's specification lies.
//!
//! A container's variables and arguments hold secrets, and what containerd gets of a container it
//! keeps in a database on the state partition. So the agent writes the specification into memory,
//! gives containerd nothing of a process, and the runtime reads it there.

use std::path::{Path, PathBuf};

/// Folder of what the agent keeps for each container as long as a boot lasts, on a machine; it is
/// in memory.
pub const FOLDER: &str = "/run/pratique/io";

/// The specification of the container `id` below such a folder.
pub fn path(folder: &Path, id: &str) -> PathBuf {
    folder.join(id).join("config.json")
}
