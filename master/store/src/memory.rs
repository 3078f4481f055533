//! Current entries and bounded history in memory, shared by readers, watchers and the writer.
//!
//! The embedded engine has one for the content of its disk, a [`Replica`](crate::Replica) one for
//! the content of another engine. Readers and watchers never wait for others: each watcher has its
//! own position in the shared history, so a slow one delays no other.

use crate::error::StoreError;
use crate::history::Published;
use crate::model::{Event, Fetched, ListQuery, Listing, Revision};
use crate::traits::{Batch, BoxFuture, WatchStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;

/// Events returned at once, so that a watcher far behind uses little memory.
const BATCH: usize = 500;

/// The shared state.
#[derive(Debug)]
pub(crate) struct Memory {
    published: RwLock<Published>,
    closed: AtomicBool,
}

impl Memory {
    pub(crate) fn new(published: Published) -> Self {
        Self {
            published: RwLock::new(published),
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

    /// Watches the keys under a prefix, or with none every key.
    pub(crate) fn watch(
        self: &Arc<Self>,
        prefix: Option<&str>,
        after: Revision,
    ) -> Result<Box<dyn WatchStream>, StoreError> {
        drop(self.read()?);
        let mut published = self.write();
        let changed = published.subscribe(prefix)?;
        published.events_after(prefix, after, 1)?;
        Ok(Box::new(Watcher {
            memory: Arc::clone(self),
            prefix: prefix.map(str::to_owned),
            position: after,
            changed,
        }))
    }

    /// Publishes events in the order of their revisions, and that nothing else has happened until `head`.
    pub(crate) fn publish(
        &self,
        head: Revision,
        events: impl IntoIterator<Item = impl Into<Arc<Event>>>,
    ) {
        let wake = {
            let mut published = self.write();
            let since = published.head();
            for event in events {
                published.publish(event.into());
            }
            published.set_head(head);
            published.to_wake(since)
        };
        for watchers in wake {
            watchers.send_replace(head);
        }
    }

    /// Compacts history up to a revision; the newest revision.
    pub(crate) fn compact(&self, revision: Revision) -> Revision {
        let (head, wake) = {
            let mut published = self.write();
            published.compact(revision);
            (published.head(), published.all_watched())
        };
        for watchers in wake {
            watchers.send_replace(head);
        }
        head
    }

    /// Replaces the state by another; the history is lost, and watchers learn that.
    pub(crate) fn replace(&self, found: &Listing) {
        let wake = {
            let mut published = self.write();
            published.replace(found);
            published.all_watched()
        };
        for watchers in wake {
            watchers.send_replace(found.revision);
        }
    }

    /// Ends all reads and watches.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let published = self.published();
        for watchers in published.all_watched() {
            watchers.send_replace(published.head());
        }
    }
}

/// A position in the shared history.
#[derive(Debug)]
struct Watcher {
    memory: Arc<Memory>,
    prefix: Option<String>,
    position: Revision,
    changed: watch::Receiver<Revision>,
}

impl Watcher {
    /// Takes the waiting events. A watcher without events follows the head, so that compaction does
    /// not invalidate its position.
    fn take(&mut self) -> Result<Batch, StoreError> {
        let published = self.memory.read()?;
        let (events, progress) =
            published.events_after(self.prefix.as_deref(), self.position, BATCH)?;
        self.position = progress;
        Ok(Batch { events, progress })
    }
}

impl WatchStream for Watcher {
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, StoreError>> {
        Box::pin(async move {
            loop {
                self.changed.borrow_and_update();
                let batch = self.take()?;
                if !batch.events.is_empty() {
                    return Ok(batch);
                }
                if self.changed.changed().await.is_err() {
                    return Err(StoreError::Closed);
                }
            }
        })
    }

    fn progress(&self) -> Revision {
        let waiting = self
            .memory
            .read()
            .and_then(|published| published.events_after(self.prefix.as_deref(), self.position, 1));
        match waiting {
            Ok((events, through)) if events.is_empty() => through,
            Ok(_) | Err(_) => self.position,
        }
    }
}
