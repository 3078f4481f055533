//! Reading a request's body as an object of the kind, as strictly as the request asks.

use super::Call;
use crate::decode::{self, Decoded};
use crate::error::{ApiError, Reason};
use crate::protobuf;
use crate::server::Body;
use crate::validate::Fields;
use bytes::{Bytes, BytesMut};
use http::header;
use http_body_util::BodyExt;
use serde_json::Value;
use std::time::Duration;

/// Time that a client gets to send its body.
const SLOWEST: Duration = Duration::from_secs(60);

/// How unknown and duplicate fields are met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Validation {
    Ignore,
    Warn,
    Strict,
}

/// Warnings for the answer's header.
pub(super) type Warnings = Vec<String>;

impl Call {
    /// How strict the request wants to be; what is none of these was refused by [`Call::check_write_options`].
    pub(super) fn validation(&self) -> Validation {
        match self.query.get("fieldValidation") {
            "Ignore" => Validation::Ignore,
            "Strict" => Validation::Strict,
            _ => Validation::Warn,
        }
    }

    /// The whole body, within limits of size and time.
    pub(super) async fn bytes(&self, content: Body) -> Result<Bytes, ApiError> {
        read(content, self.api.inner.options.body_bytes).await
    }

    /// The media type of the body, without parameters.
    pub(super) fn content_type(&self) -> &str {
        let value = self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().split(';').next().unwrap_or_default().trim()
    }

    /// The body as a document, JSON or YAML.
    pub(super) async fn document(&self, content: Body) -> Result<Decoded, ApiError> {
        let bytes = self.bytes(content).await?;
        self.decode(&bytes)
    }

    /// A body that was read as a document.
    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Decoded, ApiError> {
        match self.content_type() {
            "application/json" | "" => decode::json(bytes),
            "application/yaml" => decode::yaml(bytes),
            "application/vnd.kubernetes.protobuf" => {
                Ok(Decoded { value: protobuf::decode(bytes)?, duplicates: Vec::new() })
            }
            _ => {
                let text = "the body of the request was in an unknown format - accepted media types include: \
                            application/json, application/yaml";
                Err(ApiError::new(Reason::UnsupportedMediaType, text))
            }
        }
    }

    /// The body as an object of the kind: known fields of the right types only.
    pub(super) async fn object(&self, content: Body) -> Result<(Fields, Warnings), ApiError> {
        let Decoded { value, duplicates } = self.document(content).await?;
        let Value::Object(mut fields) = value else {
            return Err(ApiError::new(
                Reason::BadRequest,
                format!("the body is not a {}: expected an object", self.kind.kind),
            ));
        };
        Self::expect(&fields, "apiVersion", &self.kind.api_version())?;
        Self::expect(&fields, "kind", &self.kind.kind)?;
        let warnings = self.check(&mut fields, &duplicates)?;
        Ok((fields, warnings))
    }

    fn expect(fields: &Fields, key: &str, expected: &str) -> Result<(), ApiError> {
        match fields.get(key) {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(text)) if text.is_empty() || text == expected => Ok(()),
            Some(found) => {
                let word = if key == "kind" { "kind" } else { "API version" };
                let text = format!("the {word} in the data ({found}) does not match the expected {word} ({expected})");
                Err(ApiError::new(Reason::BadRequest, text))
            }
        }
    }

    /// Holds an object against the kind's schema; unknown and duplicate fields are faults or warnings.
    pub(super) fn check(&self, fields: &mut Fields, duplicates: &[String]) -> Result<Warnings, ApiError> {
        let checked = self.api.inner.registry.schemas().check(&self.kind.schema, fields);
        if !checked.wrong.is_empty() {
            let (kind, version) = (&self.kind.kind, &self.kind.version);
            let text =
                format!("{kind} in version {version:?} cannot be handled as a {kind}: {}", checked.wrong.join("; "));
            return Err(ApiError::new(Reason::BadRequest, text));
        }
        let unknown = checked.unknown.iter().map(|path| format!("unknown field {path:?}"));
        let found: Warnings =
            unknown.chain(duplicates.iter().map(|path| format!("duplicate field {path:?}"))).collect();
        match self.validation() {
            Validation::Ignore => Ok(Vec::new()),
            Validation::Warn => Ok(found),
            Validation::Strict if found.is_empty() => Ok(found),
            Validation::Strict => {
                let (kind, version) = (&self.kind.kind, &self.kind.version);
                let text = format!(
                    "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
                    found.join(", ")
                );
                Err(ApiError::new(Reason::BadRequest, text))
            }
        }
    }
}

/// Reads a body within limits.
async fn read(content: Body, limit: usize) -> Result<Bytes, ApiError> {
    let collected = tokio::time::timeout(SLOWEST, collect(content, limit)).await;
    collected.unwrap_or_else(|_elapsed| Err(ApiError::new(Reason::Timeout, "the request's body did not come in time")))
}

async fn collect(mut content: Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = content.frame().await {
        let frame = frame
            .map_err(|error| ApiError::new(Reason::BadRequest, format!("the request's body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            let text = format!("Request entity too large: limit is {limit}");
            return Err(ApiError::new(Reason::RequestEntityTooLarge, text));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}
