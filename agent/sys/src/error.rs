//! The room's one error: what was attempted, on what, and the system's reason.

use std::io;

/// A failed system call. The system's reason is the source, not part of the text.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {subject}")]
pub struct Error {
    what: &'static str,
    subject: String,
    source: io::Error,
}

/// The room's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of the step `what` (a verb phrase) on `subject`.
    pub fn new(
        what: &'static str,
        subject: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self {
            what,
            subject: subject.into(),
            source: source.into(),
        }
    }

    /// The system's error number, where the cause has one.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

/// Adds a step's name and subject to a failed system call.
pub(crate) trait Context<T> {
    /// Names the step `what` and its `subject`.
    fn at(self, what: &'static str, subject: &str) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn at(self, what: &'static str, subject: &str) -> Result<T> {
        self.map_err(|cause| Error::new(what, subject, cause))
    }
}
