//! The pause before the master is asked again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use tokio::time::Instant;

/// The first pause.
const FIRST: Duration = Duration::from_secs(1);
/// The longest one: a node may learn of a change so much later.
const LONGEST: Duration = Duration::from_secs(30);
/// How much longer the times of a [`Pace`] are than the pauses of a [`Backoff`].
const PACE: u32 = 120;

/// The pause between two attempts to list and watch, or to write an event, which doubles with each
/// that failed: a master that has no room for watches gets no list in their place each second. Each
/// is shorter by a random part, up to a half, so that nodes do not come back all at once.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// The master answered: the next pause is the first one again.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// How long to wait now.
    pub fn take(&mut self) -> Duration {
        // The state of a new hasher is random.
        let random = RandomState::new().hash_one(()).to_le_bytes()[0];
        let less = self.next / 2 * u32::from(random) / 256;
        let pause = self.next.saturating_sub(less);
        self.next = (self.next * 2).min(LONGEST);
        pause
    }
}

/// The least time between two turns of work that others can cause: first two minutes, doubled with
/// each turn up to an hour, each shorter by a random part up to a half. It is short again after
/// an hour without a turn that was due.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    next: Instant,
    pause: Backoff,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            next: Instant::now(),
            pause: Backoff::default(),
        }
    }
}

impl Pace {
    /// Whether a turn is due; then it counts as taken.
    pub fn is_due(&mut self) -> bool {
        let Some(late) = Instant::now().checked_duration_since(self.next) else {
            return false;
        };
        if late > LONGEST * PACE {
            self.pause.reset();
        }
        self.next = Instant::now() + self.pause.take() * PACE;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_are_short_again_after_an_answer() {
        let mut pause = Backoff::default();
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let (taken, most) = (pause.take(), Duration::from_secs(seconds));
            assert!(taken <= most && taken > most / 2, "{taken:?} of {most:?}");
        }
        pause.reset();
        assert!(pause.take() <= FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_due_ever_less_often_and_soon_again_after_a_quiet_hour() {
        let mut pace = Pace::default();
        assert!(pace.is_due());
        for minutes in [2, 4, 8, 16, 32, 60, 60] {
            let most = Duration::from_secs(60 * minutes);
            tokio::time::advance(most / 2).await;
            assert!(!pace.is_due(), "less than {minutes} minutes");
            tokio::time::advance(most / 2).await;
            assert!(pace.is_due(), "{minutes} minutes");
        }
        tokio::time::advance(LONGEST * PACE * 2 + FIRST).await;
        assert!(pace.is_due());
        tokio::time::advance(FIRST * PACE).await;
        assert!(pace.is_due());
    }

    #[test]
    fn nodes_do_not_come_back_all_at_once() {
        let first = Backoff::default().take();
        assert!((0..64).any(|_| Backoff::default().take() != first));
    }
}
