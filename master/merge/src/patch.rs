//! Patches: which kind a request carries, and what each does to an object.

use crate::strategic;
use json_patch::PatchOperation;
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

/// Operations of one JSON patch at most (upstream: `maxJSONPatchOperations`).
const OPERATIONS: usize = 10_000;
/// Bytes that the copies of one JSON patch may make together (upstream: `JSONPatchMaxCopyBytes`).
const COPIED: usize = 3 << 20;

/// Levels of nesting that a patch may build by copies, as bodies may have.
const DEPTH: usize = 100;

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// Refuses a type of patch. Only upstream's own kinds take strategic merge patches.
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

/// Upstream's word for a patch that cannot be applied.
fn rejected() -> ApiError {
    ApiError::new(
        Reason::Invalid,
        "the server rejected our request due to an error in our request",
    )
}

impl Patch {
    /// Reads a patch by its content type. Also tells paths of duplicate fields. `strategic`: whether the kind takes
    /// strategic merge patches.
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
                    .filter(|count| *count > OPERATIONS)
                {
                    let text = format!(
                        "The allowed maximum operations in a JSON patch is {OPERATIONS}, got {operations}"
                    );
                    return Err(ApiError::new(Reason::RequestEntityTooLarge, text));
                }
                let told = read
                    .duplicates
                    .iter()
                    .map(|path| format!("json patch {path}"))
                    .collect();
                let patch = serde_json::from_value(read.value).map_err(|error| {
                    ApiError::new(Reason::BadRequest, format!("error decoding patch: {error}"))
                })?;
                Ok((Self::Json(patch), told))
            }
            _ => Err(unsupported(strategic)),
        }
    }

    /// Applies the patch to an object whose kind has its schema at `place`.
    pub fn apply(
        &self,
        object: Map<String, Value>,
        place: Place<'_>,
    ) -> Result<Map<String, Value>, ApiError> {
        let mut value = Value::Object(object);
        match self {
            Self::Merge(patch) => json_patch::merge(&mut value, patch),
            Self::Strategic(patch) => strategic::apply(&mut value, patch, place)?,
            Self::Json(patch) => operate(&mut value, patch)?,
        }
        match value {
            Value::Object(fields) => Ok(fields),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Err(rejected()),
        }
    }

    /// A patch as upstream's language prints it, for refusals.
    pub fn shown(patch: &Value) -> String {
        strategic::shown(patch)
    }

    /// The resource version that the patch itself demands, if it does.
    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Merge(patch) | Self::Strategic(patch) => patch
                .pointer("/metadata/resourceVersion")
                .and_then(Value::as_str),
            Self::Json(_) => None,
        }
    }

    /// Whether the patch could look at or change the field at the end of some steps, or something below it.
    pub fn speaks_of(&self, steps: &[&str]) -> bool {
        match self {
            Self::Merge(patch) | Self::Strategic(patch) => {
                let mut value = patch;
                for step in steps {
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

/// The places that an operation touches.
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

/// Applies operations one by one: copies could otherwise double an object again and again.
fn operate(value: &mut Value, patch: &json_patch::Patch) -> Result<(), ApiError> {
    let mut copied = 0;
    for operation in &patch.0 {
        if holds_nothing(value, operation) {
            continue;
        }
        let from = match operation {
            PatchOperation::Copy(operation) => Some(&operation.from),
            PatchOperation::Move(operation) => Some(&operation.from),
            PatchOperation::Add(_)
            | PatchOperation::Remove(_)
            | PatchOperation::Replace(_)
            | PatchOperation::Test(_) => None,
        };
        if let Some(moved) = from.and_then(|from| value.pointer(from.as_str())) {
            copied += moved.to_string().len();
            if copied > COPIED || operation.path().count() + depth(moved) > DEPTH {
                return Err(rejected());
            }
        }
        json_patch::patch(value, std::slice::from_ref(operation)).map_err(|_error| rejected())?;
    }
    Ok(())
}

/// Whether an operation tests for `null` what is not there: upstream's patches take one for the other, and clients use
/// that to say that a field is still missing.
fn holds_nothing(value: &Value, operation: &PatchOperation) -> bool {
    let PatchOperation::Test(test) = operation else {
        return false;
    };
    let path = test.path.as_str();
    let parent = path
        .rsplit_once('/')
        .and_then(|(parent, _)| value.pointer(parent));
    test.value.is_null() && parent.is_some_and(Value::is_object) && value.pointer(path).is_none()
}

/// Levels of nesting in a value.
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
        let many: Vec<Value> = (0..=OPERATIONS)
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
    fn a_json_patch_that_fails_changes_nothing_and_copies_have_a_limit() {
        let schemas = master_kinds::schema::Schemas::compile(&Map::new());
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
    fn it_is_told_whether_a_patch_speaks_of_a_field() {
        let speaks = |content_type: &str, patch: Value| {
            read(content_type, &patch)
                .unwrap()
                .speaks_of(&["metadata", "managedFields"])
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
