//! Folders that nodes may have made for claims that have no volume yet.

use master_client::Key;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A folder that a node may have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    /// UID of its claim.
    pub uid: String,
    /// The node.
    pub node: String,
}

/// Those of all claims, by name.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<HashMap<Key, BTreeSet<Attempt>>>);

impl Attempts {
    /// Those of claims of a name.
    pub(super) fn of(&self, key: &Key) -> Vec<Attempt> {
        let all = self.all();
        all.get(key).into_iter().flatten().cloned().collect()
    }

    /// The node may be asked for a folder from now on.
    pub(super) fn note(&self, key: &Key, uid: &str, node: &str) {
        let (uid, node) = (uid.to_owned(), node.to_owned());
        let mut all = self.all();
        let own = all.entry(key.clone()).or_default();
        own.insert(Attempt { uid, node });
    }

    /// The folder is that of a volume, or gone.
    pub(super) fn forget(&self, key: &Key, attempt: &Attempt) {
        let mut all = self.all();
        if let Some(own) = all.get_mut(key) {
            own.remove(attempt);
            if own.is_empty() {
                all.remove(key);
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, BTreeSet<Attempt>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
