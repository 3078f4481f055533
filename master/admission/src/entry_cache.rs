//! A cache of what plugins read from stored objects that many writes need, such as namespaces: read
//! once per revision, not at every write.

use master_store::{Entry, Revision};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Entries in a cache by default. A full cache is emptied, and what is in use is read again.
const DEFAULT_LIMIT: usize = 1024;

/// Caches what was read of an entry until the entry is written again.
///
/// Guarantee: the result is that of `read` for this very entry, as the value of a key at a revision
/// never changes.
#[derive(Debug)]
pub(crate) struct EntryCache<T> {
    most: usize,
    known: RwLock<HashMap<Arc<str>, (Revision, T)>>,
}

impl<T> Default for EntryCache<T> {
    fn default() -> Self {
        Self::with_limit(DEFAULT_LIMIT)
    }
}

impl<T> EntryCache<T> {
    /// A cache of at most this many entries.
    pub(crate) fn with_limit(most: usize) -> Self {
        Self {
            most,
            known: RwLock::default(),
        }
    }
}

impl<T: Clone> EntryCache<T> {
    /// The result of `read` for an entry; `read` is called only if it is not cached.
    pub(crate) fn of(&self, entry: &Entry, read: impl FnOnce(&Entry) -> T) -> T {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((revision, found)) = known.get(&entry.key)
            && *revision == entry.modified
        {
            return found.clone();
        }
        drop(known);
        let found = read(entry);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.most {
            known.clear();
        }
        known.insert(entry.key.clone(), (entry.modified, found.clone()));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, modified: Revision) -> Entry {
        Entry {
            key: key.into(),
            value: modified.to_string().into(),
            created: 1,
            modified,
        }
    }

    #[test]
    fn an_entry_is_read_once_and_again_when_it_is_written() {
        let entry_cache = EntryCache::default();
        let mut reads = 0;
        let mut ask = |key: &str, modified: Revision| {
            let found = entry_cache.of(&entry(key, modified), |entry| {
                reads += 1;
                entry.value.bytes()
            });
            assert_eq!(found, modified.to_string().as_bytes(), "{key}");
        };
        for (key, modified) in [("a", 1), ("a", 1), ("b", 2), ("a", 3), ("a", 3), ("a", 1)] {
            ask(key, modified);
        }
        assert_eq!(reads, 4);
    }

    #[test]
    fn no_more_are_remembered_than_the_limit() {
        let entry_cache = EntryCache::default();
        for number in 0..=DEFAULT_LIMIT {
            entry_cache.of(&entry(&number.to_string(), 1), |_| ());
        }
        assert_eq!(entry_cache.known.read().unwrap().len(), 1);
    }
}
