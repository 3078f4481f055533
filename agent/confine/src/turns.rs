//! Locks by name. A lock to which nobody has a reference is forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Locks of one sort, by name.
#[derive(Debug)]
pub struct Turns<L>(Mutex<HashMap<String, Weak<L>>>);

impl<L> Default for Turns<L> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<L> Turns<L> {
    /// The lock of this name: the same for all who have it at the same time.
    pub fn of(&self, name: &str, make: impl FnOnce() -> L) -> Arc<L> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = all.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(make());
        all.insert(name.to_owned(), Arc::downgrade(&lock));
        lock
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_lock_as_long_as_somebody_has_it() {
        let turns = Turns::default();
        let (first, again) = (turns.of("a", || 1), turns.of("a", || 2));
        let other = turns.of("b", || 3);
        assert!(Arc::ptr_eq(&first, &again));
        assert!(!Arc::ptr_eq(&first, &other));
        drop((first, again, other));
        assert_eq!(*turns.of("a", || 4), 4);
        assert_eq!(turns.count(), 1);
    }
}
