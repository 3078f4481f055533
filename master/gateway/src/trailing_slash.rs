//! The redirect from a proxied root without its trailing slash to the one with it.

use http::{HeaderValue, Response, StatusCode, Uri, header};
use master_client::{Body, body};
use master_schema::error::{ApiError, no_resource};

/// Redirects the client to the same path with a trailing slash, so that relative links resolve.
///
/// # Errors
/// The path is no header's value.
pub fn with_slash(uri: &Uri) -> Result<Response<Body>, ApiError> {
    let query = uri
        .query()
        .map_or(String::new(), |query| format!("?{query}"));
    let mut response = Response::new(body(""));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let to = HeaderValue::from_str(&format!("{}/{query}", uri.path()))
        .map_err(|_not_a_header| no_resource())?;
    response.headers_mut().insert(header::LOCATION, to);
    Ok(response)
}
