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

/// An extension of a response: how many bytes of memory the answer holds until its client has read
/// it, if that is not the size of its body. Parts that are shared with others cost nothing, and a
/// list is made piece by piece.
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

/// The error that a body cannot be decoded as the requested kind.
pub(crate) fn undecodable(error: &serde_json::Error) -> ApiError {
    ApiError::new(
        Reason::InternalError,
        format!("the answer cannot be decoded as the requested kind: {error}"),
    )
}
