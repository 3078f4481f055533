//! OpenAPI: one v3 document per group and version, an index of them, and one v2 document, made from
//! the kinds' schemas at the first request.
//!
//! Clients read the schemas (`kubectl explain`, merge keys of `kubectl apply`), and for each path
//! the kind, the parameters (`fieldValidation`, `dryRun`) and the patch types. Documents are stored
//! compressed only: most clients accept gzip, and cache documents by hash.

mod binary;
mod operation;
mod v2;
mod v3;

use crate::encoding::Encoding;
use crate::path::Query;
use crate::paths::matches_tag;
use crate::server::ApiServer;
use crate::verbs::{json_bytes, no_resource};
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use master_client::{Body, body};
use master_schema::error::{ApiError, Reason};
use master_schema::registry::Registry;
use serde_json::{Map, Value, json};
use std::io::{Read as _, Write as _};
use std::sync::OnceLock;

/// OpenAPI v2 in protobuf.
const BINARY: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// One document, compressed, and its ETag.
#[derive(Debug)]
struct Document {
    path: String,
    hash: String,
    gzip: Bytes,
}

impl Document {
    fn new(path: &str, content: &[u8]) -> Self {
        let hash = hex::encode_upper(ring::digest::digest(&ring::digest::SHA256, content));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        // Writing to a Vec does not fail.
        let _infallible = encoder.write_all(content);
        let gzip = encoder.finish().unwrap_or_default();
        Self {
            path: path.to_owned(),
            hash,
            gzip: gzip.into(),
        }
    }

    fn plain(&self) -> Result<Vec<u8>, ApiError> {
        let mut text = Vec::new();
        GzDecoder::new(&self.gzip[..])
            .read_to_end(&mut text)
            .map_err(|error| {
                ApiError::new(
                    Reason::InternalError,
                    format!("the document {} cannot be unpacked: {error}", self.path),
                )
            })?;
        Ok(text)
    }
}

/// The documents, once they are made.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    groups: OnceLock<Vec<Document>>,
    all: OnceLock<Document>,
    binary: OnceLock<Document>,
}

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
        let documents = &self.inner.documents;
        if !documents.made(form) {
            // Takes some hundred milliseconds, so it runs on a thread for blocking work.
            let api = self.clone();
            let made = tokio::task::spawn_blocking(move || {
                let (documents, registry) = (&api.inner.documents, &api.inner.registry);
                match form {
                    Form::Newer => {
                        documents.groups(registry);
                    }
                    Form::Text => {
                        documents.all(registry);
                    }
                    Form::Binary => {
                        documents.binary(registry);
                    }
                }
            });
            made.await.map_err(|error| {
                ApiError::new(
                    Reason::InternalError,
                    format!("the documents could not be made: {error}"),
                )
            })?;
        }
        let registry = &self.inner.registry;
        let document = match path.strip_prefix("/openapi/v3") {
            Some("") => {
                return Ok(json_bytes(
                    StatusCode::OK,
                    index(documents.groups(registry)),
                ));
            }
            Some(rest) => {
                let name = rest.strip_prefix('/').ok_or_else(no_resource)?;
                documents
                    .groups(registry)
                    .iter()
                    .find(|known| known.path == name)
                    .ok_or_else(no_resource)?
            }
            None if form == Form::Text => documents.all(registry),
            None if form == Form::Binary => documents.binary(registry),
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

impl Documents {
    fn made(&self, form: Form) -> bool {
        match form {
            Form::Newer => self.groups.get().is_some(),
            Form::Text => self.all.get().is_some(),
            Form::Binary => self.binary.get().is_some(),
        }
    }

    fn groups(&self, registry: &Registry) -> &[Document] {
        self.groups.get_or_init(|| {
            let made =
                |(path, value): (String, Value)| Document::new(&path, value.to_string().as_bytes());
            v3::documents(registry).map(made).collect()
        })
    }

    fn all(&self, registry: &Registry) -> &Document {
        self.all
            .get_or_init(|| Document::new("v2", v2::document(registry).to_string().as_bytes()))
    }

    fn binary(&self, registry: &Registry) -> &Document {
        self.binary
            .get_or_init(|| Document::new("v2", &binary::encode(&v2::document(registry))))
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
    let asked = query.get("hash");
    if !asked.is_empty() && asked != document.hash {
        return moved(&format!("{path}?hash={}", document.hash));
    }
    let tag = format!("\"{}\"", document.hash);
    let encoding = Encoding::of(&parts.headers, query);
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
    let headers = response.headers_mut();
    // A document under a hash never changes, so the client may cache it.
    let cached = if asked.is_empty() {
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
