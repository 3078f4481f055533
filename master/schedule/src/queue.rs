//! The pods that wait for a node: who is next, who waits after a failure, who waits for the cluster to change.
//!
//! Pure: the time is passed in.

use crate::request::PodRequest;
use crate::snapshot::PodKey;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Wait after a first failure (upstream's default).
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// Longest wait after failures (upstream's default).
const BACKOFF_LAST: Duration = Duration::from_secs(10);
/// After this time a pod is tried again even if nothing seems to have changed (upstream's default).
const STALE: Duration = Duration::from_secs(300);
/// Most pods that wait at once: the pods of the largest cluster that this is designed for.
pub const CAPACITY: usize = 150_000;

/// A pod in the queue.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The pod.
    pub request: PodRequest,
    /// Failures so far.
    pub failures: u32,
    /// When it came.
    since: Instant,
    /// Why it waits, as it was told last.
    told: String,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// In the order of priority and age.
    Active(Reverse<i32>, u64),
    /// Until a time.
    Backoff(Instant, u64),
    /// Until something changes, or a time.
    Unschedulable(Instant, u64),
    /// Somebody works on it.
    Taken,
}

/// Who waits. Each pod is in at most one of the orders.
#[derive(Debug, Default)]
pub struct Queue {
    pods: HashMap<PodKey, Waiting>,
    active: BTreeMap<(Reverse<i32>, u64), PodKey>,
    backoff: BTreeMap<(Instant, u64), PodKey>,
    unschedulable: BTreeMap<(Instant, u64), PodKey>,
    numbers: u64,
    /// Counts changes of the cluster, so that one during a decision is not missed.
    changes: u64,
}

impl Queue {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Whether somebody can be tried now.
    pub fn is_ready(&self) -> bool {
        !self.active.is_empty()
    }

    /// A pod came, or its demands changed; false where the queue is full.
    ///
    /// A pod that waits already with the same demands keeps its place: only its own status changed.
    pub fn push(&mut self, request: PodRequest, now: Instant) -> bool {
        let key = request.key.clone();
        if let Some(waiting) = self.pods.get_mut(&key) {
            if waiting.request == request {
                return true;
            }
            if waiting.place == Place::Taken && waiting.request.uid == request.uid {
                waiting.request = request;
                self.changes += 1;
                return true;
            }
            self.remove(&key);
        } else if self.pods.len() >= CAPACITY {
            return false;
        }
        self.numbers += 1;
        let place = (Reverse(request.priority), self.numbers);
        self.active.insert(place, key.clone());
        let place = Place::Active(place.0, place.1);
        self.pods.insert(
            key,
            Waiting {
                request,
                failures: 0,
                since: now,
                told: String::new(),
                place,
            },
        );
        true
    }

    /// A pod no longer waits.
    pub fn remove(&mut self, key: &PodKey) {
        if let Some(waiting) = self.pods.remove(key) {
            self.leave(waiting.place);
        }
    }

    /// Takes the next pod; it stays known until [`Self::remove`], [`Self::failed`] or [`Self::unschedulable`]. The number
    /// says how often the cluster had changed by now.
    pub fn take(&mut self) -> Option<(Waiting, u64)> {
        let (_, key) = self.active.pop_first()?;
        let waiting = self.pods.get_mut(&key)?;
        waiting.place = Place::Taken;
        Some((waiting.clone(), self.changes))
    }

    /// A taken pod failed for a cause that time may cure (a conflict, an error of the API).
    pub fn failed(&mut self, key: &PodKey, now: Instant) {
        self.numbers += 1;
        let number = self.numbers;
        let Some(waiting) = self
            .pods
            .get_mut(key)
            .filter(|waiting| waiting.place == Place::Taken)
        else {
            return;
        };
        waiting.failures = waiting.failures.saturating_add(1);
        let until = now + backoff(waiting.failures);
        waiting.place = Place::Backoff(until, number);
        self.backoff.insert((until, number), key.clone());
    }

