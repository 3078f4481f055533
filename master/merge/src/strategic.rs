//! Strategic merge patch (apimachinery `util/strategicpatch`): lists merge by the keys of their kind.
//!
//! Directives: `$patch` (replace, delete, merge), `$deleteFromPrimitiveList/<field>`,
//! `$setElementOrder/<field>`, `$retainKeys`.

use master_kinds::error::{ApiError, Reason};
use master_kinds::schema::Place;
use master_kinds::schema::merge::Merge;
use serde_json::{Map, Value};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

fn bad(text: String) -> ApiError {
    ApiError::new(Reason::BadRequest, text)
}

/// Applies a patch to an object.
pub(crate) fn apply(object: &mut Value, patch: &Value, place: Place<'_>) -> Result<(), ApiError> {
    let (Value::Object(fields), Value::Object(patch)) = (object, patch) else {
        return Err(bad("a strategic merge patch must be an object and meet one".to_owned()));
    };
    merge_object(fields, patch, place)
}

/// The directive of an object, if it has one.
fn directive(patch: &Map<String, Value>) -> Result<Option<&str>, ApiError> {
    match patch.get(PATCH) {
        None => Ok(None),
        Some(Value::String(text)) if matches!(text.as_str(), "replace" | "delete" | "merge") => Ok(Some(text)),
        Some(other) => Err(bad(format!("unknown patch type {other}: expected replace, delete or merge"))),
    }
}

fn merge_object(fields: &mut Map<String, Value>, patch: &Map<String, Value>, place: Place<'_>) -> Result<(), ApiError> {
    match directive(patch)? {
        Some("delete") => {
            fields.clear();
            return Ok(());
        }
        Some("replace") => {
            *fields = patch.iter().filter(|(key, _)| *key != PATCH).map(|(k, v)| (k.clone(), v.clone())).collect();
            return Ok(());
        }
        Some(_) | None => {}
    }
    if let Some(retain) = patch.get(RETAIN) {
        let keys = retain.as_array().ok_or_else(|| bad(format!("{RETAIN} must be a list")))?;
        fields.retain(|key, _| keys.iter().any(|kept| kept == key));
    }
    for (key, value) in patch {
        if key == PATCH || key == RETAIN || key.starts_with(ORDER) {
            continue;
        }
        if let Some(field) = key.strip_prefix(DELETE) {
            delete_values(fields, field, value)?;
            continue;
        }
        merge_field(fields, key, value, place)?;
    }
    for (key, order) in patch {
        if let Some(field) = key.strip_prefix(ORDER) {
            set_order(fields, field, order, patch.get(field), place.field(field).merge())?;
        }
    }
    Ok(())
}

fn merge_field(fields: &mut Map<String, Value>, key: &str, value: &Value, place: Place<'_>) -> Result<(), ApiError> {
    let inner = place.field(key);
    let merge = inner.merge();
    match (fields.get_mut(key), value) {
        (_, Value::Null) => drop(fields.remove(key)),
        (Some(Value::Object(old)), Value::Object(patch)) => {
            merge_object(old, patch, inner)?;
            if directive(patch)? == Some("delete") {
                fields.remove(key);
            }
        }
        (_, Value::Object(patch)) => {
            let mut fresh = Map::new();
            merge_object(&mut fresh, patch, inner)?;
            if directive(patch)? != Some("delete") {
                fields.insert(key.to_owned(), Value::Object(fresh));
            }
        }
        (Some(Value::Array(old)), Value::Array(patch)) => merge_list(old, patch, inner.items(), merge)?,
        (_, Value::Array(patch)) => {
            let mut fresh = Vec::new();
            merge_list(&mut fresh, patch, inner.items(), merge)?;
            fields.insert(key.to_owned(), Value::Array(fresh));
        }
        (_, value) => drop(fields.insert(key.to_owned(), value.clone())),
    }
    Ok(())
}

fn merge_list(old: &mut Vec<Value>, patch: &[Value], place: Place<'_>, merge: Merge) -> Result<(), ApiError> {
    match merge {
        Merge::Atomic | Merge::Replace => {
            *old = patch.to_vec();
            Ok(())
        }
        Merge::Set => {
            for value in patch {
                if !old.contains(value) {
                    old.push(value.clone());
                }
            }
            Ok(())
        }
        Merge::Key(key) => merge_items(old, patch, place, key),
    }
}

