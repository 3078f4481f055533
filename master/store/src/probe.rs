//! Checks at a bounded rate, for health checks, whether a store's writer works.

use crate::error::StoreError;
use crate::model::{Action, Expect, Op};
use crate::traits::Store;
use std::future::Future;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long a good answer is valid.
const GOOD: Duration = Duration::from_secs(1);

/// Asks a store's writer whether it accepts writes: one question at a time, and at most one a
/// second while it does. Each question takes a slot in the writer's queue, and even anonymous
/// callers may request the health of a server.
#[derive(Debug)]
pub struct Probe {
    counts: Duration,
    good: Mutex<Option<Instant>>,
}

impl Default for Probe {
    fn default() -> Self {
        Self::of(GOOD)
    }
}

impl Probe {
    fn of(counts: Duration) -> Self {
        Self {
            counts,
            good: Mutex::default(),
        }
    }

    /// Whether the store's writer takes writes. A good answer is at most a second old, a bad one is
    /// always new.
    pub async fn takes_writes(&self, store: &dyn Store) -> bool {
        let ask = || async { !matches!(wait_for_writer(store).await, Err(StoreError::Closed)) };
        self.answer(ask).await
    }

    async fn answer<F: Future<Output = bool>>(&self, ask: impl FnOnce() -> F) -> bool {
        let mut good = self.good.lock().await;
        if good.is_some_and(|since| since.elapsed() < self.counts) {
            return true;
        }
        *good = None;
        let answer = ask().await;
        *good = answer.then(Instant::now);
        answer
    }
}

/// Waits until the writer has handled all that was submitted before this call: each of those writes
/// is then written or refused, even if no caller waits for it any more. Writes nothing itself.
///
/// # Errors
/// The writer takes no writes.
pub async fn wait_for_writer(store: &dyn Store) -> Result<(), StoreError> {
    let op = Op {
        key: "health/check".into(),
        expect: Expect::Any,
        action: Action::Check,
    };
    store.commit(vec![op]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Many concurrent callers, with `answer` for each question; returns the number of questions.
    async fn round(probe: &Arc<Probe>, answer: bool) -> usize {
        let (asked, under_way) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut askers = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let (probe, asked) = (Arc::clone(probe), Arc::clone(&asked));
            let under_way = Arc::clone(&under_way);
            askers.spawn(async move {
                let ask = || async {
                    asked.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(under_way.fetch_add(1, Ordering::Relaxed), 0);
                    tokio::task::yield_now().await;
                    under_way.fetch_sub(1, Ordering::Relaxed);
                    answer
                };
                probe.answer(ask).await
            });
        }
        let answers = askers.join_all().await;
        assert!(answers.into_iter().all(|other| other == answer));
        asked.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn many_who_ask_put_one_question_at_a_time() {
        let probe = Arc::new(Probe::of(Duration::from_secs(3600)));
        assert_eq!(
            round(&probe, false).await,
            100,
            "a bad answer is never an old one"
        );
        assert_eq!(round(&probe, true).await, 1);
        assert_eq!(round(&probe, true).await, 0, "while it counts");
        let probe = Arc::new(Probe::of(Duration::ZERO));
        assert_eq!(round(&probe, true).await, 100, "and then no longer");
    }
}
