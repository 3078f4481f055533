//! A view over tables of the store that is updated to the newest revision at each use.
//!
//! Guarantee: a view contains every write that was acknowledged before the question. No task runs
//! in between: changes wait in the store's history, and if the history no longer reaches back, the
//! tables are listed again.

use futures_util::FutureExt;
use master_store::{Entry, ListQuery, Reader, Revision, StoreError, WatchStream};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::Mutex;

/// Lists per question: if the history is lost again meanwhile, the store is overloaded.
const TRIES: usize = 4;

/// A change of a followed table.
#[derive(Debug)]
pub(super) enum Change {
    /// Clears the view.
    Reset,
    /// An entry was created or changed in the table with this index.
    Set(usize, Entry),
    /// A key was deleted from the table with this index.
    Deleted(usize, Arc<str>),
}

/// A view that is built from changes.
pub(super) trait Follow: Default {
    /// Applies one change.
    fn apply(&mut self, change: Change);
}

#[derive(Default)]
struct Feed {
    streams: Vec<Box<dyn WatchStream>>,
}

/// A view and the streams that feed it.
pub(super) struct View<S> {
    tables: &'static [&'static str],
    feed: Mutex<Feed>,
    state: RwLock<S>,
    /// The revision up to which the view is complete; 0 before the first list.
    seen: AtomicU64,
}

impl<S> fmt::Debug for View<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("tables", &self.tables)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl<S: Follow> View<S> {
    /// Nothing is read before the first question. The prefixes are those of tables, with their `/`.
    pub(super) fn new(tables: &'static [&'static str]) -> Self {
        Self {
            tables,
            feed: Mutex::default(),
            state: RwLock::default(),
            seen: AtomicU64::new(0),
        }
    }

    /// Calls a function with the view at the newest revision.
    pub(super) async fn with<T>(
        &self,
        reader: &dyn Reader,
        look: impl FnOnce(&S) -> T,
    ) -> Result<T, StoreError> {
        let head = reader.revision().await?;
        if self.seen.load(Ordering::Acquire) < head {
            self.catch_up(reader, head).await?;
        }
        Ok(look(
            &self.state.read().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    async fn catch_up(&self, reader: &dyn Reader, head: Revision) -> Result<(), StoreError> {
        let mut feed = self.feed.lock().await;
        if self.seen.load(Ordering::Acquire) >= head {
            return Ok(());
        }
        let mut changes = Vec::new();
        for _ in 0..TRIES {
            match feed.take(reader, self.tables, &mut changes).await {
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
                    // The events taken from the streams are lost with this attempt.
                    feed.streams.clear();
                    return Err(error);
                }
            }
        }
        Err(StoreError::Busy)
    }
}

impl Feed {
    /// Takes all waiting changes, or lists the tables.
    async fn take(
        &mut self,
        reader: &dyn Reader,
        tables: &[&str],
        changes: &mut Vec<Change>,
    ) -> Result<(), StoreError> {
        if self.streams.is_empty() {
            changes.push(Change::Reset);
            // Kept only once all are open: where the caller goes away at one of the awaits, the
            // next question must list all tables again.
            let mut streams = Vec::with_capacity(tables.len());
            for (number, table) in tables.iter().enumerate() {
                let listing = reader
                    .list(ListQuery {
                        prefix: (*table).to_owned(),
                        ..ListQuery::default()
                    })
                    .await?;
                streams.push(reader.watch(table, listing.revision).await?);
                changes.extend(
                    listing
                        .entries
                        .into_iter()
                        .map(|entry| Change::Set(number, entry)),
                );
            }
            self.streams = streams;
        }
        for (number, stream) in self.streams.iter_mut().enumerate() {
            // Takes the batches that are ready and waits for no others.
            while let Some(batch) = stream.next().now_or_never() {
                changes.extend(batch?.events.iter().map(|event| match &event.now {
                    Some(entry) => Change::Set(number, entry.clone()),
                    None => Change::Deleted(number, event.key.clone()),
                }));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use master_store::{Batch, BoxFuture, Fetched, Listing};

    const TABLES: &[&str] = &["a/", "b/"];

    /// A store of one key per table, whose second list does not answer at once.
    #[derive(Debug, Default)]
    struct SlowStore {
        lists: AtomicU64,
    }

    impl Reader for SlowStore {
        fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
            Box::pin(std::future::ready(Ok(1)))
        }

        fn get<'a>(&'a self, _key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>> {
            Box::pin(std::future::ready(Err(StoreError::Busy)))
        }

        fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>> {
            let number = self.lists.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                if number == 1 {
                    tokio::task::yield_now().await;
                }
                let entry = Entry {
                    key: format!("{}x", query.prefix).into(),
                    value: Vec::<u8>::new().into(),
                    created: 1,
                    modified: 1,
                };
                Ok(Listing {
                    revision: 1,
                    entries: vec![entry],
                    remaining: 0,
                })
            })
        }

        fn watch<'a>(
            &'a self,
            _prefix: &'a str,
            _after: Revision,
        ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>> {
            let stream: Box<dyn WatchStream> = Box::new(Silent);
            Box::pin(std::future::ready(Ok(stream)))
        }
    }

    #[derive(Debug)]
    struct Silent;

    impl WatchStream for Silent {
        fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>> {
            Box::pin(std::future::pending())
        }

        fn progress(&self) -> Revision {
            1
        }
    }

    /// The keys of all tables.
    #[derive(Debug, Default)]
    struct Keys(Vec<Arc<str>>);

    impl Follow for Keys {
        fn apply(&mut self, change: Change) {
            match change {
                Change::Reset => self.0.clear(),
                Change::Set(_, entry) => self.0.push(entry.key),
                Change::Deleted(_, key) => self.0.retain(|known| *known != key),
            }
        }
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_no_half_listed_view() {
        let (view, store) = (View::<Keys>::new(TABLES), SlowStore::default());
        let cut = view.with(&store, |keys| keys.0.len()).now_or_never();
        assert!(cut.is_none(), "the second list takes longer");
        let found = view.with(&store, |keys| keys.0.len()).await.unwrap();
        assert_eq!(found, 2);
    }
}
