//! Detects that the wall clock was set, by comparing it with the monotonic clock (pure).

use jiff::{SignedDuration, Timestamp};
use std::time::Instant;

/// A difference between two calls that does not count as a set: the wall clock may also be slewed,
/// which lets it run a little faster or slower.
const SLEW: SignedDuration = SignedDuration::from_secs(1);

/// The wall clock and the monotonic clock, as they were at the last call.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    wall: Timestamp,
    steady: Instant,
}

impl Clocks {
    /// Both clocks as they are now.
    pub fn new(wall: Timestamp, steady: Instant) -> Self {
        Self { wall, steady }
    }

    /// How far the wall clock was set forward since the last call (negative: back); zero if it only
    /// ran.
    pub fn set_by(&mut self, wall: Timestamp, steady: Instant) -> SignedDuration {
        let before = std::mem::replace(self, Self::new(wall, steady));
        let passed = steady.saturating_duration_since(before.steady);
        let passed = SignedDuration::try_from(passed).unwrap_or(SignedDuration::MAX);
        let by = wall.duration_since(before.wall).saturating_sub(passed);
        if by.abs() < SLEW {
            SignedDuration::ZERO
        } else {
            by
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_jump_counts_as_set_and_running_does_not() {
        let (wall, steady) = (
            Timestamp::from_second(1_800_000_000).unwrap(),
            Instant::now(),
        );
        let mut clocks = Clocks::new(wall, steady);
        let mut at = |wall_seconds: i64, steady_millis: u64| {
            let wall = wall + SignedDuration::from_secs(wall_seconds);
            let by = clocks.set_by(wall, steady + Duration::from_millis(steady_millis));
            by.as_secs()
        };
        assert_eq!(at(10, 10_400), 0, "it runs slower");
        assert_eq!(at(3620, 20_400), 3600);
        assert_eq!(at(3630, 30_400), 0, "it was set once");
        assert_eq!(at(40, 40_400), -3600);
        assert_eq!(at(50, 50_400), 0);
    }
}
