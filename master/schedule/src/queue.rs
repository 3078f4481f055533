//! The queue of pending pods: active ones, those in backoff after a failure, and unschedulable ones
//! that wait for a change of the cluster.
//!
//! It is bounded. In a full queue, a pod of higher priority replaces the one of the lowest, and any
//! other pod is left out. Pods that are left out are not remembered: all pods are listed again once
//! there is room.
//!
//! Pure: the time is passed in.

use crate::key::PodKey;
use crate::plugins::Plugins;
use crate::request::PodRequest;
use jiff::Timestamp;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Backoff after the first failure (upstream's default).
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// Maximum backoff (upstream's default).
const BACKOFF_LAST: Duration = Duration::from_secs(10);
/// After this time an unschedulable pod is tried again even without a change of the cluster
/// (upstream's default).
const UNSCHEDULABLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Pods in the queue: the number of pods of the largest cluster that this is designed for.
const CAPACITY: usize = 150_000;
/// Pods that were left out are listed again once more than a tenth of the places is free: a list of
/// all pods costs as much for one place as for thousands.
const PLACES_PER_FREE_ONE: usize = 10;
/// After this time one free place is enough: unschedulable pods may keep the queue almost full for
/// good.
const LEFT_OUT_TIMEOUT: Duration = UNSCHEDULABLE_TIMEOUT;

/// Pods of higher priority come first, and among equals the older ones.
type Rank = (Reverse<i32>, u64);

/// A pod in the queue.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The pod.
    pub request: PodRequest,
    /// Failures so far.
    pub failures: u32,
    /// When it was added.
    since: Instant,
    /// The last reported reason why it is pending.
    reported: String,
    /// The plugins that refused nodes in the last decision.
    refusing: Plugins,
    /// By its priority, and the number with which it was added.
    rank: Rank,
    position: Position,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Position {
    /// Sorted by priority and age.
    Active(Reverse<i32>, u64),
    /// Until this time.
    Backoff(Instant, u64),
    /// Until the cluster changes, or this time.
    Unschedulable(Instant, u64),
    /// A decision or write is in progress.
    Taken,
}

/// Pods that found no room since all were listed.
#[derive(Debug, Clone, Copy)]
struct LeftOut {
    /// How many; a pod that changes meanwhile counts again.
    pods: usize,
    /// Since when.
    since: Instant,
}

/// The pending pods. Each pod is in at most one of the orders by which it is tried.
#[derive(Debug)]
pub struct Queue {
    /// Pods at most.
    most: usize,
    pods: HashMap<PodKey, Waiting>,
    /// Pods that one of higher priority may replace: not those that are taken, and not those that
    /// may already be bound.
    replaceable: BTreeMap<Rank, PodKey>,
    left_out: Option<LeftOut>,
    active: BTreeMap<Rank, PodKey>,
    backoff: BTreeMap<(Instant, u64), PodKey>,
    /// By the plugins that refused them, so that an event looks only at those that it may help.
    unschedulable: BTreeMap<Plugins, BTreeMap<(Instant, u64), PodKey>>,
    numbers: u64,
    /// Counts changes of the cluster, so that a change during a decision is not missed.
    changes: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self::with_limit(CAPACITY)
    }
}

impl Queue {
    /// A queue of at most this many pods.
    pub fn with_limit(most: usize) -> Self {
        Self {
            most,
            pods: HashMap::new(),
            replaceable: BTreeMap::new(),
            left_out: None,
            active: BTreeMap::new(),
            backoff: BTreeMap::new(),
            unschedulable: BTreeMap::new(),
            numbers: 0,
            changes: 0,
        }
    }

    /// The number of pods.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether there are no pods.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Whether a pod is in the queue.
    pub fn knows(&self, key: &PodKey, uid: &str) -> bool {
        self.pods
            .get(key)
            .is_some_and(|waiting| waiting.request.uid == uid)
    }

    /// Whether a pod can be tried now.
    pub fn is_ready(&self) -> bool {
        !self.active.is_empty()
    }

    /// Adds a pod, or updates its requirements. If the queue is full, returns the pod that is left
    /// out: one of lower priority, or the pod itself.
    ///
    /// A pod that waits with the same requirements keeps its position: only its own status changed.
    pub fn push(&mut self, mut request: PodRequest, now: Instant) -> Option<PodKey> {
        let key = request.key.clone();
        let mut replaced = None;
        if let Some(waiting) = self.pods.get_mut(&key) {
            if waiting.request.uid == request.uid {
                // The API may not show yet what was written last.
                request.unscheduled = waiting.request.unscheduled.or(request.unscheduled);
                waiting.request.unscheduled = request.unscheduled;
            }
            waiting.request.generation = request.generation;
            if waiting.request == request {
                return None;
            }
            if waiting.position == Position::Taken && waiting.request.uid == request.uid {
                waiting.request = request;
                self.changes += 1;
                return None;
            }
            self.remove(&key);
        } else if self.pods.len() >= self.most {
            let since = self.left_out.map_or(now, |left_out| left_out.since);
            let pods = self.left_out() + 1;
            self.left_out = Some(LeftOut { pods, since });
            let Some(other) = self.less_important(request.priority) else {
                return Some(key);
            };
            self.remove(&other);
            replaced = Some(other);
        }
        self.numbers += 1;
        let rank = (Reverse(request.priority), self.numbers);
        self.active.insert(rank, key.clone());
        self.replaceable.insert(rank, key.clone());
        self.pods.insert(
            key,
            Waiting {
                request,
                failures: 0,
                since: now,
                reported: String::new(),
                refusing: Plugins::ALL,
                rank,
                position: Position::Active(rank.0, rank.1),
            },
        );
        replaced
    }

