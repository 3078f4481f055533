//! How objects are kept: encoded once, metadata first, without what only a reader's path or the store knows.
//!
//! Stored bytes are `{"metadata":{…},…}` with neither `kind`, `apiVersion` nor `metadata.resourceVersion`. An
//! answer is a short head with these three, and the stored bytes from behind the brace of the metadata: nothing
//! is decoded or encoded on the way out, whatever the revision turned out to be.

use crate::error::{ApiError, Reason};
use crate::registry::Kind;
use crate::validate::Fields;
use bytes::Bytes;
pub(crate) use master_kinds::object::{meta_text, metadata, metadata_mut, now};
use master_store::Entry;
use serde_json::{Map, Value};
use std::io::Write as _;

/// How stored bytes begin.
const START: &[u8] = br#"{"metadata":{"#;

/// Encodes an object for the store. Takes the three fields out of it that are not kept.
pub(crate) fn encode(kind: &Kind, mut object: Fields) -> Result<Bytes, ApiError> {
    object.remove("kind");
    object.remove("apiVersion");
    let mut metadata = match object.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        Some(_) | None => Map::new(),
    };
    metadata.remove("resourceVersion");
    metadata.remove("managedFields");
    for (served, stored) in kind.renames {
        if let Some(value) = object.remove(*served) {
            object.insert((*stored).to_owned(), value);
        }
    }
    let mut bytes = Vec::with_capacity(1024);
    let written = write_parts(&mut bytes, &metadata, &object);
    written.map_err(|error| ApiError::new(Reason::InternalError, format!("an object cannot be encoded: {error}")))?;
    Ok(bytes.into())
}

fn write_parts(bytes: &mut Vec<u8>, metadata: &Fields, rest: &Fields) -> Result<(), serde_json::Error> {
    bytes.extend_from_slice(br#"{"metadata":"#);
    serde_json::to_writer(&mut *bytes, metadata)?;
    for (key, value) in rest {
        bytes.push(b',');
        serde_json::to_writer(&mut *bytes, key)?;
        bytes.push(b':');
        serde_json::to_writer(&mut *bytes, value)?;
    }
    bytes.push(b'}');
    Ok(())
}

/// Decodes stored bytes into an object of `kind`, complete with the three fields.
pub(crate) fn decode(kind: &Kind, entry: &Entry) -> Result<Fields, ApiError> {
    let mut object: Fields = serde_json::from_slice(&entry.value).map_err(|error| corrupt(entry, &error))?;
    for (served, stored) in kind.renames {
        if let Some(value) = object.remove(*stored) {
            object.insert((*served).to_owned(), value);
        }
    }
    object.insert("kind".to_owned(), kind.kind.as_str().into());
    object.insert("apiVersion".to_owned(), kind.api_version().into());
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), entry.modified.to_string().into());
    }
    Ok(object)
}

fn corrupt(entry: &Entry, error: &serde_json::Error) -> ApiError {
    ApiError::new(Reason::InternalError, format!("the stored object {} cannot be read: {error}", entry.key))
}

/// What goes before the kept part of an entry's bytes, and that part, which is shared, not copied.
pub(crate) fn parts(kind: &Kind, entry: &Entry) -> Result<(Vec<u8>, Bytes), ApiError> {
    parts_at(kind, entry, entry.modified)
}

/// As [`parts`], at another revision than the entry's own (deletion events carry the deletion's).
pub(crate) fn parts_at(kind: &Kind, entry: &Entry, revision: u64) -> Result<(Vec<u8>, Bytes), ApiError> {
    let renamed;
    let kept = if kind.renames.is_empty() {
        &entry.value
    } else {
        renamed = rename(kind, entry)?;
        &renamed
    };
    if !kept.starts_with(START) || kept.get(START.len()) == Some(&b'}') {
        return Err(ApiError::new(Reason::InternalError, format!("the stored object {} has no metadata", entry.key)));
    }
    let mut head = Vec::with_capacity(128);
    // Writing to a Vec doesn't fail.
    let _infallible = write!(
        head,
        r#"{{"kind":"{}","apiVersion":"{}","metadata":{{"resourceVersion":"{revision}","#,
        kind.kind,
        kind.api_version(),
    );
    Ok((head, kept.slice(START.len()..)))
}

/// The bytes with fields under their served names.
fn rename(kind: &Kind, entry: &Entry) -> Result<Bytes, ApiError> {
    let mut object: Fields = serde_json::from_slice(&entry.value).map_err(|error| corrupt(entry, &error))?;
    for (served, stored) in kind.renames {
        if let Some(value) = object.remove(*stored) {
            object.insert((*served).to_owned(), value);
        }
    }
    let metadata = match object.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        Some(_) | None => Map::new(),
    };
    let mut bytes = Vec::with_capacity(entry.value.len() + 64);
    write_parts(&mut bytes, &metadata, &object).map_err(|error| corrupt(entry, &error))?;
    Ok(bytes.into())
}
