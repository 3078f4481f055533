//! How a value is owned (as a whole, by its fields, by its items), the identity of list items, and
//! the check of an applied configuration against its schema.

use crate::path::{Element, Simple};
use master_schema::error::shown;
use master_schema::schema::{Absent, List, SchemaPosition, Shape};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::sync::LazyLock;

/// The value of an absent field, if the type has one.
pub(crate) fn absent(place: SchemaPosition<'_>) -> Option<&'static Value> {
    static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));
    match place.absent() {
        Absent::Missing => None,
        Absent::Empty => Some(&EMPTY),
        Absent::Null => Some(&Value::Null),
    }
}

/// The type of one or two values at a position.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form<'a> {
    /// Owned as a whole: a scalar, atomic, or empty.
    Leaf,
    /// An object, owned field by field.
    Fields,
    /// A list, owned item by item.
    Items(&'a List),
}

/// The type of the values at a position. Values of different types are leaves, and so is an empty
/// object or list: it has no parts that could have owners.
pub(crate) fn form<'a>(place: SchemaPosition<'a>, values: [Option<&Value>; 2]) -> Form<'a> {
    let mut present = values.into_iter().flatten();
    match place.shape() {
        Shape::Leaf(_)
        | Shape::Object { atomic: true }
        | Shape::Map { atomic: true }
        | Shape::List(List::Atomic) => Form::Leaf,
        Shape::Object { atomic: false } | Shape::Map { atomic: false } | Shape::Free => {
            let objects = present
                .clone()
                .all(|value| value.is_object() || value.is_null());
            let filled =
                present.any(|value| value.as_object().is_some_and(|fields| !fields.is_empty()));
            if objects && filled {
                Form::Fields
            } else {
                Form::Leaf
            }
        }
        Shape::List(list @ (List::Set | List::Map(_))) => {
            let lists = present
                .clone()
                .all(|value| value.is_array() || value.is_null());
            let filled =
                present.any(|value| value.as_array().is_some_and(|items| !items.is_empty()));
            if lists && filled {
                Form::Items(list)
            } else {
                Form::Leaf
            }
        }
    }
}

/// The path element of a list item; an error if the list's items have no identity.
pub(crate) fn element<'a>(list: &'a List, item: &'a Value) -> Result<Element<'a>, String> {
    let fault = |text: &str| Err(text.to_owned());
    match list {
        List::Atomic => fault("invalid indexing of non-associative list"),
        List::Set => match item {
            Value::Object(_) => {
                fault("associative list without keys has an element that's a map type")
            }
            Value::Array(_) => fault("not supported: associative list with lists as elements"),
            Value::Null => {
                fault("associative list without keys has an element that's an explicit null")
            }
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                Ok(Element::Value(Simple(Cow::Borrowed(item))))
            }
        },
        List::Map(keys) => {
            let fields = match item {
                Value::Object(fields) => fields,
                Value::Null => {
                    return fault("associative list with keys may not have a null element");
                }
                Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                    return fault("associative list with keys may not have non-map elements");
                }
            };
            let mut step: Vec<_> = keys
                .iter()
                .filter_map(|key| {
                    // A key that is left out has its default (a port's protocol is TCP): both
                    // spellings are the same item.
                    let value = fields.get(&*key.name).or(key.default.as_ref())?;
                    Some((Cow::Borrowed(&*key.name), Simple(Cow::Borrowed(value))))
                })
                .collect();
            if step.is_empty() {
                let names = keys
                    .iter()
                    .map(|key| format!("{:?}", key.name))
                    .collect::<Vec<_>>()
                    .join(" ");
                return Err(format!(
                    "associative list with keys has an element that omits all key fields [{names}] \
                     (and doesn't have default values for any key fields)"
                ));
            }
            step.sort();
            Ok(Element::Key(step))
        }
    }
}

