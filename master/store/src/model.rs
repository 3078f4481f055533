//! Data types of a store: entries, events, transactions, queries.

use crate::value::Value;
use bytes::Bytes;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// A point in the total order of writes. Starts at 1 (nothing written); every transaction that
/// writes gets the next number.
pub type Revision = u64;

/// A key's value at some revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `table/rest`.
    pub key: Arc<str>,
    /// The value.
    pub value: Value,
    /// Revision at which the key was created.
    pub created: Revision,
    /// Revision of the last write.
    pub modified: Revision,
}

/// One key's change. Events of one key are in the order of their revisions; the events of a
/// transaction share one.
#[derive(Debug)]
pub struct Event {
    /// Revision of the transaction.
    pub revision: Revision,
    /// The key.
    pub key: Arc<str>,
    /// The new entry; `None` if the key was deleted.
    pub now: Option<Entry>,
    /// The previous entry; `None` if the key was created.
    pub before: Option<Entry>,
    derived: Mutex<Derived>,
}

/// Data that readers derive from an event.
#[derive(Debug)]
enum Derived {
    Nothing,
    Kept(Arc<dyn Any + Send + Sync>),
    /// The event is no longer recent: derived data is not cached.
    Past,
}

impl Event {
    /// An event.
    pub fn new(
        revision: Revision,
        key: Arc<str>,
        now: Option<Entry>,
        before: Option<Entry>,
    ) -> Self {
        Self {
            revision,
            key,
            now,
            before,
            derived: Mutex::new(Derived::Nothing),
        }
    }

    /// Data that readers derive from the event, shared by all of them while the event is recent: a
    /// thousand watches encode an object once.
    ///
    /// Assumption: all callers use the same type; a second type gets a new value at each call.
    pub fn derived<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut derived = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        match &*derived {
            Derived::Kept(kept) => kept.clone().downcast::<T>().unwrap_or_default(),
            Derived::Past => Arc::default(),
            Derived::Nothing => {
                let fresh: Arc<T> = Arc::default();
                *derived = Derived::Kept(fresh.clone());
                fresh
            }
        }
    }

    /// The bytes of the new value, if the key was not deleted.
    pub(crate) fn value(&self) -> Option<Bytes> {
        self.now.as_ref().map(|entry| entry.value.bytes())
    }

    /// The same event as no longer recent: with these entries, and without derived data.
    pub(crate) fn past(&self, now: Option<Entry>, before: Option<Entry>) -> Self {
        Self {
            revision: self.revision,
            key: Arc::clone(&self.key),
            now,
            before,
            derived: Mutex::new(Derived::Past),
        }
    }

    /// Whether it is no longer recent: what a reader derives from it is the reader's own.
    pub fn is_past(&self) -> bool {
        let derived = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*derived, Derived::Past)
    }
}

/// The precondition of a transaction on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// None.
    Any,
    /// The key does not exist.
    Absent,
    /// The key's last write was at this revision.
    Revision(Revision),
}

/// The action of a transaction on a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// None, only the precondition counts.
    Check,
    /// Sets the value.
    Put(Bytes),
    /// Deletes the key, if it exists.
    Delete,
}

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// The key.
    pub key: Arc<str>,
    /// The precondition.
    pub expect: Expect,
    /// The action.
    pub action: Action,
}

impl Op {
    /// Creates a key that must not exist.
    pub fn create(key: &str, value: Bytes) -> Self {
        Self {
            key: key.into(),
            expect: Expect::Absent,
            action: Action::Put(value),
        }
    }

    /// Replaces a value that was last written at `revision`.
    pub fn update(key: &str, revision: Revision, value: Bytes) -> Self {
        Self {
            key: key.into(),
            expect: Expect::Revision(revision),
            action: Action::Put(value),
        }
    }

    /// Deletes a key that was last written at `revision`.
    pub fn delete(key: &str, revision: Revision) -> Self {
        Self {
            key: key.into(),
            expect: Expect::Revision(revision),
            action: Action::Delete,
        }
    }
}

/// The answer to a transaction: it is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The transaction's revision; the newest one if it wrote nothing.
    pub revision: Revision,
}

/// The result of reading one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The store's revision at the read.
    pub revision: Revision,
    /// The entry, if the key exists.
    pub entry: Option<Entry>,
}

/// What to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// The prefix of the keys; it must contain the table's `/`.
    pub prefix: String,
    /// At this revision; `None` for the newest.
    pub revision: Option<Revision>,
    /// Only keys after this one (continuation).
    pub after: Option<String>,
    /// The maximum number of entries; 0: all.
    pub limit: usize,
}

/// A list, consistent at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The revision of the list.
    pub revision: Revision,
    /// The entries, sorted by key.
    pub entries: Vec<Entry>,
    /// The number of further matching entries after the last one.
    pub remaining: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recent_events_keep_derived_data() {
        let event = Event::new(2, "k/a".into(), None, None);
        let kept = event.derived::<Mutex<u8>>();
        assert!(Arc::ptr_eq(&kept, &event.derived()));
        assert_eq!(
            *event.derived::<u8>(),
            0,
            "another type gets a value of its own"
        );
        let past = event.past(None, None);
        assert!(past.is_past() && !event.is_past());
        drop(event);
        assert_eq!(Arc::strong_count(&kept), 1);
        assert!(!Arc::ptr_eq(&kept, &past.derived()));
        assert_eq!(Arc::strong_count(&kept), 1, "a past event keeps nothing");
    }
}
