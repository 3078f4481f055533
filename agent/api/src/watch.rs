//! Decodes the lines of a watch.

use crate::ApiError;
use serde::Deserialize;
use serde_json::Value;

/// Annotation of the bookmark after the objects that existed when the watch began (KEP-3157).
const INITIAL_END: &str = "/metadata/annotations/k8s.io~1initial-events-end";

/// What a line of a watch reports.
#[derive(Debug, PartialEq)]
pub enum WatchEvent {
    /// The object was added or modified; this is its present form.
    Is(Value),
    /// The object was deleted; this was its last form.
    Gone(Value),
    /// A bookmark: nothing else changed up to this version.
    Bookmark {
        /// The bookmark after all objects that existed when the watch began.
        initial_end: bool,
    },
}

/// An event of a watch; only what is needed of it.
#[derive(Debug, Deserialize)]
struct RawEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl WatchEvent {
    /// Reads a line, and moves `version` to the one that it reports.
    ///
    /// # Errors
    /// [`ApiError::Status`] where the master ends the watch with an error; [`ApiError::Decode`]
    /// where the line is no event.
    pub fn read(line: &[u8], version: &mut String) -> Result<Self, ApiError> {
        let RawEvent { kind, object } = serde_json::from_slice(line).map_err(ApiError::Decode)?;
        if kind == "ERROR" {
            let code = object.get("code").and_then(Value::as_u64);
            let code = code.and_then(|code| u16::try_from(code).ok());
            let body = object.to_string();
            return Err(ApiError::from_answer(code.unwrap_or(500), body.as_bytes()));
        }
        let at = object.pointer("/metadata/resourceVersion");
        if let Some(at) = at.and_then(Value::as_str) {
            at.clone_into(version);
        }
        Ok(match kind.as_str() {
            "BOOKMARK" => Self::Bookmark {
                initial_end: object.pointer(INITIAL_END).is_some(),
            },
            "DELETED" => Self::Gone(object),
            _ => Self::Is(object),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(line: &Value) -> (Result<WatchEvent, ApiError>, String) {
        let mut version = "1".to_owned();
        let change = WatchEvent::read(line.to_string().as_bytes(), &mut version);
        (change, version)
    }

    #[test]
    fn a_line_tells_a_change_and_its_version() {
        let object = json!({"metadata": {"name": "a", "resourceVersion": "7"}});
        for (kind, expected) in [
            ("ADDED", WatchEvent::Is(object.clone())),
            ("MODIFIED", WatchEvent::Is(object.clone())),
            ("DELETED", WatchEvent::Gone(object.clone())),
        ] {
            let (change, version) = read(&json!({"type": kind, "object": object}));
            assert_eq!((change.unwrap(), version.as_str()), (expected, "7"));
        }
    }

    #[test]
    fn a_bookmark_says_whether_the_beginning_is_over() {
        for (annotations, initial_end) in [
            (json!({}), false),
            (json!({"k8s.io/initial-events-end": "true"}), true),
        ] {
            let metadata = json!({"resourceVersion": "9", "annotations": annotations});
            let (change, version) =
                read(&json!({"type": "BOOKMARK", "object": {"metadata": metadata}}));
            assert_eq!(change.unwrap(), WatchEvent::Bookmark { initial_end });
            assert_eq!(version, "9");
        }
    }

    #[test]
    fn an_error_ends_the_watch_with_its_code() {
        let (change, version) = read(&json!({"type": "ERROR", "object": {"code": 410}}));
        assert!(change.unwrap_err().is_gone());
        assert_eq!(version, "1");
        let none = WatchEvent::read(b"{}", &mut String::new());
        assert!(matches!(none, Err(ApiError::Decode(_))));
    }
}
