//! Validation: all faults at once, with upstream's field paths and reasons.

pub mod conditions;
pub mod forms;
pub mod labels;
pub mod meta;
pub mod names;
pub mod net;
pub mod resource;

use crate::error::{ApiError, Cause, Reason};
use serde_json::{Map, Value};
use std::fmt;

/// An object's fields.
pub type Fields = Map<String, Value>;

/// The path of a value, as upstream writes it: `spec.containers[0].name`, `data[key]`.
#[derive(Debug, Clone, Copy)]
pub struct FieldPath<'a> {
    parent: Option<&'a FieldPath<'a>>,
    step: Step<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> FieldPath<'a> {
    /// A top-level field.
    pub fn root(field: &'a str) -> Self {
        Self {
            parent: None,
            step: Step::Field(field),
        }
    }

    /// A field below; dots in the name are not escaped.
    #[must_use]
    pub fn field(&'a self, field: &'a str) -> Self {
        Self {
            parent: Some(self),
            step: Step::Field(field),
        }
    }

    /// An item of a list.
    #[must_use]
    pub fn index(&'a self, index: usize) -> Self {
        Self {
            parent: Some(self),
            step: Step::Index(index),
        }
    }

    /// An entry of a map.
    #[must_use]
    pub fn key(&'a self, key: &'a str) -> Self {
        Self {
            parent: Some(self),
            step: Step::Key(key),
        }
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Field(field) if self.parent.is_none() => f.write_str(field),
            Step::Field(field) => write!(f, ".{field}"),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{key}]"),
        }
    }
}

/// The faults of one object.
#[derive(Debug, Default)]
pub struct Faults {
    causes: Vec<Cause>,
    /// Messages about values of a form that is refused in new values alone.
    forms: Vec<String>,
}

/// Causes reported at most.
// An object of a few megabytes can have a fault in every value.
const MAX_CAUSES: usize = 100;

impl Faults {
    fn add(&mut self, reason: &'static str, at: &FieldPath<'_>, message: String) {
        if self.causes.len() < MAX_CAUSES {
            self.causes.push(Cause {
                reason: reason.into(),
                message,
                field: at.to_string(),
            });
        }
    }

    /// A required value is missing.
    pub fn required(&mut self, at: &FieldPath<'_>, detail: &str) {
        let message = if detail.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {detail}")
        };
        self.add("FieldValueRequired", at, message);
    }

    /// A value has a wrong format or is out of range.
    pub fn invalid(&mut self, at: &FieldPath<'_>, value: &Value, detail: impl fmt::Display) {
        self.add(
            "FieldValueInvalid",
            at,
            format!("Invalid value: {}: {detail}", shown(value)),
        );
    }

    /// A value has a form that only stored values may have, wherever in its object it is.
    pub fn invalid_form(&mut self, at: &FieldPath<'_>, value: &Value, detail: &str) {
        let known = self.causes.len();
        self.invalid(at, value, detail);
        // None where the list of causes was full already.
        let told = self.causes.get(known).map(|cause| cause.message.clone());
        self.forms.extend(told);
    }

    /// A value is not allowed here.
    pub fn forbidden(&mut self, at: &FieldPath<'_>, detail: impl fmt::Display) {
        self.add("FieldValueForbidden", at, format!("Forbidden: {detail}"));
    }

    /// A value occurs twice in a list of unique values.
    pub fn duplicate(&mut self, at: &FieldPath<'_>, value: &Value) {
        self.add(
            "FieldValueDuplicate",
            at,
            format!("Duplicate value: {}", shown(value)),
        );
    }

    /// As [`Faults::duplicate`], with a detail that says which key is the same.
    pub fn duplicate_of(&mut self, at: &FieldPath<'_>, value: &Value, detail: &str) {
        self.add(
            "FieldValueDuplicate",
            at,
            format!("Duplicate value: {}: {detail}", shown(value)),
        );
    }

    /// A value names something that does not exist.
    pub fn not_found(&mut self, at: &FieldPath<'_>, value: &Value) {
        self.add(
            "FieldValueNotFound",
            at,
            format!("Not found: {}", shown(value)),
        );
    }

    /// A value is longer than allowed.
    pub fn too_long(&mut self, at: &FieldPath<'_>, limit: usize) {
        self.add(
            "FieldValueTooLong",
            at,
            format!("Too long: may not be more than {limit} bytes"),
        );
    }

    /// A list has more items than allowed.
    pub fn too_many(&mut self, at: &FieldPath<'_>, found: usize, limit: usize) {
        let items = if limit == 1 { "item" } else { "items" };
        self.add(
            "FieldValueTooMany",
            at,
            format!("Too many: {found}: must have at most {limit} {items}"),
        );
    }

    /// Something is wrong with a part of the object that is too large to show.
    pub fn wrong(&mut self, at: &FieldPath<'_>, detail: impl fmt::Display) {
        self.add("FieldValueInvalid", at, format!("Invalid value: {detail}"));
    }

    /// A value names something that is not there, with what could be named.
    pub fn not_found_among(
        &mut self,
        at: &FieldPath<'_>,
        value: &Value,
        detail: impl fmt::Display,
    ) {
        self.add(
            "FieldValueNotFound",
            at,
            format!("Not found: {}: {detail}", shown(value)),
        );
    }

    /// A value is none of those that are supported.
    pub fn unsupported(&mut self, at: &FieldPath<'_>, value: &Value, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let message = format!(
            "Unsupported value: {}: supported values: {}",
            shown(value),
            list.join(", ")
        );
        self.add("FieldValueNotSupported", at, message);
    }

    /// Forgets what is also found elsewhere, at the same place for the same value, and forms of
    /// values at any place.
    pub fn forgive(&mut self, known: &Self) {
        self.causes.retain(|cause| !known.causes.contains(cause));
        self.forgive_forms(known);
    }

    /// Forgets forms of values that are also found elsewhere, at any place.
    pub fn forgive_forms(&mut self, known: &Self) {
        let causes = &mut self.causes;
        causes.retain(|cause| !known.forms.contains(&cause.message));
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.causes.is_empty()
    }

    /// The faults: path, reason and message.
    pub fn found(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.causes.iter().map(|cause| {
            (
                cause.field.as_str(),
                cause.reason.as_ref(),
                cause.message.as_str(),
            )
        })
    }

    /// Reports a value that is not one of the supported ones.
    pub fn one_of(&mut self, at: &FieldPath<'_>, value: &Value, supported: &[&str]) {
        if !value
            .as_str()
            .is_some_and(|value| supported.contains(&value))
        {
            self.unsupported(at, value, supported);
        }
    }

    /// Reports a change of an immutable value.
    pub fn immutable(&mut self, at: &FieldPath<'_>, new: &Value, old: &Value) {
        if !alike(new, old) {
            self.invalid(at, new, "field is immutable");
        }
    }

    /// Turns the faults into an error.
    ///
    /// # Errors
    /// There is at least one fault (422).
    pub fn into_error(self, group: &str, kind: &str, name: &str) -> Result<(), ApiError> {
        if self.causes.is_empty() {
            return Ok(());
        }
        let texts: Vec<String> = self
            .causes
            .iter()
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect();
        let list = match texts.as_slice() {
            [only] => only.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let qualified = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        };
        let mut error = ApiError::new(
            Reason::Invalid,
            format!("{qualified} {name:?} is invalid: {list}"),
        )
        .about(group, kind, name);
        error.details.causes = self.causes;
        Err(error)
    }
}

