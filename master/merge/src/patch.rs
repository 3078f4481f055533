//! Patches: decodes the patch types and applies them to an object.

use crate::strategic;
use json_patch::PatchOperation;
use master_schema::decode;
use master_schema::error::{ApiError, Reason};
use master_schema::schema::SchemaPosition;
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

/// Operations of one JSON patch at most (upstream: `maxJSONPatchOperations`).
const MAX_OPERATIONS: usize = 10_000;
/// Bytes that the copies of one JSON patch may add in total (upstream: `JSONPatchMaxCopyBytes`).
const MAX_COPIED: usize = 3 << 20;
/// List elements that the operations of one patch may move: to insert or remove one moves all after
/// it, so that 10,000 operations on a long list could keep a server busy for minutes.
const MAX_MOVED: usize = 50_000_000;

/// Depth of nesting that a patch may create; the same as for bodies. A value of many thousand
/// levels would end the program: it is written, checked and dropped by recursion.
const MAX_DEPTH: usize = 100;

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// The error for an unsupported patch type. Only upstream's own kinds support strategic merge
/// patch.
pub fn unsupported(strategic: bool) -> ApiError {
    let types = if strategic {
        vec![JSON, MERGE, STRATEGIC, APPLY]
    } else {
        vec![JSON, MERGE, APPLY]
    };
    let text = format!(
        "the body of the request was in an unknown format - accepted media types include: {}",
        types.join(", ")
    );
    ApiError::new(Reason::UnsupportedMediaType, text)
}

/// Upstream's error for a patch that cannot be applied.
fn rejected() -> ApiError {
    ApiError::new(
        Reason::Invalid,
        "the server rejected our request due to an error in our request",
    )
}

impl Patch {
    /// Decodes a patch by its content type and returns the paths of duplicate fields. `strategic`:
    /// whether the kind supports strategic merge patch.
    ///
    /// # Errors
    /// The content type is not supported (415), the patch is malformed (400) or has too many
    /// operations (413).
    pub fn parse(
        content_type: &str,
        bytes: &[u8],
        strategic: bool,
    ) -> Result<(Self, Vec<String>), ApiError> {
        let unreadable = |error: ApiError| {
            ApiError::new(
                Reason::BadRequest,
                format!("error decoding patch: {}", error.message),
            )
        };
        match content_type {
            MERGE => {
                let read = decode::json(bytes).map_err(unreadable)?;
                Ok((Self::Merge(object(read.value)?), read.duplicates))
            }
            STRATEGIC if strategic => {
                let read = decode::json(bytes).map_err(unreadable)?;
                Ok((Self::Strategic(object(read.value)?), read.duplicates))
            }
            JSON => {
                let read = decode::json(bytes).map_err(unreadable)?;
                if let Some(operations) = read
                    .value
                    .as_array()
                    .map(Vec::len)
                    .filter(|count| *count > MAX_OPERATIONS)
                {
                    let text = format!(
                        "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {operations}"
                    );
                    return Err(ApiError::new(Reason::RequestEntityTooLarge, text));
                }
                let duplicates = read
                    .duplicates
                    .iter()
                    .map(|path| format!("json patch {path}"))
                    .collect();
                let patch = serde_json::from_value(read.value).map_err(|error| {
                    ApiError::new(Reason::BadRequest, format!("error decoding patch: {error}"))
                })?;
                Ok((Self::Json(patch), duplicates))
            }
            _ => Err(unsupported(strategic)),
        }
    }

    /// Applies the patch to an object whose kind has its schema at `place`.
    ///
    /// # Errors
    /// The patch does not fit the object (400, 422), a test of a JSON patch fails (422), or the
    /// result is too deep or too large.
    pub fn apply(
        &self,
        object: Map<String, Value>,
        place: SchemaPosition<'_>,
    ) -> Result<Map<String, Value>, ApiError> {
        let mut value = Value::Object(object);
        match self {
            Self::Merge(patch) => json_patch::merge(&mut value, patch),
            Self::Strategic(patch) => strategic::apply(&mut value, patch, place)?,
            Self::Json(patch) => operate(&mut value, patch)?,
        }
        // A JSON patch can replace the whole document, by something that is no object, too.
        match value {
            Value::Object(fields) => Ok(fields),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Err(rejected()),
        }
    }

    /// A patch in Go's notation, for error messages.
    pub fn shown(patch: &Value) -> String {
        strategic::shown(patch)
    }

    /// The resource version that the patch demands, if any.
    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Merge(patch) | Self::Strategic(patch) => patch
                .pointer("/metadata/resourceVersion")
                .and_then(Value::as_str),
            Self::Json(_) => None,
        }
    }

    /// Whether the patch reads or changes the field at a path, or something above or below it.
    pub fn touches(&self, steps: &[&str]) -> bool {
        match self {
            Self::Merge(patch) | Self::Strategic(patch) => {
                let mut value = patch;
                for step in steps {
                    // A directive replaces or deletes everything below it.
                    if value.get("$patch").is_some() {
                        return true;
                    }
                    match value.get(step) {
                        Some(inner) => value = inner,
                        None => return false,
                    }
                }
                true
            }
            // Only the common length is compared: a pointer to a parent replaces the field, too.
            Self::Json(patch) => patch.0.iter().flat_map(pointers).any(|pointer| {
                pointer
                    .trim_start_matches('/')
                    .split('/')
                    .filter(|step| !step.is_empty())
                    .zip(steps)
                    .all(|(one, other)| one == *other)
            }),
        }
    }
}

