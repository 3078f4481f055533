//! A controller's work queue: which key is to be reconciled next, and when. Sans-IO: keys, outcomes
//! and the time come in.
//!
//! Guarantees: a key is never taken again before its last run has finished; a change that comes
//! during a run leads to another run; the wait after failures doubles up to a bound; after a write
//! the key waits until the write is seen (its expectations), or for [`EXPECTATION_TIMEOUT`].
//!
//! Namespaces take turns: keys of one namespace are taken in the order in which they became due,
//! and between two of them each other namespace that has a key due is served once. Keys of
//! cluster-scoped kinds count as one namespace. At most [`MAX_PER_NAMESPACE`] keys of a namespace
//! run at once.

use master_client::Key;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Wait after the first failure (upstream's): most failures are races with another writer, whose
/// change the stores show a moment later, and people wait for the outcome.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(5);
/// The part of that wait that a change of the key does not end: a key that fails again and again
/// must not run as often as its object changes, which may be by its own writes.
pub const FAILURE_PAUSE: Duration = Duration::from_millis(500);
/// Longest wait after failures.
pub const BACKOFF_LAST: Duration = Duration::from_secs(60);
/// How long a key waits until its write is seen (upstream: `ExpectationsTimeout`): the watch may be
/// down, or no one follows the object.
pub const EXPECTATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Keys of one namespace that run at once: fewer than a controller's runs, so that long runs in one
/// namespace leave some to the others. Keys of cluster-scoped kinds have no such bound.
pub const MAX_PER_NAMESPACE: usize = 12;

/// A condition before a key is reconciled again. It checks the stores and is cheap.
pub type Expectation = Box<dyn Fn() -> bool + Send + Sync>;

/// How a run of a key ended.
pub enum Outcome {
    /// All was carried out, or there was nothing to do.
    Done {
        /// Run again after this time even if nothing changes.
        requeue: Option<Duration>,
        /// What the writes will show in the stores.
        expectations: Vec<Expectation>,
    },
    /// Something failed, or was done on an outdated version: run again after the back-off, and not
    /// before the writes that were made until then are seen.
    Retry {
        /// What those writes will show in the stores.
        expectations: Vec<Expectation>,
    },
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done {
                requeue,
                expectations,
            } => f
                .debug_struct("Done")
                .field("requeue", requeue)
                .field("expectations", &expectations.len())
                .finish(),
            Self::Retry { expectations } => f
                .debug_struct("Retry")
                .field("expectations", &expectations.len())
                .finish(),
        }
    }
}

enum Phase {
    /// In the line since a time.
    Ready(Instant),
    /// Not before a time.
    Delayed(Instant),
    /// Being reconciled; whether a change came meanwhile.
    Running(bool),
    /// Waits until its writes are seen.
    Expecting {
        expectations: Vec<Expectation>,
        changed: bool,
        requeue: Option<Instant>,
        deadline: Instant,
    },
}

struct Entry {
    phase: Phase,
    failures: u32,
    /// The earliest time of the next run, even if the key changes.
    earliest: Instant,
}

/// The keys of one namespace that are due or run.
#[derive(Default)]
struct Line {
    due: VecDeque<Arc<Key>>,
    running: usize,
    /// Whether it is among the turns.
    in_turn: bool,
}

impl Line {
    /// Whether a key may be taken.
    fn is_open(&self, namespace: &str) -> bool {
        !self.due.is_empty() && (namespace.is_empty() || self.running < MAX_PER_NAMESPACE)
    }
}

/// A line for each namespace. One without keys costs nothing.
#[derive(Default)]
struct Lines {
    all: HashMap<Arc<str>, Line>,
    /// The open lines, each once; the first one is served next.
    turns: VecDeque<Arc<str>>,
    /// Keys in all lines.
    due: usize,
}

impl Lines {
    fn push(&mut self, key: &Arc<Key>) {
        let namespace = key.namespace.as_str();
        let line = self.all.entry(namespace.into()).or_default();
        line.due.push_back(Arc::clone(key));
        self.due += 1;
        self.settle(namespace);
    }

