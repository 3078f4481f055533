//! The writer thread: checks preconditions, flushes many transactions at once, then publishes and
//! answers. Between groups it limits the store's size: compaction by age, state files.

use super::folder::Folder;
use super::frame;
use super::keeper::Task;
use super::log::{BlankSegment, Log};
use super::queue::Queue;
use super::record::Record;
use super::{Options, Shared};
use crate::error::StoreError;
use crate::history::Published;
use crate::model::{Action, Committed, Entry, Event, Expect, Op, Revision};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// A job of the writer, from callers and from its keeper.
#[derive(Debug)]
pub(super) enum Job {
    Commit {
        ops: Vec<Op>,
        answer: Answer<Committed>,
    },
    Compact {
        revision: Revision,
        answer: Answer<()>,
    },
    /// The keeper created the next log segment, or failed to.
    Prepared(Result<BlankSegment, StoreError>),
    /// The keeper wrote a state file of this number of bytes, or failed to.
    Saved(Result<u64, StoreError>),
}

/// A transaction of a group, and the channel for its answer.
struct QueuedCommit {
    ops: Vec<Op>,
    answer: Answer<Committed>,
}

/// Approximate bytes of values per flush.
const GROUP_BYTES: usize = 4 << 20;
/// Number of recorded revisions within one history age, by which compaction by age proceeds.
const MARKS: u32 = 5;
/// Pause after a state file could not be written.
const SAVE_RETRY: Duration = Duration::from_secs(60);

/// Approximate bytes of an operation in a frame.
fn weight(op: &Op) -> usize {
    let value = match &op.action {
        Action::Put(value) => value.len(),
        Action::Check | Action::Delete => 0,
    };
    value + op.key.len() + 32
}

/// The changes of a group of transactions before they are published.
#[derive(Default)]
struct Pending {
    entries: HashMap<Arc<str>, Option<Entry>>,
    events: Vec<Event>,
    head: Revision,
    /// Refusals are delayed too: they may reveal writes of this group, which no caller may learn of
    /// before they are durable and readable.
    answers: Vec<(Answer<Committed>, Result<Revision, StoreError>)>,
}

impl Pending {
    /// The entry after the earlier transactions of this group.
    fn find<'a>(&'a self, published: &'a Published, key: &str) -> Option<&'a Entry> {
        match self.entries.get(key) {
            Some(pending) => pending.as_ref(),
            None => published.get(key),
        }
    }

    /// Checks one transaction and adds its events. All preconditions are checked before any event
    /// is added, and against the earlier transactions of this group.
    fn admit(
        &mut self,
        published: &Published,
        ops: Vec<Op>,
        full: Option<&str>,
    ) -> Result<Revision, StoreError> {
        for op in &ops {
            let found = self.find(published, &op.key).map(|entry| entry.modified);
            let holds = match op.expect {
                Expect::Any => true,
                Expect::Absent => found.is_none(),
                Expect::Revision(revision) => found == Some(revision),
            };
            if !holds {
                return Err(StoreError::Conflict {
                    key: op.key.to_string(),
                    found,
                });
            }
        }
        // After the preconditions, as a conflict is the more useful error. Deletions are accepted
        // on a full disk, so that an admin can free room.
        if let Some(why) = full
            && ops.iter().any(|op| matches!(op.action, Action::Put(_)))
        {
            return Err(StoreError::Full(why.to_owned()));
        }
        let revision = self.head + 1;
        let before = self.events.len();
        for op in ops {
            let before = self.find(published, &op.key).cloned();
            let now = match op.action {
                Action::Check => continue,
                // No event: watchers would get the deletion of a key that they never saw.
                Action::Delete if before.is_none() => continue,
                Action::Delete => None,
                Action::Put(value) => Some(Entry {
                    // The table's copy of the key, so that its many versions share one string.
                    key: before
                        .as_ref()
                        .map_or_else(|| op.key.clone(), |entry| entry.key.clone()),
                    value: value.into(),
                    created: before.as_ref().map_or(revision, |entry| entry.created),
                    modified: revision,
                }),
            };
            let key = before.as_ref().map_or(op.key, |entry| entry.key.clone());
            self.entries.insert(key.clone(), now.clone());
            self.events.push(Event::new(revision, key, now, before));
        }
        // A transaction without changes gets no revision: watchers would wait for an event that
        // never comes.
        if self.events.len() > before {
            self.head = revision;
        }
        Ok(self.head)
    }
}

