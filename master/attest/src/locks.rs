//! Locks by which exchanges of one Machine are concluded one after another.

use std::hash::{BuildHasher as _, RandomState};
use tokio::sync::{Mutex, MutexGuard};

/// Number of locks. Machines are distributed among them by hash; two that share a lock wait for
/// each other without need.
const LOCKS: u64 = 64;

/// The locks.
#[derive(Debug)]
pub(crate) struct MachineLocks {
    locks: Vec<Mutex<()>>,
    hasher: RandomState,
}

/// Holding one proves: no other exchange with the same Machine or the same endorsement key is being
/// concluded.
#[derive(Debug)]
pub(crate) struct MachineLock<'a> {
    _first: MutexGuard<'a, ()>,
    _second: Option<MutexGuard<'a, ()>>,
}

impl Default for MachineLocks {
    fn default() -> Self {
        Self {
            locks: (0..LOCKS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl MachineLocks {
    /// Waits until no other exchange of this Machine or of this endorsement key is being concluded.
    pub(crate) async fn lock(&self, machine: &str, ek: &str) -> MachineLock<'_> {
        let (machine, ek) = (self.index(machine), self.index(ek));
        // Always in ascending order, so that two exchanges never wait for each other.
        let first = self.locks[machine.min(ek)].lock().await;
        let second = if machine == ek {
            None
        } else {
            Some(self.locks[machine.max(ek)].lock().await)
        };
        MachineLock {
            _first: first,
            _second: second,
        }
    }

    fn index(&self, name: &str) -> usize {
        usize::try_from(self.hasher.hash_one(name) % LOCKS).unwrap_or(0)
    }
}
