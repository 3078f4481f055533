//! Interns values: equal ones are stored once, such as the parts that the replicas of one template
//! share.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of remembered values.
const MAX_VALUES: usize = 32;

/// The values seen last. A value that is no longer remembered is stored again.
#[derive(Debug)]
pub struct Interner<T: ?Sized>(Mutex<VecDeque<Arc<T>>>);

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: PartialEq + ?Sized> Interner<T> {
    /// The remembered value that equals this one; else this one, which is remembered from now on.
    pub fn intern(&self, value: Arc<T>) -> Arc<T> {
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
        let interner = Interner::<str>::default();
        let first = interner.intern("a".into());
        assert!(Arc::ptr_eq(&first, &interner.intern("a".into())));
        for number in 0..MAX_VALUES {
            interner.intern(number.to_string().into());
        }
        assert!(!Arc::ptr_eq(&first, &interner.intern("a".into())));
    }
}
