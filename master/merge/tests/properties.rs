//! Properties of apply for any configurations, in any order.

mod common;

use common::{Kind, Object};
use master_merge::fields;
use master_merge::set::Set;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const T: &str = "2026-01-01T00:00:00Z";
const LATER: &str = "2026-01-02T00:00:00Z";

/// A manager's configuration of a Deployment: replicas, labels, environment and ports of
/// containers.
fn deployment() -> impl Strategy<Value = Value> {
    let env = prop::collection::btree_map("[A-C]", "[12]", 0..3);
    let ports = prop::collection::btree_set((80..82_u16, prop::bool::ANY), 0..3);
    let containers =
        prop::collection::btree_map("[a-c]", (prop::option::of("[xy]"), env, ports), 0..3);
    let labels = prop::collection::btree_map("[l-n]", "[12]", 0..3);
    (prop::option::of(1..3_u32), labels, containers, prop::option::of("[st]")).prop_map(
        |(replicas, labels, containers, selector)| {
            let containers: Vec<Value> = containers
                .into_iter()
                .map(|(name, (image, env, ports))| {
                    let mut container = json!({"name": name});
                    if let Some(image) = image {
                        container["image"] = json!(image);
                    }
                    let env: Vec<Value> =
                        env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
                    if !env.is_empty() {
                        container["env"] = json!(env);
                    }
                    let port = |(port, udp): &(u16, bool)| {
                        if *udp {
                            json!({"containerPort": port, "protocol": "UDP"})
                        } else {
                            json!({"containerPort": port})
                        }
                    };
                    let ports: Vec<Value> = ports.iter().map(port).collect();
                    if !ports.is_empty() {
                        container["ports"] = json!(ports);
                    }
                    container
                })
                .collect();
            let mut config =
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {}});
            if let Some(replicas) = replicas {
                config["spec"]["replicas"] = json!(replicas);
            }
            if !labels.is_empty() {
                config["metadata"]["labels"] = json!(labels);
            }
            if !containers.is_empty() {
                config["spec"]["template"] = json!({"spec": {"containers": containers}});
            }
            if let Some(selector) = selector {
                config["spec"]["selector"] = json!({"matchLabels": {"app": selector}});
            }
            config
        },
    )
}

fn data() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-f]", "[12]", 0..5)
        .prop_map(|data| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}))
}

