//! Why a store says no.

use crate::model::Revision;
use std::io;

/// Why an operation did not happen.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An expectation did not hold; nothing of the transaction was written.
    #[error("key {key} is at revision {found:?}, not as expected")]
    Conflict {
        /// The key whose expectation failed.
        key: String,
        /// Its revision, if it exists.
        found: Option<Revision>,
    },
    /// The history no longer reaches back to the revision asked for.
    #[error("revision {asked} is compacted; history starts after {floor}")]
    Compacted {
        /// The revision asked for.
        asked: Revision,
        /// The oldest revision that can be asked for.
        floor: Revision,
    },
    /// The revision asked for has not happened yet.
    #[error("revision {asked} is in the future; the store is at {head}")]
    Future {
        /// The revision asked for.
        asked: Revision,
        /// The newest revision.
        head: Revision,
    },
    /// The request breaks a limit or a rule of the store.
    #[error("not a valid request: {0}")]
    Invalid(String),
    /// More writes are queued than the store takes.
    #[error("the store's queue of writes is full")]
    Busy,
    /// The store is closing or its writer failed earlier.
    #[error("the store is closed")]
    Closed,
    /// The files could not be opened or made.
    #[error("the store's folder cannot be used")]
    Folder(#[source] io::Error),
    /// The engine below failed.
    #[error("the storage engine failed while {0}")]
    Engine(&'static str, #[source] Box<redb::Error>),
    /// What is on disk is not what this version writes.
    #[error("the store holds a record that cannot be read: {0}")]
    Corrupt(String),
}

impl StoreError {
    /// Wraps an engine's error with what was being done.
    pub(crate) fn engine(doing: &'static str) -> impl Fn(redb::Error) -> Self {
        move |error| Self::Engine(doing, Box::new(error))
    }
}
