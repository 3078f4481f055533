//! Answers that are no objects: texts, errors, documents.

use crate::protobuf;
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

/// The `Status` of an answer that is an error, in JSON: it is encoded for a client that accepts
/// protobuf alone. An extension of the response.
#[derive(Debug, Clone)]
struct Refusal(Bytes);

/// An error as an answer.
pub fn respond(error: &ApiError) -> Response<Body> {
    let status = Bytes::from(error.to_status().to_string());
    let mut response = Response::new(body(status.clone()));
    response.extensions_mut().insert(Refusal(status));
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

/// The answer in protobuf if it is an error, and otherwise as it is: verbs write their own answers
/// in the form that the client accepts, and what comes from behind a proxy is not changed.
pub(crate) fn refusal_in_protobuf(mut response: Response<Body>) -> Response<Body> {
    let refusal = response.extensions_mut().remove::<Refusal>();
    let written = refusal.and_then(|Refusal(status)| protobuf::from_json(&status).ok());
    if let Some(bytes) = written {
        *response.body_mut() = body(bytes);
        let kind = HeaderValue::from_static(protobuf::MEDIA);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
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

/// An answer with bytes in protobuf.
pub fn protobuf_bytes(status: StatusCode, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = json_bytes(status, bytes);
    let kind = HeaderValue::from_static(protobuf::MEDIA);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
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

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn an_error_is_the_same_in_protobuf() {
        let error = ApiError::new(Reason::NotFound, "pods \"x\" not found");
        let error = error.about("", "pods", "x").retry_after(3);
        let response = refusal_in_protobuf(respond(&error));
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(response.headers()[header::CONTENT_TYPE], protobuf::MEDIA);
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(protobuf::decode(&bytes).unwrap(), error.to_status());
        let other = refusal_in_protobuf(text(StatusCode::NOT_FOUND, "from a pod".to_owned()));
        let bytes = other.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(bytes, "from a pod");
    }
}
