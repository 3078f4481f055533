//! Current entries and bounded history in memory, shared by readers, watchers and the writer.
//!
//! The embedded engine has one for the content of its disk, a [`Replica`](crate::Replica) one for
//! the content of another engine. Readers and watchers never wait for others: each watcher has its
//! own position in the shared history, so a slow one delays no other, and sleeps until one of its
//! own keys changes.

use crate::error::StoreError;
use crate::history::{Published, Room};
use crate::model::{Event, Fetched, ListQuery, Listing, Revision};
use crate::traits::{Batch, BoxFuture, WatchStream};
use crate::watchers::{Watchers, Watching};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;

/// Events returned at once, at most; more only if one transaction has more. So a watcher that is
/// far behind uses little memory.
const BATCH: Room = Room {
    events: 500,
    bytes: 1 << 20,
};

/// The shared state.
#[derive(Debug)]
pub(crate) struct Memory {
    published: RwLock<Published>,
    watchers: Arc<Watchers>,
    /// The head, to wait for a revision.
    reached: watch::Sender<Revision>,
    closed: AtomicBool,
}

impl Memory {
    pub(crate) fn new(published: Published) -> Self {
        Self {
            reached: watch::Sender::new(published.head()),
            published: RwLock::new(published),
            watchers: Arc::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// The state, for reads.
    pub(crate) fn read(&self) -> Result<RwLockReadGuard<'_, Published>, StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        Ok(self.published())
    }

    /// The state, for the state file's writer.
    pub(crate) fn published(&self) -> RwLockReadGuard<'_, Published> {
        self.published
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Published> {
        self.published
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn head(&self) -> Result<Revision, StoreError> {
        Ok(self.read()?.head())
    }

    pub(crate) fn get(&self, key: &str) -> Result<Fetched, StoreError> {
        let published = self.read()?;
        Ok(Fetched {
            revision: published.head(),
            entry: published.get(key).cloned(),
        })
    }

    pub(crate) fn list(&self, query: &ListQuery) -> Result<Listing, StoreError> {
        self.read()?.list(query)
    }

    /// The head, to wait for a revision.
    pub(crate) fn reached(&self) -> watch::Receiver<Revision> {
        self.reached.subscribe()
    }

    /// Watches the keys under a prefix; without a prefix, all keys.
    pub(crate) fn watch(
        self: &Arc<Self>,
        prefix: Option<&str>,
        after: Revision,
    ) -> Result<Box<dyn WatchStream>, StoreError> {
        // Held until the watcher can be marked: nothing is published in between.
        let published = self.read()?;
        // One event is enough: the mark is the first revision that has a change.
        let one = Room { events: 1, ..BATCH };
        let (waiting, _) = published.events_after(prefix, after, one)?;
        let watching = self.watchers.add(prefix.unwrap_or_default());
        watching
            .mark()
            .moved(waiting.first().map(|event| event.revision));
        drop(published);
        Ok(Box::new(Watcher {
            memory: Arc::clone(self),
            prefix: prefix.map(str::to_owned),
            watching,
        }))
    }

    /// Publishes events, which are in the order of their revisions, and `head`: all revisions up to
    /// it have happened.
    pub(crate) fn publish(
        &self,
        head: Revision,
        events: impl IntoIterator<Item = impl Into<Arc<Event>>>,
    ) {
        let events: Vec<Arc<Event>> = events.into_iter().map(Into::into).collect();
        let woken = {
            let mut published = self.write();
            // Under the lock, so that no watcher reads the events before it has their mark.
            let changes = events.iter().map(|event| (&*event.key, event.revision));
            let woken = self.watchers.mark(changes);
            for event in events {
                published.publish(event);
            }
            published.set_head(head);
            woken
        };
        // After the lock is released: watchers and waiting readers read the state at once.
        woken.wake();
        self.reached.send_replace(head);
    }

    /// Compacts history up to a revision and returns the head. Watchers that have returned all
    /// their changes lose nothing.
    pub(crate) fn compact(&self, revision: Revision) -> Revision {
        let mut published = self.write();
        published.compact(revision);
        published.head()
    }

    /// Replaces the state by another; the history is lost, and watchers learn that.
    pub(crate) fn replace(&self, found: &Listing) {
        let woken = {
            let mut published = self.write();
            // No watcher has returned a change after the old head. The mark is below the new floor,
            // so that each fails with `Compacted` at its next turn.
            let woken = self.watchers.mark_all(published.head() + 1);
            published.replace(found);
            woken
        };
        woken.wake();
        self.reached.send_replace(found.revision);
    }

    /// Ends all reads and watches.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Watchers find the store closed when they continue.
        self.watchers.wake_all();
    }
}

/// A watcher, whose mark is its position in the shared history.
#[derive(Debug)]
struct Watcher {
    memory: Arc<Memory>,
    prefix: Option<String>,
    watching: Watching,
}

impl Watcher {
    /// Takes the waiting events.
    fn take(&self) -> Result<Batch, StoreError> {
        // Locked until the mark is moved: a change that is published in between would be forgotten.
        let published = self.memory.read()?;
        let mark = self.watching.mark();
        let Some(first) = mark.first() else {
            return Ok(Batch {
                events: Vec::new(),
                progress: published.head(),
            });
        };
        let (events, progress) =
            published.events_after(self.prefix.as_deref(), first - 1, BATCH)?;
        mark.moved((progress < published.head()).then_some(progress + 1));
        Ok(Batch { events, progress })
    }
}

impl WatchStream for Watcher {
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>> {
        Box::pin(async move {
            loop {
                let batch = self.take()?;
                if !batch.events.is_empty() {
                    return Ok(batch);
                }
                // A wake-up since `take` is kept, so that this returns at once.
                self.watching.mark().woken().await;
            }
        })
    }

    fn progress(&self) -> Revision {
        let published = self.memory.published();
        // Without a mark no change waits: later revisions up to the head changed only other keys.
        let first = self.watching.mark().first();
        first.map_or(published.head(), |first| first - 1)
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
