//! Answers that are no objects: texts, errors, documents.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use master_client::{Body, body};
use master_schema::error::{ApiError, Reason};

/// Plain text as an answer.
pub fn text(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(body(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// Upstream's error for a request that took longer than it asked for.
pub fn out_of_time() -> ApiError {
    ApiError::new(
        Reason::Timeout,
        "Timeout: request did not complete within the allotted timeout",
    )
}

/// An error as an answer.
pub fn respond(error: &ApiError) -> Response<Body> {
    let mut response = Response::new(body(error.to_status().to_string()));
    *response.status_mut() =
        StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    if let Some(seconds) = error.details.retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Whether the client already has the document of this ETag.
pub fn matches_tag(parts: &Parts, tag: &str) -> bool {
    let known = parts
        .headers
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    known.split(',').any(|known| {
        matches!(known.trim().trim_start_matches("W/"), "*")
            || known.trim().trim_start_matches("W/") == tag
    })
}

/// An answer with JSON bytes.
pub fn json_bytes(status: StatusCode, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(body(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    response
}
