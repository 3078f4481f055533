//! CPU per second, from two readings of a counter; pure.

use std::time::Duration;

const NANOS_PER_SECOND: u128 = 1_000_000_000;
/// Shortest time between two readings for a rate: below it the counter's steps would distort the
/// figure.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);

/// Billionths of a CPU that were busy between two readings of CPU time in nanoseconds. A counter
/// that went back belongs to another group, and gives `None`.
pub(crate) fn nano_cores(before: u64, now: u64, passed: Duration) -> Option<u64> {
    let used = u128::from(now.checked_sub(before)?);
    if passed < SHORTEST {
        return None;
    }
    u64::try_from(used * NANOS_PER_SECOND / passed.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_is_busy_for_half_of_the_time_is_half_a_cpu() {
        let ten = Duration::from_secs(10);
        assert_eq!(
            nano_cores(3, 5_000_000_003, ten),
            Some(500_000_000),
            "5 s of 10 s"
        );
        assert_eq!(nano_cores(7, 7, ten), Some(0));
        assert_eq!(
            nano_cores(0, u64::MAX, Duration::from_secs(1)),
            Some(u64::MAX)
        );
    }

    #[test]
    fn readings_out_of_order_give_no_rate() {
        assert_eq!(nano_cores(2, 1, Duration::from_secs(10)), None);
        assert_eq!(nano_cores(1, 2, Duration::from_millis(99)), None);
        assert_eq!(nano_cores(1, 2, Duration::ZERO), None);
    }
}
