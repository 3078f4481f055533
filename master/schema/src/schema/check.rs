//! Checks an object against its schema: unknown fields are removed and reported, wrong types are
//! faults.

use super::{Node, Schemas};
use crate::quantity::Quantity;
use base64::Engine;
use serde_json::{Map, Value};
use std::fmt::{self, Write as _};

/// The result of a check.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Paths of unknown fields; they are removed from the object.
    pub unknown: Vec<String>,
    /// Values of a wrong type.
    pub wrong: Vec<Wrong>,
}

/// A value of a wrong type for its field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    path: String,
    expected: &'static str,
    found: String,
    /// Upstream's text for the same fault in the result of a strategic merge patch.
    restored: Option<String>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: expected {}, found {}",
            self.path, self.expected, self.found
        )
    }
}

impl Wrong {
    /// The fault in upstream's words for the result of a strategic merge patch.
    pub fn restored(&self) -> String {
        self.restored.clone().unwrap_or_else(|| self.to_string())
    }
}

/// Faults reported at most; an object of three megabytes can have very many.
const MAX_FAULTS: usize = 100;

impl Schemas {
    /// Checks an object against the definition `name`, removes unknown fields, nulls and empty
    /// maps, and writes each quantity in its canonical form.
    pub fn check(&self, name: &str, object: &mut Map<String, Value>) -> Checked {
        let mut checked = Checked::default();
        let mut path = String::new();
        if let Some(Node::Object(_)) = self.names.get(name).map(|index| &self.nodes[*index]) {
            self.fields(self.names[name], object, &mut path, &mut checked);
        }
        checked.unknown.truncate(MAX_FAULTS);
        checked.wrong.truncate(MAX_FAULTS);
        checked
    }

    /// Writes each quantity of an object in its canonical form and changes nothing else.
    pub fn canonical(&self, name: &str, object: &mut Map<String, Value>) {
        if let Some(index) = self.names.get(name) {
            self.canonical_fields(*index, object);
        }
    }

    fn canonical_fields(&self, index: usize, object: &mut Map<String, Value>) {
        let Node::Object(known) = &self.nodes[index] else {
            return;
        };
        for (key, value) in object {
            if let Some(field) = known.fields.get(key.as_str()) {
                self.canonical_value(field.node, value);
            }
        }
    }

    fn canonical_value(&self, index: usize, value: &mut Value) {
        match (&self.nodes[index], &mut *value) {
            (Node::Object(_), Value::Object(object)) => self.canonical_fields(index, object),
            (Node::Map(inner), Value::Object(object)) => {
                object
                    .values_mut()
                    .for_each(|value| self.canonical_value(*inner, value));
            }
            (Node::Array(inner), Value::Array(items)) => {
                for value in items.iter_mut() {
                    self.canonical_value(*inner, value);
                }
            }
            (Node::Quantity, _) => {
                if let Some(quantity) = Quantity::read(value) {
                    rewrite(value, quantity);
                }
            }
            _ => {}
        }
    }

    fn fields(
        &self,
        index: usize,
        object: &mut Map<String, Value>,
        path: &mut String,
        checked: &mut Checked,
    ) {
        let Node::Object(known) = &self.nodes[index] else {
            return;
        };
        object.retain(|key, value| {
            let length = path.len();
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(key);
            let keep = match known.fields.get(key.as_str()) {
                Some(_) if value.is_null() => false,
                // Upstream's types do not distinguish an empty map from an absent one.
                Some(field)
                    if matches!(self.nodes[field.node], Node::Map(_)) && is_empty(value) =>
                {
                    false
                }
                Some(field) => {
                    self.value(field.node, value, path, checked);
                    true
                }
                None => {
                    checked.unknown.push(path.clone());
                    false
                }
            };
            path.truncate(length);
            keep
        });
    }

