//! Merging an applied configuration into an object, list by list as its schema says.

use crate::path::Element;
use crate::typed::{Form, element, form};
use master_schema::schema::{List, SchemaPosition};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Merges the configuration into the object. List items get the order of the configuration; items
/// that only the object has keep their position among them.
pub(crate) fn join(
    object: &mut Map<String, Value>,
    config: &Map<String, Value>,
    place: SchemaPosition<'_>,
) -> Result<(), String> {
    for (name, new) in config {
        let old = object.remove(name);
        if let Some(joined) = value(old, new, place.field(name))? {
            object.insert(name.clone(), joined);
        }
    }
    Ok(())
}

fn value(
    old: Option<Value>,
    new: &Value,
    place: SchemaPosition<'_>,
) -> Result<Option<Value>, String> {
    match form(place, [old.as_ref(), Some(new)]) {
        Form::Leaf => Ok(Some(new.clone())),
        Form::Fields => {
            let mut fields = match old {
                Some(Value::Object(fields)) => fields,
                _ => Map::new(),
            };
            if let Value::Object(config) = new {
                join(&mut fields, config, place)?;
            }
            Ok((!fields.is_empty()).then_some(Value::Object(fields)))
        }
        Form::Items(list) => {
            let before = match old {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            };
            let after = new.as_array().map_or(&[][..], Vec::as_slice);
            let joined = items(&before, after, list, place.items())?;
            Ok((!joined.is_empty()).then_some(Value::Array(joined)))
        }
    }
}

fn steps<'a>(list: &'a List, items: &'a [Value]) -> Result<Vec<Element<'a>>, String> {
    let steps = items.iter().enumerate();
    steps
        .map(|(number, item)| {
            element(list, item).map_err(|text| format!("element {number}: {text}"))
        })
        .collect()
}

/// By identity, the object's item with which the configuration's is merged. `None` for duplicates:
/// the configuration's item replaces them, as it is ambiguous with which it would be merged.
fn by_identity<'s, 'v>(
    steps: &'s [Element<'v>],
    items: &'v [Value],
) -> BTreeMap<&'s Element<'v>, Option<&'v Value>> {
    let mut known: BTreeMap<&Element<'v>, Option<&'v Value>> = BTreeMap::new();
    for (step, item) in steps.iter().zip(items) {
        known
            .entry(step)
            .and_modify(|found| *found = None)
            .or_insert(Some(item));
    }
    known
}

/// The identities of the configuration's items, which must all differ.
fn unique<'s, 'v>(steps: &'s [Element<'v>]) -> Result<BTreeSet<&'s Element<'v>>, String> {
    let all: BTreeSet<&Element<'v>> = steps.iter().collect();
    if all.len() < steps.len() {
        let mut seen = BTreeSet::new();
        let twice = steps.iter().find(|step| !seen.insert(*step));
        return Err(format!(
            "duplicate entries for key {}",
            twice.unwrap_or(&steps[0])
        ));
    }
    Ok(all)
}

/// Merges two lists (upstream: `mergeListItems`). The walk over both puts out what only the object
/// has at its place among the items that both have, and those in the order of the configuration.
fn items(
    old: &[Value],
    new: &[Value],
    list: &List,
    place: SchemaPosition<'_>,
) -> Result<Vec<Value>, String> {
    let (before, after) = (steps(list, old)?, steps(list, new)?);
    let known = by_identity(&before, old);
    let wanted = unique(&after)?;
    let merged = |index: usize| {
        value(
            known.get(&after[index]).copied().flatten().cloned(),
            &new[index],
            place,
        )
    };
    // The next item of the configuration that the object has, too.
    let mut shared = after.iter().filter(|step| known.contains_key(step));
    let mut next = shared.next();
    let mut done: BTreeSet<&Element<'_>> = BTreeSet::new();
    let mut out = Vec::with_capacity(old.len().max(new.len()));
    let (mut left, mut right) = (0, 0);
    while left < before.len() || right < after.len() {
        if left < before.len() && right < after.len() {
            if before[left] == after[right] {
                out.extend(merged(right)?);
                done.insert(&after[right]);
                (left, right, next) = (left + 1, right + 1, shared.next());
                continue;
            }
            // Another shared item comes first in the configuration: this one is put out at its
            // place there.
            if wanted.contains(&before[left]) && next.is_some_and(|next| *next != before[left]) {
                left += 1;
                continue;
            }
        }
        if left < before.len() {
            if !wanted.contains(&before[left]) {
                out.push(old[left].clone());
                left += 1;
                continue;
            }
            // It was put out already, at the place that the configuration gives it.
            left += usize::from(done.contains(&before[left]));
        }
        if right < after.len() {
            out.extend(merged(right)?);
            done.insert(&after[right]);
            if next == Some(&after[right]) {
                next = shared.next();
            }
            right += 1;
        }
    }
    Ok(out)
}
