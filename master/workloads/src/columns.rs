//! Table cells that workloads share.

pub(super) use master_schema::registry::integer as number;
use master_schema::registry::{Column, wide};
use master_schema::selector::label_text;
use master_schema::validate::{Fields, items, object, text};
use serde_json::Value;

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
    let Some(selector) = selector.filter(|selector| selector.is_object()) else {
        return "<none>".to_owned();
    };
    match label_text(selector) {
        None => "<error>".to_owned(),
        Some(text) if text.is_empty() => "<none>".to_owned(),
        Some(text) => text,
    }
}
