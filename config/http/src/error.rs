//! Why there is no answer.

use std::time::Duration;

/// Why a request has no usable answer. The caller knows with whom it spoke, and says so.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The connection broke, or what came is not HTTP.
    #[error("the HTTP exchange failed")]
    Exchange(#[source] hyper::Error),
    /// The head or the body did not come in time.
    #[error("no answer came within {seconds} s", seconds = .0.as_secs())]
    Silent(Duration),
    /// The body is longer than the limit, in bytes.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}
