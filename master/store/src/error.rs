//! Errors of a store.

use crate::embedded::is_full;
use crate::model::Revision;
use std::io;
use std::path::{Path, PathBuf};

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A precondition did not hold; nothing of the transaction was written.
    #[error("key {key} is at revision {found:?}, not as expected")]
    Conflict {
        /// The key whose precondition failed.
        key: String,
        /// Its revision, if it exists.
        found: Option<Revision>,
    },
    /// The history no longer contains the requested revision.
    #[error("revision {asked} is compacted; history starts after {floor}")]
    Compacted {
        /// The requested revision.
        asked: Revision,
        /// The oldest revision that can be requested.
        floor: Revision,
    },
    /// The requested revision has not happened yet.
    #[error("revision {asked} is in the future; the store is at {head}")]
    Future {
        /// The requested revision.
        asked: Revision,
        /// The newest revision.
        head: Revision,
    },
    /// The copy in memory that answers reads did not reach the store's revision in time.
    #[error("the copy in memory is at revision {reached}, and the store at {head}")]
    Behind {
        /// The copy's revision.
        reached: Revision,
        /// The store's revision.
        head: Revision,
    },
    /// The request violates a limit or a rule of the store.
    #[error("not a valid request: {0}")]
    Invalid(String),
    /// The queue of writes is full.
    #[error("the store's queue of writes is full")]
    Busy,
    /// The store is closing or its writer failed earlier.
    #[error("the store is closed")]
    Closed,
    /// The files could not be opened or created.
    #[error("the store's folder cannot be used")]
    Folder(#[source] io::Error),
    /// Another process has the store open.
    #[error("the store in {} is in use by another process", .0.display())]
    Locked(PathBuf),
    /// The disk has no room for more writes. Reads continue, and so do small deletions for a while.
    #[error("the store takes no more writes: {0}")]
    Full(String),
    /// A file operation failed; whether the failed write is on disk shows at the next start.
    #[error("the store failed to {what} {}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file has content that this version does not write.
    #[error("a file of the store cannot be used: {0}")]
    Corrupt(String),
}

impl StoreError {
    /// Wraps a file's error with the operation.
    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }

    /// The error of a failed write to blocks that are not used yet: [`StoreError::Full`] if only
    /// the disk is full.
    pub(crate) fn full_or(what: &'static str, path: &Path, error: io::Error) -> Self {
        if is_full(&error) {
            let place = path.display();
            return Self::Full(format!(
                "the file system of {place} is full ({error}); free some, and writes go on"
            ));
        }
        Self::file(what, path)(error)
    }
}
