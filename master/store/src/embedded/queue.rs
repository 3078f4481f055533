//! The writer's queue: bounded for callers, taken in groups, with a time limit for waiting.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Why a job was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The queue is full.
    Full,
    /// The queue is closed.
    Closed,
}

#[derive(Debug)]
struct State<T> {
    jobs: VecDeque<T>,
    closed: bool,
    waiting: bool,
}

/// A queue with one consumer.
#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    limit: usize,
}

impl<T> Queue<T> {
    pub(super) fn new(limit: usize) -> Self {
        let state = State {
            jobs: VecDeque::new(),
            closed: false,
            waiting: false,
        };
        Self {
            state: Mutex::new(state),
            filled: Condvar::new(),
            limit,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a caller's job.
    pub(super) fn push(&self, job: T) -> Result<(), Refused> {
        self.add(job, self.limit)
    }

    /// Adds a job of the engine itself; there are never more than a few.
    pub(super) fn push_own(&self, job: T) {
        // A closed queue drops it.
        self.add(job, usize::MAX).ok();
    }

    fn add(&self, job: T, limit: usize) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.jobs.len() >= limit {
            return Err(Refused::Full);
        }
        state.jobs.push_back(job);
        // A system call for each job would cost more than most jobs: the consumer is woken only if
        // it sleeps.
        let wake = std::mem::take(&mut state.waiting);
        drop(state);
        if wake {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Takes up to `most` jobs and waits for the first until `deadline`. Returns false if the queue
    /// is closed and empty.
    pub(super) fn take(&self, most: usize, deadline: Instant, into: &mut Vec<T>) -> bool {
        let mut state = self.lock();
        while state.jobs.is_empty() {
            if state.closed {
                return false;
            }
            let Some(left) = deadline
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())
            else {
                return true;
            };
            // Set under the lock that the wait releases, so that no job is added in between without
            // a wake-up.
            state.waiting = true;
            state = self
                .filled
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            state.waiting = false;
        }
        let count = state.jobs.len().min(most);
        into.extend(state.jobs.drain(..count));
        true
    }

    /// Accepts no more jobs; queued ones are still taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
    }

    /// Accepts no more jobs and drops the queued ones.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        state.closed = true;
        let dropped = std::mem::take(&mut state.jobs);
        drop(state);
        // Outside the lock: dropped jobs wake their callers, who may come back at once.
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_full_queue_refuses_only_callers_and_a_closed_one_is_drained() {
        let queue = Queue::new(2);
        assert_eq!(
            (queue.push(1), queue.push(2), queue.push(3)),
            (Ok(()), Ok(()), Err(Refused::Full))
        );
        queue.push_own(4);
        queue.close();
        assert_eq!(queue.push(5), Err(Refused::Closed));
        let mut taken = Vec::new();
        let soon = Instant::now() + Duration::from_secs(5);
        assert!(queue.take(2, soon, &mut taken) && queue.take(2, soon, &mut taken));
        assert_eq!(taken, [1, 2, 4]);
        assert!(!queue.take(2, soon, &mut taken));
    }

    #[test]
    fn an_idle_queue_gives_its_taker_a_turn_at_the_deadline() {
        let queue = Queue::<u8>::new(1);
        let mut taken = Vec::new();
        assert!(queue.take(1, Instant::now() + Duration::from_millis(5), &mut taken));
        assert!(taken.is_empty());
    }
}