    /// The pod of the lowest priority, and among equals the youngest, if it is below `priority`.
    fn less_important(&self, priority: i32) -> Option<PodKey> {
        let (rank, key) = self.replaceable.last_key_value()?;
        (rank.0.0 < priority).then(|| key.clone())
    }

    /// How many pods found no room since all were listed; a pod that changes meanwhile counts
    /// again.
    pub fn left_out(&self) -> usize {
        self.left_out.map_or(0, |left_out| left_out.pods)
    }

    /// Whether all pods must be listed because some were left out: once there is room for many
    /// again, or after a while for any. Returns true once.
    pub fn must_relist(&mut self, now: Instant) -> bool {
        let Some(LeftOut { since, .. }) = self.left_out else {
            return false;
        };
        let free = self.most.saturating_sub(self.pods.len());
        let is_late = now.saturating_duration_since(since) >= LEFT_OUT_TIMEOUT;
        let is_due = free > self.most / PLACES_PER_FREE_ONE || (is_late && free > 0);
        if is_due {
            self.left_out = None;
        }
        is_due
    }

    /// Removes a pod.
    pub fn remove(&mut self, key: &PodKey) {
        if let Some(waiting) = self.pods.remove(key) {
            self.replaceable.remove(&waiting.rank);
            self.leave(waiting.position, waiting.refusing);
        }
    }

    /// Takes the next pod; it stays in the queue until [`Self::remove`], [`Self::failed`],
    /// [`Self::unclear`] or [`Self::unschedulable`]. The number counts the cluster's changes so
    /// far.
    pub fn take(&mut self) -> Option<(Waiting, u64)> {
        let (_, key) = self.active.pop_first()?;
        let waiting = self.pods.get_mut(&key)?;
        waiting.position = Position::Taken;
        self.replaceable.remove(&waiting.rank);
        Some((waiting.clone(), self.changes))
    }

    /// A taken pod failed for a reason that may pass (a conflict, an error of the API).
    pub fn failed(&mut self, key: &PodKey, now: Instant) {
        self.unclear(key, now);
        self.offer(key);
    }

    /// The same for a taken pod that may already be bound: it counts on its node until that is
    /// known, so no other pod may replace it here.
    pub fn unclear(&mut self, key: &PodKey, now: Instant) {
        self.numbers += 1;
        let number = self.numbers;
        let Some(waiting) = self
            .pods
            .get_mut(key)
            .filter(|waiting| waiting.position == Position::Taken)
        else {
            return;
        };
        waiting.failures = waiting.failures.saturating_add(1);
        let until = now + backoff(waiting.failures);
        waiting.position = Position::Backoff(until, number);
        self.backoff.insert((until, number), key.clone());
    }

    /// A taken pod fits nowhere and waits until the cluster changes; these plugins refused it.
    /// `seen` is the number that [`Self::take`] returned: if the cluster has changed since, the pod
    /// only backs off.
    pub fn unschedulable(&mut self, key: &PodKey, refusing: Plugins, seen: u64, now: Instant) {
        if seen != self.changes {
            self.failed(key, now);
            return;
        }
        self.numbers += 1;
        let number = self.numbers;
        let Some(waiting) = self
            .pods
            .get_mut(key)
            .filter(|waiting| waiting.position == Position::Taken)
        else {
            return;
        };
        waiting.failures = waiting.failures.saturating_add(1);
        waiting.refusing = refusing;
        let until = now + UNSCHEDULABLE_TIMEOUT;
        waiting.position = Position::Unschedulable(until, number);
        let alike = self.unschedulable.entry(refusing).or_default();
        alike.insert((until, number), key.clone());
        self.offer(key);
    }

    /// From now on a pod of higher priority may replace this one.
    fn offer(&mut self, key: &PodKey) {
        if let Some(waiting) = self.pods.get(key) {
            self.replaceable.insert(waiting.rank, key.clone());
        }
    }

    /// A taken pod was bound.
    pub fn bound(&mut self, key: &PodKey, uid: &str) {
        if self.pods.get(key).is_some_and(|waiting| {
            waiting.position == Position::Taken && waiting.request.uid == uid
        }) {
            self.remove(key);
        }
    }