fn merge_items(old: &mut Vec<Value>, patch: &[Value], place: Place<'_>, key: &str) -> Result<(), ApiError> {
    let mut given = Vec::with_capacity(patch.len());
    for item in patch {
        let object = item.as_object().ok_or_else(|| bad(format!("items of a list merged by {key} must be objects")))?;
        if directive(object)? != Some("replace") || object.len() > 1 {
            given.push(object);
        }
    }
    if given.len() < patch.len() {
        // The list as it is given, which may hold one key several times (a node's addresses do).
        *old = given.into_iter().cloned().map(Value::Object).collect();
        return Ok(());
    }
    for item in given {
        let action = directive(item)?;
        let Some(name) = item.get(key) else {
            return Err(bad(format!(
                "map: {} does not contain declared merge key: {key}",
                Value::Object(item.clone())
            )));
        };
        let found = old.iter().position(|known| known.get(key) == Some(name));
        match (action, found) {
            (Some("delete"), _) => old.retain(|known| known.get(key) != Some(name)),
            (_, Some(index)) => {
                if let Some(known) = old[index].as_object_mut() {
                    merge_object(known, item, place)?;
                }
            }
            (_, None) => {
                let mut fresh = Map::new();
                merge_object(&mut fresh, item, place)?;
                old.push(Value::Object(fresh));
            }
        }
    }
    Ok(())
}

fn delete_values(fields: &mut Map<String, Value>, field: &str, values: &Value) -> Result<(), ApiError> {
    let values = values.as_array().ok_or_else(|| bad(format!("{DELETE}{field} must be a list")))?;
    if let Some(Value::Array(old)) = fields.get_mut(field) {
        old.retain(|value| !values.contains(value));
    }
    Ok(())
}

