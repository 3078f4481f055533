//! Rules that several workloads share: selectors and templates, rollouts, counts of a status.

use master_pods::podspec;
use master_schema::validate::forms::{
    at_most_all, count_or_share, not_negative, number, number_or_share,
};
use master_schema::validate::{Faults, FieldPath, Fields, get, labels, object};
use serde_json::Value;

/// The status of an object.
pub(super) fn status(fields: &Fields) -> &Fields {
    object(fields, "status").unwrap_or(podspec::no_fields())
}

/// The template in a spec.
pub(super) fn template(spec: &Fields) -> &Fields {
    object(spec, "template").unwrap_or(podspec::no_fields())
}

/// Sets a number that is absent; zero counts as present.
pub(super) fn default_number(fields: &mut Fields, key: &str, value: i64) {
    if get(fields, key).is_null() {
        fields.insert(key.to_owned(), value.into());
    }
}

/// Validates a selector that must be present and must not select everything.
pub(super) fn selector(spec: &Fields, words: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let place = at.field("selector");
    match object(spec, "selector") {
        None => faults.required(&place, ""),
        Some(selector) => {
            labels::selector(Some(selector), &place, faults);
            // It would take over all pods of the namespace.
            if labels::is_empty(selector) {
                faults.invalid(&place, get(spec, "selector"), words);
            }
        }
    }
}

/// The selector must match the template's labels; `invalid` is upstream's text for a malformed
/// selector.
pub(super) fn selects_template(
    spec: &Fields,
    invalid: Option<&str>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let template = template(spec);
    let own = labels::of(template);
    match labels::selects(object(spec, "selector"), own) {
        Some(true) => {}
        Some(false) => unselected(template, &at.field("template"), faults),
        None => {
            if let Some(words) = invalid {
                faults.invalid(&at.field("selector"), get(spec, "selector"), words);
            }
        }
    }
}

/// Reports that the selector does not match the template's labels.
pub(super) fn unselected(template: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let own = labels::of(template).map_or(Value::Null, |labels| Value::Object(labels.clone()));
    let words = "`selector` does not match template `labels`";
    faults.invalid(&at.field("metadata").field("labels"), &own, words);
}

/// Validates a number or percentage of at most 100 %.
pub(super) fn part(fields: &Fields, key: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let value = get(fields, key);
    if !value.is_null() {
        count_or_share(value, &at.field(key), faults);
        at_most_all(value, &at.field(key), faults);
    }
}

/// Whether a number or percentage is zero.
pub(super) fn is_nothing(fields: &Fields, key: &str) -> bool {
    number_or_share(get(fields, key)) == 0
}

/// Validates the counts of a status: none negative, none above the total, `available` not above
/// `ready`.
pub(super) fn counts(
    status: &Fields,
    plain: &[&str],
    parts: &[&str],
    ready: &str,
    faults: &mut Faults,
) {
    let at = FieldPath::root("status");
    for key in plain.iter().chain(parts) {
        not_negative(status, key, &at, faults);
    }
    let whole = number(status, "replicas");
    for key in parts.iter().filter(|key| number(status, key) > whole) {
        faults.invalid(
            &at.field(key),
            get(status, key),
            "cannot be greater than status.replicas",
        );
    }
    if number(status, "availableReplicas") > number(status, "readyReplicas") {
        let words = format!("cannot be greater than {ready}");
        faults.invalid(
            &at.field("availableReplicas"),
            get(status, "availableReplicas"),
            words,
        );
    }
}

/// The collision count only grows.
pub(super) fn collisions(new: &Fields, old: &Fields, faults: &mut Faults) {
    let (after, before) = (
        get(new, "collisionCount").as_i64(),
        get(old, "collisionCount").as_i64(),
    );
    // It is part of the hash of templates: with a smaller number the old collision comes back.
    if before.is_some_and(|before| after.is_none_or(|after| after < before)) {
        let at = FieldPath::root("status");
        let value = Value::from(after.unwrap_or_default());
        faults.invalid(&at.field("collisionCount"), &value, "cannot be decremented");
    }
}
