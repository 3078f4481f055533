//! Strategic merge patch (apimachinery `util/strategicpatch`): lists merge by the keys of their
//! kind.
//!
//! Directives: `$patch` (replace, delete), `$deleteFromPrimitiveList/<field>`,
//! `$setElementOrder/<field>`, `$retainKeys`.

mod faults;
mod lists;

pub(crate) use faults::shown;
use faults::{bad_argument, bad_directive, bad_request, failed};
use lists::{arranged, merge_list};
use master_schema::error::ApiError;
use master_schema::schema::Merge;
use master_schema::schema::SchemaPosition;
use serde_json::{Map, Value};
use std::collections::HashSet;

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Applies a patch to an object.
pub(crate) fn apply(
    object: &mut Value,
    patch: &Value,
    place: SchemaPosition<'_>,
) -> Result<(), ApiError> {
    let (Value::Object(fields), Value::Object(patch)) = (object, patch) else {
        return Err(bad_request("invalid JSON document"));
    };
    merge_object(fields, patch, place)
}

fn merge_object(
    fields: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    place: SchemaPosition<'_>,
) -> Result<(), ApiError> {
    match patch.get(PATCH) {
        None => {}
        Some(Value::String(word)) if word == "replace" => {
            *fields = patch
                .iter()
                .filter(|(key, _)| *key != PATCH)
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            return Ok(());
        }
        // The object becomes empty, and its field stays, as upstream.
        Some(Value::String(word)) if word == "delete" => {
            fields.clear();
            return Ok(());
        }
        Some(other) => return Err(bad_directive(other, patch)),
    }
    // `$retainKeys` first: it is about the fields of the live object, not about those that this
    // patch adds.
    retain(fields, patch)?;
    // Lists with an order directive before all others: to place items that only the live list has,
    // the live list must be unchanged.
    for (key, order) in patch {
        if let Some(field) = key.strip_prefix(ORDER) {
            merge_ordered(fields, field, order, patch.get(field), place)?;
        }
    }
    for (key, values) in patch {
        if let Some(field) = key.strip_prefix(DELETE) {
            delete_values(fields, field, values)?;
        }
    }
    for (key, value) in patch {
        // A list with an order directive was merged together with it.
        let merged = value.is_array() && patch.contains_key(&format!("{ORDER}{key}"));
        if key == RETAIN || key.starts_with(ORDER) || key.starts_with(DELETE) || merged {
            continue;
        }
        merge_field(fields, key, value, place)?;
    }
    Ok(())
}

/// Removes fields that `$retainKeys` does not list.
fn retain(fields: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), ApiError> {
    let Some(retain) = patch.get(RETAIN) else {
        return Ok(());
    };
    let bad = || bad_request("invalid patch format of retainKeys");
    let keys = retain.as_array().ok_or_else(bad)?.iter();
    let keys: HashSet<&str> = keys.filter_map(Value::as_str).collect();
    let kept = |key: &String| keys.contains(&**key);
    let named = patch.iter().filter(|(key, value)| {
        !(value.is_null() || *key == RETAIN || key.starts_with(DELETE) || key.starts_with(ORDER))
    });
    // A patch that sets a field and does not retain it contradicts itself: upstream refuses it,
    // too.
    if !named.map(|(key, _)| key).all(kept) {
        return Err(bad());
    }
    fields.retain(|key, _| kept(key));
    Ok(())
}

fn merge_field(
    fields: &mut Map<String, Value>,
    key: &str,
    value: &Value,
    place: SchemaPosition<'_>,
) -> Result<(), ApiError> {
    let inner = place.field(key);
    match (fields.get_mut(key), value) {
        (_, Value::Null) => drop(fields.remove(key)),
        (Some(Value::Object(old)), Value::Object(patch)) => {
            if *inner.merge() == Merge::Replace {
                old.clone_from(patch);
            } else {
                merge_object(old, patch, inner)?;
            }
        }
        (Some(Value::Array(old)), Value::Array(patch)) => {
            let before = std::mem::take(old);
            let merged = match inner.merge() {
                Merge::Atomic | Merge::Replace => patch.clone(),
                Merge::Set => merge_list(before, patch, inner.items(), None)?,
                Merge::Key(merge_key) => merge_list(before, patch, inner.items(), Some(merge_key))?,
            };
            fields.insert(key.to_owned(), Value::Array(merged));
        }
        // There is nothing to merge with, or a value of another type: the patch's value replaces
        // it.
        (_, value) => match plain(value) {
            Some(value) => drop(fields.insert(key.to_owned(), value)),
            None => drop(fields.remove(key)),
        },
    }
    Ok(())
}

