//! Turns: reads of many objects let other tasks run in between.
//!
//! The API shares its threads with TLS, attestation and renewal. A read that decodes thousands of
//! objects in one go would keep a thread from them. It works in turns instead and yields after each
//! of them. So that the tasks that yield do not fill the queue of those that are ready, only so
//! many may be in a turn at once that one core is left for others; they get theirs in the order in
//! which they ask. What fits in one turn does not ask.

use std::sync::LazyLock;
use std::thread::available_parallelism;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Objects that are decoded in one turn.
pub(super) const TURN: usize = 64;
/// Stored bytes after which a turn ends: a turn has at most one object more.
const TURN_BYTES: usize = 256 << 10;

/// The turns that all reads may have at once: one core is left for other tasks, if there are two.
static CORES: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = available_parallelism().map_or(1, usize::from);
    Semaphore::new(cores.saturating_sub(1).max(1))
});

/// The turns of one read. Between two calls of [`Turns::next`], and after the last one, its caller
/// awaits nothing else: others wait for its turn to end.
#[derive(Debug)]
pub(super) struct Turns {
    cores: &'static Semaphore,
    /// The place among those that are in a turn; none in the first one.
    place: Option<SemaphorePermit<'static>>,
    objects: usize,
    bytes: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self::among(&CORES)
    }
}

impl Turns {
    fn among(cores: &'static Semaphore) -> Self {
        Self {
            cores,
            place: None,
            objects: 0,
            bytes: 0,
        }
    }

    /// Before the next object, of that many stored bytes, is decoded: ends a turn that is used up
    /// and waits for another.
    pub(super) async fn next(&mut self, bytes: usize) {
        if self.is_over() {
            // Others get the place before this task runs again.
            self.place = None;
            tokio::task::yield_now().await;
            // The semaphore is never closed.
            self.place = self.cores.acquire().await.ok();
        }
        self.count(bytes);
    }

    /// As [`Turns::next`], for callers that also await other things: it yields, but takes no place.
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
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn cores(count: usize) -> &'static Semaphore {
        Box::leak(Box::new(Semaphore::new(count)))
    }

    async fn read(mut turns: Turns, objects: usize, bytes: usize, done: &AtomicUsize) {
        for _ in 0..objects {
            turns.next(bytes).await;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_read_yields_after_so_many_objects_or_bytes() {
        for (bytes, turn) in [(0, TURN), (TURN_BYTES / 2, 2), (10 * TURN_BYTES, 1)] {
            let (one, done) = (cores(1), AtomicUsize::new(0));
            let mut task = Box::pin(read(Turns::among(one), 3 * turn, bytes, &done));
            for polled in 1..3 {
                assert!(task.as_mut().now_or_never().is_none(), "{bytes}");
                assert_eq!(done.load(Ordering::Relaxed), polled * turn, "{bytes}");
                assert_eq!(one.available_permits(), 1, "it holds a place as it yields");
            }
            assert!(task.as_mut().now_or_never().is_some(), "{bytes}");
        }
    }

    #[test]
    fn a_large_read_waits_for_a_core_and_a_small_one_does_not() {
        let (one, done) = (cores(1), AtomicUsize::new(0));
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
        let (one, done) = (cores(1), AtomicUsize::new(0));
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
