//! OpenAPI: answers with the documents and their index, by the forms that clients accept and by
//! what they already have.

use crate::state::ApiServer;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use master_client::{Body, HeldBytes, body};
use master_openapi::{Document, Documents};
use master_schema::error::{ApiError, Reason, no_resource};
use master_wire::Encoding;
use master_wire::path::Query;
use master_wire::respond::{json_bytes, matches_tag};
use serde_json::{Map, Value, json};

/// OpenAPI v2 in protobuf.
const BINARY: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The form of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// OpenAPI v3, or its index.
    Newer,
    /// OpenAPI v2 in JSON.
    Text,
    /// OpenAPI v2 in protobuf.
    Binary,
}

impl ApiServer {
    /// Answers a path below `/openapi`.
    pub(crate) async fn openapi(
        &self,
        path: &str,
        parts: &Parts,
        query: &Query,
    ) -> Result<Response<Body>, ApiError> {
        let form = if path == "/openapi/v2" {
            older(parts)?
        } else {
            Form::Newer
        };
        let documents = self.inner.documents.now();
        if !made(&documents, form) {
            // Takes some hundred milliseconds, so it runs on a thread for blocking work.
            let documents = documents.clone();
            let made = tokio::task::spawn_blocking(move || make(&documents, form));
            made.await.map_err(|error| {
                ApiError::new(
                    Reason::InternalError,
                    format!("the documents could not be made: {error}"),
                )
            })?;
        }
        let document = match path.strip_prefix("/openapi/v3") {
            Some("") => {
                return Ok(json_bytes(StatusCode::OK, index(documents.groups())));
            }
            Some(rest) => {
                let name = rest.strip_prefix('/').ok_or_else(no_resource)?;
                documents
                    .groups()
                    .iter()
                    .find(|known| known.path == name)
                    .ok_or_else(no_resource)?
            }
            None if form == Form::Text => documents.all(),
            None if form == Form::Binary => documents.binary(),
            None => return Err(no_resource()),
        };
        let mut response = serve(document, path, parts, query)?;
        if form == Form::Binary {
            response
                .headers_mut()
                .insert(header::CONTENT_TYPE, HeaderValue::from_static(BINARY));
        }
        Ok(response)
    }
}

fn made(documents: &Documents, form: Form) -> bool {
    match form {
        Form::Newer => documents.has_groups(),
        Form::Text => documents.has_all(),
        Form::Binary => documents.has_binary(),
    }
}

fn make(documents: &Documents, form: Form) {
    match form {
        Form::Newer => {
            documents.groups();
        }
        Form::Text => {
            documents.all();
        }
        Form::Binary => {
            documents.binary();
        }
    }
}

/// The index at `/openapi/v3`.
fn index(documents: &[Document]) -> Vec<u8> {
    let url = |document: &Document| format!("/openapi/v3/{}?hash={}", document.path, document.hash);
    let paths: Map<String, Value> = documents
        .iter()
        .map(|document| {
            (
                document.path.clone(),
                json!({ "serverRelativeURL": url(document) }),
            )
        })
        .collect();
    json!({ "paths": paths }).to_string().into_bytes()
}

/// The form in which a client accepts OpenAPI v2: the first that it names and the server supports.
fn older(parts: &Parts) -> Result<Form, ApiError> {
    let accept = parts
        .headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    for media in accept.split(',') {
        match media.split(';').next().unwrap_or_default().trim() {
            "" | "*/*" | "application/*" | "application/json" => return Ok(Form::Text),
            // The first of the two names is not a valid media type, but clients send it.
            "application/com.github.proto-openapi.spec.v2@v1.0+protobuf" | BINARY => {
                return Ok(Form::Binary);
            }
            _ => {}
        }
    }
    Err(ApiError::new(
        Reason::NotAcceptable,
        format!("only the following media types are accepted: application/json, {BINARY}"),
    ))
}

fn serve(
    document: &Document,
    path: &str,
    parts: &Parts,
    query: &Query,
) -> Result<Response<Body>, ApiError> {
    let hash = query.get("hash");
    if !hash.is_empty() && hash != document.hash {
        return moved(&format!("{path}?hash={}", document.hash));
    }
    let tag = format!("\"{}\"", document.hash);
    let encoding = Encoding::of(&parts.headers, query.get("pretty"));
    let mut response = if matches_tag(parts, &tag) {
        let mut unchanged = Response::new(body(""));
        *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
        unchanged
    } else if encoding.gzip {
        let mut packed = json_bytes(StatusCode::OK, document.gzip.clone());
        packed
            .headers_mut()
            .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        packed
    } else {
        json_bytes(StatusCode::OK, document.plain()?)
    };
    // All who read a document share it.
    response.extensions_mut().insert(HeldBytes(0));
    let headers = response.headers_mut();
    // A document under a hash never changes, so the client may cache it.
    let cached = if hash.is_empty() {
        "no-cache, private"
    } else {
        "public, immutable, max-age=31536000"
    };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cached));
    headers.insert(
        header::VARY,
        HeaderValue::from_static("Accept, Accept-Encoding"),
    );
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    Ok(response)
}

/// Redirects a client that asks for an outdated document to the current one.
fn moved(to: &str) -> Result<Response<Body>, ApiError> {
    let mut response = Response::new(body(""));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let to = HeaderValue::from_str(to).map_err(|_not_a_header| no_resource())?;
    response.headers_mut().insert(header::LOCATION, to);
    Ok(response)
}