    /// Takes a key, which runs from now on.
    fn pop(&mut self) -> Option<Arc<Key>> {
        let namespace = self.turns.pop_front()?;
        let line = self.all.get_mut(&namespace)?;
        line.in_turn = false;
        let key = line.due.pop_front()?;
        line.running += 1;
        self.due = self.due.saturating_sub(1);
        self.settle(&namespace);
        Some(key)
    }

    /// The run of a key of the namespace ended.
    fn ended(&mut self, namespace: &str) {
        if let Some(line) = self.all.get_mut(namespace) {
            line.running = line.running.saturating_sub(1);
        }
        self.settle(namespace);
    }

    /// Queues the namespace for its turn if its line is open, and forgets it if it is idle.
    fn settle(&mut self, namespace: &str) {
        let Some((name, line)) = self.all.get_key_value(namespace) else {
            return;
        };
        if line.due.is_empty() && line.running == 0 {
            self.all.remove(namespace);
            return;
        }
        if line.in_turn || !line.is_open(namespace) {
            return;
        }
        self.turns.push_back(Arc::clone(name));
        if let Some(line) = self.all.get_mut(namespace) {
            line.in_turn = true;
        }
    }
}

/// The queue of one controller. A key that is idle costs nothing.
#[derive(Default)]
pub struct WorkQueue {
    entries: HashMap<Arc<Key>, Entry>,
    lines: Lines,
    timers: BTreeSet<(Instant, Arc<Key>)>,
    expecting: BTreeSet<Arc<Key>>,
}

impl std::fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkQueue")
            .field("keys", &self.entries.len())
            .field("ready", &self.lines.due)
            .finish_non_exhaustive()
    }
}

/// A taken key, and how long it waited in the queue.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    /// The key.
    pub key: Arc<Key>,
    /// Time in the line.
    pub waited: Duration,
}

impl WorkQueue {
    /// Something about a key changed.
    pub fn add(&mut self, key: Arc<Key>, now: Instant) {
        let Some(entry) = self.entries.get_mut(&key) else {
            let entry = Entry {
                phase: Phase::Ready(now),
                failures: 0,
                earliest: now,
            };
            self.entries.insert(Arc::clone(&key), entry);
            self.lines.push(&key);
            return;
        };
        match &mut entry.phase {
            Phase::Ready(_) => {}
            Phase::Running(changed) | Phase::Expecting { changed, .. } => *changed = true,
            Phase::Delayed(at) => {
                let at = *at;
                let earlier = entry.earliest.min(at);
                self.timers.remove(&(at, Arc::clone(&key)));
                self.delay(key, earlier, now);
            }
        }
    }

    /// The next key to reconcile; `None` if nothing is due, or only keys of namespaces whose share
    /// of the runs is used up.
    pub fn take(&mut self, now: Instant) -> Option<Taken> {
        self.promote(now);
        let key = self.lines.pop()?;
        let entry = self.entries.get_mut(&key)?;
        let waited = match entry.phase {
            Phase::Ready(since) => now.saturating_duration_since(since),
            Phase::Delayed(_) | Phase::Running(_) | Phase::Expecting { .. } => Duration::ZERO,
        };
        entry.phase = Phase::Running(false);
        Some(Taken { key, waited })
    }

    /// Ends the run of a taken key; returns the wait until the next try if it failed.
    pub fn finish(&mut self, key: &Arc<Key>, outcome: Outcome, now: Instant) -> Option<Duration> {
        let entry = self.entries.get_mut(key)?;
        let Phase::Running(changed) = entry.phase else {
            return None;
        };
        self.lines.ended(&key.namespace);
        match outcome {
            Outcome::Retry { expectations } => {
                let wait = backoff(entry.failures);
                entry.failures = entry.failures.saturating_add(1);
                entry.earliest = now + wait.min(FAILURE_PAUSE);
                let at = if changed { entry.earliest } else { now + wait };
                self.await_writes(key, expectations, changed, Some(at), now);
                Some(wait)
            }
            Outcome::Done {
                requeue,
                expectations,
            } => {
                entry.failures = 0;
                entry.earliest = now;
                // A time beyond every clock never comes: an object may name one.
                let requeue = requeue.and_then(|wait| now.checked_add(wait));
                self.await_writes(key, expectations, changed, requeue, now);
                None
            }
        }
    }