/// The paths of an operation.
fn pointers(operation: &PatchOperation) -> Vec<&str> {
    let own = operation.path().as_str();
    match operation {
        PatchOperation::Move(operation) => vec![own, operation.from.as_str()],
        PatchOperation::Copy(operation) => vec![own, operation.from.as_str()],
        PatchOperation::Add(_)
        | PatchOperation::Remove(_)
        | PatchOperation::Replace(_)
        | PatchOperation::Test(_) => {
            vec![own]
        }
    }
}

/// Applies the operations one by one and limits copies: each could double the object.
fn operate(value: &mut Value, patch: &json_patch::Patch) -> Result<(), ApiError> {
    let (mut copied, mut shifted) = (0, 0_usize);
    for operation in &patch.0 {
        if is_absent_null(value, operation) {
            continue;
        }
        shifted = shifted.saturating_add(moved_by(value, operation));
        // Before the operation is carried out, as its cost is what is bounded.
        if shifted > MAX_MOVED {
            return Err(rejected());
        }
        let (moved, own) = match operation {
            PatchOperation::Copy(operation) => (value.pointer(operation.from.as_str()), None),
            PatchOperation::Move(operation) => (value.pointer(operation.from.as_str()), None),
            PatchOperation::Add(operation) => (None, Some(&operation.value)),
            PatchOperation::Replace(operation) => (None, Some(&operation.value)),
            PatchOperation::Remove(_) | PatchOperation::Test(_) => (None, None),
        };
        // Bodies are bounded in size and depth when they are decoded. Copies and moves are the one
        // way to get beyond their size afterwards.
        if let Some(moved) = moved {
            copied += moved.to_string().len();
            if copied > MAX_COPIED {
                return Err(rejected());
            }
        }
        // Each operation can put its value at the bottom of that of the one before.
        let added = moved.or(own);
        if added.is_some_and(|added| operation.path().count() + depth(added) > MAX_DEPTH) {
            return Err(rejected());
        }
        json_patch::patch(value, std::slice::from_ref(operation)).map_err(|_error| rejected())?;
    }
    Ok(())
}

/// Elements of the lists that an operation may have to move.
fn moved_by(value: &Value, operation: &PatchOperation) -> usize {
    let siblings = |path: &str| {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let parent = value.pointer(parent).and_then(Value::as_array);
        parent.map_or(0, Vec::len)
    };
    let own = operation.path().as_str();
    match operation {
        PatchOperation::Add(_) | PatchOperation::Remove(_) | PatchOperation::Copy(_) => {
            siblings(own)
        }
        PatchOperation::Move(operation) => siblings(own) + siblings(operation.from.as_str()),
        PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
    }
}

/// Whether an operation tests for `null` at a path that does not exist: upstream treats both alike,
/// and clients use it to test that a field is still absent.
fn is_absent_null(value: &Value, operation: &PatchOperation) -> bool {
    let PatchOperation::Test(test) = operation else {
        return false;
    };
    let path = test.path.as_str();
    let parent = path
        .rsplit_once('/')
        .and_then(|(parent, _)| value.pointer(parent));
    test.value.is_null() && parent.is_some_and(Value::is_object) && value.pointer(path).is_none()
}

