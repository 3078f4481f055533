//! Revisioned keys that survive a power cut: one order of writes, watches from any revision, compaction.
//!
//! Enter by [`Store`], the trait that any engine implements, and by [`EmbeddedStore::open`], the engine that
//! is used by default (redb below, the current state and a bounded history in memory).
//!
//! Tasks and channels of the embedded engine: one writer thread, fed by a bounded channel. It takes whatever
//! has queued up, checks each transaction's expectations, commits them all with one flush, and only then
//! publishes and answers (group commit). Readers and watchers never meet the writer: they read the published
//! state, and a watcher keeps its own position in the shared history, so a slow one delays nobody.
//!
//! Keys are `table/rest`: the part before the first `/` names a table, and each table has a history of its
//! own, so that a busy table (leases, events) doesn't push out the history of a quiet one.

mod embedded;
mod error;
mod history;
mod model;
mod traits;

pub use embedded::{EmbeddedStore, Options};
pub use error::StoreError;
pub use model::{Action, Committed, Entry, Event, Expect, Fetched, ListQuery, Listing, Op, Revision};
pub use traits::{Batch, BoxFuture, Store, WatchStream};
