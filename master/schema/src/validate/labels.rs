//! Validation of labels, label selectors and node selectors (apimachinery `meta/v1/validation`,
//! `core/validation`).

use super::forms::{formed, word};
use super::limits::{self, at_most};
use super::{Faults, FieldPath, Fields, get, items, names, object, text};
use serde_json::Value;

/// Validates a map of labels.
pub fn labels(labels: Option<&Fields>, at: &FieldPath<'_>, faults: &mut Faults) {
    for (key, value) in labels.into_iter().flatten() {
        if let Err(fault) = names::qualified(key) {
            faults.invalid(at, &Value::String(key.clone()), fault);
        }
        formed(value, at, names::label_value, faults);
    }
}

/// Validates a map of annotations without its size, which is limited per object.
pub fn annotations(annotations: Option<&Fields>, at: &FieldPath<'_>, faults: &mut Faults) {
    for key in annotations.into_iter().flat_map(serde_json::Map::keys) {
        // Case does not matter in keys of annotations (upstream).
        if let Err(fault) = names::qualified(&key.to_lowercase()) {
            faults.invalid(at, &Value::String(key.clone()), fault);
        }
    }
}

/// Validates a label selector, if present.
pub fn selector(selector: Option<&Fields>, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(selector) = selector else { return };
    labels(
        object(selector, "matchLabels"),
        &at.field("matchLabels"),
        faults,
    );
    requirements(selector, "matchExpressions", at, faults);
    let list = at.field("matchExpressions");
    for (number, expression) in items(selector, "matchExpressions").iter().enumerate() {
        let Some(expression) = expression.as_object() else {
            continue;
        };
        self::expression(expression, &list.index(number), faults);
    }
}

/// Reports more requirements, or more values of one, than a selector may have.
fn requirements(term: &Fields, list: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    at_most(term, list, limits::REQUIREMENTS, at, faults);
    let place = at.field(list);
    for (number, requirement) in items(term, list).iter().enumerate() {
        if let Some(requirement) = requirement.as_object() {
            let at = place.index(number);
            at_most(requirement, "values", limits::VALUES, &at, faults);
        }
    }
}

fn expression(expression: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    match text(expression, "operator") {
        operator @ ("In" | "NotIn" | "Exists" | "DoesNotExist") => {
            values_of_operator(operator, expression, at, faults);
        }
        _ => unknown_operator(expression, at, faults),
    }
    key_and_values(expression, true, at, faults);
}

/// Checks that `In` and `NotIn` have values, and that `Exists` and `DoesNotExist` have none.
fn values_of_operator(operator: &str, term: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let place = at.field("values");
    let takes_values = matches!(operator, "In" | "NotIn");
    match (takes_values, items(term, "values").is_empty()) {
        (true, true) => faults.required(
            &place,
            "must be specified when `operator` is 'In' or 'NotIn'",
        ),
        (false, false) => faults.forbidden(
            &place,
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        ),
        (true, false) | (false, true) => {}
    }
}

fn unknown_operator(term: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    faults.invalid(
        &at.field("operator"),
        word(term, "operator"),
        "not a valid selector operator",
    );
}

/// Checks the form of a term's key, and of its values where they must be values of labels.
fn key_and_values(term: &Fields, label_values: bool, at: &FieldPath<'_>, faults: &mut Faults) {
    formed(
        word(term, "key"),
        &at.field("key"),
        names::qualified,
        faults,
    );
    if label_values {
        let place = at.field("values");
        for (index, value) in items(term, "values").iter().enumerate() {
            formed(value, &place.index(index), names::label_value, faults);
        }
    }
}

/// Validates a node selector.
pub fn node_selector(selector: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let list = at.field("nodeSelectorTerms");
    let terms = items(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        faults.required(&list, "must have at least one node selector term");
    }
    at_most(
        selector,
        "nodeSelectorTerms",
        limits::NODE_TERMS,
        at,
        faults,
    );
    for (index, term) in terms.iter().enumerate() {
        if let Some(term) = term.as_object() {
            node_term(term, &list.index(index), faults);
        }
    }
}

/// Validates a term of a node selector.
pub fn node_term(term: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    node_requirements(term, false, at, faults);
}

/// Validates a preferred term, whose values upstream does not check.
pub fn node_preference(term: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    node_requirements(term, true, at, faults);
}

fn node_requirements(term: &Fields, lenient: bool, at: &FieldPath<'_>, faults: &mut Faults) {
    requirements(term, "matchExpressions", at, faults);
    requirements(term, "matchFields", at, faults);
    let list = at.field("matchExpressions");
    for (index, requirement) in items(term, "matchExpressions").iter().enumerate() {
        if let Some(requirement) = requirement.as_object() {
            label_requirement(requirement, lenient, &list.index(index), faults);
        }
    }
    let list = at.field("matchFields");
    for (index, requirement) in items(term, "matchFields").iter().enumerate() {
        if let Some(requirement) = requirement.as_object() {
            field_requirement(requirement, &list.index(index), faults);
        }
    }
}

