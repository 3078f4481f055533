//! Kernel modules by `finit_module(2)`.

use std::fs::File;
use std::path::Path;

use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

use crate::error::{Context, Result};

/// The result of loading a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// The kernel loaded it now.
    Now,
    /// It was there already, or is built in.
    Already,
}

/// Loads the module in `path` without parameters. Its dependencies must be loaded already.
///
/// # Errors
/// There is no such file, or the kernel refuses the module: another version, an unknown symbol, no
/// signature that it takes.
pub fn load(path: &Path) -> Result<Loaded> {
    let name = path.display().to_string();
    let file = File::open(path).at("open module", &name)?;
    match finit_module(&file, c"", ModuleInitFlags::empty()) {
        Ok(()) => Ok(Loaded::Now),
        Err(Errno::EEXIST) => Ok(Loaded::Already),
        Err(cause) => Err(cause).at("load module", &name),
    }
}