/// Brings a merged list into the order that the patch asks for. Items that only the server has keep their
/// place relative to those before them.
fn set_order(
    fields: &mut Map<String, Value>,
    field: &str,
    order: &Value,
    patched: Option<&Value>,
    merge: Merge,
) -> Result<(), ApiError> {
    let order = order.as_array().ok_or_else(|| bad(format!("{ORDER}{field} must be a list")))?;
    let Some(Value::Array(list)) = fields.get_mut(field) else { return Ok(()) };
    let id = |value: &Value| match merge {
        Merge::Key(key) => value.get(key).cloned().unwrap_or_default(),
        Merge::Set | Merge::Atomic | Merge::Replace => value.clone(),
    };
    if merge == Merge::Atomic && patched.is_some() {
        return Ok(());
    }
    let order: Vec<Value> = order.iter().map(id).collect();
    let rank = |value: &Value| order.iter().position(|known| *known == id(value));
    let all = std::mem::take(list);
    let (mut listed, mut own): (Vec<_>, Vec<_>) =
        all.into_iter().enumerate().partition(|(_, value)| rank(value).is_some());
    listed.sort_by_key(|(_, value)| rank(value));
    let mut listed = listed.drain(..).peekable();
    let mut own = own.drain(..).peekable();
    loop {
        let next = match (listed.peek(), own.peek()) {
            (Some((place, _)), Some((other, _))) if other < place => own.next(),
            (Some(_), _) => listed.next(),
            (None, _) => own.next(),
        };
        match next {
            Some((_, value)) => list.push(value),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::api::core::v1::Pod;
    use master_kinds::schema::{self, Schemas};
    use proptest::prelude::*;
    use serde_json::json;
    use std::sync::LazyLock;

    static SCHEMAS: LazyLock<(Schemas, String)> = LazyLock::new(|| {
        let (definitions, names) = schema::definitions(&[|generator| generator.subschema_for::<Pod>()]);
        (Schemas::compile(&definitions), names[0].clone())
    });

    fn patched(mut object: Value, patch: &Value) -> Value {
        apply(&mut object, patch, SCHEMAS.0.place(&SCHEMAS.1)).unwrap();
        object
    }

    fn containers(names: &[&str]) -> Value {
        json!({"spec": {"containers": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()}})
    }

    fn order(object: &Value) -> Vec<&str> {
        object["spec"]["containers"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn items_are_merged_by_their_key_and_deleted_by_directive() {
        let object = json!({"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}});
        let patch = json!({"spec": {"containers": [
            {"name": "a", "env": [{"name": "Y", "value": "2"}]}, {"name": "b", "$patch": "delete"}, {"name": "c"},
        ]}});
        let expected = json!({"spec": {"containers": [
            {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}, {"name": "c"},
        ]}});
        assert_eq!(patched(object, &patch), expected);
    }

    #[test]
    fn directives_replace_retain_and_delete_plain_values() {
        let object = json!({"metadata": {"finalizers": ["a/a", "b/b"]}, "spec": {
            "nodeSelector": {"a": "1"}, "volumes": [{"name": "v", "emptyDir": {}}],
            "securityContext": {"runAsUser": 1}, "containers": [{"name": "a"}],
        }});
        let patch = json!({
            "metadata": {"$deleteFromPrimitiveList/finalizers": ["a/a"], "finalizers": ["c/c"]},
            "spec": {
                "nodeSelector": {"$patch": "replace", "b": "2"},
                "volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}],
                "securityContext": {"$patch": "delete"},
                "containers": [{"$patch": "replace"}, {"name": "z"}],
            },
        });
        let expected = json!({"metadata": {"finalizers": ["b/b", "c/c"]}, "spec": {
            "nodeSelector": {"b": "2"}, "volumes": [{"name": "v", "hostPath": {"path": "/x"}}],
            "containers": [{"name": "z"}],
        }});
        assert_eq!(patched(object, &patch), expected);
    }

    #[test]
    fn the_order_asked_for_is_kept_and_the_servers_own_items_stay_in_place() {
        let patch = json!({"spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "c", "image": "x"}],
        }});
        assert_eq!(order(&patched(containers(&["a", "own", "c"]), &patch)), ["own", "c", "a"]);
        let only_order = json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}});
        assert_eq!(order(&patched(containers(&["a", "b"]), &only_order)), ["b", "a"]);
    }

    #[test]
    fn what_is_no_patch_is_refused() {
        for bad in [
            json!({"spec": {"containers": [{"image": "x"}]}}),
            json!({"spec": {"containers": ["x"]}}),
            json!({"$patch": "explode"}),
            json!({"$retainKeys": "x"}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": "x"}}),
            json!({"spec": {"$setElementOrder/containers": 1}}),
        ] {
            let mut object = containers(&["a"]);
            assert!(apply(&mut object, &bad, SCHEMAS.0.place(&SCHEMAS.1)).is_err(), "{bad}");
        }
    }

    fn pods() -> impl Strategy<Value = Value> {
        let variables = prop::collection::btree_map("[A-C]", "[0-9]", 0..3);
        let container = ("[0-9]", variables);
        let containers = prop::collection::btree_map("[a-d]", container, 0..4);
        (containers, prop::collection::btree_map("[k-n]", "[0-9]", 0..3)).prop_map(|(containers, labels)| {
            let containers: Vec<Value> = containers
                .into_iter()
                .map(|(name, (image, variables))| {
                    let env: Vec<Value> =
                        variables.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
                    json!({"name": name, "image": image, "env": env})
                })
                .collect();
            json!({"metadata": {"labels": labels}, "spec": {"containers": containers}})
        })
    }

    proptest! {
        /// A patch says what is wanted of what it names, so applying it again changes nothing.
        #[test]
        fn applying_a_patch_twice_is_applying_it_once(object in pods(), patch in pods()) {
            let once = patched(object, &patch);
            prop_assert_eq!(patched(once.clone(), &patch), once);
        }

        /// An object is its own patch.
        #[test]
        fn an_object_patched_with_itself_stays(object in pods()) {
            prop_assert_eq!(patched(object.clone(), &object), object);
        }

        /// Everything that a patch names is in the result.
        #[test]
        fn what_a_patch_names_is_there_afterwards(object in pods(), patch in pods()) {
            let result = patched(object, &patch);
            for wanted in patch["spec"]["containers"].as_array().unwrap() {
                let all = result["spec"]["containers"].as_array().unwrap();
                let found = all.iter().find(|c| c["name"] == wanted["name"]).unwrap();
                prop_assert_eq!(&found["image"], &wanted["image"]);
                for variable in wanted["env"].as_array().unwrap() {
                    prop_assert!(found["env"].as_array().unwrap().contains(variable));
                }
            }
        }
    }
}
