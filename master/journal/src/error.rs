//! Errors of the log of verdicts.

use std::path::{Path, PathBuf};

/// A failure of the log of verdicts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A segment or the folder could not be read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A segment is damaged in a way that no crash leaves behind.
    #[error(
        "the log of verdicts is damaged: {}, line {line}: {why}; keep the file for an inquiry, and move it out of the folder: \
         a new segment then begins, and `pratique verify` will tell of the gap",
        path.display()
    )]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// The line.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The log could not write a record: too many wait, or the disk failed.
    #[error("the log of verdicts cannot be written now: see the master's log; is its disk full?")]
    Busy,
    /// A record could not be encoded.
    #[error("a record of the log of verdicts cannot be encoded")]
    Encode(#[source] serde_json::Error),
    /// A record could not be signed.
    #[error("a record of the log of verdicts cannot be signed")]
    Sign(#[source] master_ca::Error),
    /// The thread that writes panicked or was cancelled.
    #[error("a blocking task panicked or was cancelled")]
    Task(#[source] tokio::task::JoinError),
}

pub(crate) fn file(what: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File {
        what,
        path: path.to_owned(),
        source,
    }
}
