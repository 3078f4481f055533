//! Remembers the last scheduled time for which this process created a Job of each CronJob. The
//! status has that time too, unless its write failed.

use jiff::Timestamp;
use master_client::Key;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// By CronJob: its UID and the time.
#[derive(Debug, Default)]
pub(super) struct LastMade(Mutex<HashMap<Key, (String, Timestamp)>>);

impl LastMade {
    /// The last time of a CronJob.
    pub(super) fn of(&self, key: &Key, uid: &str) -> Option<Timestamp> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.get(key).filter(|(known, _)| known == uid);
        own.map(|(_, time)| *time)
    }

    /// Notes that the Job for a time was created.
    pub(super) fn note(&self, key: &Key, uid: &str, time: Option<Timestamp>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(time.map(|time| (key.clone(), (uid.to_owned(), time))));
    }

    /// Forgets a CronJob that was deleted.
    pub(super) fn forget(&self, key: &Key) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(key);
    }
}
