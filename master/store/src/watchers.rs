//! An index of the watched prefixes, which finds the watchers that a change concerns.
//!
//! Guarantee: a watcher is marked with the first of its changes that it has not returned, and woken
//! then; one without a mark has returned everything up to the head. So a write costs only as much
//! as the watchers that it concerns, however many watch other objects of the table, and a watcher
//! of a quiet object does not fall behind a busy table's history.
//!
//! Assumption: marks are added while the published state is locked for writing, and read and moved
//! while it is locked, so that they always agree with it.

use crate::model::Revision;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The mark of a watcher for which no change waits. No change has this revision.
const NONE: Revision = 0;

/// The position of a watcher: the first change that it has not returned.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    /// The first revision at which a change may wait, or [`NONE`]. The lock of the published state
    /// orders accesses.
    first: AtomicU64,
    added: Notify,
}

impl Mark {
    /// Notes a change. Returns true if none waited before: then the watcher must be woken.
    fn add(&self, revision: Revision) -> bool {
        let waited = self.first().is_some();
        if !waited {
            self.first.store(revision, Ordering::Relaxed);
        }
        !waited
    }

    /// The first revision at which a change may wait; `None` if everything was returned.
    pub(crate) fn first(&self) -> Option<Revision> {
        Some(self.first.load(Ordering::Relaxed)).filter(|first| *first != NONE)
    }

    /// Every change before `first` was returned; with `None`, every change.
    pub(crate) fn moved(&self, first: Option<Revision>) {
        self.first.store(first.unwrap_or(NONE), Ordering::Relaxed);
    }

    /// Waits until the watcher is woken. Cancel-safe.
    pub(crate) async fn woken(&self) {
        self.added.notified().await;
    }
}

/// Marks by the prefixes of their watchers; a watcher of all tables has the empty one.
type Index = BTreeMap<Arc<str>, Vec<Arc<Mark>>>;

/// The marks of the watchers whose prefixes `key` starts with, the longest prefix first. In the
/// sorted index other prefixes lie between these, so each step looks up the last prefix that sorts
/// up to `part`, a prefix of `key`. If the found one is no prefix of `key`, `part` is cut to what
/// the two have in common: a longer prefix of `key` would sort between the two, and would have been
/// found instead.
fn concerned<'a>(index: &'a Index, key: &str) -> impl Iterator<Item = &'a Arc<Mark>> {
    let mut rest = Some(key);
    let found = std::iter::from_fn(move || {
        loop {
            let part = rest?;
            let up_to = (Bound::Unbounded, Bound::Included(part));
            let (prefix, marks) = index.range::<str, _>(up_to).next_back()?;
            let same = std::iter::zip(part.bytes(), prefix.bytes());
            let same = same.take_while(|(one, other)| one == other).count();
            if same == prefix.len() {
                rest = same.checked_sub(1).map(|end| prefix_within(part, end));
                return Some(marks);
            }
            rest = Some(prefix_within(part, same));
        }
    });
    found.flatten()
}

/// The whole characters in the first `end` bytes: two keys can differ inside a character.
fn prefix_within(text: &str, end: usize) -> &str {
    let mut whole = (0..=end).rev().filter_map(|end| text.get(..end));
    whole.next().unwrap_or_default()
}

/// The watchers of one state.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<Index>);

impl Watchers {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watcher of a prefix, for which no change waits.
    pub(crate) fn add(self: &Arc<Self>, prefix: &str) -> Watching {
        let (prefix, mark): (Arc<str>, Arc<Mark>) = (prefix.into(), Arc::default());
        let mut index = self.index();
        let marks = index.entry(Arc::clone(&prefix)).or_default();
        marks.push(Arc::clone(&mark));
        drop(index);
        Watching {
            watchers: Arc::clone(self),
            prefix,
            mark,
        }
    }

    /// Marks the watchers that changes concern, in the order of their revisions.
    pub(crate) fn mark<'a>(&self, changes: impl Iterator<Item = (&'a str, Revision)>) -> Woken {
        let index = self.index();
        let mut woken = Vec::new();
        for (key, revision) in changes {
            let marks = concerned(&index, key).filter(|mark| mark.add(revision));
            woken.extend(marks.cloned());
        }
        Woken(woken)
    }

    /// Marks all watchers.
    pub(crate) fn mark_all(&self, revision: Revision) -> Woken {
        let index = self.index();
        let marks = index.values().flatten();
        Woken(marks.filter(|mark| mark.add(revision)).cloned().collect())
    }

    /// Wakes all watchers.
    pub(crate) fn wake_all(&self) {
        let all = self.index().values().flatten().cloned().collect();
        Woken(all).wake();
    }
}

/// Watchers that were marked, to be woken once the state is unlocked: they read it at once.
#[must_use]
#[derive(Debug)]
pub(crate) struct Woken(Vec<Arc<Mark>>);

impl Woken {
    /// Wakes them.
    pub(crate) fn wake(self) {
        for mark in self.0 {
            // `Notify` keeps one permit: a watcher that is not waiting now returns at once when it
            // waits next.
            mark.added.notify_one();
        }
    }
}

/// A watcher's entry in the index, removed when the watcher is dropped.
#[derive(Debug)]
pub(crate) struct Watching {
    watchers: Arc<Watchers>,
    prefix: Arc<str>,
    mark: Arc<Mark>,
}

impl Watching {
    /// What the watcher has not returned yet.
    pub(crate) fn mark(&self) -> &Mark {
        &self.mark
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut index = self.watchers.index();
        let Some(marks) = index.get_mut(&self.prefix) else {
            return;
        };
        if let Some(own) = marks.iter().position(|mark| Arc::ptr_eq(mark, &self.mark)) {
            marks.swap_remove(own);
        }
        if marks.is_empty() {
            index.remove(&self.prefix);
        }
    }
}

#[cfg(test)]
#[path = "watchers_tests.rs"]
mod tests;
