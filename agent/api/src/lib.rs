//! The interface through which the node's parts use the master's API: calls, watches, events.
//!
//! Enter by [`Api`], which the `agent` program implements, and by [`get`], [`post`] and [`send`],
//! which make its calls. [`list`] reads a list page by page, [`WatchEvent::read`] decodes a line of
//! a watch, [`Backoff`] and [`Pace`] say when to ask again. [`events`] records Events: one task
//! writes them, and the channel to it is bounded.

mod backoff;
pub mod events;
mod list;
mod watch;

pub use backoff::{Backoff, Pace};
pub use list::list;
pub use watch::WatchEvent;

use bytes::Bytes;
use futures_util::Stream;
use http::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use thiserror::Error;

/// A future of the master's answer; boxed so that [`Api`] can be used as `dyn Api`.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send + 'a>>;

/// The lines of a watch, each one JSON document (`{"type":…,"object":…}`) without its line end.
pub type Lines = Pin<Box<dyn Stream<Item = Result<Bytes, ApiError>> + Send>>;

/// Content type of a JSON object.
pub const JSON: &str = "application/json";
/// Content type of a merge patch (RFC 7396).
pub const MERGE: &str = "application/merge-patch+json";
/// Content type of a strategic merge patch.
pub const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

/// One request.
#[derive(Debug, Clone)]
pub struct Call {
    /// Method.
    pub method: Method,
    /// Path with its query, from `/api` on.
    pub path: String,
    /// Type of the body; the answer is asked for as JSON.
    pub content_type: &'static str,
    /// Body; empty for none.
    pub body: Bytes,
}

/// Why a call has no usable answer.
#[derive(Debug, Error)]
pub enum ApiError {
    /// The master answered with a `Status`.
    #[error("{code} {reason}: {message}")]
    Status {
        /// HTTP status code.
        code: u16,
        /// Upstream's reason, such as `NotFound`.
        reason: String,
        /// For a person.
        message: String,
    },
    /// No answer came.
    #[error("the master gave no answer")]
    Transport(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer has more bytes than are read: ask for less at once.
    #[error("the master's answer is larger than the limit of {0} bytes")]
    TooLarge(usize),
    /// The answer is not of the expected form.
    #[error("the master's answer can't be decoded")]
    Decode(#[source] serde_json::Error),
    /// The request's object has no JSON form.
    #[error("the request can't be written as JSON")]
    Encode(#[source] serde_json::Error),
}

impl ApiError {
    /// The error of an answer whose status code is not 2xx, from its body (a `Status` object, or
    /// not).
    pub fn from_answer(code: u16, body: &[u8]) -> Self {
        let status: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |key: &str| {
            status
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        Self::Status {
            code,
            reason: text("reason"),
            message: text("message"),
        }
    }

    /// The whole chain in one line, for the log.
    pub fn chain(&self) -> String {
        config_errors::chain(self)
    }

    /// The object isn't there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { code: 404, .. })
    }

    /// This node may not have the object.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Status { code: 403, .. })
    }

    /// Another client changed the object first.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Status { code: 409, .. })
    }

    /// The resource version is too old: list again.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Status { code: 410, .. })
    }
}

/// The master's API.
///
/// An implementation authenticates the node, chooses an endpoint, and limits the size of answers.
/// If the master ends a watch, the stream ends without an error.
pub trait Api: Send + Sync + fmt::Debug + 'static {
    /// Sends one request and returns the body of a 2xx answer.
    fn call(&self, call: Call) -> Answer<'_, Bytes>;

    /// Opens a watch; `path` carries its query (`watch=true&…`).
    fn watch(&self, path: String) -> Answer<'_, Lines>;

    /// Metrics of the way to the master, in Prometheus' text format; none where nothing is counted.
    fn figures(&self) -> String {
        String::new()
    }
}

/// GET of one object or list.
///
/// # Errors
/// As [`Api::call`]; [`ApiError::Decode`] where the answer is no object of the type.
pub async fn get<T: DeserializeOwned>(api: &dyn Api, path: String) -> Result<T, ApiError> {
    let call = Call {
        method: Method::GET,
        path,
        content_type: JSON,
        body: Bytes::new(),
    };
    serde_json::from_slice(&api.call(call).await?).map_err(ApiError::Decode)
}

/// POST of one object whose answer is one.
///
/// # Errors
/// As [`Api::call`]; [`ApiError::Encode`] where the body cannot be written, [`ApiError::Decode`]
/// where the answer is no object of the type.
pub async fn post<T: DeserializeOwned>(
    api: &dyn Api,
    path: String,
    content_type: &'static str,
    body: &impl serde::Serialize,
) -> Result<T, ApiError> {
    let body = serde_json::to_vec(body).map_err(ApiError::Encode)?;
    let answer = api
        .call(Call {
            method: Method::POST,
            path,
            content_type,
            body: body.into(),
        })
        .await?;
    serde_json::from_slice(&answer).map_err(ApiError::Decode)
}

/// A request with a JSON body whose answer doesn't matter.
///
/// # Errors
/// As [`Api::call`]; [`ApiError::Encode`] where the body cannot be written.
pub async fn send(
    api: &dyn Api,
    method: Method,
    path: String,
    content_type: &'static str,
    body: &impl serde::Serialize,
) -> Result<(), ApiError> {
    let body = serde_json::to_vec(body).map_err(ApiError::Encode)?;
    api.call(Call {
        method,
        path,
        content_type,
        body: body.into(),
    })
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_body_becomes_its_reason_and_message() {
        let error = ApiError::from_answer(
            404,
            br#"{"kind":"Status","reason":"NotFound","message":"pods \"a\" not found"}"#,
        );
        assert!(error.is_not_found());
        assert_eq!(error.to_string(), "404 NotFound: pods \"a\" not found");
    }

    #[test]
    fn an_answer_without_a_status_still_has_its_code() {
        assert!(ApiError::from_answer(410, b"<html>").is_gone());
    }

    /// An API that nobody asks.
    #[derive(Debug)]
    struct Unasked;

    impl Api for Unasked {
        fn call(&self, _: Call) -> Answer<'_, Bytes> {
            panic!("a call is made");
        }

        fn watch(&self, _: String) -> Answer<'_, Lines> {
            panic!("a watch is opened");
        }
    }

    #[tokio::test]
    async fn an_object_without_a_json_form_is_not_taken_for_an_answer_that_cannot_be_read() {
        // Keys of JSON objects are strings.
        let object = std::collections::BTreeMap::from([(vec![1], 1)]);
        let sent = send(&Unasked, Method::PUT, String::new(), JSON, &object).await;
        assert!(matches!(sent, Err(ApiError::Encode(_))), "{sent:?}");
        let posted: Result<Value, _> = post(&Unasked, String::new(), JSON, &object).await;
        assert!(matches!(posted, Err(ApiError::Encode(_))), "{posted:?}");
    }
}
