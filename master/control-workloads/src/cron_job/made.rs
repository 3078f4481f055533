//! The last time for which each CronJob had its Job made by this process. The status says it too,
//! unless that write failed.

use jiff::Timestamp;
use master_client::Key;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// By CronJob, each with its UID.
#[derive(Debug, Default)]
pub(super) struct LastMade(Mutex<HashMap<Key, (String, Timestamp)>>);

impl LastMade {
    /// That of a CronJob.
    pub(super) fn of(&self, key: &Key, uid: &str) -> Option<Timestamp> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.get(key).filter(|(known, _)| known == uid);
        own.map(|(_, time)| *time)
    }

    /// A time has had its Job.
    pub(super) fn note(&self, key: &Key, uid: &str, time: Option<Timestamp>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(time.map(|time| (key.clone(), (uid.to_owned(), time))));
    }

    /// The CronJob is gone.
    pub(super) fn forget(&self, key: &Key) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(key);
    }
}
