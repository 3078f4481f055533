//! The embedded engine: a log for durability, state files that keep the log short, and the
//! published state in memory for reads.

mod disk;
mod folder;
mod frame;
mod image;
mod keeper;
mod log;
mod queue;
mod record;
mod recover;
pub(crate) mod snapshot;
mod writer;

use crate::error::StoreError;
use crate::history::{HistoryLimits, READ_AT_ONCE, table_of};
use crate::memory::Memory;
use crate::model::{Action, Committed, Fetched, ListQuery, Listing, Op, Revision};
use crate::traits::{BoxFuture, Store, WatchStream};
pub(crate) use disk::is_full;
pub use disk::{Disk, LocalDisk};
use folder::Folder;
use log::{Log, SegmentOptions};
use queue::{Queue, Refused};
use std::collections::HashSet;
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use writer::{Job, Writer};

/// Limits of the engine; the defaults suit a cluster of some thousand nodes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Events in each table's history.
    pub history_events: usize,
    /// Bytes of superseded values in each table's history.
    pub history_bytes: usize,
    /// Age at which history is compacted, up to a fifth later. Upstream compacts every five
    /// minutes.
    pub history_age: Duration,
    /// Transactions in the writer's queue; more are refused.
    pub queue: usize,
    /// Transactions per flush.
    pub group: usize,
    /// Bytes of one value.
    pub value_bytes: usize,
    /// Bytes of all values of one transaction.
    pub transaction_bytes: usize,
    /// Bytes of changes after which the state is written to a file; more if the state itself is
    /// larger, so that writing it never costs more than the changes did.
    pub log_bytes: u64,
    /// Bytes of one log file.
    pub segment_bytes: u64,
    /// Bytes to leave free on the file system.
    pub spare_bytes: u64,
    /// The disk, or a simulated one.
    pub disk: Arc<dyn Disk>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            history_events: 50_000,
            history_bytes: 16 << 20,
            history_age: Duration::from_secs(300),
            queue: 4096,
            group: 512,
            value_bytes: 4 << 20,
            transaction_bytes: 16 << 20,
            log_bytes: 64 << 20,
            segment_bytes: 16 << 20,
            spare_bytes: 32 << 20,
            disk: Arc::new(LocalDisk),
        }
    }
}

/// Operations of one transaction at most. etcd's limit is 128: an engine over etcd has to raise its
/// `--max-txn-ops` to this.
const MAX_OPS: usize = 1024;

/// The state that readers, watchers and the writer share.
#[derive(Debug)]
struct Shared {
    memory: Arc<Memory>,
    /// The failure after which nothing can be written.
    failure: watch::Sender<Option<Arc<StoreError>>>,
}

impl Shared {
    fn fail(&self, error: StoreError) {
        self.failure.send_replace(Some(Arc::new(error)));
    }
}

/// The default engine: one folder, one writer thread and one keeper thread.
#[derive(Debug)]
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    jobs: Arc<Queue<Job>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    value_bytes: usize,
    transaction_bytes: usize,
}

