//! The set of fields in an applied configuration.

use crate::path::Element;
use crate::set::Set;
use crate::typed::element;
use master_schema::schema::{List, SchemaPosition, Shape};
use serde_json::{Map, Value};

/// The fields that a configuration sets, and whose owner its applier becomes: leaves, list items,
/// and map keys.
pub(crate) fn extract<'a>(object: &'a Map<String, Value>, place: SchemaPosition<'a>) -> Set<'a> {
    let mut set = Set::default();
    for (name, value) in object {
        let inner = place.field(name);
        let (leaf, children) = below(value, inner);
        // What has no parts can only be owned itself. So is the key of a map beside its content: it
        // is there because the applier chose it, unlike a declared field around its parts.
        let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
        set.push(
            Element::Field(name.into()),
            leaf || empty || !inner.is_declared(),
            children,
        );
    }
    set
}

/// Whether a value is owned as a whole, and the fields owned in it.
fn below<'a>(value: &'a Value, place: SchemaPosition<'a>) -> (bool, Set<'a>) {
    match (place.shape(), value) {
        (
            Shape::Object { atomic: false } | Shape::Map { atomic: false } | Shape::Free,
            Value::Object(fields),
        ) => (false, extract(fields, place)),
        (Shape::List(list @ (List::Set | List::Map(_))), Value::Array(list_items)) => {
            (false, items(list_items, list, place.items()))
        }
        (Shape::List(List::Set | List::Map(_)), Value::Null) => (false, Set::default()),
        _ => (true, Set::default()),
    }
}

fn items<'a>(items: &'a [Value], list: &'a List, place: SchemaPosition<'a>) -> Set<'a> {
    let mut steps: Vec<(Element<'a>, &'a Value)> = items
        .iter()
        .filter_map(|item| Some((element(list, item).ok()?, item)))
        .collect();
    steps.sort_by(|(left, _), (right, _)| left.cmp(right));
    let mut set = Set::default();
    for run in steps.chunk_by(|(left, _), (right, _)| left == right) {
        if let [(step, item), more @ ..] = run {
            // Duplicates can't be told apart: they are owned together, as one item without parts.
            let children = if more.is_empty() {
                below(item, place).1
            } else {
                Set::default()
            };
            set.push(step.clone(), true, children);
        }
    }
    set
}
