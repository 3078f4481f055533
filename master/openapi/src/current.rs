//! The documents of the kinds that are served at the moment.

use crate::Documents;
use master_schema::served::Kinds;
use std::sync::{Arc, PoisonError, RwLock};

/// Documents that follow the registry: after other kinds are served, new ones are made.
#[derive(Debug)]
pub struct Current {
    kinds: Arc<Kinds>,
    documents: RwLock<Arc<Documents>>,
}

impl Current {
    /// The documents of what these kinds are at any moment.
    pub fn new(kinds: Arc<Kinds>) -> Self {
        let documents = Arc::new(Documents::new(kinds.now()));
        Self {
            kinds,
            documents: RwLock::new(documents),
        }
    }

    /// The current documents, all of one registry.
    pub fn now(&self) -> Arc<Documents> {
        let registry = self.kinds.now();
        let known = self
            .documents
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if Arc::ptr_eq(known.registry(), &registry) {
            return known;
        }
        let mut documents = self
            .documents
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // Another request may have been first.
        if !Arc::ptr_eq(documents.registry(), &registry) {
            *documents = Arc::new(Documents::new(registry));
        }
        documents.clone()
    }
}