impl EmbeddedStore {
    /// Opens the store in `folder`, which is created if it does not exist. Blocks while it reads
    /// the state.
    ///
    /// # Errors
    /// The folder or a file cannot be used, another process has locked it, or a file is damaged or
    /// of another version.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        Self::open_with(folder, &Options::default())
    }

    /// Opens the store with other limits.
    ///
    /// # Errors
    /// As [`EmbeddedStore::open`].
    pub fn open_with(folder: &Path, options: &Options) -> Result<Self, StoreError> {
        let limits = HistoryLimits {
            events: options.history_events,
            bytes: options.history_bytes,
            unpacked: READ_AT_ONCE,
        };
        let folder = Arc::new(Folder::open(folder, options.disk.clone())?);
        let found = recover::recover(&folder, limits)?;
        let segments = SegmentOptions {
            bytes: options.segment_bytes,
            spare: options.spare_bytes,
        };
        // A new segment at each start: the last frame of an old one may be torn, and recovery would
        // not read what follows it.
        let log = Log::open(
            folder.clone(),
            segments,
            found.log_bytes,
            found.published.head(),
        )?;
        let shared = Arc::new(Shared {
            memory: Arc::new(Memory::new(found.published)),
            failure: watch::Sender::new(None),
        });
        let jobs = Arc::new(Queue::new(options.queue));
        // The keeper has at most one task of each type.
        let (tasks, asked) = mpsc::sync_channel(2);
        let writer = Writer::new(
            shared.clone(),
            jobs.clone(),
            log,
            tasks,
            folder,
            options.clone(),
            found.state_bytes,
        );
        let answers = jobs.clone();
        let threads = vec![
            spawn("store-writer", move || writer.run())?,
            spawn("store-keeper", move || keeper::run(&asked, &answers))?,
        ];
        let (value_bytes, transaction_bytes) = (options.value_bytes, options.transaction_bytes);
        Ok(Self {
            shared,
            jobs,
            threads: Mutex::new(threads),
            value_bytes,
            transaction_bytes,
        })
    }

    /// Waits until the store cannot write any more for another reason than a full disk, and returns
    /// the error; waits for ever if that never happens. From then on every write is refused.
    /// Whether the failed write is on disk shows at the next [`EmbeddedStore::open`], so the
    /// process should exit.
    pub fn failed(&self) -> impl Future<Output = Arc<StoreError>> + Send + use<> {
        let mut failure = self.shared.failure.subscribe();
        async move {
            let found = failure
                .wait_for(Option::is_some)
                .await
                .ok()
                .and_then(|found| found.clone());
            match found {
                Some(why) => why,
                // The store was closed normally.
                None => std::future::pending().await,
            }
        }
    }

    fn check(&self, ops: &[Op]) -> Result<(), StoreError> {
        if ops.len() > MAX_OPS {
            return Err(StoreError::Invalid(format!(
                "a transaction has {} parts, limit {MAX_OPS}",
                ops.len()
            )));
        }
        let mut total = 0;
        let mut written = HashSet::with_capacity(ops.len());
        for op in ops {
            table_of(&op.key)?;
            // Both writes would have one revision: a watcher could not know which value is the
            // last.
            if !matches!(op.action, Action::Check) && !written.insert(&op.key) {
                return Err(StoreError::Invalid(format!(
                    "{} is written twice in one transaction",
                    op.key
                )));
            }
            let Action::Put(value) = &op.action else {
                continue;
            };
            total += value.len();
            if value.len() > self.value_bytes {
                let (len, limit) = (value.len(), self.value_bytes);
                return Err(StoreError::Invalid(format!(
                    "the value of {} has {len} bytes, limit {limit}",
                    op.key
                )));
            }
        }
        if total > self.transaction_bytes {
            let limit = self.transaction_bytes;
            return Err(StoreError::Invalid(format!(
                "a transaction's values have {total} bytes, limit {limit}"
            )));
        }
        Ok(())
    }

    async fn submit<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Job,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.jobs
            .push(job(answer))
            .map_err(|refused| match refused {
                Refused::Full => StoreError::Busy,
                Refused::Closed => StoreError::Closed,
            })?;
        // The writer drops jobs without an answer after it failed.
        answered.await.unwrap_or(Err(StoreError::Closed))
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(StoreError::Folder)
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        // The writer ends when its queue is closed, the keeper when the writer has ended; joining
        // them releases the folder's lock before this returns.
        self.jobs.close();
        if self.shared.failure.borrow().is_some() {
            // A failing disk may block the keeper in the kernel, and the process is about to exit.
            return self.shared.memory.close();
        }
        for thread in self
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
        self.shared.memory.close();
    }
}

impl Store for EmbeddedStore {
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        Box::pin(async { self.shared.memory.head() })
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>> {
        Box::pin(async move { self.shared.memory.get(key) })
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>> {
        Box::pin(async move { self.shared.memory.list(&query) })
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(async move {
            // Before the queue: an invalid transaction costs the writer no time.
            self.check(&ops)?;
            self.submit(|answer| Job::Commit { ops, answer }).await
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>> {
        Box::pin(async move { self.shared.memory.watch(Some(prefix), after) })
    }

    fn changes(&self, after: Revision) -> BoxFuture<'_, Result<Box<dyn WatchStream>, StoreError>> {
        Box::pin(async move { self.shared.memory.watch(None, after) })
    }

    fn everything(&self) -> BoxFuture<'_, Result<Listing, StoreError>> {
        Box::pin(async move { Ok(self.shared.memory.read()?.everything()) })
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.submit(|answer| Job::Compact { revision, answer })
                .await
        })
    }
}
