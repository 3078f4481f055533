//! Turns: reads of many objects let other tasks run in between.
//!
//! The API shares its threads with TLS, attestation and renewal. A read that decodes thousands of
//! objects in one go would keep a thread from them. It works in turns instead and yields after each
//! of them ([`Turns::pause`]). A read that keeps what it decodes also needs a place
//! ([`Turns::hold`]), of which there is one less than cores: if all requests were half done, they
//! would hold many lists of decoded objects in memory. Users get places in turn, and the reads of
//! one user in the order in which they asked. A read that fits in one turn needs no place.

use config_kube::identity::party;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::thread::available_parallelism;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Objects that are decoded in one turn.
pub(super) const TURN: usize = 64;
/// Stored bytes after which a turn ends: a turn has at most one object more.
const TURN_BYTES: usize = 256 << 10;

/// The reads that keep decoded objects at once: one core is left for other tasks, if there are two.
static PLACES: LazyLock<Places> = LazyLock::new(|| {
    let cores = available_parallelism().map_or(1, usize::from);
    Places::new(cores.saturating_sub(1).max(1))
});

/// A user's line: its first read holds this while it waits for a place, the others wait for it.
type UserLine = tokio::sync::Mutex<()>;

/// The places, and the users whose reads wait for one.
#[derive(Debug)]
struct Places {
    /// Given in the order of asking. At most one read of each user waits here, so that users get
    /// places in turn.
    free: Semaphore,
    /// Where the other reads wait, by user.
    lines: Mutex<HashMap<String, Weak<UserLine>>>,
}

impl Places {
    fn new(count: usize) -> Self {
        Self {
            free: Semaphore::new(count),
            lines: Mutex::default(),
        }
    }

    /// Waits for a place.
    async fn take(&self, user: &str) -> Option<SemaphorePermit<'_>> {
        let line = self.line(user);
        let _first = line.lock().await;
        // The semaphore is never closed.
        self.free.acquire().await.ok()
    }

    /// A user's line. Those in which no read waits any more are forgotten.
    fn line(&self, user: &str) -> Arc<UserLine> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(user).and_then(Weak::upgrade) {
            return line;
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Arc::default();
        lines.insert(user.to_owned(), Arc::downgrade(&line));
        line
    }
}

/// The turns of one read.
#[derive(Debug)]
pub(super) struct Turns {
    places: &'static Places,
    /// The name that its place counts for: a user, or all service accounts of a namespace.
    user: String,
    /// The place of a read that keeps what it decodes; none in the first turn.
    place: Option<SemaphorePermit<'static>>,
    objects: usize,
    bytes: usize,
}

impl Default for Turns {
    /// The turns of a read that only pauses.
    fn default() -> Self {
        Self::among(&PLACES, "")
    }
}

impl Turns {
    /// The turns of a user's read, which may also hold a place.
    pub(super) fn of(user: &str) -> Self {
        Self::among(&PLACES, user)
    }

    fn among(places: &'static Places, user: &str) -> Self {
        Self {
            places,
            user: party(user).to_owned(),
            place: None,
            objects: 0,
            bytes: 0,
        }
    }

    /// To be called before the next object, of `bytes` stored bytes, is decoded and kept: ends a
    /// turn that is used up, and holds a place from the second turn on. Assumption: the caller
    /// awaits nothing else between the first call and the drop, as others wait for the place.
    pub(super) async fn hold(&mut self, bytes: usize) {
        if self.is_over() {
            tokio::task::yield_now().await;
            if self.place.is_none() {
                self.place = self.places.take(&self.user).await;
            }
        }
        self.count(bytes);
    }

    /// As [`Turns::hold`], but takes no place: for callers that keep no decoded objects, or await
    /// other things in between.
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

    fn places(count: usize) -> &'static Places {
        Box::leak(Box::new(Places::new(count)))
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
            let mut task = Box::pin(read(Turns::among(one, "jane"), 3 * turn, bytes, &done));
            for polled in 1..3 {
                assert!(task.as_mut().now_or_never().is_none(), "{bytes}");
                assert_eq!(done.load(Ordering::Relaxed), polled * turn, "{bytes}");
                // From the second turn on it keeps its place.
                assert_eq!(one.free.available_permits(), 2 - polled, "{bytes}");
            }
            assert!(task.as_mut().now_or_never().is_some(), "{bytes}");
            assert_eq!(one.free.available_permits(), 1, "{bytes}");
        }
    }

    #[test]
    fn a_large_read_waits_for_a_place_and_a_small_one_does_not() {
        let (one, done) = (places(1), AtomicUsize::new(0));
        let place = one.free.try_acquire().unwrap();
        let small = read(Turns::among(one, "jane"), TURN, 1, &done);
        assert!(small.now_or_never().is_some());
        done.store(0, Ordering::Relaxed);
        let mut large = Box::pin(read(Turns::among(one, "jane"), 2 * TURN, 1, &done));
        for _ in 0..9 {
            assert!(large.as_mut().now_or_never().is_none());
            assert_eq!(done.load(Ordering::Relaxed), TURN);
        }
        drop(place);
        assert!(large.as_mut().now_or_never().is_some());
        assert_eq!(one.free.available_permits(), 1);
    }

    #[test]
    fn a_read_that_is_given_up_leaves_its_place() {
        let (one, done) = (places(1), AtomicUsize::new(0));
        let place = one.free.try_acquire().unwrap();
        let mut waiting = Box::pin(read(Turns::among(one, "jane"), 2 * TURN, 1, &done));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(
            waiting.as_mut().now_or_never().is_none(),
            "it waits for the place"
        );
        drop(place);
        drop(waiting);
        assert_eq!(one.free.available_permits(), 1);
    }

    #[test]
    fn users_get_places_in_turn() {
        let one = places(1);
        let place = one.free.try_acquire().unwrap();
        let done = AtomicUsize::new(0);
        let account = |name: &str| format!("system:serviceaccount:shop:{name}");
        let users = ["crowd".to_owned(), account("a"), account("b")];
        let counts = [4, 1, 1];
        let mut reads = Vec::new();
        for (user, count) in users.iter().zip(counts) {
            for _ in 0..count {
                let turns = Turns::among(one, user);
                reads.push((user.as_str(), Box::pin(read(turns, 2 * TURN, 1, &done))));
            }
        }
        for (_, read) in &mut reads {
            // Its first turn ends, then it waits.
            assert!(read.as_mut().now_or_never().is_none());
            assert!(read.as_mut().now_or_never().is_none());
        }
        drop(place);
        let mut order = Vec::new();
        while !reads.is_empty() {
            let before = reads.len();
            reads.retain_mut(|(user, read)| {
                let ended = read.as_mut().now_or_never().is_some();
                if ended {
                    order.push(*user);
                }
                !ended
            });
            assert!(reads.len() < before, "no read got the free place");
        }
        // The accounts of a namespace count as one user.
        let [crowd, first, second] = users.each_ref().map(String::as_str);
        assert_eq!(order, [crowd, first, crowd, second, crowd, crowd]);
        assert_eq!(one.free.available_permits(), 1);
    }

    #[test]
    fn users_whose_reads_are_given_up_are_forgotten() {
        let (one, done) = (places(1), AtomicUsize::new(0));
        let _place = one.free.try_acquire().unwrap();
        for number in 0..100 {
            let turns = Turns::among(one, &number.to_string());
            let mut waiting = Box::pin(read(turns, 2 * TURN, 1, &done));
            assert!(waiting.as_mut().now_or_never().is_none());
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        assert_eq!(one.lines.lock().unwrap().len(), 1);
    }
}
