//! Back-off before the next attempt of a container or image pull: doubles, with a limit, and is
//! forgotten after a long run.

use jiff::Timestamp;
use std::time::Duration;

/// First wait after a container ended for the second time, and after a failed image pull.
pub(crate) const FIRST: Duration = Duration::from_secs(10);
/// Longest wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);
/// A container that ran this long is restarted without a wait (upstream's: twice the limit).
pub(crate) const RESET: Duration = Duration::from_secs(600);

/// The wait before the next attempt of a container whose last attempt had `before` as its own wait
/// and ran for `ran`. The first restart comes at once, the second after 10 s, then 20 s, up to five
/// minutes.
pub(crate) fn after_run(before: Option<Duration>, ran: Duration) -> Duration {
    if ran >= RESET {
        return Duration::ZERO;
    }
    // `None` is the first attempt, which had no wait because nothing came before it; zero is an
    // attempt that followed one at once.
    match before {
        None => Duration::ZERO,
        Some(Duration::ZERO) => FIRST,
        Some(before) => (before * 2).min(LIMIT),
    }
}

/// The wait after the `count`th failure in a row, `count` ≥ 1.
pub fn after_failures(count: u32) -> Duration {
    // 10 s doubled five times is over the limit; the exponent is bounded only against overflow.
    FIRST
        .checked_mul(1 << (count.max(1) - 1).min(8))
        .map_or(LIMIT, |wait| wait.min(LIMIT))
}

/// `time` plus `wait`, or the latest time that a `Timestamp` can hold.
pub fn later(time: Timestamp, wait: Duration) -> Timestamp {
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// The time from `from` to `to`; zero if `to` is earlier.
pub fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_back_off_as_upstreams_do() {
        let mut wait = None;
        let mut waits = Vec::new();
        for _ in 0..8 {
            let next = after_run(wait, Duration::from_secs(1));
            waits.push(next.as_secs());
            wait = Some(next);
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_long_run_resets_the_back_off() {
        assert_eq!(after_run(Some(LIMIT), RESET), Duration::ZERO);
    }

    #[test]
    fn failures_wait_ten_seconds_and_never_beyond_five_minutes() {
        assert_eq!(after_failures(1), FIRST);
        assert_eq!(after_failures(2), FIRST * 2);
        assert_eq!(after_failures(u32::MAX), LIMIT);
    }
}
