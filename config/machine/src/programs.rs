//! Programs of the read-only root by their absolute paths, so that no search path decides what runs
//! as root.

/// containerd's shim for runtimes with runc's command line.
pub const SHIM: &str = "/usr/bin/containerd-shim-runc-v2";
/// The container runtime that the shim starts.
pub const CRUN: &str = "/usr/bin/crun";
/// What the shim starts in the place of crun: init, which gives crun the specification of a new
/// container from memory.
pub const RUNTIME: &str = "/usr/lib/pratique/init";
/// Where services look for programs that are named without a path.
pub const SEARCH_PATH: &str = "/usr/sbin:/usr/bin";
/// A folder of the read-only root that is never there: where containerd is told to look for
/// plugins.
pub const NO_PLUGINS: &str = "/usr/lib/pratique/no-plugins";