/// The leaves of an applied configuration of a config map.
fn keys(config: &Value) -> Map<String, Value> {
    config["data"].as_object().cloned().unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn applying_again_changes_nothing(first in deployment(), second in deployment()) {
        let object = Object::applied(Kind::Deployment, "a", T, &first);
        let object = object.apply(Kind::Deployment, "b", T, &second, true).unwrap();
        let once = object.apply(Kind::Deployment, "a", T, &first, true).unwrap();
        let twice = once.apply(Kind::Deployment, "a", LATER, &first, true).unwrap();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn applied_fields_are_set_and_owned(first in deployment(), second in deployment()) {
        let object = Object::applied(Kind::Deployment, "a", T, &first);
        let object = object.apply(Kind::Deployment, "b", T, &second, true).unwrap();
        let alone = Object::applied(Kind::Deployment, "b", T, &second);
        prop_assert_eq!(object.owned("b"), alone.owned("b"));
        // Nothing that was applied differs: the same configuration causes no conflict and changes
        // nothing.
        let again = object.apply(Kind::Deployment, "b", LATER, &second, false).unwrap();
        prop_assert_eq!(again, object);
    }

    #[test]
    fn an_apply_of_nothing_leaves_what_others_own(first in deployment(), second in deployment()) {
        let nothing = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}});
        let before = Object::applied(Kind::Deployment, "a", T, &first);
        let both = before.apply(Kind::Deployment, "b", T, &second, true).unwrap();
        let after = both.apply(Kind::Deployment, "b", T, &nothing, true).unwrap();
        prop_assert_eq!(after.owned("b"), Value::Null);
        prop_assert_eq!(after.owned("a"), both.owned("a"));
        let again = after.apply(Kind::Deployment, "c", T, &nothing, false).unwrap();
        prop_assert_eq!(again.fields, after.fields);
    }

    #[test]
    fn managers_of_different_fields_may_apply_in_any_order(left in deployment(), right in deployment()) {
        let object = Object::applied(Kind::Deployment, "a", T, &left);
        // Only if both configurations agree on the fields that they share.
        if let Ok(one) = object.apply(Kind::Deployment, "b", T, &right, false) {
            let other = Object::applied(Kind::Deployment, "b", T, &right).apply(Kind::Deployment, "a", T, &left, false).unwrap();
            prop_assert_eq!(one.owned("a"), other.owned("a"));
            prop_assert_eq!(one.owned("b"), other.owned("b"));
            prop_assert_eq!(sorted(&Value::Object(one.fields)), sorted(&Value::Object(other.fields)));
        }
    }

    #[test]
    fn a_field_is_removed_with_its_last_owner(first in data(), second in data(), third in data()) {
        let object = Object::applied(Kind::ConfigMap, "a", T, &first);
        let object = object.apply(Kind::ConfigMap, "b", T, &second, true).unwrap();
        let held = object.owned("b");
        let after = object.apply(Kind::ConfigMap, "a", T, &third, true).unwrap();
        let mut expected = keys(&third);
        for (key, value) in keys(&second) {
            // Fields of b stay, except those that a takes with force.
            if held["f:data"].get(format!("f:{key}")).is_some() {
                expected.entry(key).or_insert(value);
            }
        }
        let data = after.fields.get("data").and_then(Value::as_object).cloned().unwrap_or_default();
        prop_assert_eq!(data, expected);
    }

    #[test]
    fn every_field_of_an_object_has_an_owner(mut first in deployment(), second in deployment()) {
        // Fields without a manager are not tracked at first.
        first["spec"]["paused"] = json!(true);
        let object = Object::made(Kind::Deployment, "a", T, first);
        let mut next = second;
        next["metadata"]["uid"] = json!("u");
        let object = object.updated(Kind::Deployment, "b", LATER, next.clone());
        let fresh = Object::made(Kind::Deployment, "c", T, next);
        let owners = object.managers().0.into_iter().fold(Set::default(), |all, manager| all.union(manager.set));
        let whole = fresh.managers().0.into_iter().fold(Set::default(), |all, manager| all.union(manager.set));
        prop_assert_eq!(owners.intersection(&whole), whole.clone());
    }

    #[test]
    fn no_two_updaters_own_one_field(first in deployment(), second in deployment()) {
        let object = Object::made(Kind::Deployment, "a", T, first);
        let mut next = second;
        next["metadata"]["uid"] = json!("u");
        let object = object.updated(Kind::Deployment, "b", LATER, next);
        let managers = object.managers();
        if let [one, other] = managers.0.as_slice() {
            prop_assert!(one.set.intersection(&other.set).is_empty());
        }
    }

    #[test]
    fn a_set_survives_its_text(first in deployment(), second in deployment()) {
        let object = Object::applied(Kind::Deployment, "a", T, &first).apply(Kind::Deployment, "b", T, &second, true).unwrap();
        for manager in object.managers().0 {
            let mut text = Vec::new();
            fields::encode(&manager.set, &mut text);
            let text = String::from_utf8(text).unwrap();
            let read = fields::decode(&text).unwrap();
            prop_assert_eq!(&read, &manager.set);
            let value: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(fields::from_value(&value).unwrap(), read);
        }
    }

    #[test]
    fn the_algebra_of_sets_holds(first in deployment(), second in deployment()) {
        let one = Object::applied(Kind::Deployment, "a", T, &first);
        let other = Object::applied(Kind::Deployment, "a", T, &second);
        let set = |object: &Object| object.managers().0.into_iter().fold(Set::default(), |all, m| all.union(m.set)).into_owned();
        let (left, right) = (set(&one), set(&other));
        prop_assert_eq!(left.clone().union(right.clone()), right.clone().union(left.clone()));
        let both = left.intersection(&right);
        prop_assert!(both.clone().difference(&left).is_empty());
        prop_assert_eq!(left.clone().difference(&right).union(both), left.clone());
        prop_assert!(left.clone().difference(&right).intersection(&right).is_empty());
        prop_assert!(left.clone().difference_below(&left).is_empty());
    }
}

/// Lists sorted independently of the order of managers.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(sorted).collect();
            items.sort_by_key(ToString::to_string);
            Value::Array(items)
        }
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(key, value)| (key.clone(), sorted(value)))
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
