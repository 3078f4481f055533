//! Events that repeat are recorded once in a period, with their number.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Keys that are counted at once; a full table is cleared, and the next event of each key is
/// recorded again.
const MAX_KEYS: usize = 16_384;

/// Counts events by key.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    counts: Mutex<HashMap<String, Count>>,
}

#[derive(Debug)]
struct Count {
    /// When an event of this key was recorded last.
    recorded: Instant,
    /// Events since then, the recorded one included.
    events: u64,
}

impl Repeats {
    /// Counts one event. Returns how many events the record to write now stands for; `None` where
    /// one was recorded within `period`.
    pub(crate) fn count(&self, key: &str, period: Duration) -> Option<u64> {
        let now = Instant::now();
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MAX_KEYS && !counts.contains_key(key) {
            counts.clear();
        }
        let Some(count) = counts.get_mut(key) else {
            let first = Count {
                recorded: now,
                events: 1,
            };
            counts.insert(key.to_owned(), first);
            return Some(1);
        };
        count.events += 1;
        if now.duration_since(count.recorded) < period {
            return None;
        }
        // The event that was recorded last is not in this record's number.
        let unrecorded = count.events - 1;
        (count.recorded, count.events) = (now, 1);
        Some(unrecorded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(3600);

    #[test]
    fn events_that_repeat_are_recorded_once_with_their_number() {
        let repeats = Repeats::default();
        let count = |period| repeats.count("a", period);
        assert_eq!(count(PERIOD), Some(1));
        assert_eq!((count(PERIOD), count(PERIOD)), (None, None));
        assert_eq!(repeats.count("b", PERIOD), Some(1));
        assert_eq!(
            count(Duration::ZERO),
            Some(3),
            "those that were not recorded, and this one"
        );
        assert_eq!(count(PERIOD), None);
        for number in 0..=MAX_KEYS {
            repeats.count(&number.to_string(), PERIOD);
        }
        assert!(repeats.counts.lock().unwrap().len() <= MAX_KEYS);
    }
}
