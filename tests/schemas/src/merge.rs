//! How fields are merged: the keys of strategic merge patch, and the list and map types of
//! server-side apply.
//!
//! Upstream has these facts as tags of its Go types (`patchStrategy`, `patchMergeKey`, `listType`,
//! `mapType`), which `k8s-openapi` drops. [`extend`] writes them into definitions as the
//! `x-kubernetes-*` extensions that upstream serves; the master reads them from there.

use crate::facts::{ATOMIC, FACTS, Fact};
use serde_json::{Map, Value, json};

/// The table's entry of a definition: `group.version.Kind` without upstream's prefixes.
fn definition_facts(definition: &str) -> &'static [(&'static str, Fact)] {
    let own = short(definition).unwrap_or_default();
    let found = FACTS.binary_search_by(|(known, _)| (*known).cmp(own));
    found.map_or(&[], |index| FACTS[index].1)
}

/// The `group.version.Kind` of an upstream definition.
fn short(definition: &str) -> Option<&str> {
    let rest = definition.strip_prefix("io.k8s.")?;
    let (kind, _) = rest.rmatch_indices('.').nth(2)?;
    Some(&rest[kind + 1..])
}

fn facts_of(definition: &str, field: &str) -> impl Iterator<Item = &'static Fact> {
    definition_facts(definition)
        .iter()
        .filter(move |(known, _)| *known == field)
        .map(|(_, fact)| fact)
}

/// The extensions of a field: `x-kubernetes-patch-*`, `x-kubernetes-list-*`,
/// `x-kubernetes-map-type`, `default`.
pub fn extensions(definition: &str, field: &str) -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    for fact in facts_of(definition, field) {
        let mut patch = |strategy: &str, key: &str| {
            all.push(("x-kubernetes-patch-strategy", json!(strategy)));
            if !key.is_empty() {
                all.push(("x-kubernetes-patch-merge-key", json!(key)));
            }
        };
        match fact {
            Fact::Keyed(key) | Fact::KeyedBy(key, _) | Fact::Merged(key) => patch("merge", key),
            Fact::Retained(key) => patch("merge,retainKeys", key),
            Fact::MergedSet => patch("merge", ""),
            Fact::RetainKeys => patch("retainKeys", ""),
            Fact::Replaced => patch("replace", ""),
            Fact::Mapped(_)
            | Fact::Set
            | Fact::AtomicMap
            | Fact::Granular
            | Fact::Struct
            | Fact::Default(_) => {}
        }
        let map = |keys: &[&str]| {
            [
                ("x-kubernetes-list-type", json!("map")),
                ("x-kubernetes-list-map-keys", json!(keys)),
            ]
            .to_vec()
        };
        all.extend(match fact {
            Fact::Keyed(key) | Fact::Retained(key) => map(&[key]),
            Fact::KeyedBy(_, keys) | Fact::Mapped(keys) => map(keys),
            Fact::Set | Fact::MergedSet => vec![("x-kubernetes-list-type", json!("set"))],
            Fact::AtomicMap => vec![("x-kubernetes-map-type", json!("atomic"))],
            Fact::Granular => vec![("x-kubernetes-map-type", json!("granular"))],
            Fact::Struct => vec![("default", json!({}))],
            Fact::Default(text) => vec![("default", json!(text))],
            Fact::Merged(_) | Fact::RetainKeys | Fact::Replaced => Vec::new(),
        });
    }
    all
}

/// Whether objects of a definition are merged as a whole.
pub fn is_atomic(definition: &str) -> bool {
    short(definition).is_some_and(|own| ATOMIC.binary_search(&own).is_ok())
}

/// Writes all that is known of a definition into it.
pub(super) fn extend(name: &str, definition: &mut Map<String, Value>) {
    if is_atomic(name) {
        definition.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
    }
    let Some(Value::Object(properties)) = definition.get_mut("properties") else {
        return;
    };
    let whole = name.starts_with("io.k8s.")
        && ["apiVersion", "kind", "metadata"]
            .iter()
            .all(|key| properties.contains_key(*key));
    for (field, schema) in properties {
        let Value::Object(schema) = schema else {
            continue;
        };
        for (key, value) in extensions(name, field) {
            schema.insert(key.to_owned(), value);
        }
        if whole && matches!(field.as_str(), "metadata" | "spec" | "status") {
            schema.insert("default".to_owned(), json!({}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_in_order_without_doubles() {
        assert!(FACTS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(ATOMIC.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn ports_are_merged_by_one_key_and_applied_by_two() {
        let service = "io.k8s.api.core.v1.ServiceSpec";
        assert_eq!(
            Value::Object(
                extensions(service, "ports")
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect()
            ),
            json!({
                "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "port",
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
            })
        );
    }

    #[test]
    fn names_of_definitions_are_cut_to_group_version_and_kind() {
        assert_eq!(short("io.k8s.api.core.v1.Pod"), Some("core.v1.Pod"));
        assert_eq!(
            short("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"),
            Some("meta.v1.ObjectMeta")
        );
        assert_eq!(short("dev.pratique.v1alpha1.Machine"), None);
        assert!(is_atomic(
            "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"
        ));
    }
}
