//! Revisioned keys that survive a power cut: one order of writes, watches from any revision, compaction.
//!
//! Enter by [`Store`], the trait that any engine implements, and by [`EmbeddedStore::open`], the engine that
//! is used by default (a log on disk, the current state and a bounded history in memory).
//!
//! Tasks and channels of the embedded engine: one writer thread, fed by a bounded queue. It takes whatever
//! has queued up, checks each transaction's expectations, appends them all to the log with one flush, and only then
//! publishes and answers (group commit). One keeper thread makes the next log file ahead of its use and, when the log
//! has grown past the state, writes the state to a file and removes the logs before it. Opening reads the state file
//! and the logs after it, never more than twice what lives and some 64 MiB. Readers and watchers never meet the writer: they read the published
//! state, and a watcher keeps its own position in the shared history, so a slow one delays nobody.
//!
//! Keys are `table/rest`: the part before the first `/` names a table, and each table has a history of its
//! own, so that a busy table (leases, events) doesn't push out the history of a quiet one.

mod embedded;
mod error;
mod history;
mod model;
mod traits;

pub use embedded::snapshot::{
    RESTORED_AHEAD, SnapshotBytes, SnapshotError, SnapshotSummary, restore_snapshot,
    verify_snapshot,
};
pub use embedded::{Disk, EmbeddedStore, LocalDisk, Options};
pub use error::StoreError;
pub use model::{
    Action, Committed, Entry, Event, Expect, Fetched, ListQuery, Listing, Op, Revision,
};
pub use traits::{Batch, BoxFuture, Store, WatchStream};