/// A patch's value without nulls and directives, where there is nothing to merge with; `None` for a
/// directive.
fn plain(value: &Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key(PATCH) => None,
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, value)| !value.is_null());
            Some(Value::Object(
                kept.filter_map(|(key, value)| Some((key.clone(), plain(value)?)))
                    .collect(),
            ))
        }
        Value::Array(items) => Some(Value::Array(items.iter().filter_map(plain).collect())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(value.clone()),
    }
}

/// Merges a list and sorts it in the order that the patch asks for.
fn merge_ordered(
    fields: &mut Map<String, Value>,
    field: &str,
    order: &Value,
    patched: Option<&Value>,
    place: SchemaPosition<'_>,
) -> Result<(), ApiError> {
    let order = order
        .as_array()
        .ok_or_else(|| bad_argument("[]interface {}", order))?;
    let inner = place.field(field);
    let key = match inner.merge() {
        Merge::Key(key) => Some(&**key),
        Merge::Set | Merge::Atomic | Merge::Replace => None,
    };
    let array = |value: &Value| {
        value
            .as_array()
            .cloned()
            .ok_or_else(|| bad_argument("[]interface {}", value))
    };
    let live = fields.get(field).map(array).transpose()?;
    let patch = patched.map(array).transpose()?;
    if let Some(patch) = &patch {
        lists::check_order(patch, order, key)?;
    }
    let merged = match (&live, patch) {
        (None, None) => return Ok(()),
        // The patch changes only the order.
        (Some(live), None) => live.clone(),
        (None, Some(patch)) => patch.iter().filter_map(plain).collect(),
        (Some(live), Some(patch)) => match inner.merge() {
            Merge::Atomic | Merge::Replace => patch,
            Merge::Set | Merge::Key(_) => merge_list(live.clone(), &patch, inner.items(), key)?,
        },
    };
    let ordered = arranged(merged, order, live.as_deref().unwrap_or_default(), key)?;
    fields.insert(field.to_owned(), Value::Array(ordered));
    Ok(())
}

