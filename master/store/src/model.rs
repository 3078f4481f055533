//! What a store holds and says: entries, events, transactions, queries.

use bytes::Bytes;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// A point in the one order of writes. Starts at 1 (nothing written); every transaction that writes takes the next.
pub type Revision = u64;

/// A key's value as of some revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `table/rest`.
    pub key: Arc<str>,
    /// The value, as it was given.
    pub value: Bytes,
    /// Revision at which the key came to be.
    pub created: Revision,
    /// Revision of the last write.
    pub modified: Revision,
}

/// One key's change. Events of one key are in the order of their revisions; a transaction's events share one.
#[derive(Debug)]
pub struct Event {
    /// Revision of the transaction.
    pub revision: Revision,
    /// The key.
    pub key: Arc<str>,
    /// The new entry; none where the key was deleted.
    pub now: Option<Entry>,
    /// The entry before; none where the key was created.
    pub before: Option<Entry>,
    derived: Mutex<Derived>,
}

/// What readers made of an event.
#[derive(Debug)]
enum Derived {
    Nothing,
    Kept(Arc<dyn Any + Send + Sync>),
    /// The event is no news any more: what is made of it now is not kept.
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

    /// A place for what readers make of the event, one for all of them while the event is news.
    ///
    /// Assumption: every caller keeps the same type; a second type gets a place of its own each time.
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

    /// The event is no news any more: what was made of it goes.
    pub(crate) fn pass(&self) {
        *self.derived.lock().unwrap_or_else(PoisonError::into_inner) = Derived::Past;
    }
}

/// What a transaction expects of a key before it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Any,
    /// That the key does not exist.
    Absent,
    /// That the key's last write was at this revision.
    Revision(Revision),
}

/// What a transaction does to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Only checks.
    Check,
    /// Sets the value.
    Put(Bytes),
    /// Deletes the key; nothing where it does not exist.
    Delete,
}

/// One part of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// The key.
    pub key: Arc<str>,
    /// What must hold.
    pub expect: Expect,
    /// What then happens.
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
    /// The transaction's revision; the head's where it wrote nothing.
    pub revision: Revision,
}

/// One key, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Revision of the store at the read.
    pub revision: Revision,
    /// The entry, if the key exists.
    pub entry: Option<Entry>,
}

/// What to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// All keys that start with this; must contain the table's `/`.
    pub prefix: String,
    /// As of this revision; the newest where none.
    pub revision: Option<Revision>,
    /// Only keys after this one (a continuation).
    pub after: Option<String>,
    /// At most this many; 0: all.
    pub limit: usize,
}

/// A list, consistent as of one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The revision that the list shows.
    pub revision: Revision,
    /// The entries, in key order.
    pub entries: Vec<Entry>,
    /// How many more entries match after the last one.
    pub remaining: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_news_keep_what_is_made_of_them() {
        let event = Event::new(2, "k/a".into(), None, None);
        let kept = event.derived::<Mutex<u8>>();
        assert!(Arc::ptr_eq(&kept, &event.derived()));
        assert_eq!(
            *event.derived::<u8>(),
            0,
            "another type has a place of its own"
        );
        event.pass();
        assert_eq!(Arc::strong_count(&kept), 1);
        assert!(!Arc::ptr_eq(&kept, &event.derived()));
        assert_eq!(Arc::strong_count(&kept), 1, "nothing is kept again");
    }
}
