//! Counts dropped events, so that the log reports many of them in one line: an overloaded API may
//! drop more than the log should hold.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The log reports dropped events at most once in this time.
const INTERVAL: Duration = Duration::from_secs(60);

/// Events that were dropped because the API had no room or no time for them.
#[derive(Debug, Default)]
pub(crate) struct Dropped(Mutex<Unreported>);

#[derive(Debug, Default)]
struct Unreported {
    /// Events since the last report.
    count: u64,
    /// When the log last reported some.
    reported: Option<Instant>,
}

impl Dropped {
    /// Counts one event; returns the number to report, if a report is due.
    pub(crate) fn add(&self, now: Instant) -> Option<u64> {
        let mut unreported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        unreported.count += 1;
        let since = unreported
            .reported
            .map(|at| now.saturating_duration_since(at));
        if since.is_some_and(|since| since < INTERVAL) {
            return None;
        }
        unreported.reported = Some(now);
        Some(std::mem::take(&mut unreported.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_reports_many_dropped_events_once_in_a_minute() {
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