fn label_requirement(requirement: &Fields, lenient: bool, at: &FieldPath<'_>, faults: &mut Faults) {
    match text(requirement, "operator") {
        operator @ ("In" | "NotIn" | "Exists" | "DoesNotExist") => {
            values_of_operator(operator, requirement, at, faults);
        }
        "Gt" | "Lt" if items(requirement, "values").len() != 1 => {
            faults.required(
                &at.field("values"),
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            );
        }
        "Gt" | "Lt" => {}
        _ => unknown_operator(requirement, at, faults),
    }
    key_and_values(requirement, !lenient, at, faults);
}

fn field_requirement(requirement: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let values = items(requirement, "values");
    let place = at.field("values");
    match text(requirement, "operator") {
        "In" | "NotIn" if values.len() != 1 => {
            let words =
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            faults.required(&place, words);
        }
        "In" | "NotIn" => {}
        _ => faults.invalid(
            &at.field("operator"),
            word(requirement, "operator"),
            "not a valid selector operator",
        ),
    }
    if text(requirement, "key") == "metadata.name" {
        for (index, value) in values.iter().enumerate() {
            formed(value, &place.index(index), names::subdomain, faults);
        }
    } else {
        faults.invalid(
            &at.field("key"),
            word(requirement, "key"),
            "not a valid field selector key",
        );
    }
}

/// Whether a label selector has no requirement.
pub fn is_empty(selector: &Fields) -> bool {
    object(selector, "matchLabels").is_none_or(serde_json::Map::is_empty)
        && items(selector, "matchExpressions").is_empty()
}

/// Whether a label selector matches labels: an absent one matches nothing, an empty one everything.
/// `None` if it is malformed.
pub fn selects(selector: Option<&Fields>, labels: Option<&Fields>) -> Option<bool> {
    let Some(selector) = selector else {
        return Some(false);
    };
    let mut faults = Faults::default();
    self::selector(Some(selector), &FieldPath::root(""), &mut faults);
    if !faults.is_empty() {
        return None;
    }
    let own = |key: &str| labels.and_then(|labels| labels.get(key));
    let equal = object(selector, "matchLabels")
        .into_iter()
        .flatten()
        .all(|(key, value)| own(key) == Some(value));
    let holds = |expression: &Fields| {
        let found = own(text(expression, "key"));
        let named = found.is_some_and(|found| items(expression, "values").contains(found));
        match text(expression, "operator") {
            "In" => named,
            // Also without the label: what is absent is in no list (upstream).
            "NotIn" => !named,
            "Exists" => found.is_some(),
            _ => found.is_none(),
        }
    };
    Some(
        equal
            && items(selector, "matchExpressions")
                .iter()
                .filter_map(Value::as_object)
                .all(holds),
    )
}

/// The labels of a template or an object.
pub fn of(object_or_template: &Fields) -> Option<&Fields> {
    get(object_or_template, "metadata")
        .get("labels")
        .and_then(Value::as_object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(value: &Value) -> Vec<String> {
        let mut faults = Faults::default();
        selector(value.as_object(), &FieldPath::root("selector"), &mut faults);
        faults
            .found()
            .map(|(field, reason, _)| format!("{field} {reason}"))
            .collect()
    }

    #[test]
    fn every_fault_of_a_selector_has_upstreams_path_and_reason() {
        let value = json!({"matchLabels": {"-a": "b c"}, "matchExpressions": [
            {"key": "a", "operator": "In"},
            {"key": "", "operator": "Exists", "values": ["x"]},
            {"key": "b", "operator": "Foo"},
            {"key": "c", "operator": "NotIn", "values": ["-"]},
        ]});
        assert_eq!(
            said(&value),
            [
                "selector.matchLabels FieldValueInvalid",
                "selector.matchLabels FieldValueInvalid",
                "selector.matchExpressions[0].values FieldValueRequired",
                "selector.matchExpressions[1].values FieldValueForbidden",
                "selector.matchExpressions[1].key FieldValueInvalid",
                "selector.matchExpressions[2].operator FieldValueInvalid",
                "selector.matchExpressions[3].values[0] FieldValueInvalid",
            ]
        );
    }

    #[test]
    fn selectors_select_labels() {
        let labels = json!({"a": "1", "b": "2"});
        let chosen = |selector: Value| selects(selector.as_object(), labels.as_object());
        assert_eq!(chosen(Value::Null), Some(false));
        assert_eq!(chosen(json!({})), Some(true));
        assert_eq!(chosen(json!({"matchLabels": {"a": "1"}})), Some(true));
        assert_eq!(chosen(json!({"matchLabels": {"a": "2"}})), Some(false));
        assert_eq!(
            chosen(json!({"matchExpressions": [{"key": "c", "operator": "DoesNotExist"}]})),
            Some(true)
        );
        assert_eq!(
            chosen(
                json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]})
            ),
            Some(false)
        );
        assert_eq!(
            chosen(json!({"matchExpressions": [{"key": "a", "operator": "In"}]})),
            None
        );
    }
}
