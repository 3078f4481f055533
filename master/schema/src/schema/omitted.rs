//! Which fields are absent while they have the zero value of their type, as in upstream's types.
//!
//! The OpenAPI document does not say it: `hostNetwork`, which Go has by value, and `hostUsers`, to
//! which it has a pointer, are both optional booleans there. So `omitted.txt` beside this file says
//! it, for pod templates and what surrounds them: these are compared as wholes, and clients with
//! Go's types leave out in an update what they did not see.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

/// A line for each definition: fields that are left out, a bar, the others.
const TABLE: &str = include_str!("omitted.txt");

static OMITTED: LazyLock<HashMap<&str, HashSet<&str>>> = LazyLock::new(|| {
    let rows = rows().map(|(name, omitted, _)| (name, omitted.split_whitespace().collect()));
    rows.collect()
});

/// The name of each definition in the table, its omitted fields and its other ones.
fn rows() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let (name, fields) = line.split_once(": ")?;
        let (omitted, others) = fields.split_once('|')?;
        Some((name, omitted, others))
    })
}

/// Whether a zero value of a definition's field is its absence.
pub(super) fn is_omitted(definition: &str, field: &str) -> bool {
    let fields = short(definition).and_then(|name| OMITTED.get(name));
    fields.is_some_and(|fields| fields.contains(field))
}

/// The `group.version.Kind` of an upstream definition.
fn short(definition: &str) -> Option<&str> {
    let prefixes = ["io.k8s.api.", "io.k8s.apimachinery.pkg.apis."];
    prefixes
        .iter()
        .find_map(|prefix| definition.strip_prefix(prefix))
}

#[cfg(test)]
mod tests {
    use super::super::{Node, Object, Schemas, Source, definitions};
    use super::*;
    use config_kube::k8s_openapi::api::core::v1::PodTemplate;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Names of the optional fields of a definition that are simple or lists.
    fn optional(definition: &Value, object: &Object, nodes: &[Node]) -> BTreeSet<String> {
        let required = definition.get("required").and_then(Value::as_array);
        let is_required =
            |field: &str| required.is_some_and(|all| all.iter().any(|one| one == field));
        let simple = |node: &Node| {
            matches!(
                node,
                Node::String | Node::Boolean | Node::Integer(_) | Node::Number | Node::Array(_)
            )
        };
        let fields = object.fields.iter();
        let fields = fields.filter(|(name, field)| {
            simple(&nodes[field.node]) && !is_required(name) && !TYPE.contains(&&***name)
        });
        fields.map(|(name, _)| name.to_string()).collect()
    }

    /// The type of an object that has one of its own.
    const TYPE: [&str; 2] = ["apiVersion", "kind"];

    #[test]
    fn all_optional_fields_of_pod_templates_are_either_omitted_or_not() {
        let table: HashMap<&str, (&str, &str)> = rows()
            .map(|(name, omitted, others)| (name, (omitted, others)))
            .collect();
        assert_eq!(table.len(), rows().count(), "each definition once");
        let document = serde_json::from_str(include_str!("definitions.json")).unwrap();
        let schemas = Schemas::compile(&document);
        let mut seen = 0;
        let of_templates = definitions(&[Source::of::<PodTemplate>()]);
        for (name, definition) in &document {
            let Node::Object(object) = &schemas.nodes[schemas.names[name]] else {
                continue;
            };
            let mut expected = optional(definition, object, &schemas.nodes);
            let own = short(name).unwrap_or_default();
            let Some((omitted, others)) = table.get(own) else {
                // Of managed fields and owners an object has none before it is stored.
                let beside = ["meta.v1.ManagedFieldsEntry", "meta.v1.OwnerReference"];
                let stray = of_templates.contains_key(name) && !beside.contains(&own);
                assert!(!stray || expected.is_empty(), "{name} is not in the table");
                continue;
            };
            seen += 1;
            for field in omitted.split_whitespace().chain(others.split_whitespace()) {
                let known = expected.remove(field) || TYPE.contains(&field);
                assert!(
                    known,
                    "{name} has no optional {field}, or it is there twice"
                );
            }
            assert!(expected.is_empty(), "{name}: {expected:?} are missing");
        }
        assert_eq!(seen, table.len(), "each definition is known");
    }
}
