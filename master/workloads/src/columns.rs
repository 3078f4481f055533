//! Table cells that workloads share.

use master_schema::registry::{Column, wide};
use master_schema::validate::{Fields, items, object, text};
use serde_json::Value;

/// An integer column.
pub(super) const fn number(
    name: &'static str,
    cell: fn(&Fields, jiff::Timestamp) -> Value,
) -> Column {
    Column {
        name,
        kind: "integer",
        priority: 0,
        cell,
    }
}

/// A number at a JSON pointer; zero if absent.
pub(super) fn count(fields: &Fields, field: &str, pointer: &str) -> i64 {
    fields
        .get(field)
        .and_then(|value| value.pointer(pointer))
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

/// The names of the containers in `spec.template`.
pub(super) const CONTAINERS: Column = wide("Containers", |fields, _| {
    names(template(fields, "/template"), "name").into()
});
/// The images of the containers.
pub(super) const IMAGES: Column = wide("Images", |fields, _| {
    names(template(fields, "/template"), "image").into()
});
/// The label selector in `spec.selector`.
pub(super) const SELECTOR: Column = wide("Selector", |fields, _| {
    label_selector(fields.get("spec").and_then(|spec| spec.get("selector"))).into()
});

/// A template below the spec.
pub(super) fn template<'a>(fields: &'a Fields, pointer: &str) -> Option<&'a Fields> {
    fields
        .get("spec")
        .and_then(|spec| spec.pointer(pointer))
        .and_then(Value::as_object)
}

/// A field of each container of a template, separated by commas.
pub(super) fn names(template: Option<&Fields>, key: &str) -> String {
    let containers = template
        .and_then(|template| object(template, "spec"))
        .map_or(&[][..], |s| items(s, "containers"));
    let names: Vec<&str> = containers
        .iter()
        .filter_map(Value::as_object)
        .map(|one| text(one, key))
        .collect();
    names.join(",")
}

/// Labels as `key=value`, separated by commas.
pub(super) fn label_map(labels: Option<&Fields>) -> String {
    let pairs: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    if pairs.is_empty() {
        "<none>".to_owned()
    } else {
        pairs.join(",")
    }
}

/// A label selector in command-line syntax, sorted by key.
pub(super) fn label_selector(selector: Option<&Value>) -> String {
    let Some(selector) = selector.and_then(Value::as_object) else {
        return "<none>".to_owned();
    };
    let mut parts: Vec<(&str, String)> = object(selector, "matchLabels")
        .into_iter()
        .flatten()
        .map(|(key, value)| {
            (
                key.as_str(),
                format!("{key}={}", value.as_str().unwrap_or_default()),
            )
        })
        .collect();
    for expression in items(selector, "matchExpressions")
        .iter()
        .filter_map(Value::as_object)
    {
        let key = text(expression, "key");
        let mut values: Vec<&str> = items(expression, "values")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        values.sort_unstable();
        let list = values.join(",");
        let part = match text(expression, "operator") {
            "In" => format!("{key} in ({list})"),
            "NotIn" => format!("{key} notin ({list})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return "<error>".to_owned(),
        };
        parts.push((key, part));
    }
    parts.sort();
    let parts: Vec<String> = parts.into_iter().map(|(_, part)| part).collect();
    if parts.is_empty() {
        "<none>".to_owned()
    } else {
        parts.join(",")
    }
}
