//! The writer thread: expectations, one flush for many transactions, then publication and answers.

use super::Shared;
use super::disk::{Disk, Write};
use crate::error::StoreError;
use crate::history::Published;
use crate::model::{Action, Committed, Entry, Event, Expect, Op, Revision};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the writer is asked to do.
#[derive(Debug)]
pub(super) enum Job {
    Commit { ops: Vec<Op>, answer: Answer<Committed> },
    Compact { revision: Revision, answer: Answer<()> },
}

pub(super) struct Writer {
    disk: Disk,
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Job>,
    group: usize,
    /// Commits since the on-disk history was last cut to what the published one keeps.
    untrimmed: usize,
}

/// Writes between two cuts of the on-disk history.
const TRIM_EVERY: usize = 4096;

/// Keys that a group of transactions changes, before they are published.
#[derive(Default)]
struct Pending {
    entries: HashMap<Arc<str>, Option<Entry>>,
    transactions: Vec<(Revision, Vec<Event>)>,
    answers: Vec<(Answer<Committed>, Revision)>,
}

impl Pending {
    fn find<'a>(&'a self, published: &'a Published, key: &str) -> Option<&'a Entry> {
        match self.entries.get(key) {
            Some(pending) => pending.as_ref(),
            None => published.get(key),
        }
    }

    fn head(&self, published: &Published) -> Revision {
        self.transactions.last().map_or(published.head(), |(revision, _)| *revision)
    }

    /// Checks one transaction and adds its events.
    fn admit(&mut self, published: &Published, ops: Vec<Op>) -> Result<Revision, StoreError> {
        for op in &ops {
            let found = self.find(published, &op.key).map(|entry| entry.modified);
            let holds = match op.expect {
                Expect::Any => true,
                Expect::Absent => found.is_none(),
                Expect::Revision(revision) => found == Some(revision),
            };
            if !holds {
                return Err(StoreError::Conflict { key: op.key.to_string(), found });
            }
        }
        let head = self.head(published);
        let revision = head + 1;
        let mut events = Vec::with_capacity(ops.len());
        for op in ops {
            let before = self.find(published, &op.key).cloned();
            let now = match op.action {
                Action::Check => continue,
                Action::Delete if before.is_none() => continue,
                Action::Delete => None,
                Action::Put(value) => Some(Entry {
                    key: op.key.clone(),
                    value,
                    created: before.as_ref().map_or(revision, |entry| entry.created),
                    modified: revision,
                }),
            };
            self.entries.insert(op.key.clone(), now.clone());
            events.push(Event::new(revision, op.key, now, before));
        }
        if events.is_empty() {
            return Ok(head);
        }
        self.transactions.push((revision, events));
        Ok(revision)
    }
}

impl Writer {
    pub(super) fn new(disk: Disk, shared: Arc<Shared>, queue: mpsc::Receiver<Job>, group: usize) -> Self {
        Self { disk, shared, queue, group: group.max(1), untrimmed: 0 }
    }

    pub(super) fn run(mut self) {
        let mut jobs = Vec::new();
        loop {
            let taken = self.queue.blocking_recv_many(&mut jobs, self.group);
            if taken == 0 {
                return;
            }
            if let Err(error) = self.work(std::mem::take(&mut jobs)) {
                tracing::error!(error = %error, cause = ?std::error::Error::source(&error), "the store's writer stops");
                self.shared.close();
                return;
            }
        }
    }

    /// One group. An error here means that the disk can't be trusted any more: nothing of it is published or
    /// answered with success.
    fn work(&mut self, jobs: Vec<Job>) -> Result<(), StoreError> {
        let mut pending = Pending::default();
        let mut compactions = Vec::new();
        {
            let published = self.shared.read()?;
            for job in jobs {
                match job {
                    Job::Commit { ops, answer } => match pending.admit(&published, ops) {
                        Ok(revision) => pending.answers.push((answer, revision)),
                        Err(error) => reply(answer, Err(error)),
                    },
                    Job::Compact { revision, answer } => compactions.push((revision, answer)),
                }
            }
        }
        if !pending.transactions.is_empty() {
            let events = pending.transactions.iter().flat_map(|(_, events)| events);
            self.untrimmed += self.disk.commit(events.map(Write::of))?;
            self.publish(std::mem::take(&mut pending.transactions));
        }
        for (answer, revision) in pending.answers {
            reply(answer, Ok(Committed { revision }));
        }
        self.compact(compactions)
    }

    fn publish(&self, transactions: Vec<(Revision, Vec<Event>)>) {
        let mut published = self.shared.write();
        let since = published.head();
        for (revision, events) in transactions {
            published.publish(revision, events);
        }
        published.notify(since);
    }

    fn compact(&mut self, compactions: Vec<(Revision, Answer<()>)>) -> Result<(), StoreError> {
        if compactions.is_empty() && self.untrimmed < TRIM_EVERY {
            return Ok(());
        }
        let floors = {
            let mut published = self.shared.write();
            for (revision, _) in &compactions {
                published.compact(*revision);
            }
            published.floors()
        };
        self.disk.trim(&floors)?;
        self.untrimmed = 0;
        for (_, answer) in compactions {
            reply(answer, Ok(()));
        }
        Ok(())
    }
}

/// Answers; a caller that went away is no fault.
fn reply<T>(answer: Answer<T>, result: Result<T, StoreError>) {
    if answer.send(result).is_err() {
        tracing::trace!("the caller of a write went away before its answer");
    }
}