    /// A taken pod fits nowhere; it waits until the cluster changes. `seen` is what [`Self::take`] gave: where the cluster
    /// changed since then, the pod only backs off.
    pub fn unschedulable(&mut self, key: &PodKey, seen: u64, now: Instant) {
        if seen != self.changes {
            self.failed(key, now);
            return;
        }
        self.numbers += 1;
        let number = self.numbers;
        let Some(waiting) = self
            .pods
            .get_mut(key)
            .filter(|waiting| waiting.place == Place::Taken)
        else {
            return;
        };
        waiting.failures = waiting.failures.saturating_add(1);
        let until = now + STALE;
        waiting.place = Place::Unschedulable(until, number);
        self.unschedulable.insert((until, number), key.clone());
    }

    /// A taken pod was bound.
    pub fn bound(&mut self, key: &PodKey, uid: &str) {
        if self
            .pods
            .get(key)
            .is_some_and(|waiting| waiting.place == Place::Taken && waiting.request.uid == uid)
        {
            self.remove(key);
        }
    }

    /// Notes why a pod waits; whether that is news.
    pub fn tell(&mut self, key: &PodKey, why: &str) -> bool {
        let Some(waiting) = self.pods.get_mut(key).filter(|waiting| waiting.told != why) else {
            return false;
        };
        why.clone_into(&mut waiting.told);
        true
    }

    /// The cluster changed so that pods may fit that did not: they are tried again, after their backoff.
    pub fn cluster_changed(&mut self, now: Instant) {
        self.changes += 1;
        for (place, key) in std::mem::take(&mut self.unschedulable) {
            let Some(waiting) = self.pods.get_mut(&key) else {
                continue;
            };
            let failed_at = place.0.checked_sub(STALE).unwrap_or(now);
            let until = (failed_at + backoff(waiting.failures)).max(now);
            waiting.place = Place::Backoff(until, place.1);
            self.backoff.insert((until, place.1), key);
        }
        self.wake(now);
    }

    /// Those whose wait is over can be tried; the time when the next one can.
    pub fn wake(&mut self, now: Instant) -> Option<Instant> {
        while let Some(key) =
            due(&mut self.backoff, now).or_else(|| due(&mut self.unschedulable, now))
        {
            let Some(waiting) = self.pods.get_mut(&key) else {
                continue;
            };
            self.numbers += 1;
            let place = (Reverse(waiting.request.priority), self.numbers);
            waiting.place = Place::Active(place.0, place.1);
            self.active.insert(place, key);
        }
        let first = |order: &BTreeMap<(Instant, u64), PodKey>| {
            order.first_key_value().map(|((until, _), _)| *until)
        };
        first(&self.backoff)
            .into_iter()
            .chain(first(&self.unschedulable))
            .min()
    }

    /// Drops every waiting pod that is not in `keep`.
    pub fn retain(&mut self, keep: &BTreeSet<PodKey>) {
        let gone: Vec<PodKey> = self
            .pods
            .keys()
            .filter(|key| !keep.contains(key))
            .cloned()
            .collect();
        for key in &gone {
            self.remove(key);
        }
    }

    fn leave(&mut self, place: Place) {
        match place {
            Place::Active(priority, number) => self.active.remove(&(priority, number)),
            Place::Backoff(until, number) => self.backoff.remove(&(until, number)),
            Place::Unschedulable(until, number) => self.unschedulable.remove(&(until, number)),
            Place::Taken => None,
        };
    }
}

impl Waiting {
    /// How long it has waited.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

fn backoff(failures: u32) -> Duration {
    BACKOFF_FIRST
        .saturating_mul(1 << failures.saturating_sub(1).min(8))
        .min(BACKOFF_LAST)
}

fn due(order: &mut BTreeMap<(Instant, u64), PodKey>, now: Instant) -> Option<PodKey> {
    let entry = order.first_entry().filter(|entry| entry.key().0 <= now)?;
    Some(entry.remove())
}
