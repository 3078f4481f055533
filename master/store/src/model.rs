//! What a store holds and says: entries, events, transactions, queries.

use bytes::Bytes;
use std::any::Any;
use std::sync::{Arc, OnceLock};

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
    derived: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Event {
    /// An event.
    pub fn new(revision: Revision, key: Arc<str>, now: Option<Entry>, before: Option<Entry>) -> Self {
        Self { revision, key, now, before, derived: OnceLock::new() }
    }

    /// What a reader derives from the event, computed once for all watchers.
    ///
    /// Assumption: every caller derives the same type; a second type gets its own value each time.
    pub fn derived<T: Any + Send + Sync>(&self, derive: impl Fn(&Self) -> T) -> Arc<T> {
        let kept = self.derived.get_or_init(|| Arc::new(derive(self))).clone();
        kept.downcast::<T>().unwrap_or_else(|_other_type| Arc::new(derive(self)))
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
        Self { key: key.into(), expect: Expect::Absent, action: Action::Put(value) }
    }

    /// Replaces a value that was last written at `revision`.
    pub fn update(key: &str, revision: Revision, value: Bytes) -> Self {
        Self { key: key.into(), expect: Expect::Revision(revision), action: Action::Put(value) }
    }

    /// Deletes a key that was last written at `revision`.
    pub fn delete(key: &str, revision: Revision) -> Self {
        Self { key: key.into(), expect: Expect::Revision(revision), action: Action::Delete }
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
