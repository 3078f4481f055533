//! The kinds that are served at the moment.

use crate::registry::Registry;
use std::sync::{Arc, PoisonError, RwLock};

/// The current registry, which can be replaced as a whole while requests are answered.
///
/// A request takes the registry once ([`Kinds::now`]) and works with it to its end, so that it
/// never sees parts of two registries.
#[derive(Debug)]
pub struct Kinds(RwLock<Arc<Registry>>);

impl Kinds {
    /// Begins with these kinds.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self(RwLock::new(registry))
    }

    /// The current registry.
    pub fn now(&self) -> Arc<Registry> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Serves other kinds from now on; requests that began before end with the registry that they
    /// have.
    pub fn replace(&self, registry: Registry) {
        let registry = Arc::new(registry);
        // The old registry is dropped after the lock is released: it may be large.
        let old = std::mem::replace(
            &mut *self.0.write().unwrap_or_else(PoisonError::into_inner),
            registry,
        );
        drop(old);
    }
}
