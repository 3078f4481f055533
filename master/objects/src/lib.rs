//! Objects in the store: their stored form, reads of them, generated names, the time that they
//! get, and what a deletion does to one.
//!
//! The stored form is encoded once, metadata first, without the fields that path and revision
//! supply.
//!
//! Stored bytes are `{"metadata":{…},…}` without `kind`, `apiVersion` and
//! `metadata.resourceVersion`. An answer is a short head with these three and the stored bytes from
//! the brace of the metadata on: reads neither decode nor encode, at whatever revision.
//!
//! Managed fields are often as long as the rest of an object, and few readers need them. So there
//! are three ways to read: [`decode`] for answers, complete; [`decode_without_managed`] without
//! managed fields, for readers; and [`decode_for_update`] with managed fields as one string, for
//! writers: [`encode`] writes that string back unchanged. Writers that change few fields of a kind
//! that is stored as it is served take [`Shallow`], which decodes no others.

mod clock;
pub mod deletion;
mod name;
mod reads;
mod shallow;
mod stored;

pub use clock::Clock;
pub use name::{Identities, generate};
pub use reads::{list, store_error};
pub use shallow::Shallow;

use bytes::{BufMut, Bytes};
use master_schema::decode::check_values;
use master_schema::error::{ApiError, Reason};
use master_schema::object::metadata_mut;
use master_schema::registry::Kind;
use master_schema::validate::{Fields, get};
use master_store::Entry;
use serde_json::{Map, Value};
use std::ops::Range;

/// The metadata field that records which manager owns which fields.
pub const MANAGED: &str = "managedFields";
/// The first bytes of every stored object.
const START: &[u8] = br#"{"metadata":{"#;

/// Bytes of a stored object at most: those of the largest request. Only managed fields can make it
/// larger, by many managers (upstream's store takes 1.5 MiB of a shorter form).
const LARGEST: usize = 3 << 20;

/// Bytes that an object may have beyond [`LARGEST`] once its deletion has begun: for the mark and
/// the finalizers of the deletion, and for what is written until the object is gone. Without them
/// the largest objects could not be deleted.
const DELETION_ROOM: usize = 64 << 10;

/// Whether what a client makes of an object has no more values than a document may have, or than
/// the object had before. Of a deletion this is not asked: what is stored must be removable.
///
/// # Errors
/// It has more than [`master_schema::decode::MAX_VALUES`] values (413).
pub fn check_growth(object: &Fields, before: Option<&Fields>) -> Result<(), ApiError> {
    check_values(object, before).map_err(|error| {
        let text = format!("the object has {error}");
        ApiError::new(Reason::RequestEntityTooLarge, text)
    })
}

/// Whether the stored form of an object is small enough.
///
/// # Errors
/// It has more than [`LARGEST`] bytes (413).
pub fn check_size(stored: &[u8]) -> Result<(), ApiError> {
    check_bytes(stored, LARGEST)
}

fn check_bytes(stored: &[u8], most: usize) -> Result<(), ApiError> {
    let bytes = stored.len();
    if bytes <= most {
        return Ok(());
    }
    let text = format!(
        "the object has {bytes} bytes with its managed fields, and can have at most {most}"
    );
    Err(ApiError::new(Reason::RequestEntityTooLarge, text))
}

/// Encodes an object for the store, without the three fields that are not stored.
///
/// # Errors
/// It cannot be written as JSON (500), or has more than [`LARGEST`] bytes, or [`DELETION_ROOM`]
/// more while it is being deleted (413).
pub fn encode(kind: &Kind, mut object: Fields) -> Result<Bytes, ApiError> {
    object.remove("kind");
    object.remove("apiVersion");
    kind.to_stored(&mut object);
    let mut metadata = match object.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        Some(_) | None => Map::new(),
    };
    metadata.remove("resourceVersion");
    let leaves = !get(&metadata, "deletionTimestamp").is_null();
    // Room for most pods with their managed fields, so that it does not grow in steps.
    let mut bytes = Vec::with_capacity(4096);
    let written = write_parts(&mut bytes, &metadata, &object);
    written.map_err(|error| {
        ApiError::new(
            Reason::InternalError,
            format!("an object cannot be encoded: {error}"),
        )
    })?;
    check_bytes(&bytes, LARGEST + if leaves { DELETION_ROOM } else { 0 })?;
    // Stored for long and in large numbers, so the buffer holds no spare capacity.
    Ok(bytes.into_boxed_slice().into())
}

