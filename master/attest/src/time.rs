//! Times in the forms that the protocol and the API have.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Unix seconds; 0 for a time before 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}

/// A timestamp, which prints as RFC 3339.
pub(crate) fn timestamp(time: SystemTime) -> jiff::Timestamp {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}
