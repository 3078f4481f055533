//! Bodies of requests and answers.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use master_schema::error::{ApiError, Reason};
use std::convert::Infallible;

/// The reason why a body ended early.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A request's or answer's body.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// How many bytes of memory an answer holds until its client has read it, where that is not the
/// size of its body: what is shared with others costs nothing, and a list is made piece by piece.
/// An extension of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBytes(pub usize);

/// A body from complete bytes.
pub fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

/// The error that a body ended early.
pub(crate) fn broken(error: &dyn std::error::Error) -> ApiError {
    ApiError::new(
        Reason::InternalError,
        format!("the connection failed during the answer: {error}"),
    )
}

/// The error that a body is not what was asked for.
pub(crate) fn undecodable(error: &serde_json::Error) -> ApiError {
    ApiError::new(
        Reason::InternalError,
        format!("the answer cannot be read as the kind asked for: {error}"),
    )
}
