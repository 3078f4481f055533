//! Writes under way by callers that are denied with their machine.
//!
//! Guarantee: a write that was let in before its caller was denied is over when
//! [`Writes::settled`] has returned true. So no write of a machine comes after the answer that it
//! is retired.

use master_store::{Store, wait_for_writer};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Longest wait for writes, which usually take milliseconds.
const LIMIT: Duration = Duration::from_secs(20);

/// The writes under way.
#[derive(Debug, Clone)]
pub struct Writes(Arc<watch::Sender<Numbers>>);

/// Writes have consecutive numbers, in the order in which they begin.
#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    under_way: BTreeSet<u64>,
}

impl Default for Writes {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Numbers::default())))
    }
}

impl Writes {
    /// Begins a write. Ask the deny list only after this: a caller that is denied in between is
    /// then refused or waited for.
    pub fn begin(&self) -> WriteUnderWay {
        let mut number = 0;
        // Waiters wait for the end of writes only: a new one wakes none of them.
        self.0.send_if_modified(|numbers| {
            number = numbers.next;
            numbers.next += 1;
            numbers.under_way.insert(number);
            false
        });
        WriteUnderWay {
            writes: self.clone(),
            number,
        }
    }

    /// Waits until every write that began before this call is over; false after a time limit, or if
    /// the store takes no writes.
    pub async fn settled(&self, store: &dyn Store) -> bool {
        let settled = async {
            self.ended().await;
            // A write whose client went away is over for the API, but may still be in the store's
            // queue.
            wait_for_writer(store).await.is_ok()
        };
        timeout(LIMIT, settled).await.unwrap_or(false)
    }

    async fn ended(&self) {
        let begun = self.0.borrow().next;
        let earlier = |first: Option<&u64>| first.is_some_and(|first| *first < begun);
        let mut numbers = self.0.subscribe();
        // The sender lives as long as self.
        let _all_over = numbers
            .wait_for(|numbers| !earlier(numbers.under_way.first()))
            .await;
    }
}

/// A write under way; it is over when this is dropped.
#[derive(Debug)]
pub struct WriteUnderWay {
    writes: Writes,
    number: u64,
}

impl Drop for WriteUnderWay {
    fn drop(&mut self) {
        self.writes.0.send_modify(|numbers| {
            numbers.under_way.remove(&self.number);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn writes_that_began_before_are_waited_for_and_later_ones_are_not() {
        let writes = Writes::default();
        let mut context = Context::from_waker(Waker::noop());
        let (first, second) = (writes.begin(), writes.begin());
        let mut settled = pin!(writes.ended());
        assert!(settled.as_mut().poll(&mut context).is_pending());
        let later = writes.begin();
        drop(second);
        assert!(settled.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(settled.as_mut().poll(&mut context).is_ready());
        drop(later);
        assert!(pin!(writes.ended()).poll(&mut context).is_ready());
    }
}
