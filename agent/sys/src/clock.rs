//! The machine's clocks.

use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};

use crate::error::{Context, Result};

/// Time since the kernel started, suspend included.
pub fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// Wall clock in whole seconds since 1970 (0 where it is before that or can't be read).
pub fn unix_seconds() -> u64 {
    clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, |now| u64::try_from(now.tv_sec()).unwrap_or(0))
}

/// Sets the wall clock.
///
/// # Errors
/// As [`set`].
pub fn set_unix_seconds(seconds: u64) -> Result<()> {
    set(Duration::from_secs(seconds))
}

/// Sets the wall clock to a time since 1970, in one step.
///
/// # Errors
/// The kernel refuses: this process may not set the clock, or the time is before the machine's
/// start.
pub fn set(time: Duration) -> Result<()> {
    clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from(time)).at("set", "the clock")
}

/// Moves the wall clock by `nanoseconds`, slowly (by a two-thousandth of the time) and never back
/// by a step. The rest of an earlier call is dropped.
///
/// # Errors
/// The kernel refuses: this process may not set the clock.
pub fn slew(nanoseconds: i64) -> Result<()> {
    // SAFETY: every field is a number or padding, for which zero is a value.
    let mut request: libc::timex = unsafe { std::mem::zeroed() };
    request.modes = libc::ADJ_OFFSET_SINGLESHOT;
    request.offset = nanoseconds / 1000;
    // SAFETY: the structure is ours, whole, and lives through the call, which only reads and writes
    // it.
    let answer = unsafe { libc::adjtimex(&raw mut request) };
    Errno::result(answer).map(drop).at("slew", "the clock")
}