    fn value(&self, index: usize, value: &mut Value, path: &mut String, checked: &mut Checked) {
        let node = &self.nodes[index];
        match (node, &mut *value) {
            (Node::Object(_), Value::Object(object)) => self.fields(index, object, path, checked),
            (Node::Map(inner), Value::Object(object)) => {
                object.retain(|_, value| !value.is_null());
                for (key, value) in object {
                    let length = path.len();
                    path.push('.');
                    path.push_str(key);
                    self.value(*inner, value, path, checked);
                    path.truncate(length);
                }
            }
            (Node::Array(inner), Value::Array(items)) => {
                for (number, value) in items.iter_mut().enumerate() {
                    let length = path.len();
                    // Writing to a String does not fail.
                    let _infallible = write!(path, "[{number}]");
                    self.value(*inner, value, path, checked);
                    path.truncate(length);
                }
            }
            (Node::Quantity, Value::Number(_) | Value::String(_)) => {
                if let Some(quantity) = Quantity::read(value) {
                    rewrite(value, quantity);
                } else {
                    let (path, found) = (path.clone(), found(value));
                    checked.wrong.push(Wrong {
                        path,
                        expected: "a quantity",
                        found,
                        restored: None,
                    });
                }
            }
            _ => {
                if let Some(expected) = mismatch(node, value) {
                    let (path, found, restored) =
                        (path.clone(), found(value), restored(node, value));
                    checked.wrong.push(Wrong {
                        path,
                        expected,
                        found,
                        restored,
                    });
                }
            }
        }
    }
}

/// Writes a quantity in upstream's canonical form.
fn rewrite(value: &mut Value, quantity: Quantity) {
    let text = quantity.to_string();
    if value.as_str() != Some(text.as_str()) {
        *value = Value::String(text);
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

/// The expected type, if a simple value has another one.
fn mismatch(node: &Node, value: &Value) -> Option<&'static str> {
    let (fits, expected) = match node {
        Node::Object(_) | Node::Map(_) => (value.is_null(), "an object"),
        Node::Array(_) => (value.is_null(), "an array"),
        Node::String => (value.is_string() || value.is_null(), "a string"),
        Node::Time => (
            value.as_str().is_some_and(is_time) || value.is_null(),
            "an RFC 3339 time",
        ),
        Node::Bytes => (
            value.as_str().is_some_and(is_base64) || value.is_null(),
            "base64 text",
        ),
        Node::Integer { narrow } => (
            is_integer(value, *narrow),
            if *narrow { "int32" } else { "int64" },
        ),
        Node::Number => (value.is_number(), "a number"),
        Node::Boolean => (value.is_boolean(), "a boolean"),
        Node::Quantity => (false, "a quantity"),
        Node::IntOrString => (
            value.is_string() || is_integer(value, true),
            "an integer or a string",
        ),
        Node::Any => (true, ""),
    };
    (!fits).then_some(expected)
}

fn found(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(number) => format!("number {number}"),
        Value::String(text) if text.len() <= 64 => format!("string {text:?}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Upstream's error for a value of another type; fields with a parser of their own have none.
fn restored(node: &Node, value: &Value) -> Option<String> {
    let (kind, name) = match value {
        Value::Null => return None,
        Value::Bool(_) => ("bool", "bool"),
        Value::Number(number) if number.is_f64() => ("float64", "float64"),
        Value::Number(_) => ("int64", "int64"),
        Value::String(_) => ("string", "string"),
        Value::Array(_) => ("slice", "[]interface {}"),
        Value::Object(_) => ("map", "map[string]interface {}"),
    };
    Some(match node {
        Node::Object(_) => format!("cannot restore struct from: {kind}"),
        Node::Map(_) => format!("cannot restore map from {kind}"),
        Node::Array(_) => format!("cannot restore slice from {kind}"),
        Node::String => format!("cannot convert {name} to string"),
        Node::Boolean => format!("cannot convert {name} to bool"),
        Node::Number => format!("cannot convert {name} to float64"),
        Node::Integer { narrow } => format!(
            "cannot convert {name} to {}",
            if *narrow { "int32" } else { "int64" }
        ),
        Node::Time | Node::Bytes | Node::Quantity | Node::IntOrString | Node::Any => return None,
    })
}

fn is_time(text: &str) -> bool {
    text.parse::<jiff::Timestamp>().is_ok()
}

fn is_base64(text: &str) -> bool {
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .is_ok()
}

fn is_integer(value: &Value, narrow: bool) -> bool {
    match value.as_i64() {
        Some(number) => !narrow || i32::try_from(number).is_ok(),
        None => !narrow && value.is_u64(),
    }
}
