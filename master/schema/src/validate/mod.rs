//! Validation: all faults at once, with upstream's field paths and reasons.

pub mod conditions;
pub mod forms;
pub mod labels;
pub mod limits;
pub mod meta;
pub mod names;
pub mod net;
pub mod resource;

use crate::error::{ApiError, Cause, Reason};
use serde_json::{Map, Value};
use std::cmp::Reverse;
use std::{fmt, io};

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
    /// Lists of more items than allowed.
    long: Vec<LongList>,
}

/// A list of more items than allowed.
#[derive(Debug)]
struct LongList {
    /// Its path without the numbers of items, by [`pattern`].
    field: String,
    items: usize,
}

/// A path with `[*]` for each number of an item: a list stays the same where an item before it is
/// removed.
fn pattern(field: &str) -> String {
    let mut parts = field.split('[');
    let mut pattern = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_number = rest.len() < part.len() && rest.starts_with(']');
        pattern.push_str(if is_number { "[*" } else { "[" });
        pattern.push_str(if is_number { rest } else { part });
    }
    pattern
}

/// Whether lists of one pattern are more or longer than the known ones: the longest of them is
/// compared with the longest known one, the second with the second, and so on.
fn have_grown(lists: &[LongList], known: &[LongList], pattern: &str) -> bool {
    let [now, before] = [lists, known].map(|lists| {
        let found = lists.iter().filter(|list| list.field == pattern);
        let mut lengths: Vec<usize> = found.map(|list| list.items).collect();
        lengths.sort_unstable_by_key(|length| Reverse(*length));
        lengths
    });
    now.len() > before.len() || now.iter().zip(&before).any(|(now, before)| now > before)
}

/// Causes reported at most.
// An object of a few megabytes can have a fault in every value.
const MAX_CAUSES: usize = 100;

/// Upstream's reason for a list of more items than allowed.
const TOO_MANY: &str = "FieldValueTooMany";

impl Faults {
    /// `message` is called only if there is room: an object can have 100,000 faults, of values of
    /// any size.
    fn add(&mut self, reason: &'static str, at: &FieldPath<'_>, message: impl FnOnce() -> String) {
        if self.causes.len() < MAX_CAUSES {
            self.causes.push(Cause {
                reason: reason.into(),
                message: message(),
                field: at.to_string(),
            });
        }
    }

    /// A required value is missing.
    pub fn required(&mut self, at: &FieldPath<'_>, detail: &str) {
        self.add("FieldValueRequired", at, || {
            if detail.is_empty() {
                "Required value".to_owned()
            } else {
                format!("Required value: {detail}")
            }
        });
    }

    /// A value has a wrong format or is out of range.
    pub fn invalid(&mut self, at: &FieldPath<'_>, value: &Value, detail: impl fmt::Display) {
        self.add("FieldValueInvalid", at, || {
            format!("Invalid value: {}: {detail}", shown(value))
        });
    }

    /// A value has a form that only stored values may have, wherever in its object it is.
    pub fn invalid_form(&mut self, at: &FieldPath<'_>, value: &Value, detail: &str) {
        let known = self.causes.len();
        self.invalid(at, value, detail);
        // None where the list of causes was full already.
        let message = self.causes.get(known).map(|cause| cause.message.clone());
        self.forms.extend(message);
    }

    /// A value is not allowed here.
    pub fn forbidden(&mut self, at: &FieldPath<'_>, detail: impl fmt::Display) {
        self.add("FieldValueForbidden", at, || format!("Forbidden: {detail}"));
    }

    /// A value occurs twice in a list of unique values.
    pub fn duplicate(&mut self, at: &FieldPath<'_>, value: &Value) {
        self.add("FieldValueDuplicate", at, || {
            format!("Duplicate value: {}", shown(value))
        });
    }

    /// As [`Faults::duplicate`], with a detail that says which key is the same.
    pub fn duplicate_of(&mut self, at: &FieldPath<'_>, value: &Value, detail: &str) {
        self.add("FieldValueDuplicate", at, || {
            format!("Duplicate value: {}: {detail}", shown(value))
        });
    }

    /// A value names something that does not exist.
    pub fn not_found(&mut self, at: &FieldPath<'_>, value: &Value) {
        self.add("FieldValueNotFound", at, || {
            format!("Not found: {}", shown(value))
        });
    }

    /// A value is longer than allowed.
    pub fn too_long(&mut self, at: &FieldPath<'_>, limit: usize) {
        self.add("FieldValueTooLong", at, || {
            format!("Too long: may not be more than {limit} bytes")
        });
    }

