//! The machine's clocks.

use std::time::Duration;

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
pub fn set_unix_seconds(seconds: u64) -> Result<()> {
    let time = TimeSpec::from(Duration::from_secs(seconds));
    clock_settime(ClockId::CLOCK_REALTIME, time).at("set", "the clock")
}
