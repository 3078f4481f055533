//! Shares equal values: what the replicas of one template have in common is stored once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of remembered values.
const MAX_VALUES: usize = 32;

/// The most recent values.
#[derive(Debug)]
pub struct Recent<T: ?Sized>(Mutex<VecDeque<Arc<T>>>);

impl<T: ?Sized> Default for Recent<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: PartialEq + ?Sized> Recent<T> {
    /// The equal value seen before, or this one.
    pub fn one(&self, value: Arc<T>) -> Arc<T> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.iter().find(|known| **known == value) {
            return Arc::clone(known);
        }
        seen.truncate(MAX_VALUES - 1);
        seen.push_front(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_shared_and_their_number_is_bounded() {
        let recent = Recent::<str>::default();
        let first = recent.one("a".into());
        assert!(Arc::ptr_eq(&first, &recent.one("a".into())));
        for number in 0..MAX_VALUES {
            recent.one(number.to_string().into());
        }
        assert!(!Arc::ptr_eq(&first, &recent.one("a".into())));
    }
}