    /// A list has more items than allowed.
    pub fn too_many(&mut self, at: &FieldPath<'_>, found: usize, limit: usize) {
        let items = if limit == 1 { "item" } else { "items" };
        self.add(TOO_MANY, at, || {
            format!("Too many: {found}: must have at most {limit} {items}")
        });
        if self.long.len() < MAX_CAUSES {
            self.long.push(LongList {
                field: pattern(&at.to_string()),
                items: found,
            });
        }
    }

    /// Something is wrong with a part of the object that is too large to show.
    pub fn wrong(&mut self, at: &FieldPath<'_>, detail: impl fmt::Display) {
        self.add("FieldValueInvalid", at, || {
            format!("Invalid value: {detail}")
        });
    }

    /// A value names something that is not there, with what could be named.
    pub fn not_found_among(
        &mut self,
        at: &FieldPath<'_>,
        value: &Value,
        detail: impl fmt::Display,
    ) {
        self.add("FieldValueNotFound", at, || {
            format!("Not found: {}: {detail}", shown(value))
        });
    }

    /// A value is none of those that are supported.
    pub fn unsupported(&mut self, at: &FieldPath<'_>, value: &Value, supported: &[&str]) {
        self.add("FieldValueNotSupported", at, || {
            let list: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
            format!(
                "Unsupported value: {}: supported values: {}",
                shown(value),
                list.join(", ")
            )
        });
    }

    /// Forgets what is also found elsewhere, at the same place for the same value, forms of values
    /// at any place, and lists that have not grown.
    pub fn forgive(&mut self, known: &Self) {
        self.causes.retain(|cause| !known.causes.contains(cause));
        self.forgive_long(known);
        self.forgive_forms(known);
    }

    /// Forgets lists of more items than allowed that have as many elsewhere, or more, whichever
    /// item of a list they are in.
    pub fn forgive_long(&mut self, known: &Self) {
        let (causes, long) = (&mut self.causes, &self.long);
        causes.retain(|cause| {
            cause.reason != TOO_MANY || have_grown(long, &known.long, &pattern(&cause.field))
        });
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

/// Bytes of a value that a message shows: it goes to the client and into logs, and a value can have
/// megabytes.
const SHOWN: usize = 256;

/// Takes the first bytes that are written, and refuses the rest, so that no more are made.
#[derive(Debug, Default)]
struct Head(Vec<u8>);

impl io::Write for Head {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // One byte more, which says that the value is longer.
        let room = (SHOWN + 1).saturating_sub(self.0.len()).min(bytes.len());
        self.0.extend_from_slice(&bytes[..room]);
        Ok(room)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A value as upstream shows it: strings in quotes, the rest as JSON, limited in length.
fn shown(value: &Value) -> String {
    let mut head = Head::default();
    // It ends with an error where the value is longer.
    let _cut = serde_json::to_writer(&mut head, value);
    let bytes = &head.0[..head.0.len().min(SHOWN)];
    // The last character may be cut.
    let end = std::str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len);
    let mut text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    if head.0.len() > SHOWN {
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

    #[test]
    fn a_value_is_shown_up_to_a_length() {
        assert_eq!(shown(&json!({"a": [1, "b"]})), r#"{"a":[1,"b"]}"#);
        let short = "x".repeat(SHOWN - 2);
        assert_eq!(shown(&short.as_str().into()), format!("\"{short}\""));
        let long = shown(&format!("{short}y").into());
        assert_eq!(long, format!("\"{short}y…"));
        let umlauts = shown(&"ä".repeat(SHOWN).into());
        assert_eq!(umlauts, format!("\"{}…", "ä".repeat((SHOWN - 2) / 2)));
    }

    /// Each of 100,000 faults could show a value of megabytes.
    #[test]
    fn faults_beyond_those_that_are_reported_cost_nothing_whatever_they_would_show() {
        struct NeverShown;
        impl fmt::Display for NeverShown {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                unreachable!("it is not reported")
            }
        }
        let large: Value = vec![json!({}); 1_000_000].into();
        let (mut faults, at) = (Faults::default(), FieldPath::root("list"));
        for _fault in 0..100_000 {
            faults.invalid(&at, &large, "wrong");
            faults.duplicate(&at, &large);
            faults.not_found(&at, &large);
        }
        assert_eq!(faults.found().count(), MAX_CAUSES);
        faults.invalid(&at, &large, NeverShown);
        faults.forbidden(&at, NeverShown);
    }
}
