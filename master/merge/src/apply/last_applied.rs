//! The annotation of client-side apply: its fields belong to kubectl, and kubectl's server-side
//! apply keeps it up to date.

use super::Conflict;
use crate::compare::compare;
use crate::extract::extract;
use crate::set::Set;
use crate::typed::check;
use crate::write::Write;
use master_schema::decode;
use master_schema::object::{metadata, metadata_mut};
use master_schema::validate::{Fields, object};
use serde_json::Value;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Bytes of all annotations together.
const ANNOTATIONS: usize = 256 << 10;

/// The fields that client-side apply set and that are unchanged since; `None` without a usable
/// annotation.
pub(super) fn allowed(live: &Fields, write: &Write<'_>) -> Option<Set<'static>> {
    let text = object(metadata(live), "annotations")?
        .get(ANNOTATION)?
        .as_str()?;
    let Value::Object(last) = decode::json(text.as_bytes()).ok()?.value else {
        return None;
    };
    // In another version the fields have other names, which cannot be compared with these.
    if last.get("apiVersion").and_then(Value::as_str) != Some(write.api_version) {
        return None;
    }
    let place = write.place().ok()?;
    check(&last, place).ok()?;
    // A field that has changed since the last client-side apply was written by another manager.
    let changes = compare(&last, live, place);
    let set = extract(&last, place);
    let set = set
        .difference(&changes.modified)
        .difference(&changes.added)
        .difference(&changes.removed);
    Some(set.into_owned())
}

/// The conflicts outside the allowed fields.
pub(super) fn not_allowed<'a>(
    conflicts: Vec<Conflict<'a>>,
    allowed: &Set<'_>,
) -> Vec<Conflict<'a>> {
    let left = conflicts.into_iter().map(|conflict| Conflict {
        set: conflict.set.difference(allowed),
        ..conflict
    });
    left.filter(|conflict| !conflict.set.is_empty()).collect()
}

/// Updates the annotation, if present.
pub(super) fn update_annotation(live: &mut Fields, config: &Fields) {
    let known = object(metadata(live), "annotations")
        .and_then(|all| all.get(ANNOTATION))
        .and_then(Value::as_str);
    if known.is_none_or(str::is_empty) {
        return;
    }
    let mut config = config.clone();
    // As kubectl writes it: without itself, and with a newline at the end.
    if let Some(Value::Object(annotations)) = metadata_mut(&mut config).get_mut("annotations") {
        annotations.remove(ANNOTATION);
    }
    let text = format!("{}\n", Value::Object(config));
    let Some(Value::Object(annotations)) = metadata_mut(live).get_mut("annotations") else {
        return;
    };
    annotations.insert(ANNOTATION.to_owned(), text.into());
    let size: usize = annotations
        .iter()
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    // Validation would refuse the object. Without the annotation client-side apply only loses the
    // base of its next comparison.
    if size > ANNOTATIONS {
        annotations.remove(ANNOTATION);
    }
}