/// Depth of nesting of a value.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn object(value: Value) -> Result<Value, ApiError> {
    if value.is_object() {
        return Ok(value);
    }
    Err(ApiError::new(
        Reason::BadRequest,
        "error decoding patch: expected an object",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(content_type: &str, patch: &Value) -> Result<Patch, ApiError> {
        Patch::parse(content_type, patch.to_string().as_bytes(), true).map(|(patch, _)| patch)
    }

    #[test]
    fn limits_and_types_are_upstreams() {
        let many: Vec<Value> = (0..=MAX_OPERATIONS)
            .map(|_| json!({"op": "test", "path": "/a", "value": 1}))
            .collect();
        let error = read(JSON, &json!(many)).unwrap_err();
        assert_eq!(
            (error.code, &*error.message),
            (
                413,
                "The allowed maximum operations in a JSON patch is 10000, got 10001"
            )
        );
        let error = read("text/plain", &json!({})).unwrap_err();
        assert_eq!(error.code, 415);
        assert!(error.message.ends_with(
            "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
             application/apply-patch+yaml"
        ));
        let error = Patch::parse(STRATEGIC, b"{}", false).unwrap_err();
        assert_eq!(error.code, 415);
        assert_eq!(read(MERGE, &json!([])).unwrap_err().code, 400);
        assert_eq!(
            read(JSON, &json!([{"op": "guess", "path": "/a"}]))
                .unwrap_err()
                .code,
            400
        );
    }

    #[test]
    fn a_json_patch_moves_no_more_of_lists_than_a_server_has_time_for() {
        let schemas = master_schema::schema::Schemas::compile(&Map::new());
        let object = json!({"a": vec![json!(""); 100_000]});
        let run = |operation: Value, count: usize| {
            let patch = read(JSON, &json!(vec![operation; count]))?;
            let result = patch.apply(object.as_object().unwrap().clone(), schemas.place(""));
            result.map(|object| object["a"].as_array().unwrap().len())
        };
        let turn = || json!({"op": "move", "from": "/a/0", "path": "/a/-"});
        assert_eq!(run(turn(), 100), Ok(100_000));
        assert_eq!(run(turn(), MAX_OPERATIONS).unwrap_err().code, 422);
        let front = json!({"op": "add", "path": "/a/0", "value": ""});
        assert_eq!(run(front, MAX_OPERATIONS).unwrap_err().code, 422);
        let test = json!({"op": "test", "path": "/a/9", "value": ""});
        assert_eq!(run(test, MAX_OPERATIONS), Ok(100_000));
    }

    #[test]
    fn a_json_patch_that_fails_changes_nothing_and_copies_have_a_limit() {
        let schemas = master_schema::schema::Schemas::compile(&Map::new());
        let run = |patch: Value, object: Value| {
            let Value::Object(object) = object else {
                return Err(rejected());
            };
            read(JSON, &patch)?.apply(object, schemas.place(""))
        };
        let failed = run(
            json!([{"op": "test", "path": "/a", "value": 2}]),
            json!({"a": 1}),
        )
        .unwrap_err();
        assert_eq!((failed.code, failed.reason), (422, Reason::Invalid));
        assert_eq!(
            failed.message,
            "the server rejected our request due to an error in our request"
        );
        let double: Vec<Value> = (0..60)
            .map(|n| json!({"op": "copy", "from": "/a", "path": format!("/a/{n}")}))
            .collect();
        assert_eq!(
            run(json!(double), json!({"a": {"b": "c"}}))
                .unwrap_err()
                .code,
            422
        );
        let deep: Vec<Value> = (0..200)
            .map(|_| json!({"op": "copy", "from": "/a", "path": "/a/x"}))
            .collect();
        assert_eq!(
            run(json!(deep), json!({"a": {"b": "c"}})).unwrap_err().code,
            422
        );
        assert_eq!(
            run(json!([{"op": "remove", "path": "/z"}]), json!({}))
                .unwrap_err()
                .code,
            422
        );
        let missing = |path: &str| {
            run(
                json!([{"op": "test", "path": path, "value": null}]),
                json!({"a": {}}),
            )
        };
        assert!(
            missing("/a/b").is_ok(),
            "what is not there is null to a test"
        );
        assert_eq!(
            missing("/c/b").unwrap_err().code,
            422,
            "but it must have a place"
        );
        let moved = run(
            json!([{"op": "move", "from": "/a", "path": "/b"}]),
            json!({"a": 1}),
        )
        .unwrap();
        assert_eq!(Value::Object(moved), json!({"b": 1}));
    }

    #[test]
    fn operations_put_values_no_deeper_than_a_body_has_them() {
        let schemas = master_schema::schema::Schemas::compile(&Map::new());
        let deep = (0..60).fold(json!(0), |inner, _| json!({ "a": inner }));
        let bottom = "/a".repeat(61);
        let first = json!({"op": "add", "path": "/a", "value": deep});
        let run = |second: Value| {
            let patch = read(JSON, &json!([first, second]))?;
            patch.apply(Map::new(), schemas.place(""))
        };
        for operation in ["add", "replace"] {
            let second =
                |value: &Value| run(json!({"op": operation, "path": bottom, "value": value}));
            assert_eq!(second(&deep).unwrap_err().code, 422, "{operation}");
            assert!(second(&json!({"b": 1})).is_ok(), "{operation}");
        }
    }

    #[test]
    fn it_detects_whether_a_patch_mentions_a_field() {
        let speaks = |content_type: &str, patch: Value| {
            read(content_type, &patch)
                .unwrap()
                .touches(&["metadata", "managedFields"])
        };
        assert!(speaks(MERGE, json!({"metadata": {"managedFields": [{}]}})));
        assert!(!speaks(MERGE, json!({"metadata": {"labels": {}}})));
        assert!(speaks(
            STRATEGIC,
            json!({"metadata": {"$patch": "replace"}})
        ));
        assert!(speaks(
            JSON,
            json!([{"op": "remove", "path": "/metadata/managedFields/0/time"}])
        ));
        assert!(speaks(
            JSON,
            json!([{"op": "copy", "from": "/metadata", "path": "/data"}])
        ));
        assert!(speaks(
            JSON,
            json!([{"op": "test", "path": "", "value": {}}])
        ));
        assert!(!speaks(
            JSON,
            json!([{"op": "remove", "path": "/metadata/labels"}])
        ));
    }
}