/// A value as upstream shows it: strings in quotes, the rest as JSON, limited in length.
fn shown(value: &Value) -> String {
    let mut text = value.to_string();
    // A refusal goes to the client and into logs, where a whole value could be megabytes.
    if text.len() > 256 {
        let mut end = 256;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The value of a field; null if absent.
pub fn get<'a>(fields: &'a Fields, key: &str) -> &'a Value {
    fields.get(key).unwrap_or(&Value::Null)
}

/// The string of a field; empty if absent.
pub fn text<'a>(fields: &'a Fields, key: &str) -> &'a str {
    get(fields, key).as_str().unwrap_or_default()
}

/// Whether two values are equivalent: an empty value equals an absent one.
pub fn alike(one: &Value, other: &Value) -> bool {
    // Upstream's `Semantic.DeepEqual`: Go's empty and absent lists, maps and texts are equal.
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.iter().all(|(key, value)| alike(value, get(other, key)))
                && other
                    .iter()
                    .all(|(key, value)| one.contains_key(key) || says_nothing(value))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| alike(one, other))
        }
        _ => one == other || (says_nothing(one) && says_nothing(other)),
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(says_nothing),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The items of a list field; none if absent.
pub fn items<'a>(fields: &'a Fields, key: &str) -> &'a [Value] {
    get(fields, key).as_array().map_or(&[], Vec::as_slice)
}

/// The fields of an object field, if present.
pub fn object<'a>(fields: &'a Fields, key: &str) -> Option<&'a Fields> {
    get(fields, key).as_object()
}

/// The fields of an object field, which is created if absent.
pub fn object_mut<'a>(fields: &'a mut Fields, key: &str) -> Option<&'a mut Fields> {
    fields
        .entry(key)
        .or_insert_with(|| Value::Object(Map::new()))
        .as_object_mut()
}

/// Sets a field that is absent or empty.
pub fn default_to(fields: &mut Fields, key: &str, value: impl Into<Value>) {
    let missing = match fields.get(key) {
        None | Some(Value::Null) => true,
        // Most of upstream's texts are no pointers: empty and absent are the same. Numbers differ
        // from kind to kind, so a zero stays here.
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if missing {
        fields.insert(key.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_empty_value_equals_a_missing_one() {
        let same = |one: Value, other: Value| alike(&one, &other) && alike(&other, &one);
        assert!(same(
            json!({"group": "", "name": "x", "list": []}),
            json!({"name": "x", "status": {"a": null}})
        ));
        assert!(!same(json!({"a": false}), json!({})));
        assert!(!same(json!({"a": [1]}), json!({"a": [1, 2]})));
        assert!(!same(json!({"a": {"b": "c"}}), json!({"a": {}})));
    }
}
