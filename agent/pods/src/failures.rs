//! Starts that failed, in upstream's words.

use crate::backoff::{after_failures, later};
use crate::notes::{Failure, Notes};
use agent_runtime::{Error, ErrorClass};
use jiff::Timestamp;
use std::time::Duration;

/// Wait after a pod's own fault (a missing config map, say), which somebody may mend at any time.
const CONFIG_RETRY: Duration = Duration::from_secs(10);

/// Remembers a start that failed, for this image if it is one that could not be fetched, so that
/// the status shows it and the next one waits; longer each time, until the cause is another image.
pub fn remember(notes: &mut Notes, name: &str, (image, error): (&str, &Error), now: Timestamp) {
    let reason = match error.class {
        ErrorClass::InvalidImageName => "InvalidImageName",
        ErrorClass::ImageNeverPull => "ErrImageNeverPull",
        ErrorClass::ImagePull => "ErrImagePull",
        ErrorClass::Config => "CreateContainerConfigError",
        ErrorClass::Create | ErrorClass::NotFound => "CreateContainerError",
        // The attempt is on record as ended with code 128; the next comes after the usual wait.
        ErrorClass::Start | ErrorClass::Unavailable => {
            notes.failures.remove(name);
            return;
        }
    };
    let count = notes
        .failures
        .get(name)
        .filter(|failure| failure.image == image)
        .map_or(1, |failure| failure.count.saturating_add(1));
    let wait = if error.class == ErrorClass::Config {
        CONFIG_RETRY
    } else {
        after_failures(count)
    };
    let failure = Failure {
        reason,
        image: image.to_owned(),
        message: error.chain(),
        at: now,
        retry_at: later(now, wait),
        count,
    };
    notes.failures.insert(name.to_owned(), failure);
}
