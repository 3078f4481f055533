//! The store as its users see it, whatever the engine.

use crate::error::StoreError;
use crate::model::{Committed, Event, Fetched, ListQuery, Listing, Op, Revision};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A future on the heap, so that engines can stand behind `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Revisioned keys.
///
/// Guarantees: an answered commit survives `kill -9` and power loss; revisions are total and monotone; a read
/// that starts after an answered commit sees it; a watch from a revision misses nothing after it, or says
/// [`StoreError::Compacted`].
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The newest revision.
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>>;

    /// One key.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>>;

    /// Keys by prefix, consistent as of one revision.
    ///
    /// Errors: [`StoreError::Compacted`] where the revision is older than the history.
    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>>;

    /// Writes all of it or nothing; durable when answered.
    ///
    /// Errors: [`StoreError::Conflict`] where an expectation does not hold.
    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Committed, StoreError>>;

    /// Every change under `prefix` after revision `after`.
    ///
    /// Errors: [`StoreError::Compacted`] where the history does not reach back to `after`.
    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>>;

    /// Every key of every table, consistent as of one revision: what a snapshot holds.
    fn everything(&self) -> BoxFuture<'_, Result<Listing, StoreError>>;

    /// Forgets history up to and including `revision`; current values stay.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// What a watch hands over at once.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Changes, in order; may be empty where only progress is told.
    pub events: Vec<Arc<Event>>,
    /// Everything up to this revision has been handed over.
    pub progress: Revision,
}

/// An open watch.
pub trait WatchStream: fmt::Debug + Send {
    /// Waits for changes and hands over at least one. Cancel-safe: a dropped call loses nothing.
    ///
    /// Errors: [`StoreError::Compacted`] where this watcher fell behind the history.
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>>;

    /// The newest revision up to which nothing is left to hand over, without waiting.
    fn progress(&self) -> Revision;
}
