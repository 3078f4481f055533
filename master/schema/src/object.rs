//! Metadata of an object as a JSON map, and timestamps in upstream's format.

use crate::validate::Fields;
use serde_json::{Map, Value};

/// An object's metadata; empty if absent.
pub fn metadata(object: &Fields) -> &Fields {
    static EMPTY: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Map::new);
    object
        .get("metadata")
        .and_then(Value::as_object)
        .unwrap_or(&EMPTY)
}

/// An object's spec; empty if absent.
pub fn spec(object: &Fields) -> &Fields {
    static EMPTY: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Map::new);
    object
        .get("spec")
        .and_then(Value::as_object)
        .unwrap_or(&EMPTY)
}

/// An object's metadata; created if absent.
pub fn metadata_mut(object: &mut Fields) -> &mut Fields {
    let metadata = object
        .entry("metadata")
        .or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    match metadata {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            unreachable!("it was made an object above")
        }
    }
}

/// A string of the metadata; empty if absent.
pub fn meta_text<'a>(object: &'a Fields, key: &str) -> &'a str {
    crate::validate::text(metadata(object), key)
}

/// The current time in upstream's format (whole seconds).
pub fn now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}