    /// Delays the key until its writes are seen; not at all if they have been seen.
    fn await_writes(
        &mut self,
        key: &Arc<Key>,
        expectations: Vec<Expectation>,
        changed: bool,
        requeue: Option<Instant>,
        now: Instant,
    ) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let deadline = now + EXPECTATION_TIMEOUT;
        entry.phase = Phase::Expecting {
            expectations,
            changed,
            requeue,
            deadline,
        };
        self.timers.insert((deadline, Arc::clone(key)));
        self.expecting.insert(Arc::clone(key));
        self.check(key, now);
    }

    /// Checks the expectations of waiting keys. Call it after the stores changed.
    pub fn observe(&mut self, now: Instant) {
        for key in self.expecting.iter().cloned().collect::<Vec<_>>() {
            self.check(&key, now);
        }
    }

    /// When [`WorkQueue::take`] is worth a call at the latest, if nothing changes and no run ends;
    /// `None`: never.
    pub fn wake(&self, now: Instant) -> Option<Instant> {
        if self.lines.turns.is_empty() {
            self.timers.first().map(|(at, _)| *at)
        } else {
            Some(now)
        }
    }

    /// Keys in the queue.
    pub fn depth(&self) -> usize {
        self.lines.due
    }

    /// Keys that are known at all: in the line, delayed, running, or waiting for their writes to be
    /// seen.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Releases a key whose expectations are met.
    fn check(&mut self, key: &Arc<Key>, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let Phase::Expecting {
            expectations,
            deadline,
            ..
        } = &mut entry.phase
        else {
            return;
        };
        expectations.retain(|is_seen| !is_seen());
        if !expectations.is_empty() && now < *deadline {
            return;
        }
        // A write that was never seen may be lost: the key is planned again.
        self.release(key, now);
    }

    fn release(&mut self, key: &Arc<Key>, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let Phase::Expecting {
            expectations,
            changed,
            requeue,
            deadline,
        } = &entry.phase
        else {
            return;
        };
        let lost = !expectations.is_empty();
        let (changed, requeue, deadline) = (*changed || lost, *requeue, *deadline);
        let earliest = entry.earliest;
        self.timers.remove(&(deadline, Arc::clone(key)));
        self.expecting.remove(key);
        match (changed, requeue) {
            (true, _) => self.delay(Arc::clone(key), earliest.max(now), now),
            (false, Some(at)) => self.delay(Arc::clone(key), at, now),
            (false, None) => drop(self.entries.remove(key)),
        }
    }

    /// Puts a key into the line, now or later.
    fn delay(&mut self, key: Arc<Key>, at: Instant, now: Instant) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if at <= now {
            entry.phase = Phase::Ready(now);
            self.lines.push(&key);
        } else {
            entry.phase = Phase::Delayed(at);
            self.timers.insert((at, key));
        }
    }

    /// Puts what is due into the line.
    fn promote(&mut self, now: Instant) {
        while let Some((at, key)) = self.timers.first().cloned() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            match self.entries.get(&key).map(|entry| &entry.phase) {
                Some(Phase::Delayed(_)) => self.delay(key, now, now),
                Some(Phase::Expecting { .. }) => self.release(&key, now),
                Some(Phase::Ready(_) | Phase::Running(_)) | None => {}
            }
        }
    }
}

fn backoff(failures: u32) -> Duration {
    BACKOFF_FIRST
        .saturating_mul(1 << failures.min(16))
        .min(BACKOFF_LAST)
}
