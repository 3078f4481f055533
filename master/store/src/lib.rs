//! The store of the API: keys and values with revisions, in one total order of writes that survives
//! power cuts, with watches from any revision and compaction.
//!
//! Start at [`Store`], the trait that every engine implements, and at [`EmbeddedStore::open`], the
//! default engine (a log on disk, the current state and a bounded history in memory). The API reads
//! through a [`Reader`], which hides the engine: [`Direct`] where the engine's own memory holds the
//! data, [`Replica`] where the data is elsewhere.
//!
//! Tasks and channels of the embedded engine: one writer thread, fed by a bounded queue. It takes
//! all queued transactions, checks the preconditions of each, appends them to the log with one
//! flush, and only then publishes and answers (group commit). One keeper thread creates the next
//! log file ahead of its use and, when the log has grown larger than the state, writes the state to
//! a file and removes the logs before it. Opening reads the state file and the logs after it, never
//! more than twice the live data and about 64 MiB. Readers and watchers never wait for the writer:
//! they read the published state, and each watcher has its own position in the shared history, so a
//! slow one delays no other. A write wakes the watchers of its keys and no others.
//!
//! Older values of a table are packed in memory: each is kept as its differences from a similar
//! value ([`Value`]), because tens of thousands of objects repeat a few templates.
//!
//! Keys are `table/rest`: the part before the first `/` names a table, and each table has its own
//! history, so that a busy table (leases, events) does not push out the history of a quiet one.

mod direct;
mod embedded;
mod error;
mod history;
mod memory;
mod model;
mod packing;
mod probe;
mod replica;
mod traits;
mod value;
mod watchers;

pub use direct::Direct;
pub use embedded::snapshot::{
    RESTORED_AHEAD, SnapshotBytes, SnapshotError, SnapshotSummary, restore_snapshot,
    verify_snapshot,
};
pub use embedded::{Disk, EmbeddedStore, LocalDisk, Options};
pub use error::StoreError;
pub use model::{
    Action, Committed, Entry, Event, Expect, Fetched, ListQuery, Listing, Op, Revision,
};
pub use probe::{Probe, wait_for_writer};
pub use replica::Replica;
pub use traits::{Batch, BoxFuture, Reader, Store, WatchStream};
pub use value::Value;