/// The writer's state.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    queue: Arc<Queue<Job>>,
    log: Log,
    keeper: mpsc::SyncSender<Task>,
    folder: Arc<Folder>,
    options: Options,
    frame: Vec<u8>,
    /// Bytes of the newest state file.
    state_bytes: u64,
    /// Bytes of changes that the state file being written will replace; `None` while none is
    /// written.
    saving: Option<u64>,
    /// No state file is written before this time: the last attempt failed.
    save_after: Instant,
    /// The head at past times, oldest first, for compaction by age.
    marks: VecDeque<(Instant, Revision)>,
    next_mark: Instant,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        queue: Arc<Queue<Job>>,
        log: Log,
        keeper: mpsc::SyncSender<Task>,
        folder: Arc<Folder>,
        options: Options,
        state_bytes: u64,
    ) -> Self {
        let now = Instant::now();
        Self {
            shared,
            queue,
            log,
            keeper,
            folder,
            options,
            frame: Vec::new(),
            state_bytes,
            saving: None,
            save_after: now,
            marks: VecDeque::new(),
            next_mark: now,
        }
    }

    /// Works until the queue is closed or a file operation fails: then nothing is written any more,
    /// the published state stays readable, and [`crate::EmbeddedStore::failed`] returns the error.
    pub(super) fn run(mut self) {
        let mut jobs = Vec::new();
        loop {
            if let Err(error) = self.keep() {
                return self.stop(error);
            }
            // Not longer than until the next mark: an idle store compacts by age, too.
            if !self
                .queue
                .take(self.options.group.max(1), self.next_mark, &mut jobs)
            {
                return;
            }
            while !jobs.is_empty() {
                if let Err(error) = self.group(&mut jobs) {
                    return self.stop(error);
                }
            }
        }
    }

    /// Refuses all waiting and later writes. The queue is closed first: a caller that learns of the
    /// failure must not be able to queue another write.
    fn stop(&self, error: StoreError) {
        self.queue.abandon();
        self.shared.fail(error);
    }

    /// Takes jobs of up to [`GROUP_BYTES`] from the front and executes them. After an error the
    /// disk cannot be trusted: nothing of the group is published or acknowledged.
    fn group(&mut self, jobs: &mut Vec<Job>) -> Result<(), StoreError> {
        let (mut bytes, mut count) = (0, 0);
        // At least one job, however large: a transaction has its own limit.
        for job in jobs.iter() {
            if let Job::Commit { ops, .. } = job {
                bytes += ops.iter().map(weight).sum::<usize>();
            }
            count += 1;
            if bytes >= GROUP_BYTES {
                break;
            }
        }
        let mut commits = Vec::with_capacity(count);
        for job in jobs.drain(..count) {
            match job {
                Job::Commit { ops, answer } => commits.push(QueuedCommit { ops, answer }),
                Job::Compact { revision, answer } => {
                    // A compaction must include the commits queued before it.
                    self.commit(std::mem::take(&mut commits), bytes)?;
                    self.compact(revision)?;
                    reply(answer, Ok(()));
                }
                Job::Prepared(made) => self.log.prepared(made)?,
                Job::Saved(outcome) => self.saved(outcome)?,
            }
        }
        self.commit(commits, bytes)
    }

    fn commit(&mut self, commits: Vec<QueuedCommit>, bytes: usize) -> Result<(), StoreError> {
        if commits.is_empty() {
            return Ok(());
        }
        // The lock is released at once: new watches wait for it, and making room can mean writing a
        // whole segment.
        let mut pending = Pending {
            head: self.shared.memory.published().head(),
            ..Pending::default()
        };
        let full = match self.log.room(bytes as u64, pending.head) {
            Ok(()) => None,
            Err(StoreError::Full(why)) => Some(why),
            Err(error) => return Err(error),
        };
        {
            let published = self.shared.memory.published();
            for QueuedCommit { ops, answer } in commits {
                let outcome = pending.admit(&published, ops, full.as_deref());
                pending.answers.push((answer, outcome));
            }
        }
        if !pending.events.is_empty() {
            // One frame for the whole group: if its write is torn, nothing of it counts, and no
            // caller has an answer yet.
            frame::start(&mut self.frame);
            for event in &pending.events {
                let value = event.value();
                Record::of_event(event, value.as_ref()).write(&mut self.frame);
            }
            match self.log.append(&mut self.frame) {
                Ok(()) => self
                    .shared
                    .memory
                    .publish(pending.head, std::mem::take(&mut pending.events)),
                Err(StoreError::Full(why)) => {
                    // Refusals are replaced, too: they may be due to a write of this group, which
                    // did not happen.
                    for (answer, _) in pending.answers {
                        reply(answer, Err(StoreError::Full(why.clone())));
                    }
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        for (answer, outcome) in pending.answers {
            reply(answer, outcome.map(|revision| Committed { revision }));
        }
        // Frees the buffer of a large group.
        self.frame.shrink_to(1 << 20);
        Ok(())
    }

    /// Compacts history and logs the compaction.
    fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
        let head = self.shared.memory.compact(revision);
        frame::start(&mut self.frame);
        Record::Compact {
            revision: revision.min(head),
        }
        .write(&mut self.frame);
        match self
            .log
            .room(self.frame.len() as u64, head)
            .and_then(|()| self.log.append(&mut self.frame))
        {
            // Without this record the history returns after a restart, which costs memory and does
            // no harm.
            Ok(()) | Err(StoreError::Full(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Work that is due between groups.
    fn keep(&mut self) -> Result<(), StoreError> {
        let now = Instant::now();
        if self.log.wants_next() {
            let (folder, segments) = self.log.segments();
            // The channel has room for one task of each type: never waits for a busy keeper, which
            // is asked again after the next group.
            self.log.preparing = self
                .keeper
                .try_send(Task::Prepare(folder, segments))
                .is_ok();
        }
        if now >= self.next_mark {
            self.next_mark = now + self.options.history_age / MARKS;
            self.forget_old(now)?;
        }
        // A state file contains the whole state. It is written once the log is as long as the last
        // one, so that all bytes written stay within a small multiple of those of the changes.
        let worth = self.options.log_bytes.max(self.state_bytes);
        if self.saving.is_none() && self.log.bytes > worth && now >= self.save_after {
            self.save(now)?;
        }
        Ok(())
    }

    /// Compacts history up to the newest recorded revision that is older than the limit.
    fn forget_old(&mut self, now: Instant) -> Result<(), StoreError> {
        let mut old = None;
        while let Some((when, head)) = self.marks.front()
            && now.duration_since(*when) >= self.options.history_age
        {
            old = Some(*head);
            self.marks.pop_front();
        }
        let head = self.shared.memory.published().head();
        self.marks.push_back((now, head));
        match old {
            Some(revision) if revision > self.shared.memory.published().floor() => {
                self.compact(revision)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Lets the keeper write the state, so that the logs before it can be removed.
    fn save(&mut self, now: Instant) -> Result<(), StoreError> {
        let head = self.shared.memory.published().head();
        // The new segment begins at the revision of the capture below, as nothing is published in
        // between: the state file and the logs that stay meet without a gap.
        match self.log.cut(head) {
            Ok(()) => {}
            Err(StoreError::Full(_)) => {
                self.save_after = now + SAVE_RETRY;
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let capture = Box::new(self.shared.memory.published().capture());
        if self
            .keeper
            .try_send(Task::Save(self.folder.clone(), capture))
            .is_ok()
        {
            self.saving = Some(std::mem::take(&mut self.log.bytes));
        } else {
            self.save_after = now + SAVE_RETRY;
        }
        Ok(())
    }

    fn saved(&mut self, outcome: Result<u64, StoreError>) -> Result<(), StoreError> {
        let taken = self.saving.take().unwrap_or_default();
        match outcome {
            Ok(bytes) => {
                tracing::debug!(
                    bytes,
                    "wrote the store's state file and removed the logs before it"
                );
                self.state_bytes = bytes;
            }
            Err(StoreError::Full(why)) => {
                tracing::error!(
                    error = why,
                    "cannot write the store's state file; the logs grow until it succeeds"
                );
                // The logs that it would have replaced are still there.
                self.log.bytes += taken;
                self.save_after = Instant::now() + SAVE_RETRY;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Answers a job; a caller that no longer waits is not an error.
fn reply<T>(answer: Answer<T>, result: Result<T, StoreError>) {
    if answer.send(result).is_err() {
        tracing::trace!("the caller of a write dropped it before its answer");
    }
}
