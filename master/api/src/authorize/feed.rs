//! Something known of tables of the store, brought up to the head whenever it is asked for.
//!
//! Guarantee: an answer takes in every write that was acknowledged before the question. Nothing runs in between: changes
//! wait in the store's history, and where that no longer reaches back, the tables are listed anew.

use futures_util::FutureExt;
use master_store::{Entry, ListQuery, Revision, Store, StoreError, WatchStream};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::Mutex;

/// Listings anew for one question: history that is lost again meanwhile is an overloaded store.
const TRIES: usize = 4;

/// One change of a followed table.
#[derive(Debug)]
pub(super) enum Change {
    /// Forget everything.
    Reset,
    /// An entry of a table (its place among the prefixes) came or changed.
    Set(usize, Entry),
    /// A key of a table went.
    Gone(usize, Arc<str>),
}

/// What is made of the changes.
pub(super) trait Follow: Default {
    /// Takes one change in.
    fn apply(&mut self, change: Change);
}

#[derive(Default)]
struct Feed {
    streams: Vec<Box<dyn WatchStream>>,
}

/// What is known, and the feed that keeps it so.
pub(super) struct Kept<S> {
    tables: &'static [&'static str],
    feed: Mutex<Feed>,
    state: RwLock<S>,
    /// Everything up to this revision is in the state; 0: nothing is.
    seen: AtomicU64,
}

impl<S> fmt::Debug for Kept<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept")
            .field("tables", &self.tables)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl<S: Follow> Kept<S> {
    /// Nothing is read before the first question. The prefixes are those of tables, with their `/`.
    pub(super) fn new(tables: &'static [&'static str]) -> Self {
        Self {
            tables,
            feed: Mutex::default(),
            state: RwLock::default(),
            seen: AtomicU64::new(0),
        }
    }

    /// Looks at the state as of now.
    pub(super) async fn with<T>(
        &self,
        store: &dyn Store,
        look: impl FnOnce(&S) -> T,
    ) -> Result<T, StoreError> {
        let head = store.revision().await?;
        if self.seen.load(Ordering::Acquire) < head {
            self.catch_up(store, head).await?;
        }
        Ok(look(
            &self.state.read().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    async fn catch_up(&self, store: &dyn Store, head: Revision) -> Result<(), StoreError> {
        let mut feed = self.feed.lock().await;
        if self.seen.load(Ordering::Acquire) >= head {
            return Ok(());
        }
        let mut changes = Vec::new();
        for _ in 0..TRIES {
            match feed.take(store, self.tables, &mut changes).await {
                Ok(()) => {
                    if !changes.is_empty() {
                        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
                        for change in changes {
                            state.apply(change);
                        }
                    }
                    self.seen.store(head, Ordering::Release);
                    return Ok(());
                }
                Err(StoreError::Compacted { .. }) => {
                    feed.streams.clear();
                    changes.clear();
                }
                Err(error) => {
                    // What was taken from the streams is lost with this try.
                    feed.streams.clear();
                    return Err(error);
                }
            }
        }
        Err(StoreError::Busy)
    }
}

impl Feed {
    /// Everything that waits, or everything there is.
    async fn take(
        &mut self,
        store: &dyn Store,
        tables: &[&str],
        changes: &mut Vec<Change>,
    ) -> Result<(), StoreError> {
        if self.streams.is_empty() {
            changes.push(Change::Reset);
            for (number, table) in tables.iter().enumerate() {
                let listing = store
                    .list(ListQuery {
                        prefix: (*table).to_owned(),
                        ..ListQuery::default()
                    })
                    .await?;
                self.streams
                    .push(store.watch(table, listing.revision).await?);
                changes.extend(
                    listing
                        .entries
                        .into_iter()
                        .map(|entry| Change::Set(number, entry)),
                );
            }
        }
        for (number, stream) in self.streams.iter_mut().enumerate() {
            // What is there comes at once; what isn't is not waited for.
            while let Some(batch) = stream.next().now_or_never() {
                changes.extend(batch?.events.iter().map(|event| match &event.now {
                    Some(entry) => Change::Set(number, entry.clone()),
                    None => Change::Gone(number, event.key.clone()),
                }));
            }
        }
        Ok(())
    }
}
