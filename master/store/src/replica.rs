//! A [`Reader`] of an engine whose data is elsewhere: it answers from a copy in memory, which the
//! engine's watch keeps up to date.
//!
//! A read asks the engine for its newest revision, waits until the copy has it, and is answered
//! from memory; so it sees every commit that was acknowledged before. If the copy lags, or its
//! history is too short for a request, the engine answers. One future follows the engine; there are
//! no reads before the copy is complete.

use crate::error::StoreError;
use crate::history::{HistoryLimits, Published, READ_AT_ONCE};
use crate::memory::Memory;
use crate::model::{Fetched, ListQuery, Listing, Revision};
use crate::traits::{BoxFuture, Reader, Store, WatchStream};
use config_errors::chain;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// History of each table: as much as the embedded engine keeps by default.
const LIMITS: HistoryLimits = HistoryLimits {
    events: 50_000,
    bytes: 16 << 20,
    unpacked: READ_AT_ONCE,
};
/// Time for the copy to reach a revision before the engine itself is asked (as in upstream's watch
/// cache).
const PATIENCE: Duration = Duration::from_secs(3);
/// First wait after the engine's watch failed.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// Longest wait after the engine's watch failed.
const BACKOFF_LAST: Duration = Duration::from_secs(5);

/// A copy of an engine's data.
#[derive(Debug)]
pub struct Replica {
    store: Arc<dyn Store>,
    memory: Arc<Memory>,
    reached: watch::Receiver<Revision>,
}

impl Replica {
    /// Reads the whole content of the engine; returns the copy, and the future that keeps it up to
    /// date until the engine closes.
    ///
    /// # Errors
    /// The engine can't be read.
    pub async fn of(
        store: Arc<dyn Store>,
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<>), StoreError> {
        let mut published = Published::new(0, LIMITS);
        published.replace(&store.everything().await?);
        let memory = Arc::new(Memory::new(published));
        let reached = memory.reached();
        let following = follow(Arc::clone(&store), Arc::clone(&memory));
        let replica = Self {
            store,
            memory,
            reached,
        };
        Ok((replica, following))
    }

    /// Whether the copy reached a revision in time.
    async fn reaches(&self, revision: Revision) -> Result<bool, StoreError> {
        if self.memory.head()? >= revision {
            return Ok(true);
        }
        let mut reached = self.reached.clone();
        let awaited = reached.wait_for(|reached| *reached >= revision);
        Ok(matches!(
            tokio::time::timeout(PATIENCE, awaited).await,
            Ok(Ok(_))
        ))
    }

    /// Whether the copy reached the engine's current revision.
    async fn is_current(&self) -> Result<bool, StoreError> {
        self.reaches(self.store.revision().await?).await
    }
}

impl Reader for Replica {
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(async {
            let head = self.store.revision().await?;
            if self.reaches(head).await? {
                return Ok(head);
            }
            // An error, and not the engine's revision: callers rely on open watches, which read the
            // copy, having shown everything up to the returned revision.
            let reached = self.memory.head()?;
            Err(StoreError::Behind { reached, head })
        })
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>> {
        Box::pin(async move {
            if self.is_current().await? {
                self.memory.get(key)
            } else {
                self.store.get(key).await
            }
        })
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>> {
        Box::pin(async move {
            let complete = match query.revision {
                // A past revision does not change any more, so the engine need not be asked.
                Some(revision) if revision <= self.memory.head()? => true,
                Some(_) | None => self.is_current().await?,
            };
            // The engine may keep more history than the copy.
            let listing = self.memory.list(&query);
            if complete && !is_compacted(&listing) {
                return listing;
            }
            self.store.list(query).await
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>> {
        Box::pin(async move {
            let complete = after <= self.memory.head()? || self.is_current().await?;
            // The engine may keep more history than the copy.
            let stream = self.memory.watch(Some(prefix), after);
            if complete && !is_compacted(&stream) {
                return stream;
            }
            self.store.watch(prefix, after).await
        })
    }
}

fn is_compacted<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Compacted { .. }))
}

/// Applies the engine's changes to the copy. If the engine has compacted some of them, the copy is
/// rebuilt.
async fn follow(store: Arc<dyn Store>, memory: Arc<Memory>) {
    let mut wait = BACKOFF_FIRST;
    loop {
        let error = match changes(&*store, &memory, &mut wait).await {
            Ok(never) => match never {},
            Err(StoreError::Compacted { .. }) => match store.everything().await {
                Ok(found) => {
                    memory.replace(&found);
                    continue;
                }
                Err(error) => error,
            },
            Err(error) => error,
        };
        if matches!(error, StoreError::Closed) {
            return memory.close();
        }
        tracing::warn!(
            error = chain(&error),
            "cannot follow the store's changes; trying again"
        );
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(BACKOFF_LAST);
    }
}

async fn changes(
    store: &dyn Store,
    memory: &Memory,
    wait: &mut Duration,
) -> Result<std::convert::Infallible, StoreError> {
    // From the revision of what the copy has, so that no change in between is missed.
    let mut stream = store.changes(memory.head()?).await?;
    loop {
        let batch = stream.next().await?;
        memory.publish(batch.progress, batch.events);
        // The engine answers again: the next failure is a new one.
        *wait = BACKOFF_FIRST;
    }
}
