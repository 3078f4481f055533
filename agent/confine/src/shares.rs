//! Turns at what the machine does a few times at once, of which no single one takes all.

use crate::turns::Turns;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Turns, and how many of them go to those who share a name at the same time.
#[derive(Debug)]
pub struct NamedTurns {
    all: Arc<Semaphore>,
    each: usize,
    /// Those of names that have or want a turn.
    named: Turns<Semaphore>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    // In this order: whose own turn is free finds one of all.
    _of_all: Option<OwnedSemaphorePermit>,
    _own: Option<OwnedSemaphorePermit>,
    /// Keeps the name's turns the same for all.
    _named: Arc<Semaphore>,
}

impl NamedTurns {
    /// As many turns, and as many of them for each name; one at least of both.
    pub fn new(all: usize, each: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all.max(1))),
            each: each.max(1),
            named: Turns::default(),
        }
    }

    /// Waits for one of the name's turns, and then for one of all, so that who waits for the first
    /// takes none of the second.
    ///
    /// Cancel-safe: who doesn't wait any more has no turn.
    pub async fn turn(&self, name: &str) -> Turn {
        let named = self.named(name);
        // Neither is ever closed.
        let own = named.clone().acquire_owned().await.ok();
        let of_all = self.all.clone().acquire_owned().await.ok();
        Turn {
            _of_all: of_all,
            _own: own,
            _named: named,
        }
    }

    fn named(&self, name: &str) -> Arc<Semaphore> {
        self.named.of(name, || Semaphore::new(self.each))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn now<F: Future>(wait: Pin<&mut F>) -> Option<F::Output> {
        match wait.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn many_of_one_name_leave_turns_to_another() {
        let shares = NamedTurns::new(8, 2);
        let turns: Vec<_> = (0..9).map(|_| Box::pin(shares.turn("a"))).collect();
        let turns = turns
            .into_iter()
            .map(|mut turn| now(turn.as_mut()).ok_or(turn));
        let (had, waiting): (Vec<_>, Vec<_>) = turns.partition(Result::is_ok);
        assert_eq!((had.len(), waiting.len()), (2, 7));
        let other = now(pin!(shares.turn("b")));
        assert!(other.is_some());
        assert_eq!(shares.all.available_permits(), 5);
        drop(had);
        let got = waiting.into_iter().filter_map(Result::err);
        let got: Vec<_> = got.map(|mut turn| now(turn.as_mut())).collect();
        assert_eq!(got.iter().flatten().count(), 2);
        drop((got, other));
        assert_eq!(shares.all.available_permits(), 8);
        assert_eq!(shares.named("c").available_permits(), 2);
        assert_eq!(shares.named.count(), 1);
    }

    #[test]
    fn there_is_a_turn_for_everybody_at_least() {
        let shares = NamedTurns::new(0, 0);
        let turn = now(pin!(shares.turn("a")));
        assert!(turn.is_some() && now(pin!(shares.turn("b"))).is_none());
    }
}
