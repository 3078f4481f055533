//! Turns: reads of many objects let other tasks run in between.
//!
//! The API shares its threads with TLS, attestation and renewal. A read that decodes thousands of
//! objects in one go would keep a thread from them. It works in turns instead and yields after each
//! of them ([`Turns::pause`]). A read that keeps what it decodes also needs a place
//! ([`Turns::hold`]), of which there is one less than cores: requests that all were half done would
//! hold many lists of decoded objects in memory. Places are given in the order in which they are
//! asked for. What fits in one turn asks for none.

use std::sync::LazyLock;
use std::thread::available_parallelism;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Objects that are decoded in one turn.
pub(super) const TURN: usize = 64;
/// Stored bytes after which a turn ends: a turn has at most one object more.
const TURN_BYTES: usize = 256 << 10;

/// The reads that keep decoded objects at once: one core is left for other tasks, if there are two.
static PLACES: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = available_parallelism().map_or(1, usize::from);
    Semaphore::new(cores.saturating_sub(1).max(1))
});

/// The turns of one read.
#[derive(Debug)]
pub(super) struct Turns {
    places: &'static Semaphore,
    /// The place of a read that keeps what it decodes; none in the first turn.
    place: Option<SemaphorePermit<'static>>,
    objects: usize,
    bytes: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self::among(&PLACES)
    }
}

impl Turns {
    fn among(places: &'static Semaphore) -> Self {
        Self {
            places,
            place: None,
            objects: 0,
            bytes: 0,
        }
    }

    /// Before the next object, of that many stored bytes, is decoded and kept: ends a turn that is
    /// used up, and keeps a place from the second turn on. Between two calls, and after the last
    /// one, its caller awaits nothing else: others wait for the place.
    pub(super) async fn hold(&mut self, bytes: usize) {
        if self.is_over() {
            tokio::task::yield_now().await;
            if self.place.is_none() {
                // The semaphore is never closed.
                self.place = self.places.acquire().await.ok();
            }
        }
        self.count(bytes);
    }

    /// As [`Turns::hold`], for callers that keep no decoded objects, or also await other things: it
    /// yields, but takes no place.
    pub(super) async fn pause(&mut self, bytes: usize) {
        if self.is_over() {
            tokio::task::yield_now().await;
        }
        self.count(bytes);
    }

    const fn is_over(&self) -> bool {
        self.objects >= TURN || self.bytes >= TURN_BYTES
    }

    const fn count(&mut self, bytes: usize) {
        if self.is_over() {
            self.objects = 0;
            self.bytes = 0;
        }
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use master_store::Entry;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Polls a future until it is done: its outcome, and how often it yielded.
    pub(crate) fn polled<T>(task: impl Future<Output = T>) -> (T, usize) {
        let (mut task, mut yielded) = (Box::pin(task), 0);
        loop {
            match task.as_mut().now_or_never() {
                Some(outcome) => return (outcome, yielded),
                None => yielded += 1,
            }
        }
    }

    /// A stored ConfigMap.
    pub(crate) fn map_entry() -> Entry {
        Entry {
            key: "configmaps/default/m".into(),
            value: json!({"metadata": {"name": "m", "namespace": "default"}})
                .to_string()
                .into(),
            created: 5,
            modified: 5,
        }
    }

    fn places(count: usize) -> &'static Semaphore {
        Box::leak(Box::new(Semaphore::new(count)))
    }

    async fn read(mut turns: Turns, objects: usize, bytes: usize, done: &AtomicUsize) {
        for _ in 0..objects {
            turns.hold(bytes).await;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_read_yields_after_so_many_objects_or_bytes() {
        for (bytes, turn) in [(0, TURN), (TURN_BYTES / 2, 2), (10 * TURN_BYTES, 1)] {
            let (one, done) = (places(1), AtomicUsize::new(0));
            let mut task = Box::pin(read(Turns::among(one), 3 * turn, bytes, &done));
            for polled in 1..3 {
                assert!(task.as_mut().now_or_never().is_none(), "{bytes}");
                assert_eq!(done.load(Ordering::Relaxed), polled * turn, "{bytes}");
                // From the second turn on it keeps its place.
                assert_eq!(one.available_permits(), 2 - polled, "{bytes}");
            }
            assert!(task.as_mut().now_or_never().is_some(), "{bytes}");
            assert_eq!(one.available_permits(), 1, "{bytes}");
        }
    }

    #[test]
    fn a_large_read_waits_for_a_place_and_a_small_one_does_not() {
        let (one, done) = (places(1), AtomicUsize::new(0));
        let place = one.try_acquire().unwrap();
        let small = read(Turns::among(one), TURN, 1, &done);
        assert!(small.now_or_never().is_some());
        done.store(0, Ordering::Relaxed);
        let mut large = Box::pin(read(Turns::among(one), 2 * TURN, 1, &done));
        for _ in 0..9 {
            assert!(large.as_mut().now_or_never().is_none());
            assert_eq!(done.load(Ordering::Relaxed), TURN);
        }
        drop(place);
        assert!(large.as_mut().now_or_never().is_some());
        assert_eq!(one.available_permits(), 1);
    }

    #[test]
    fn a_read_that_is_given_up_leaves_its_place() {
        let (one, done) = (places(1), AtomicUsize::new(0));
        let place = one.try_acquire().unwrap();
        let mut waiting = Box::pin(read(Turns::among(one), 2 * TURN, 1, &done));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(
            waiting.as_mut().now_or_never().is_none(),
            "it waits for the place"
        );
        drop(place);
        drop(waiting);
        assert_eq!(one.available_permits(), 1);
    }
}
