//! Errors of the container engine, by class.

use std::future::Future;
use std::pin::Pin;
use thiserror::Error;

/// A future of the engine's answer; boxed so that the trait can be an object.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// The class of an error, by which the kubelet chooses upstream's reason for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The engine can't be reached; nothing is known.
    Unavailable,
    /// The text is no image reference (`InvalidImageName`).
    InvalidImageName,
    /// The image isn't there and may not be fetched (`ErrImageNeverPull`).
    ImageNeverPull,
    /// Fetching failed (`ErrImagePull`).
    ImagePull,
    /// A volume can't be set up yet (event `FailedMount`; the container waits to be created).
    Volume,
    /// The pod asks for something impossible (`CreateContainerConfigError`).
    Config,
    /// Making the container failed (`CreateContainerError`).
    Create,
    /// Starting its first process failed (`RunContainerError`).
    Start,
    /// There is no such container.
    NotFound,
}

/// The failure as text for the pod's events, and its class.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct Error {
    /// Class.
    pub class: ErrorClass,
    /// What was tried, and on what.
    pub message: String,
    /// The cause.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error without a deeper cause.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            source: None,
        }
    }

    /// An error with its cause.
    pub fn caused(
        class: ErrorClass,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            class,
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// The whole chain in one line, for an event or a waiting message.
    pub fn chain(&self) -> String {
        config_errors::chain(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_its_whole_chain() {
        let inner = std::io::Error::other("connection refused");
        let error = Error::caused(ErrorClass::ImagePull, "pull registry.example/app:1", inner);
        assert_eq!(
            error.chain(),
            "pull registry.example/app:1: connection refused"
        );
    }
}