fn write_parts(
    bytes: &mut Vec<u8>,
    metadata: &Fields,
    rest: &Fields,
) -> Result<(), serde_json::Error> {
    bytes.extend_from_slice(br#"{"metadata":"#);
    let mut before = b'{';
    for (key, value) in metadata {
        bytes.push(before);
        before = b',';
        serde_json::to_writer(&mut *bytes, key)?;
        bytes.push(b':');
        if key == MANAGED
            && let Value::String(text) = value
        {
            bytes.extend_from_slice(text.as_bytes());
        } else {
            serde_json::to_writer(&mut *bytes, value)?;
        }
    }
    bytes.extend_from_slice(if before == b'{' { b"{}" } else { b"}" });
    for (key, value) in rest {
        bytes.push(b',');
        serde_json::to_writer(&mut *bytes, key)?;
        bytes.push(b':');
        serde_json::to_writer(&mut *bytes, value)?;
    }
    bytes.push(b'}');
    Ok(())
}

/// Decodes stored bytes into an object of `kind`, with the three fields added.
///
/// # Errors
/// The stored bytes are no object (500, with the key).
pub fn decode(kind: &Kind, entry: &Entry) -> Result<Fields, ApiError> {
    let bytes = entry.value.bytes();
    let object = stored::text(&bytes).and_then(serde_json::from_str);
    let object = object.map_err(|error| corrupt(entry, &error))?;
    Ok(complete(kind, entry, object))
}

/// As [`decode`], without managed fields. Writing the result back would lose the ownership of
/// fields.
///
/// # Errors
/// The stored bytes are no object (500, with the key).
pub fn decode_without_managed(kind: &Kind, entry: &Entry) -> Result<Fields, ApiError> {
    Ok(complete(kind, entry, stored(entry)?))
}

/// The stored object as it is, without managed fields.
///
/// # Errors
/// The stored bytes are no object (500, with the key).
pub fn stored(entry: &Entry) -> Result<Fields, ApiError> {
    stored::read(&entry.value.bytes())
        .map(|(object, _)| object)
        .map_err(|error| corrupt(entry, &error))
}

/// As [`decode`], with the managed fields as one string, as [`encode`] accepts them.
///
/// # Errors
/// The stored bytes are no object (500, with the key).
pub fn decode_for_update(kind: &Kind, entry: &Entry) -> Result<Fields, ApiError> {
    let bytes = entry.value.bytes();
    let (object, managed) = stored::read(&bytes).map_err(|error| corrupt(entry, &error))?;
    let mut object = complete(kind, entry, object);
    put_managed(&mut object, managed.map(str::to_owned));
    Ok(object)
}

fn complete(kind: &Kind, entry: &Entry, mut object: Fields) -> Fields {
    kind.to_served(&mut object);
    object.insert("kind".to_owned(), kind.kind.as_str().into());
    object.insert("apiVersion".to_owned(), kind.api_version().into());
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert(
            "resourceVersion".to_owned(),
            entry.modified.to_string().into(),
        );
    }
    object
}

/// Converts an object from one version of a kind to another.
pub fn convert(from: &Kind, to: &Kind, mut object: Fields) -> Fields {
    from.to_stored(&mut object);
    to.to_served(&mut object);
    object.insert("apiVersion".to_owned(), to.api_version().into());
    object
}

/// Takes the string of managed fields out of an object that [`decode_for_update`] read.
pub fn take_managed(object: &mut Fields) -> Option<String> {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut)?;
    match metadata.remove(MANAGED) {
        Some(Value::String(text)) => Some(text),
        Some(list @ Value::Array(_)) => Some(list.to_string()),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => None,
    }
}

/// Sets an object's string of managed fields, or removes it.
pub fn put_managed(object: &mut Fields, managed: Option<String>) {
    let metadata = metadata_mut(object);
    match managed {
        Some(text) => drop(metadata.insert(MANAGED.to_owned(), Value::String(text))),
        None => drop(metadata.remove(MANAGED)),
    }
}

/// Turns managed fields from a string into a list, for an answer.
pub fn expand_managed(object: &mut Fields) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata")
        && let Some(managed) = metadata.get_mut(MANAGED)
        && let Value::String(text) = managed
    {
        *managed = serde_json::from_str(text).unwrap_or_default();
    }
}

fn corrupt(entry: &Entry, error: &serde_json::Error) -> ApiError {
    ApiError::new(
        Reason::InternalError,
        format!("the stored object {} cannot be read: {error}", entry.key),
    )
}

/// Which part of an object an answer holds: all of it, or its metadata in a version of
/// `meta.k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredPart {
    /// All of it.
    Whole,
    /// Its metadata, in this version of `meta.k8s.io`.
    Metadata(&'static str),
}

impl StoredPart {
    /// What follows the stored part.
    pub fn tail(self) -> &'static [u8] {
        match self {
            Self::Whole => b"",
            Self::Metadata(_) => b"}",
        }
    }
}

