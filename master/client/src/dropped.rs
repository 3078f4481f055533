//! How many events were dropped, for the log: where the API has no room for them, there may be more
//! than the log has room for.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The log tells of dropped events once in this time at most.
const INTERVAL: Duration = Duration::from_secs(60);

/// Events that were dropped because the API had no room or no time for them.
#[derive(Debug, Default)]
pub(crate) struct Dropped(Mutex<Untold>);

#[derive(Debug, Default)]
struct Untold {
    /// Events since the log reported some.
    count: u64,
    told: Option<Instant>,
}

impl Dropped {
    /// Counts one event; returns how many the log must tell of now.
    pub(crate) fn add(&self, now: Instant) -> Option<u64> {
        let mut untold = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        untold.count += 1;
        let since = untold.told.map(|told| now.saturating_duration_since(told));
        if since.is_some_and(|since| since < INTERVAL) {
            return None;
        }
        untold.told = Some(now);
        Some(std::mem::take(&mut untold.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_of_many_dropped_events_once_in_a_minute() {
        let dropped = Dropped::default();
        let start = Instant::now();
        assert_eq!(dropped.add(start), Some(1));
        for second in 0..50 {
            assert_eq!(dropped.add(start + Duration::from_secs(second)), None);
        }
        assert_eq!(dropped.add(start + INTERVAL), Some(51));
        assert_eq!(dropped.add(start + INTERVAL), None);
    }
}
