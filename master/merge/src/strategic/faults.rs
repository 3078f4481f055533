//! Errors of strategic merge patches, in upstream's words.

use master_schema::error::{ApiError, Reason};
use serde_json::{Map, Value};

/// 400: the patch is malformed.
pub(super) fn bad_request(text: &str) -> ApiError {
    ApiError::new(Reason::BadRequest, text)
}

/// 400 with the text for which upstream answers 500: a malformed patch is the client's fault.
pub(super) fn failed(text: String) -> ApiError {
    ApiError::new(Reason::BadRequest, text)
}

/// 422: lists in lists.
pub(super) fn list_of_lists() -> ApiError {
    ApiError::new(
        Reason::Invalid,
        "the server rejected our request due to an error in our request",
    )
}

pub(super) fn no_key(item: &Map<String, Value>, key: &str) -> ApiError {
    let item = shown(&Value::Object(item.clone()));
    failed(format!(
        "map: {item} does not contain declared merge key: {key}"
    ))
}

pub(super) fn bad_directive(found: &Value, patch: &Map<String, Value>) -> ApiError {
    let patch = shown(&Value::Object(patch.clone()));
    failed(format!(
        "unknown patch type: {} in map: {patch}",
        shown(found)
    ))
}

pub(super) fn bad_argument(expected: &str, found: &Value) -> ApiError {
    let kind = match found {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    };
    failed(format!("expected a {expected}, but received a {kind}"))
}

/// A value in Go's notation.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(shown).collect::<Vec<_>>().join(" ")
        ),
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(key, value)| format!("{key}:{}", shown(value)))
                .collect();
            format!("map[{}]", fields.join(" "))
        }
    }
}
