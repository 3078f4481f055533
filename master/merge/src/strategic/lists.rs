//! Lists in strategic merge patches: merged by key or by value, and sorted as the patch asks.

use super::faults::{bad_argument, bad_directive, failed, list_of_lists, no_key, shown};
use super::{ORDER, PATCH, merge_object};
use master_schema::error::ApiError;
use master_schema::schema::SchemaPosition;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};

/// The identity of an item: the value of its key, or the item itself.
fn id(item: &Value, key: Option<&str>) -> Result<String, ApiError> {
    let Some(key) = key else {
        return Ok(item.to_string());
    };
    let fields = object(item)?;
    fields
        .get(key)
        .map(ToString::to_string)
        .ok_or_else(|| no_key(fields, key))
}

fn object(item: &Value) -> Result<&Map<String, Value>, ApiError> {
    item.as_object()
        .ok_or_else(|| bad_argument("map[string]interface {}", item))
}

/// The index of each item; the first one counts.
fn places(items: &[Value], key: Option<&str>) -> BTreeMap<String, usize> {
    let mut places = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        // Items without the key cannot be referred to.
        if let Ok(id) = id(item, key) {
            places.entry(id).or_insert(place);
        }
    }
    places
}

/// Merges a patch's list into an object's and applies the patch's order.
pub(super) fn merge_list(
    old: Vec<Value>,
    patch: &[Value],
    place: SchemaPosition<'_>,
    key: Option<&str>,
) -> Result<Vec<Value>, ApiError> {
    if old.is_empty() && patch.is_empty() {
        return Ok(old);
    }
    let objects = one_kind(&old, patch)?;
    match key {
        None if objects => Err(failed("cannot merge lists without merge key".to_owned())),
        None => {
            // A union by value: of equal items the first stays.
            let mut merged = old.clone();
            merged.extend_from_slice(patch);
            let known = places(&merged, None);
            let merged = merged.into_iter().enumerate();
            let merged = merged.filter(|(place, item)| known.get(&item.to_string()) == Some(place));
            arranged(merged.map(|(_, item)| item).collect(), patch, &old, None)
        }
        Some(key) if objects => {
            let Remaining { old, patch } = directives(old, patch, key)?;
            let merged = merge_items(old.clone(), &patch, place, key)?;
            arranged(merged, &patch, &old, Some(key))
        }
        Some(_) => {
            let item = old.iter().chain(patch).next().unwrap_or(&Value::Null);
            Err(bad_argument("map[string]interface {}", item))
        }
    }
}

/// Whether items are objects; all of them must be of one type.
fn one_kind(old: &[Value], patch: &[Value]) -> Result<bool, ApiError> {
    let mut kinds = old.iter().chain(patch).map(std::mem::discriminant);
    if old.iter().chain(patch).next().is_some_and(Value::is_array) {
        return Err(list_of_lists());
    }
    let first = kinds.next();
    if kinds.any(|kind| Some(kind) != first) {
        let lists = Value::Array(vec![
            Value::Array(old.to_vec()),
            Value::Array(patch.to_vec()),
        ]);
        return Err(failed(format!(
            "list element types are not identical: {}",
            shown(&lists)
        )));
    }
    Ok(old.iter().chain(patch).next().is_some_and(Value::is_object))
}

/// Both lists without the items that `$patch` directives remove or that carry one.
struct Remaining {
    old: Vec<Value>,
    patch: Vec<Value>,
}

/// Applies the `$patch` directives in a patch's items.
fn directives(mut old: Vec<Value>, patch: &[Value], key: &str) -> Result<Remaining, ApiError> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut replace = false;
    let mut gone = std::collections::BTreeSet::new();
    for item in patch {
        let fields = object(item)?;
        match fields.get(PATCH) {
            None => rest.push(item.clone()),
            Some(Value::String(word)) if word == "delete" => {
                gone.insert(id(item, Some(key))?);
            }
            Some(Value::String(word)) if word == "replace" => replace = true,
            Some(Value::String(word)) if word == "merge" => {
                return Err(failed(
                    "merging lists cannot yet be specified in the patch".to_owned(),
                ));
            }
            Some(other) => return Err(bad_directive(other, fields)),
        }
    }
    // The patch's other items become the whole list: nothing is merged.
    if replace {
        return Ok(Remaining {
            old: rest,
            patch: Vec::new(),
        });
    }
    if !gone.is_empty() {
        old.retain(|item| !id(item, Some(key)).is_ok_and(|id| gone.contains(&id)));
    }
    Ok(Remaining { old, patch: rest })
}

