//! The embedded engine: redb for durability, the published state in memory for reading.

mod disk;
mod writer;

use crate::error::StoreError;
use crate::history::{HistoryLimits, Published};
use crate::model::{Committed, Fetched, ListQuery, Listing, Op, Revision};
use crate::traits::{Batch, BoxFuture, Store, WatchStream};
use disk::Disk;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot, watch};
use writer::{Job, Writer};

/// Limits of the engine; the defaults fit a cluster of some thousand nodes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Events that each table's history keeps at most.
    pub history_events: usize,
    /// Bytes of superseded values that each table's history keeps at most.
    pub history_bytes: usize,
    /// Transactions that may wait for the writer; more are refused.
    pub queue: usize,
    /// Transactions that share one flush at most.
    pub group: usize,
    /// Bytes that one value may have.
    pub value_bytes: usize,
    /// Bytes of the engine's page cache. Reads are served from the published state, so this can be small.
    pub cache_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            history_events: 50_000,
            history_bytes: 16 << 20,
            queue: 4096,
            group: 512,
            value_bytes: 4 << 20,
            cache_bytes: 16 << 20,
        }
    }
}

/// What readers, watchers and the writer share.
#[derive(Debug)]
struct Shared {
    published: RwLock<Published>,
    closed: AtomicBool,
}

impl Shared {
    fn read(&self) -> Result<RwLockReadGuard<'_, Published>, StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        Ok(self.published.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> RwLockWriteGuard<'_, Published> {
        self.published.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.published.read().unwrap_or_else(PoisonError::into_inner).notify_all();
    }
}

/// The engine by default: one file in one folder, one writer thread.
#[derive(Debug)]
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    jobs: Option<mpsc::Sender<Job>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    value_bytes: usize,
}

impl EmbeddedStore {
    /// Opens the store in `folder`, which is made where it does not exist. Blocks while it reads the state.
    ///
    /// Errors: the folder or file cannot be used, is locked by another process, or holds what this version
    /// does not write.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        Self::open_with(folder, &Options::default())
    }

    /// Opens the store with other limits.
    pub fn open_with(folder: &Path, options: &Options) -> Result<Self, StoreError> {
        let limits = HistoryLimits { events: options.history_events, bytes: options.history_bytes };
        let (disk, published) = Disk::open(folder, options.cache_bytes, limits)?;
        let shared = Arc::new(Shared { published: RwLock::new(published), closed: AtomicBool::new(false) });
        let (jobs, queue) = mpsc::channel(options.queue);
        let writer = Writer::new(disk, shared.clone(), queue, options.group);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(StoreError::Folder)?;
        Ok(Self { shared, jobs: Some(jobs), writer: Mutex::new(Some(thread)), value_bytes: options.value_bytes })
    }

    fn check(&self, ops: &[Op]) -> Result<(), StoreError> {
        for op in ops {
            crate::history::table_of(&op.key)?;
            if let crate::model::Action::Put(value) = &op.action
                && value.len() > self.value_bytes
            {
                let (len, limit) = (value.len(), self.value_bytes);
                return Err(StoreError::Invalid(format!("the value of {} has {len} bytes, limit {limit}", op.key)));
            }
        }
        Ok(())
    }

    async fn submit<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Job,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or(StoreError::Closed)?;
        jobs.try_send(job(answer)).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })?;
        answered.await.unwrap_or(Err(StoreError::Closed))
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        // The writer ends when its channel closes; joining it releases the file's lock before we return.
        self.jobs = None;
        let thread = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the store's writer thread panicked");
        }
        self.shared.close();
    }
}

impl Store for EmbeddedStore {
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(async { Ok(self.shared.read()?.head()) })
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>> {
        Box::pin(async move {
            let published = self.shared.read()?;
            Ok(Fetched { revision: published.head(), entry: published.get(key).cloned() })
        })
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>> {
        Box::pin(async move { self.shared.read()?.list(&query) })
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(async move {
            self.check(&ops)?;
            self.submit(|answer| Job::Commit { ops, answer }).await
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>> {
        Box::pin(async move {
            drop(self.shared.read()?);
            let mut published = self.shared.write();
            let changed = published.subscribe(prefix)?;
            published.events_after(prefix, after, 1)?;
            drop(published);
            let watcher = Watcher { shared: self.shared.clone(), prefix: prefix.to_owned(), position: after, changed };
            Ok(Box::new(watcher) as Box<dyn WatchStream>)
        })
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.submit(|answer| Job::Compact { revision, answer }).await })
    }
}

/// Events handed over at once at most, so that a watcher far behind takes little memory.
const BATCH: usize = 500;

#[derive(Debug)]
struct Watcher {
    shared: Arc<Shared>,
    prefix: String,
    position: Revision,
    changed: watch::Receiver<Revision>,
}

impl Watcher {
    /// Takes what is there. A watcher without news follows the head, so that it never falls behind for nothing.
    fn take(&mut self) -> Result<Batch, StoreError> {
        let (events, progress) = self.shared.read()?.events_after(&self.prefix, self.position, BATCH)?;
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
        match self.shared.read().and_then(|published| published.events_after(&self.prefix, self.position, 1)) {
            Ok((events, through)) if events.is_empty() => through,
            Ok(_) | Err(_) => self.position,
        }
    }
}
