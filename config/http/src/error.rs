//! Errors of a request.

use std::time::Duration;

/// Why a request has no usable answer. The caller adds the name of the server.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The connection broke, or the answer is not HTTP.
    #[error("the HTTP exchange failed")]
    Exchange(#[source] hyper::Error),
    /// The head or the body did not come in time.
    #[error("no answer came within {seconds} s", seconds = .0.as_secs())]
    Silent(Duration),
    /// The body is longer than the limit, in bytes.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}
