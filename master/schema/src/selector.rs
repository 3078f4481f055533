//! Label and field selectors.

use crate::error::{ApiError, Reason, shown};
use crate::registry::{Kind, Word, words};
use crate::validate::{Fields, items, names, object, text};
use serde_json::Value;
use std::borrow::Cow;

/// One requirement on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Label {
    /// The values are sorted, as those of `NotIn` are.
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

/// One requirement on a field.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    label: String,
    /// Where it may stand in the stored object.
    pointers: Vec<Word>,
    value: String,
    equal: bool,
}

/// Both selectors of a list or watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    labels: Vec<Label>,
    fields: Vec<Field>,
}

/// Requirements of one selector.
// Each is compared with each object of a list.
const REQUIREMENTS: usize = 200;

impl Selector {
    /// Parses both; an empty string selects everything.
    ///
    /// # Errors
    /// A selector is malformed, has too many requirements, or names a field that the kind cannot
    /// select (400).
    pub fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let bad = |fault: String| ApiError::new(Reason::BadRequest, fault);
        let parsed = Self {
            labels: parse_labels(labels)
                .map_err(|fault| bad(format!("unable to parse requirement: {fault}")))?,
            fields: parse_fields(kind, fields).map_err(bad)?,
        };
        if parsed.labels.len() + parsed.fields.len() > REQUIREMENTS {
            return Err(bad(format!(
                "selectors with more than {REQUIREMENTS} requirements are not taken"
            )));
        }
        Ok(parsed)
    }

    /// The same selector, limited to one name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.fields.push(Field {
            label: "metadata.name".to_owned(),
            pointers: words(&["/metadata/name"]),
            value: name.to_owned(),
            equal: true,
        });
        self
    }

    /// Whether everything is selected.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The value that a field must have, if the selector demands exactly one.
    pub fn exact(&self, label: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|field| field.equal && field.label == label)
            .map(|field| field.value.as_str())
    }

    /// Whether an object can match, judged by its bytes: false only if a value that it must have
    /// does not occur in them. Searching costs a fiftieth of decoding the object.
    pub fn may_match(&self, stored: &[u8]) -> bool {
        let labels = self.labels.iter().filter_map(|label| match label {
            Label::In(_, values) => values.first().filter(|_| values.len() == 1),
            Label::NotIn(..)
            | Label::Exists(_)
            | Label::Absent(_)
            | Label::Greater(..)
            | Label::Less(..) => None,
        });
        // An absent field compares as `false`, and numbers and booleans have no quotes.
        let fields = self
            .fields
            .iter()
            .filter(|field| field.equal && field.value != "false")
            .map(|field| &field.value);
        let plain =
            |value: &&String| !value.contains(['"', '\\']) && !value.contains(char::is_control);
        labels
            .chain(fields)
            .filter(plain)
            .all(|value| memchr::memmem::find(stored, value.as_bytes()).is_some())
    }

    /// Whether an object (in stored form) matches.
    pub fn matches(&self, stored: &Value) -> bool {
        let labels = stored
            .pointer("/metadata")
            .and_then(Value::as_object)
            .and_then(|meta| object(meta, "labels"));
        self.labels.iter().all(|label| label.matches(labels))
            && self
                .fields
                .iter()
                .all(|field| (field_text(stored, &field.pointers) == field.value) == field.equal)
    }
}

impl Label {
    fn matches(&self, labels: Option<&Fields>) -> bool {
        let value = |key: &str| {
            labels
                .and_then(|labels| labels.get(key))
                .and_then(Value::as_str)
        };
        // A label that is no number is neither greater nor less than any.
        let number = |key: &str| value(key).and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(key, values) => value(key).is_some_and(|found| among(values, found)),
            // Upstream's rule: an object without the label is in none of the values, and is
            // selected.
            Self::NotIn(key, values) => !value(key).is_some_and(|found| among(values, found)),
            Self::Exists(key) => value(key).is_some(),
            Self::Absent(key) => value(key).is_none(),
            Self::Greater(key, bound) => number(key).is_some_and(|found| found > *bound),
            Self::Less(key, bound) => number(key).is_some_and(|found| found < *bound),
        }
    }
}