/// The start of every answer with an object of this kind, up to its resource version.
pub fn head(kind: &Kind, part: StoredPart) -> String {
    let version = kind.api_version();
    let (name, version) = match part {
        StoredPart::Whole => (kind.kind.as_str(), version.as_str()),
        StoredPart::Metadata(version) => ("PartialObjectMetadata", version),
    };
    format!(r#"{{"kind":"{name}","apiVersion":"{version}","metadata":{{"resourceVersion":""#)
}

/// The part of a stored object that an answer holds: shared with the store, and read from it when
/// it is written.
#[derive(Debug, Clone)]
pub struct StoredBytes {
    value: master_store::Value,
    range: Range<usize>,
}

impl StoredBytes {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Its bytes.
    pub fn bytes(&self) -> Bytes {
        self.value.bytes().slice(self.range.clone())
    }

    /// Writes its bytes.
    pub fn put(&self, into: &mut impl BufMut) {
        self.value.put(self.range.clone(), into);
    }
}

/// The part of an entry's bytes after the brace of the metadata; shared, not copied, unless a field
/// is renamed.
///
/// # Errors
/// The stored bytes do not begin with metadata (500, with the key).
pub fn stored_bytes(kind: &Kind, entry: &Entry, part: StoredPart) -> Result<StoredBytes, ApiError> {
    let value = if kind.stored_as_served() {
        entry.value.clone()
    } else {
        rename(kind, entry)?.into()
    };
    let mut first = [0; START.len() + 1];
    value.put(0..first.len(), &mut first.as_mut_slice());
    let begins = matches!(first.strip_prefix(START), Some([next]) if !matches!(next, 0 | b'}'));
    let end = match part {
        StoredPart::Whole => Some(value.len()),
        StoredPart::Metadata(_) => closed(&value.bytes(), START.len()),
    };
    match end {
        Some(end) if begins => {
            let range = START.len()..end;
            Ok(StoredBytes { value, range })
        }
        Some(_) | None => Err(ApiError::new(
            Reason::InternalError,
            format!("the stored object {} has no metadata", entry.key),
        )),
    }
}

/// The end (closing brace included) of the object whose content begins at `from`.
fn closed(json: &[u8], from: usize) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (1_usize, false, false);
    for (at, byte) in json.iter().enumerate().skip(from) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted && depth == 1 => return Some(at + 1),
            b'}' if !quoted => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The bytes with fields under the names of the served version.
fn rename(kind: &Kind, entry: &Entry) -> Result<Bytes, ApiError> {
    let mut object: Fields =
        serde_json::from_slice(&entry.value.bytes()).map_err(|error| corrupt(entry, &error))?;
    kind.to_served(&mut object);
    let metadata = match object.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        Some(_) | None => Map::new(),
    };
    let mut bytes = Vec::with_capacity(entry.value.len() + 64);
    write_parts(&mut bytes, &metadata, &object).map_err(|error| corrupt(entry, &error))?;
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::api::core::v1::ConfigMap;
    use master_schema::decode::MAX_VALUES;
    use serde_json::json;

    /// A patch is a small document and adds to a large object.
    #[test]
    fn an_object_grows_to_no_more_values_than_a_document_has() {
        let of = |count: usize| {
            let object = json!({"metadata": {"name": "a"}, "data": vec![0; count]});
            object.as_object().cloned().unwrap()
        };
        // The object, its metadata and name, and the list.
        let (fits, large, larger) = (of(MAX_VALUES - 4), of(MAX_VALUES - 3), of(MAX_VALUES));
        assert!(check_growth(&fits, None).is_ok());
        let error = check_growth(&large, Some(&fits)).unwrap_err();
        assert!(check_growth(&large, None).is_err());
        assert!(check_growth(&larger, Some(&large)).is_err());
        // What was stored before there was a limit is changed, and its deletion begins.
        assert!(check_growth(&large, Some(&large)).is_ok());
        assert!(check_growth(&large, Some(&larger)).is_ok());
        assert!(encode(&Kind::of::<ConfigMap>(true), larger).is_ok());
        assert_eq!(error.reason, Reason::RequestEntityTooLarge);
        assert_eq!(
            error.message,
            "the object has more than 262144 values in one document; spread them over several objects"
        );
    }

    #[test]
    fn the_largest_object_can_be_deleted_and_grows_little_meanwhile() {
        let kind = Kind::of::<ConfigMap>(true);
        let of = |bytes: usize| {
            let object = json!({"metadata": {"name": "a"}, "data": {"a": "x".repeat(bytes)}});
            object.as_object().cloned().unwrap()
        };
        let rest = encode(&kind, of(0)).unwrap().len();
        let largest = of(LARGEST - rest);
        assert!(encode(&kind, largest.clone()).is_ok());
        assert!(encode(&kind, of(LARGEST - rest + 1)).is_err());
        let options = deletion::Options {
            policy: Some(deletion::Policy::Foreground),
            ..deletion::Options::default()
        };
        let now = jiff::Timestamp::UNIX_EPOCH;
        let deletion::Step::Update(mut going) = deletion::plan(&kind, &largest, &options, now)
        else {
            panic!("it waits for the garbage collector")
        };
        assert!(encode(&kind, going.clone()).is_ok());
        going["data"]["b"] = "x".repeat(DELETION_ROOM).into();
        assert!(encode(&kind, going).is_err());
    }

    #[test]
    fn metadata_ends_at_its_own_brace() {
        let whole = br#"{"metadata":{"name":"a}\\\"}","labels":{"x":"{"}},"data":{"metadata":{}}}"#;
        let end = closed(whole, START.len()).unwrap();
        assert_eq!(
            &whole[..end],
            br#"{"metadata":{"name":"a}\\\"}","labels":{"x":"{"}}"#
        );
        assert_eq!(closed(&whole[..end - 1], START.len()), None);
    }
}
