//! A [`Reader`] of an engine that holds its data in memory.

use crate::error::StoreError;
use crate::model::{Fetched, ListQuery, Listing, Revision};
use crate::traits::{BoxFuture, Reader, Store, WatchStream};
use std::sync::Arc;

/// Passes reads on to an engine whose own memory is the cache, such as the embedded engine: nothing
/// is stored twice.
#[derive(Debug, Clone)]
pub struct Direct(Arc<dyn Store>);

impl Direct {
    /// Reads of this engine.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl Reader for Direct {
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        self.0.revision()
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Fetched, StoreError>> {
        self.0.get(key)
    }

    fn list(&self, query: ListQuery) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.0.list(query)
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        after: Revision,
    ) -> BoxFuture<'a, Result<Box<dyn WatchStream>, StoreError>> {
        self.0.watch(prefix, after)
    }
}
