//! Patches: which kind a request carries, and what each does to an object.

use crate::strategic;
use master_kinds::decode;
use master_kinds::error::{ApiError, Reason};
use master_kinds::schema::Place;
use serde_json::{Map, Value};

/// A patch, decoded.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// RFC 7386.
    Merge(Value),
    /// Strategic merge.
    Strategic(Value),
    /// RFC 6902.
    Json(json_patch::Patch),
}

/// Operations of one JSON patch at most (upstream: 10,000).
const OPERATIONS: usize = 10_000;

impl Patch {
    /// Reads a patch by its content type. Also tells paths of duplicate fields.
    pub fn parse(content_type: &str, bytes: &[u8]) -> Result<(Self, Vec<String>), ApiError> {
        match content_type {
            "application/merge-patch+json" => {
                let read = decode::json(bytes)?;
                Ok((Self::Merge(object(read.value)?), read.duplicates))
            }
            "application/strategic-merge-patch+json" => {
                let read = decode::json(bytes)?;
                Ok((Self::Strategic(object(read.value)?), read.duplicates))
            }
            "application/json-patch+json" => {
                let value = decode::json(bytes)?.value;
                if value.as_array().is_some_and(|operations| operations.len() > OPERATIONS) {
                    let text = format!("the allowed maximum operations in a JSON patch is {OPERATIONS}");
                    return Err(ApiError::new(Reason::RequestEntityTooLarge, text));
                }
                let patch = serde_json::from_value(value)
                    .map_err(|error| ApiError::new(Reason::BadRequest, format!("not a JSON patch: {error}")))?;
                Ok((Self::Json(patch), Vec::new()))
            }
            "application/apply-patch+yaml" => {
                let text = "server-side apply is not served by this version: use client-side apply \
                            (kubectl apply without --server-side), merge, strategic merge or JSON patch";
                Err(ApiError::new(Reason::UnsupportedMediaType, text))
            }
            _ => {
                let text = "the body of the request was in an unknown format - accepted media types include: \
                            application/json-patch+json, application/merge-patch+json, \
                            application/strategic-merge-patch+json";
                Err(ApiError::new(Reason::UnsupportedMediaType, text))
            }
        }
    }

    /// Applies the patch to an object whose kind has its schema at `place`.
    pub fn apply(&self, object: Map<String, Value>, place: Place<'_>) -> Result<Map<String, Value>, ApiError> {
        let mut value = Value::Object(object);
        match self {
            Self::Merge(patch) => json_patch::merge(&mut value, patch),
            Self::Strategic(patch) => strategic::apply(&mut value, patch, place)?,
            Self::Json(patch) => json_patch::patch(&mut value, patch).map_err(|error| {
                // A failed test or path is the request's fault, as upstream has it.
                ApiError::new(
                    Reason::Invalid,
                    format!("the server rejected our request due to an error in our request: {error}"),
                )
            })?,
        }
        match value {
            Value::Object(fields) => Ok(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Err(ApiError::new(Reason::BadRequest, "the patch leaves no object behind"))
            }
        }
    }

    /// The resource version that the patch itself demands, if it does.
    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Merge(patch) | Self::Strategic(patch) => {
                patch.pointer("/metadata/resourceVersion").and_then(Value::as_str)
            }
            Self::Json(_) => None,
        }
    }
}

fn object(value: Value) -> Result<Value, ApiError> {
    if value.is_object() {
        return Ok(value);
    }
    Err(ApiError::new(Reason::BadRequest, "the patch must be a JSON object"))
}
