//! The documents that describe the API to its clients, generated from the kinds' descriptors and
//! schemas: OpenAPI (one v3 document per group and version, one v2 document) and discovery.
//!
//! Start at [`Documents`]. Clients read the schemas (`kubectl explain`, merge keys of
//! `kubectl apply`), and for each path the kind, the parameters (`fieldValidation`, `dryRun`) and
//! the patch types. Documents are stored compressed, and unpacked at the first request of a
//! client that does not accept gzip; clients cache documents by hash. Other kinds need other
//! documents: [`Current`] has those of the current registry.
//!
//! No tasks, no channels, no I/O.

mod binary;
mod current;
pub mod discovery;
mod operation;
mod v2;
mod v3;

use bytes::Bytes;
pub use current::Current;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use master_schema::error::{ApiError, Reason};
use master_schema::registry::Registry;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, OnceLock};

/// One document, compressed, and its ETag.
#[derive(Debug)]
pub struct Document {
    /// The path below `/openapi/v3/`.
    pub path: String,
    /// Of the content.
    pub hash: String,
    /// The content, compressed.
    pub gzip: Bytes,
    plain: OnceLock<Bytes>,
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
            plain: OnceLock::new(),
        }
    }

    /// The content, unpacked once and shared from then on: about a megabyte, which many clients may
    /// be reading at once.
    ///
    /// # Errors
    /// What was packed at the start is damaged (500).
    pub fn plain(&self) -> Result<Bytes, ApiError> {
        if let Some(known) = self.plain.get() {
            return Ok(known.clone());
        }
        let mut text = Vec::new();
        GzDecoder::new(&self.gzip[..])
            .read_to_end(&mut text)
            .map_err(|error| {
                ApiError::new(
                    Reason::InternalError,
                    format!("the document {} cannot be unpacked: {error}", self.path),
                )
            })?;
        Ok(self.plain.get_or_init(|| text.into()).clone())
    }
}

/// The documents of one registry, each generated at its first use.
#[derive(Debug)]
pub struct Documents {
    registry: Arc<Registry>,
    groups: OnceLock<Vec<Document>>,
    all: OnceLock<Document>,
    binary: OnceLock<Document>,
}

impl Documents {
    /// The documents of a registry; none is made yet.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self {
            registry,
            groups: OnceLock::new(),
            all: OnceLock::new(),
            binary: OnceLock::new(),
        }
    }

    /// The kinds that they describe.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// OpenAPI v3: a document for each group and version. Takes some hundred milliseconds the first
    /// time, as the others do.
    pub fn groups(&self) -> &[Document] {
        self.groups.get_or_init(|| {
            let made =
                |(path, value): (String, Value)| Document::new(&path, value.to_string().as_bytes());
            v3::documents(&self.registry).map(made).collect()
        })
    }

    /// OpenAPI v2 in JSON.
    pub fn all(&self) -> &Document {
        self.all.get_or_init(|| {
            Document::new("v2", v2::document(&self.registry).to_string().as_bytes())
        })
    }

    /// OpenAPI v2 in protobuf.
    pub fn binary(&self) -> &Document {
        self.binary
            .get_or_init(|| Document::new("v2", &binary::encode(&v2::document(&self.registry))))
    }

    /// Whether OpenAPI v3 is made.
    pub fn has_groups(&self) -> bool {
        self.groups.get().is_some()
    }

    /// Whether OpenAPI v2 is made in JSON.
    pub fn has_all(&self) -> bool {
        self.all.get().is_some()
    }

    /// Whether OpenAPI v2 is made in protobuf.
    pub fn has_binary(&self) -> bool {
        self.binary.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_unpacked_once_for_all_who_read_it() {
        let document = Document::new("v2", b"{}");
        let (one, other) = (document.plain().unwrap(), document.plain().unwrap());
        assert_eq!((&one[..], one.as_ptr()), (&b"{}"[..], other.as_ptr()));
    }
}