/// Checks an applied configuration against the schema: all faults, each with its path.
pub(crate) fn check(object: &Map<String, Value>, place: SchemaPosition<'_>) -> Result<(), String> {
    let mut faults = Vec::new();
    fields(object, place, &mut String::new(), &mut faults);
    match faults.as_slice() {
        [] => Ok(()),
        [only] => Err(only.clone()),
        several => {
            let lines: Vec<String> = several.iter().map(|fault| format!("\n  {fault}")).collect();
            Err(format!("errors:{}", lines.concat()))
        }
    }
}

/// Faults reported at most.
const MAX_FAULTS: usize = 100;

fn push_fault(path: &str, text: &str, faults: &mut Vec<String>) {
    if faults.len() < MAX_FAULTS {
        let colon = if path.is_empty() { "" } else { ": " };
        // A key of megabytes is in the path of each fault below it.
        let path = shown(path);
        faults.push(format!("{path}{colon}{text}"));
    }
}

fn fields(
    object: &Map<String, Value>,
    place: SchemaPosition<'_>,
    path: &mut String,
    faults: &mut Vec<String>,
) {
    let known = matches!(place.shape(), Shape::Object { .. });
    for (name, value) in object {
        let length = path.len();
        path.push('.');
        path.push_str(name);
        let inner = place.field(name);
        if known && inner.is_unknown() {
            push_fault(path, "field not declared in schema", faults);
        } else {
            check_value(value, inner, path, faults);
        }
        path.truncate(length);
    }
}

fn check_value(
    value: &Value,
    place: SchemaPosition<'_>,
    path: &mut String,
    faults: &mut Vec<String>,
) {
    use master_schema::schema::Leaf;
    // Upstream takes null for a value of every type.
    if value.is_null() {
        return;
    }
    match (place.shape(), value) {
        (Shape::Object { .. } | Shape::Map { .. } | Shape::Free, Value::Object(object)) => {
            fields(object, place, path, faults);
        }
        (Shape::Object { .. } | Shape::Map { .. }, other) => {
            push_fault(path, &format!("expected map, got &{{{other}}}"), faults);
        }
        (Shape::List(list), Value::Array(items)) => {
            check_items(items, list, place.items(), path, faults);
        }
        (Shape::List(_), other) => {
            push_fault(path, &format!("expected list, got &{{{other}}}"), faults);
        }
        (Shape::Leaf(Leaf::Text), Value::String(_))
        | (Shape::Leaf(Leaf::Numeric), Value::Number(_))
        | (Shape::Leaf(Leaf::Boolean), Value::Bool(_))
        | (Shape::Leaf(Leaf::Any), Value::String(_) | Value::Number(_) | Value::Bool(_))
        | (Shape::Free, _) => {}
        (Shape::Leaf(Leaf::Text), other) => {
            push_fault(
                path,
                &format!("expected string, got &value.valueUnstructured{{Value:{other}}}"),
                faults,
            );
        }
        (Shape::Leaf(Leaf::Numeric), other) => {
            push_fault(
                path,
                &format!("expected numeric (int or float), got {}", go_type(other)),
                faults,
            );
        }
        (Shape::Leaf(Leaf::Boolean), other) => {
            push_fault(path, &format!("expected boolean, got &{{{other}}}"), faults);
        }
        (Shape::Leaf(Leaf::Any), other) => push_fault(
            path,
            &format!("expected any scalar, got &{{{other}}}"),
            faults,
        ),
    }
}

fn check_items(
    items: &[Value],
    list: &List,
    place: SchemaPosition<'_>,
    path: &mut String,
    faults: &mut Vec<String>,
) {
    let mut seen = std::collections::BTreeSet::new();
    for (number, item) in items.iter().enumerate() {
        let step = match list {
            List::Atomic => Element::Index(i64::try_from(number).unwrap_or(i64::MAX)),
            List::Set | List::Map(_) => match element(list, item) {
                Ok(step) => step,
                Err(text) => return push_fault(path, &format!("element {number}: {text}"), faults),
            },
        };
        let length = path.len();
        let name = step.to_string();
        if !seen.insert(step) {
            push_fault(path, &format!("duplicate entries for key {name}"), faults);
        }
        path.push_str(&name);
        check_value(item, place, path, faults);
        path.truncate(length);
    }
}

/// The Go type of a value, as upstream prints it.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