fn delete_values(
    fields: &mut Map<String, Value>,
    field: &str,
    values: &Value,
) -> Result<(), ApiError> {
    let Some(old) = fields.get_mut(field) else {
        return Ok(());
    };
    let Value::Array(old) = old else {
        return Ok(());
    };
    // A directive that is not a list deletes nothing, as upstream.
    let Value::Array(values) = values else {
        return Ok(());
    };
    if old.iter().chain(values).any(Value::is_object) {
        return Err(failed("cannot delete objects by their values".to_owned()));
    }
    // A set of texts, so that long lists are not compared each with each.
    let gone: std::collections::BTreeSet<String> = values.iter().map(ToString::to_string).collect();
    old.retain(|value| !gone.contains(&value.to_string()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::api::core::v1::Pod;
    use master_schema::schema::{self, Schemas, Source};
    use proptest::prelude::*;
    use serde_json::json;
    use std::sync::LazyLock;

    static SCHEMAS: LazyLock<(Schemas, String)> = LazyLock::new(|| {
        let source = Source::of::<Pod>();
        let name = source.name().to_owned();
        (Schemas::compile(&schema::definitions(&[source])), name)
    });

    fn patched(mut object: Value, patch: &Value) -> Value {
        apply(&mut object, patch, SCHEMAS.0.place(&SCHEMAS.1)).unwrap();
        object
    }

    fn containers(names: &[&str]) -> Value {
        json!({"spec": {"containers": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()}})
    }

    fn order(object: &Value) -> Vec<&str> {
        object["spec"]["containers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn items_are_merged_by_their_key_and_deleted_by_directive() {
        let object = json!({"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}});
        let patch = json!({"spec": {"containers": [
            {"name": "a", "env": [{"name": "Y", "value": "2"}]}, {"name": "b", "$patch": "delete"}, {"name": "c"},
        ]}});
        let expected = json!({"spec": {"containers": [
            {"name": "a", "image": "1", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]}, {"name": "c"},
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
        let expected = json!({"metadata": {"finalizers": ["c/c", "b/b"]}, "spec": {
            "nodeSelector": {"b": "2"}, "securityContext": {}, "volumes": [{"name": "v", "hostPath": {"path": "/x"}}],
            "containers": [{"name": "z"}],
        }});
        assert_eq!(patched(object, &patch), expected);
    }

    #[test]
    fn the_order_asked_for_is_kept_and_the_servers_own_items_stay_in_place() {
        let patch = json!({"spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "c", "image": "x"}],
        }});
        assert_eq!(
            order(&patched(containers(&["a", "own", "c"]), &patch)),
            ["own", "c", "a"]
        );
        let only_order =
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}});
        assert_eq!(
            order(&patched(containers(&["a", "b"]), &only_order)),
            ["b", "a"]
        );
    }

    #[test]
    fn refusals_are_upstreams() {
        let refused = |patch: Value| {
            let mut object = containers(&["a"]);
            let error = apply(&mut object, &patch, SCHEMAS.0.place(&SCHEMAS.1)).unwrap_err();
            (error.code, error.message)
        };
        let keyless = refused(json!({"spec": {"containers": [{"image": "x", "args": ["y"]}]}}));
        assert_eq!(
            keyless,
            (
                400,
                "map: map[args:[y] image:x] does not contain declared merge key: name".to_owned()
            )
        );
        let directive = refused(json!({"spec": {"$patch": "explode"}}));
        assert_eq!(
            directive,
            (
                400,
                "unknown patch type: explode in map: map[$patch:explode]".to_owned()
            )
        );
        let retain = refused(json!({"spec": {"$retainKeys": ["x"], "y": 1}}));
        assert_eq!(
            retain,
            (400, "invalid patch format of retainKeys".to_owned())
        );
    }

    #[test]
    fn a_patch_of_a_missing_field_drops_nulls_and_directives() {
        let patch = json!({"spec": {
            "nodeSelector": {"$patch": "replace", "a": "1"}, "securityContext": {"runAsUser": 1, "runAsGroup": null},
            "volumes": [{"name": "v"}, {"name": "w", "$patch": "delete"}],
        }});
        let expected =
            json!({"spec": {"securityContext": {"runAsUser": 1}, "volumes": [{"name": "v"}]}});
        assert_eq!(patched(json!({"spec": {}}), &patch), expected);
    }

    #[test]
    fn new_items_come_in_the_patchs_order_before_those_that_it_does_not_name() {
        let patch = |names: &[&str]| containers(names);
        assert_eq!(
            order(&patched(containers(&["a", "b"]), &patch(&["c"]))),
            ["c", "a", "b"]
        );
        assert_eq!(
            order(&patched(containers(&["a", "b"]), &patch(&["b", "c"]))),
            ["a", "b", "c"]
        );
    }

    #[test]
    fn a_malformed_patch_is_refused() {
        for bad in [
            json!({"spec": {"containers": [{"image": "x"}]}}),
            json!({"spec": {"containers": ["x"]}}),
            json!({"$patch": "explode"}),
            json!({"$retainKeys": "x"}),
            json!({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}),
            json!({"spec": {"containers": [{"name": "a"}, "x"]}}),
            json!({"metadata": {"$setElementOrder/finalizers": ["a/a"], "finalizers": ["b/b"]}}),
            json!({"spec": {"$setElementOrder/containers": 1}}),
        ] {
            let mut object = containers(&["a"]);
            object["metadata"] = json!({});
            assert!(
                apply(&mut object, &bad, SCHEMAS.0.place(&SCHEMAS.1)).is_err(),
                "{bad}"
            );
        }
    }

    /// A container of 50,000 variables, and a patch of as many containers of its name, fit bodies:
    /// to merge each into all variables would take hours.
    #[test]
    fn items_of_one_key_are_merged_a_bounded_number_of_times() {
        let variables = |count: usize| -> Vec<Value> {
            let name = |number: usize| json!({"name": format!("V{number}"), "value": "x"});
            (0..count).map(name).collect()
        };
        let object = json!({"spec": {"containers": [{"name": "a", "env": variables(50_000)}]}});
        let again = |count: usize| {
            let item = json!({"name": "a", "env": variables(1)});
            let patch = json!({"spec": {"containers": vec![item; count]}});
            apply(&mut object.clone(), &patch, SCHEMAS.0.place(&SCHEMAS.1))
        };
        assert!(again(2).is_ok());
        let error = again(50_000).unwrap_err();
        assert_eq!(error.code, 400);
        assert!(error.message.contains("have the name \"a\""), "{error:?}");
        // One port with each protocol.
        let both = |port: u16| {
            ["TCP", "UDP"].map(|protocol| json!({"containerPort": port, "protocol": protocol}))
        };
        let ports: Vec<Value> = (1..=100).flat_map(both).collect();
        let patch = json!({"spec": {"containers": [{"name": "a", "ports": ports}]}});
        let object =
            json!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 1}]}]}});
        let patched = patched(object, &patch);
        let ports = patched["spec"]["containers"][0]["ports"].as_array();
        assert_eq!(ports.unwrap().len(), 100, "the key is the number alone");
    }

    #[test]
    fn many_retained_keys_are_not_compared_with_many_fields() {
        let labels = |count: usize| -> Map<String, Value> {
            (0..count)
                .map(|number| (format!("k{number}"), "v".into()))
                .collect()
        };
        let mut object = json!({"metadata": {"labels": labels(200_000)}});
        let keys: Vec<String> = (0..200_000)
            .rev()
            .map(|number| format!("k{number}"))
            .collect();
        let patch = json!({"metadata": {"labels": {"$retainKeys": keys}}});
        apply(&mut object, &patch, SCHEMAS.0.place(&SCHEMAS.1)).unwrap();
        assert_eq!(
            object["metadata"]["labels"].as_object().unwrap().len(),
            200_000
        );
    }

    fn pods() -> impl Strategy<Value = Value> {
        let variables = prop::collection::btree_map("[A-C]", "[0-9]", 0..3);
        let container = ("[0-9]", variables);
        let containers = prop::collection::btree_map("[a-d]", container, 0..4);
        (
            containers,
            prop::collection::btree_map("[k-n]", "[0-9]", 0..3),
        )
            .prop_map(|(containers, labels)| {
                let containers: Vec<Value> = containers
                    .into_iter()
                    .map(|(name, (image, variables))| {
                        let env: Vec<Value> = variables
                            .into_iter()
                            .map(|(name, value)| json!({"name": name, "value": value}))
                            .collect();
                        json!({"name": name, "image": image, "env": env})
                    })
                    .collect();
                json!({"metadata": {"labels": labels}, "spec": {"containers": containers}})
            })
    }

    proptest! {
        /// A patch describes the desired state of its fields, so applying it twice changes nothing.
        #[test]
        fn applying_a_patch_twice_is_applying_it_once(object in pods(), patch in pods()) {
            let once = patched(object, &patch);
            prop_assert_eq!(patched(once.clone(), &patch), once);
        }

        /// An object applied to itself as a patch changes nothing.
        #[test]
        fn an_object_patched_with_itself_stays(object in pods()) {
            prop_assert_eq!(patched(object.clone(), &object), object);
        }

        /// Everything in a patch is in the result.
        #[test]
        fn a_patched_object_has_the_patchs_fields(object in pods(), patch in pods()) {
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
