//! The interface of a store, for any engine.

use crate::error::StoreError;
use crate::model::{Committed, Event, Fetched, ListQuery, Listing, Op, Revision};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A boxed future, so that engines can be used as `dyn Store`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Keys with revisions.
///
/// Guarantees: an acknowledged commit survives `kill -9` and power loss; revisions are total and
/// monotonic; a read that starts after an acknowledged commit sees it; a watch from a revision
/// misses no later change, or fails with [`StoreError::Compacted`].
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The newest revision.
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>>;

    /// Reads one key.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>>;

    /// Lists keys by prefix, consistent at one revision. Fails with [`StoreError::Compacted`] if
    /// the revision is older than the history.
    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>>;

    /// Writes all operations or none; durable when it returns. Fails with [`StoreError::Conflict`]
    /// if a precondition does not hold.
    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Committed, StoreError>>;

    /// Watches every change under `prefix` after revision `after`. Fails with
    /// [`StoreError::Compacted`] if the history does not reach back to `after`.
    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>>;

    /// Watches every change of every table after revision `after`, as [`Store::watch`] does those
    /// under a prefix.
    fn changes(&self, after: Revision) -> BoxFuture<'_, Result<Box<dyn WatchStream>, StoreError>>;

    /// Every key of every table, consistent at one revision: the content of a snapshot.
    fn everything(&self) -> BoxFuture<'_, Result<Listing, StoreError>>;

    /// Compacts history up to and including `revision`; current values stay.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// Reads of a store, independent of the engine. The answers come from memory: the engine's own, or
/// a copy that the engine's watch keeps up to date.
///
/// Guarantees: a read that starts after a commit was acknowledged to this process sees it; the rest
/// is as for [`Store`].
pub trait Reader: fmt::Debug + Send + Sync + 'static {
    /// The newest revision that reads show.
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>>;

    /// Reads one key.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>>;

    /// Lists keys by prefix, consistent at one revision. Fails with [`StoreError::Compacted`] if
    /// the revision is older than the history.
    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>>;

    /// Watches every change under `prefix` after revision `after`. Fails with
    /// [`StoreError::Compacted`] if the history does not reach back to `after`.
    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>>;
}

/// Changes that a watch returns at once.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Changes, in order; may be empty if only the progress changed.
    pub events: Vec<Arc<Event>>,
    /// Everything up to this revision has been returned.
    pub progress: Revision,
}

/// An open watch.
pub trait WatchStream: fmt::Debug + Send {
    /// Waits for changes and returns at least one. Cancel-safe: a dropped call loses nothing. Fails
    /// with [`StoreError::Compacted`] if this watch fell behind the history.
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>>;

    /// The newest revision up to which all changes have been returned, without waiting.
    fn progress(&self) -> Revision;
}
