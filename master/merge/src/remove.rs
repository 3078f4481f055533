//! Removes fields from an object.

use crate::path::Element;
use crate::set::Set;
use crate::typed::element;
use master_schema::schema::{List, SchemaPosition, Shape};
use serde_json::{Map, Value};

/// The object without the fields of a set. A value that is owned as a whole is removed as a whole.
pub(crate) fn remove(
    object: &Map<String, Value>,
    set: &Set<'_>,
    place: SchemaPosition<'_>,
) -> Map<String, Value> {
    let mut left = Map::new();
    for (name, value) in object {
        match set.get(&Element::Field(name.into())) {
            None => drop(left.insert(name.clone(), value.clone())),
            Some(node) if node.member => {}
            Some(node) => {
                if let Some(value) = below(value, &node.children, place.field(name)) {
                    left.insert(name.clone(), value);
                }
            }
        }
    }
    left
}

/// A value without the fields below it that are in the set; `None` if nothing is left, so that no
/// empty object or list stays behind.
fn below(value: &Value, set: &Set<'_>, place: SchemaPosition<'_>) -> Option<Value> {
    match (place.shape(), value) {
        (
            Shape::Object { atomic: false } | Shape::Map { atomic: false } | Shape::Free,
            Value::Object(fields),
        ) => {
            let left = remove(fields, set, place);
            (!left.is_empty()).then_some(Value::Object(left))
        }
        (Shape::List(list @ (List::Set | List::Map(_))), Value::Array(all)) => {
            let left = items(all, set, list, place.items());
            (!left.is_empty()).then_some(Value::Array(left))
        }
        // The set has a path into a value that is atomic by now: owned, and removed, as a whole.
        (Shape::Object { atomic: true } | Shape::Map { atomic: true } | Shape::List(_), _)
        | (Shape::Free, Value::Array(_)) => None,
        _ => Some(value.clone()),
    }
}

fn items(all: &[Value], set: &Set<'_>, list: &List, place: SchemaPosition<'_>) -> Vec<Value> {
    let kept = all.iter().filter_map(|item| {
        // An item without an identity cannot be in the set, and stays.
        let Some(node) = element(list, item).ok().and_then(|step| set.get(&step)) else {
            return Some(item.clone());
        };
        if node.member {
            None
        } else {
            below(item, &node.children, place)
        }
    });
    kept.collect()
}
