//! Measures for how long pods have been ready, on the monotonic clock. The times in conditions are
//! of the wall clock. If that is set back, all pods of a workload would have become ready in the
//! future: they would not be available, and a rollout would delete them first, as upstream's does.
//! So the wall clock is read once for each pod.

use super::pod::OwnedPod;
use jiff::{SignedDuration, Timestamp};
use master_client::{Entries, Key};
use master_control::controller::Now;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The known times of the pods of all owners with `minReadySeconds`.
#[derive(Debug, Default)]
pub struct ReadyTimes(Mutex<HashMap<Key, OfPods>>);

/// By a pod's UID; `None`: it was seen, and was not ready.
type OfPods = HashMap<String, Option<Since>>;

/// For how long a pod had been ready when it was first seen ready.
#[derive(Debug, Clone, Copy)]
struct Since {
    /// The time in its condition. If that changes, the pod was not ready in between.
    said: Timestamp,
    seen: Instant,
    age: SignedDuration,
}

impl Since {
    fn of(said: Timestamp, known: Option<&Option<Self>>, least: i32, now: Now) -> Self {
        let age = now.wall.duration_since(said);
        let age = match known {
            Some(Some(known)) if known.said == said => return *known,
            // It has just become ready; the clock of its node may be ahead.
            Some(_) => age.max(SignedDuration::ZERO),
            // A new process finds it ready. A time in the future means that a clock was set back.
            // To take a serving pod for a new one could cost it; to take a new pod for an available
            // one only lets a rollout continue a few seconds early.
            None if age.is_negative() => SignedDuration::from_secs(i64::from(least)),
            None => age,
        };
        Self {
            said,
            seen: now.instant,
            age,
        }
    }

    /// When it became ready, by the clock as it is now.
    fn on_clock(self, now: Now) -> Timestamp {
        let passed = now.instant.saturating_duration_since(self.seen);
        let age = SignedDuration::try_from(passed).map_or(SignedDuration::MAX, |passed| {
            self.age.saturating_add(passed)
        });
        now.wall.checked_sub(age).unwrap_or(Timestamp::MIN)
    }
}

impl ReadyTimes {
    /// The pods of an owner, with the time since which each is ready converted to the present wall
    /// clock; `least` is the owner's `minReadySeconds`.
    pub fn on_clock(
        &self,
        owner: &Key,
        least: i32,
        mut pods: Entries<OwnedPod>,
        now: Now,
    ) -> Entries<OwnedPod> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.remove(owner).unwrap_or_default();
        if least == 0 {
            return pods;
        }
        let mut next = OfPods::with_capacity(pods.len());
        for (_, pod) in &mut pods {
            let before = known.get(&pod.uid);
            let since = pod.ready.map(|said| Since::of(said, before, least, now));
            next.insert(pod.uid.clone(), since);
            let Some(since) = since else { continue };
            let ready = Some(since.on_clock(now));
            let counted = OwnedPod {
                ready,
                ..OwnedPod::default()
            };
            // Most pods are available by both times, and need no copy.
            if !(pod.is_available(least, now.wall) && counted.is_available(least, now.wall)) {
                Arc::make_mut(pod).ready = ready;
            }
        }
        all.insert(owner.clone(), next);
        pods
    }

    /// Forgets an owner that was deleted.
    pub fn forget(&self, owner: &Key) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LEAST: i32 = 10;

    struct Scene {
        times: ReadyTimes,
        now: Now,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                times: ReadyTimes::default(),
                now: Now {
                    instant: Instant::now(),
                    wall: Timestamp::UNIX_EPOCH + SignedDuration::from_hours(500_000),
                },
            }
        }

        fn pass(&mut self, seconds: u64) {
            self.now.instant += Duration::from_secs(seconds);
            self.set_clock(i64::try_from(seconds).unwrap_or_default());
        }

        fn set_clock(&mut self, seconds: i64) {
            self.now.wall += SignedDuration::from_secs(seconds);
        }

        /// In how many seconds a pod that is ready since some time is available.
        fn left(&self, ready: Option<Timestamp>) -> Option<i64> {
            let pod = OwnedPod {
                uid: "a".to_owned(),
                ready,
                ..OwnedPod::default()
            };
            let key = Key::new("default", "web");
            let pods = vec![(Arc::new(Key::new("default", "a")), Arc::new(pod))];
            let pods = self.times.on_clock(&key, LEAST, pods, self.now);
            let left = pods[0].1.available_in(LEAST, self.now.wall);
            left.map(|left| left.as_secs())
        }
    }

    #[test]
    fn a_set_clock_changes_nothing_of_a_pod_that_is_known() {
        let mut scene = Scene::new();
        assert_eq!(scene.left(None), None);
        let ready = Some(scene.now.wall);
        assert_eq!(scene.left(ready), Some(10));
        scene.pass(4);
        scene.set_clock(-3600);
        assert_eq!(scene.left(ready), Some(6));
        scene.pass(6);
        assert_eq!(scene.left(ready), Some(0));
        scene.set_clock(-3600);
        assert_eq!(scene.left(ready), Some(0));
        scene.set_clock(5 * 3600);
        assert_eq!(scene.left(ready), Some(0));
        // It was not ready for a moment, which only its time shows.
        let again = Some(scene.now.wall);
        assert_eq!(scene.left(again), Some(10));
    }

    #[test]
    fn a_clock_that_is_ahead_makes_no_new_pod_available() {
        let mut scene = Scene::new();
        assert_eq!(scene.left(None), None);
        let ready = Some(scene.now.wall);
        assert_eq!(scene.left(ready), Some(10));
        scene.set_clock(3600);
        assert_eq!(scene.left(ready), Some(10));
        // The node's clock is ahead.
        assert_eq!(scene.left(None), None);
        let ahead = Some(scene.now.wall + SignedDuration::from_secs(60));
        assert_eq!(scene.left(ahead), Some(10));
        scene.pass(10);
        assert_eq!(scene.left(ahead), Some(0));
    }

    #[test]
    fn a_pod_ready_since_the_future_counts_as_available_after_a_restart() {
        let mut scene = Scene::new();
        let ready = Some(scene.now.wall);
        scene.set_clock(-3600);
        assert_eq!(scene.left(ready), Some(0));
        scene.pass(3600);
        assert_eq!(scene.left(ready), Some(0));
        let young = Scene::new();
        let ready = Some(young.now.wall - SignedDuration::from_secs(4));
        assert_eq!(young.left(ready), Some(6));
        young.times.forget(&Key::new("default", "web"));
    }
}