    /// Records why a pod is pending; returns whether the reason is new.
    pub fn report(&mut self, key: &PodKey, why: &str) -> bool {
        let Some(waiting) = self
            .pods
            .get_mut(key)
            .filter(|waiting| waiting.reported != why)
        else {
            return false;
        };
        why.clone_into(&mut waiting.reported);
        true
    }

    /// Since when a pod has been known to be pending: the time of its condition, which stays while
    /// only the reason changes.
    pub(crate) fn unscheduled_since(&mut self, key: &PodKey, now: Timestamp) -> Timestamp {
        let waiting = self.pods.get_mut(key);
        waiting.map_or(now, |waiting| {
            *waiting.request.unscheduled.get_or_insert(now)
        })
    }

    /// An event may help pods which these plugins refused: those for which `helps` is true are
    /// tried again after their backoff.
    pub fn cluster_changed(
        &mut self,
        now: Instant,
        concerned_by: Plugins,
        helps: impl Fn(&PodRequest, Plugins) -> bool,
    ) {
        self.changes += 1;
        for (refusing, alike) in &mut self.unschedulable {
            if !refusing.meets(concerned_by) {
                continue;
            }
            let (pods, backoff_until) = (&mut self.pods, &mut self.backoff);
            alike.retain(|position, key| {
                let Some(waiting) = pods.get_mut(key) else {
                    return false;
                };
                if !helps(&waiting.request, *refusing) {
                    return true;
                }
                let until = again(waiting, position.0, now);
                waiting.position = Position::Backoff(until, position.1);
                backoff_until.insert((until, position.1), key.clone());
                false
            });
        }
        self.wake(now);
    }

    /// An unschedulable pod has lost the place that was kept for it, or gets none: it is tried
    /// again after its backoff.
    pub fn retry(&mut self, key: &PodKey, now: Instant) {
        let Some(waiting) = self.pods.get_mut(key) else {
            return;
        };
        let Position::Unschedulable(until, number) = waiting.position else {
            return;
        };
        if let Some(alike) = self.unschedulable.get_mut(&waiting.refusing) {
            alike.remove(&(until, number));
        }
        let until = again(waiting, until, now);
        waiting.position = Position::Backoff(until, number);
        self.backoff.insert((until, number), key.clone());
        self.wake(now);
    }

    /// Activates pods whose backoff has ended; returns the time of the next one.
    pub fn wake(&mut self, now: Instant) -> Option<Instant> {
        loop {
            let mut stale = self.unschedulable.values_mut();
            let Some(key) =
                due(&mut self.backoff, now).or_else(|| stale.find_map(|alike| due(alike, now)))
            else {
                break;
            };
            let Some(waiting) = self.pods.get_mut(&key) else {
                continue;
            };
            self.numbers += 1;
            let position = (Reverse(waiting.request.priority), self.numbers);
            waiting.position = Position::Active(position.0, position.1);
            self.active.insert(position, key);
        }
        self.unschedulable.retain(|_, alike| !alike.is_empty());
        let first = |order: &BTreeMap<(Instant, u64), PodKey>| {
            order.first_key_value().map(|((until, _), _)| *until)
        };
        first(&self.backoff)
            .into_iter()
            .chain(self.unschedulable.values().filter_map(first))
            .min()
    }

    /// Removes every pod that is not in `keep`, the list of all pods. The caller pushes those next,
    /// and with them the ones that were left out.
    pub fn retain(&mut self, keep: &BTreeSet<PodKey>) {
        self.left_out = None;
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

    fn leave(&mut self, position: Position, refusing: Plugins) {
        match position {
            Position::Active(priority, number) => self.active.remove(&(priority, number)),
            Position::Backoff(until, number) => self.backoff.remove(&(until, number)),
            Position::Unschedulable(until, number) => {
                let alike = self.unschedulable.get_mut(&refusing);
                alike.and_then(|alike| alike.remove(&(until, number)))
            }
            Position::Taken => None,
        };
    }
}

impl Waiting {
    /// How long it has been pending.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

fn backoff(failures: u32) -> Duration {
    BACKOFF_FIRST
        .saturating_mul(1 << failures.saturating_sub(1).min(8))
        .min(BACKOFF_LAST)
}

/// When the backoff of an unschedulable pod ends; `until` is the time of its next try without an
/// event.
fn again(waiting: &Waiting, until: Instant, now: Instant) -> Instant {
    let failed_at = until.checked_sub(UNSCHEDULABLE_TIMEOUT).unwrap_or(now);
    (failed_at + backoff(waiting.failures)).max(now)
}

fn due(order: &mut BTreeMap<(Instant, u64), PodKey>, now: Instant) -> Option<PodKey> {
    let entry = order.first_entry().filter(|entry| entry.key().0 <= now)?;
    Some(entry.remove())
}