/// Whether a value is one of a requirement's, which are sorted.
fn among(values: &[String], found: &str) -> bool {
    values
        .binary_search_by(|value| value.as_str().cmp(found))
        .is_ok()
}

/// A field as selectors compare it, from the first of its paths that exists; an absent field is the
/// empty string, or `false` for booleans.
fn field_text<'a>(stored: &'a Value, pointers: &[Word]) -> Cow<'a, str> {
    pointers
        .iter()
        .map(|pointer| text_at(stored, pointer))
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}

fn text_at<'a>(stored: &'a Value, pointer: &str) -> Cow<'a, str> {
    match stored.pointer(pointer) {
        // Borrowed: each requirement of a selector reads it, of each object of a list.
        Some(Value::String(text)) => Cow::Borrowed(text.as_str()),
        Some(Value::Bool(value)) => Cow::Borrowed(if *value { "true" } else { "false" }),
        Some(Value::Number(number)) => Cow::Owned(number.to_string()),
        // Upstream's selectors of these two compare Go's booleans, which are never absent.
        None if pointer.ends_with("/unschedulable") || pointer.ends_with("/hostNetwork") => {
            Cow::Borrowed("false")
        }
        Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => Cow::Borrowed(""),
    }
}

/// An object's label selector as a string, as upstream writes it: from a `LabelSelector`, a map of
/// labels, or a string. `None` without a selector, which selects nothing.
pub fn label_text(selector: &Value) -> Option<String> {
    let fields = match selector {
        Value::String(text) => return Some(text.clone()),
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => return None,
    };
    let structured = fields.values().any(|value| !value.is_string()) || fields.is_empty();
    let labels = if structured {
        object(fields, "matchLabels")
    } else {
        Some(fields)
    };
    let mut parts: Vec<(String, String)> = Vec::new();
    for (key, value) in labels.into_iter().flatten() {
        parts.push((
            key.clone(),
            format!("{key}={}", value.as_str().unwrap_or_default()),
        ));
    }
    let expressions = if structured {
        items(fields, "matchExpressions")
    } else {
        &[]
    };
    for expression in expressions.iter().filter_map(Value::as_object) {
        let key = text(expression, "key");
        let mut values: Vec<&str> = items(expression, "values")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        // Sorted, as are the parts below: the text is a status that must not change while the
        // selector stays the same (upstream sorts, too).
        values.sort_unstable();
        let list = values.join(",");
        let part = match text(expression, "operator") {
            "In" => format!("{key} in ({list})"),
            "NotIn" => format!("{key} notin ({list})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            // Anything else selects nothing.
            _ => return None,
        };
        parts.push((key.to_owned(), part));
    }
    parts.sort();
    Some(
        parts
            .into_iter()
            .map(|(_, part)| part)
            .collect::<Vec<_>>()
            .join(","),
    )
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (position, c) in text.char_indices() {
        match c {
            '(' => inside = true,
            ')' => inside = false,
            ',' if !inside => {
                parts.push(&text[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_labels(text: &str) -> Result<Vec<Label>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split(text)
        .into_iter()
        .map(|part| parse_label(part.trim()))
        .collect()
}

fn key(text: &str) -> Result<String, String> {
    let text = text.trim();
    names::qualified(text)
        .map_err(|fault| format!("<nil>: Invalid value: {:?}: {fault}", shown(text)))?;
    Ok(text.to_owned())
}

fn value(text: &str) -> Result<String, String> {
    let text = text.trim();
    names::label_value(text)
        .map_err(|fault| format!("Invalid value: {:?}: {fault}", shown(text)))?;
    Ok(text.to_owned())
}

fn parse_label(part: &str) -> Result<Label, String> {
    // The longer operators first: `!=` begins like `!`, and `==` like `=`.
    if let Some(absent) = part.strip_prefix('!').filter(|rest| !rest.starts_with('=')) {
        return key(absent).map(Label::Absent);
    }
    if let Some((left, right)) = part.split_once("!=") {
        return Ok(Label::NotIn(key(left)?, vec![value(right)?]));
    }
    if let Some((left, right)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Label::In(key(left)?, vec![value(right)?]));
    }
    for (sign, greater) in [('>', true), ('<', false)] {
        if let Some((left, right)) = part.split_once(sign) {
            let bound = right
                .trim()
                .parse()
                .map_err(|error| format!("{:?} is not an integer: {error}", shown(right)))?;
            let key = key(left)?;
            return Ok(if greater {
                Label::Greater(key, bound)
            } else {
                Label::Less(key, bound)
            });
        }
    }
    if let Some((left, list)) = part.split_once('(') {
        let list = list
            .trim_end()
            .strip_suffix(')')
            .ok_or_else(|| format!("{:?}: found no ')'", shown(part)))?;
        let mut values = list.split(',').map(value).collect::<Result<Vec<_>, _>>()?;
        // A request has room for tens of thousands, among which each object's value is sought.
        values.sort_unstable();
        values.dedup();
        return match left.trim().rsplit_once(char::is_whitespace) {
            Some((left, "in")) => Ok(Label::In(key(left)?, values)),
            Some((left, "notin")) => Ok(Label::NotIn(key(left)?, values)),
            Some(_) | None => Err(format!("{:?}: expected 'in' or 'notin'", shown(part))),
        };
    }
    key(part).map(Label::Exists)
}

fn parse_fields(kind: &Kind, text: &str) -> Result<Vec<Field>, String> {
    let mut fields = Vec::new();
    for part in split_fields(text)
        .into_iter()
        .filter(|part| !part.is_empty())
    {
        // The first operator counts, whatever the value contains.
        let Some((left, right)) = part.split_once('=') else {
            return Err(format!(
                "invalid selector: '{}'; can't understand '{}'",
                shown(text),
                shown(part)
            ));
        };
        let (label, value, equal) = match left.strip_suffix('!') {
            Some(label) => (label, right, false),
            None => (left, right.strip_prefix('=').unwrap_or(right), true),
        };
        let pointers = pointers(kind, label).ok_or_else(|| unknown(kind, label))?;
        fields.push(Field {
            label: label.to_owned(),
            pointers,
            value: unescape(value)?,
            equal,
        });
    }
    Ok(fields)
}

/// Upstream's error for a field label that a kind does not support.
fn unknown(kind: &Kind, label: &str) -> String {
    let label = shown(label);
    if kind.selectable.is_empty() {
        return format!(
            "{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        );
    }
    format!("field label not supported: {label}")
}

/// Unescapes a field selector's value: a backslash quotes `\`, `,` and `=`.
fn unescape(value: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => plain.push(escaped),
                Some(other) => {
                    return Err(format!(
                        "invalid field selector: invalid escape sequence in value: \\{other}"
                    ));
                }
                None => {
                    return Err(
                        "invalid field selector: the value ends inside an escape sequence"
                            .to_owned(),
                    );
                }
            },
            ',' | '=' => {
                return Err(format!(
                    "invalid field selector: unescaped character in value: {c}"
                ));
            }
            c => plain.push(c),
        }
    }
    Ok(plain)
}

/// Splits at commas that are not escaped.
fn split_fields(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut plain) = (Vec::new(), 0, false);
    for (position, c) in text.char_indices() {
        match c {
            ',' if !plain => {
                parts.push(&text[start..position]);
                start = position + 1;
                plain = false;
            }
            '\\' => plain = !plain,
            _ => plain = false,
        }
    }
    parts.push(&text[start..]);
    parts
}

/// The paths of a selectable field in stored form.
fn pointers(kind: &Kind, label: &str) -> Option<Vec<Word>> {
    match label {
        "metadata.name" => Some(words(&["/metadata/name"])),
        "metadata.namespace" if kind.namespaced => Some(words(&["/metadata/namespace"])),
        _ => kind
            .selectable
            .iter()
            .find(|field| field.label == label)
            .map(|field| field.pointers.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::selectable;
    use config_kube::k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    fn selects(labels: &str, fields: &str) -> bool {
        let mut kind = Kind::of::<Pod>(true);
        kind.selectable = vec![selectable("spec.nodeName", "/spec/nodeName")];
        let object = json!({"metadata": {"name": "p", "labels": {"a": "1", "b/c": "x"}}, "spec": {"nodeName": "n"}});
        let selector = Selector::parse(&kind, labels, fields).unwrap();
        let matches = selector.matches(&object);
        assert!(
            !matches || selector.may_match(object.to_string().as_bytes()),
            "{labels} {fields}"
        );
        matches
    }

    #[test]
    fn a_stored_object_without_the_value_is_skipped_by_its_bytes() {
        let kind = Kind::of::<Pod>(true);
        let bytes =
            br#"{"metadata":{"name":"p","labels":{"app":"web"}},"spec":{"unschedulable":true}}"#;
        let may = |labels, fields| {
            Selector::parse(&kind, labels, fields)
                .unwrap()
                .may_match(bytes)
        };
        assert!(
            may("", "")
                && may("app=web", "")
                && may("app!=x,!z", "metadata.name!=q")
                && may("app in (x,y)", "")
        );
        assert!(!may("app=db", "") && !may("", "metadata.name=q"));
    }

    #[test]
    fn selectors_select_as_upstream_does() {
        for yes in [
            "",
            "a",
            "a=1",
            "a==1",
            "a!=2",
            "b/c in (x, y)",
            "b/c in (z, x, y, x)",
            "b/c in (z, y, x)",
            "a notin (3,2)",
            "a notin (2,3)",
            "!z",
            "z!=1",
            "a>0",
            "a<2,a",
        ] {
            assert!(selects(yes, ""), "{yes}");
        }
        for no in [
            "z",
            "a=2",
            "a!=1",
            "b/c in (y)",
            "a notin (1)",
            "!a",
            "a>1",
            "a=1,z",
        ] {
            assert!(!selects(no, ""), "{no}");
        }
        assert!(selects("", "spec.nodeName=n,metadata.name!=q"));
        assert!(!selects("", "spec.nodeName!=n"));
    }

    #[test]
    fn a_malformed_selector_is_refused() {
        let kind = Kind::of::<Pod>(true);
        for bad in ["a=b c", "a in x", "a in (x", "=", "a notin", "a>x", "-"] {
            assert!(Selector::parse(&kind, bad, "").is_err(), "{bad}");
        }
        let error = Selector::parse(&kind, "", "spec.foo=1").unwrap_err();
        assert!(
            error
                .message
                .contains("\"spec.foo\" is not a known field selector"),
            "{}",
            error.message
        );
        let mut with = Kind::of::<Pod>(true);
        with.selectable = vec![selectable("spec.nodeName", "/spec/nodeName")];
        let error = Selector::parse(&with, "", "spec.foo=1").unwrap_err();
        assert_eq!(error.message, "field label not supported: spec.foo");
        for bad in [
            "metadata.name",
            "metadata.name=a\\x",
            "metadata.name=a\\",
            "metadata.name=a=b",
        ] {
            assert!(Selector::parse(&kind, "", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_objects_selector_is_text_that_selects_the_same() {
        let structured = json!({"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [
            {"key": "c", "operator": "In", "values": ["y", "x"]}, {"key": "d", "operator": "DoesNotExist"},
        ]});
        assert_eq!(label_text(&structured).unwrap(), "a=1,b=2,c in (x,y),!d");
        assert_eq!(label_text(&json!({"app": "web"})).unwrap(), "app=web");
        assert_eq!(label_text(&json!({})).unwrap(), "");
        assert_eq!(label_text(&json!("a=b")).unwrap(), "a=b");
        assert_eq!(label_text(&Value::Null), None);
        let kind = Kind::of::<Pod>(true);
        let selector = Selector::parse(&kind, &label_text(&structured).unwrap(), "").unwrap();
        assert!(selector.matches(&json!({"metadata": {"labels": {"a": "1", "b": "2", "c": "x"}}})));
        assert!(
            !selector
                .matches(&json!({"metadata": {"labels": {"a": "1", "b": "2", "c": "x", "d": ""}}}))
        );
    }

    #[test]
    fn a_backslash_makes_signs_of_a_field_selector_plain() {
        let kind = Kind::of::<Pod>(true);
        let selector = Selector::parse(
            &kind,
            "",
            "metadata.name=a\\,b\\=c\\\\,metadata.namespace!=x",
        )
        .unwrap();
        assert_eq!(selector.exact("metadata.name"), Some("a,b=c\\"));
        assert!(selector.matches(&json!({"metadata": {"name": "a,b=c\\", "namespace": "y"}})));
    }
}
