//! Records container starts that failed: upstream's reason, and when the next may be tried.

use crate::backoff::{after_failures, later};
use crate::notes::{Failure, Notes};
use agent_runtime::{Error, ErrorClass};
use jiff::Timestamp;
use std::time::Duration;

/// Wait after a fault of the pod's configuration (a missing ConfigMap, say). It does not double, as
/// the fault may be corrected at any time.
const CONFIG_RETRY: Duration = Duration::from_secs(10);
/// Longest wait after a fault of the pod's volumes. It doubles up to here, as one that its author
/// made may stay for ever (upstream's goes up to two minutes). A change of what the volumes show
/// ends it; that a master or a driver is there again does not, so it is no longer.
const VOLUME_RETRY: Duration = Duration::from_secs(40);

/// Records that a start of the container `name` failed, so that the status shows why and the next
/// start waits: longer after each failure in a row for the same `image`. That is the image which
/// could not be fetched; empty where the failure is another one.
pub fn remember(notes: &mut Notes, name: &str, image: &str, error: &Error, now: Timestamp) {
    let reason = match error.class {
        ErrorClass::InvalidImageName => "InvalidImageName",
        ErrorClass::ImageNeverPull => "ErrImageNeverPull",
        ErrorClass::ImagePull => "ErrImagePull",
        // The container shows no fault: it waits to be created, as all others of its pod.
        ErrorClass::Volume => {
            notes.failures.remove(name);
            notes.mounts_failed = notes.mounts_failed.saturating_add(1);
            let wait = after_failures(notes.mounts_failed).min(VOLUME_RETRY);
            notes.unmounted = Some(later(now, wait));
            return;
        }
        ErrorClass::Config => "CreateContainerConfigError",
        ErrorClass::Create | ErrorClass::NotFound => "CreateContainerError",
        // After a failed start containerd has the attempt as ended with code 128: status and
        // back-off come from that. Without containerd nothing is known, and nothing is counted.
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