/// Items of one key at most in a patch's list: ports of one number have a few protocols. Each is
/// merged into the object's item of that key, which can have 100,000 items itself.
const MAX_OF_KEY: usize = 16;

fn merge_items(
    mut old: Vec<Value>,
    patch: &[Value],
    place: SchemaPosition<'_>,
    key: &str,
) -> Result<Vec<Value>, ApiError> {
    let mut known = places(&old, Some(key));
    let mut named: HashMap<String, usize> = HashMap::new();
    for item in patch {
        let id = id(item, Some(key))?;
        let count = named.entry(id.clone()).or_default();
        *count += 1;
        if *count > MAX_OF_KEY {
            let text = format!("more than {MAX_OF_KEY} items of a list have the {key} {id}");
            return Err(failed(text));
        }
        let Some(found) = known.get(&id) else {
            // Known from now on: another item of the patch with this key is merged into it.
            known.insert(id, old.len());
            let mut fresh = Map::new();
            merge_object(&mut fresh, object(item)?, place)?;
            old.push(Value::Object(fresh));
            continue;
        };
        if let (Some(Value::Object(fields)), Value::Object(item)) = (old.get_mut(*found), item) {
            merge_object(fields, item, place)?;
        }
    }
    Ok(old)
}

/// The items in the given order; items that it does not list stay before the listed item that they
/// preceded in the live list (upstream: `normalizeElementOrder`).
pub(super) fn arranged(
    items: Vec<Value>,
    order: &[Value],
    live: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, ApiError> {
    let (wanted, lived) = (places(order, key), places(live, key));
    let mut named = Vec::new();
    let mut own = Vec::new();
    for item in items {
        let id = id(&item, key)?;
        let at = lived.get(&id).copied();
        match wanted.get(&id) {
            Some(rank) => named.push((*rank, at, item)),
            None => own.push((at, item)),
        }
    }
    named.sort_by_key(|(rank, ..)| *rank);
    // Items that the live list does not have come last. The sort is stable: they keep their order.
    own.sort_by_key(|(at, _)| at.unwrap_or(usize::MAX));
    let mut sorted = Vec::with_capacity(named.len() + own.len());
    let (mut named, mut own) = (named.into_iter().peekable(), own.into_iter().peekable());
    loop {
        // An unlisted item goes first while it stood before the next listed one in the live list. A
        // listed item that is new there has no position, and goes first.
        let first = match (own.peek(), named.peek()) {
            (Some((Some(own), _)), Some((_, Some(named), _))) => own < named,
            (Some(_), None) => true,
            (Some(_) | None, _) => false,
        };
        let next = if first {
            own.next().map(|(_, item)| item)
        } else {
            named.next().map(|(.., item)| item)
        };
        match next {
            Some(item) => sorted.push(item),
            None => return Ok(sorted),
        }
    }
}

/// Refuses a patch whose order does not list its items, in the same order.
pub(super) fn check_order(
    patch: &[Value],
    order: &[Value],
    key: Option<&str>,
) -> Result<(), ApiError> {
    if order.is_empty() || patch.is_empty() {
        return Ok(());
    }
    // One walk over both: what was passed in the order is not looked for again, so that items in
    // another sequence are refused, too.
    let mut wanted = order.iter();
    for item in patch.iter().filter(|item| item.get(PATCH).is_none()) {
        let own = id(item, key)?;
        let mut found = false;
        for other in wanted.by_ref() {
            if id(other, key)? == own {
                found = true;
                break;
            }
        }
        if !found {
            let (patch, order) = (Value::Array(patch.to_vec()), Value::Array(order.to_vec()));
            return Err(failed(format!(
                "The order in patch list:\n{}\n doesn't match {} list:\n{}\n",
                shown(&patch),
                ORDER.trim_end_matches('/'),
                shown(&order),
            )));
        }
    }
    Ok(())
}
