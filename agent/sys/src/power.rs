//! Shutdown: sync, reboot, power off, and keeping this process in memory until then.

use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::reboot::{RebootMode, reboot, set_cad_enabled};

use crate::error::{Context, Error, Result};

/// How the machine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Start again through the firmware.
    Reboot,
    /// Switch off.
    PowerOff,
}

/// Syncs all file systems.
pub fn sync() {
    nix::unistd::sync();
}

/// Reboots or powers off at once, without a sync. Returns only if the kernel refused.
pub fn end(how: End) -> Error {
    let mode = match how {
        End::Reboot => RebootMode::RB_AUTOBOOT,
        End::PowerOff => RebootMode::RB_POWER_OFF,
    };
    match reboot(mode) {
        Err(cause) => Error::new("end", "the machine", cause),
    }
}

/// Makes Ctrl-Alt-Del send SIGINT to PID 1 instead of rebooting at once.
///
/// # Errors
/// The kernel refuses, as it does outside the first PID namespace.
pub fn catch_ctrl_alt_del() -> Result<()> {
    set_cad_enabled(false).at("catch", "Ctrl-Alt-Del")
}

/// Keeps all pages of this process in memory, so that it can still log and act when its disk is
/// gone.
///
/// # Errors
/// The kernel refuses: there is not enough memory, or a limit on locked memory.
pub fn stay_in_memory() -> Result<()> {
    mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)
        .at("keep in memory", "this process")
}

/// Sets the machine's host name.
///
/// # Errors
/// The kernel refuses: the name is longer than 64 bytes.
pub fn set_host_name(name: &str) -> Result<()> {
    nix::unistd::sethostname(name).at("set the host name to", name)
}
