//! Label selectors and node selectors, checked (apimachinery `meta/v1/validation`, `core/validation`).

use super::{At, Faults, Fields, get, items, names, object, text};
use serde_json::Value;

/// Checks a map of labels that stands somewhere in a spec.
pub fn labels(map: Option<&Fields>, at: &At<'_>, faults: &mut Faults) {
    for (key, value) in map.into_iter().flatten() {
        if let Err(fault) = names::qualified(key) {
            faults.invalid(at, &Value::String(key.clone()), fault);
        }
        if let Err(fault) = names::label_value(value.as_str().unwrap_or_default()) {
            faults.invalid(at, value, fault);
        }
    }
}

/// Checks a `LabelSelector`, if it is there.
pub fn selector(selector: Option<&Fields>, at: &At<'_>, faults: &mut Faults) {
    let Some(selector) = selector else { return };
    labels(object(selector, "matchLabels"), &at.field("matchLabels"), faults);
    let at = at.field("matchExpressions");
    for (number, expression) in items(selector, "matchExpressions").iter().enumerate() {
        let (at, Some(expression)) = (at.index(number), expression.as_object()) else { continue };
        let values = items(expression, "values");
        match text(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                faults.required(&at.field("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                faults.forbidden(
                    &at.field("values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                );
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => faults.invalid(&at.field("operator"), get(expression, "operator"), "not a valid selector operator"),
        }
        if let Err(fault) = names::qualified(text(expression, "key")) {
            faults.invalid(&at.field("key"), get(expression, "key"), fault);
        }
        let at = at.field("values");
        for (number, value) in values.iter().enumerate() {
            if let Err(fault) = names::label_value(value.as_str().unwrap_or_default()) {
                faults.invalid(&at.index(number), value, fault);
            }
        }
    }
}

/// Checks a `NodeSelector`.
pub fn node_selector(selector: &Fields, at: &At<'_>, faults: &mut Faults) {
    let at = at.field("nodeSelectorTerms");
    if items(selector, "nodeSelectorTerms").is_empty() {
        faults.required(&at, "must have at least one node selector term");
    }
    for (number, term) in items(selector, "nodeSelectorTerms").iter().enumerate() {
        let (at, Some(term)) = (at.index(number), term.as_object()) else { continue };
        node_term(term, &at, faults);
    }
}

/// Checks a `NodeSelectorTerm`.
pub fn node_term(term: &Fields, at: &At<'_>, faults: &mut Faults) {
    for list in ["matchExpressions", "matchFields"] {
        let at = at.field(list);
        for (number, requirement) in items(term, list).iter().enumerate() {
            let (at, Some(requirement)) = (at.index(number), requirement.as_object()) else { continue };
            if list == "matchFields" {
                field_requirement(requirement, &at, faults);
            } else {
                node_requirement(requirement, &at, faults);
            }
        }
    }
}

fn node_requirement(requirement: &Fields, at: &At<'_>, faults: &mut Faults) {
    let values = items(requirement, "values");
    match text(requirement, "operator") {
        "In" | "NotIn" if values.is_empty() => {
            faults.required(&at.field("values"), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            faults.forbidden(&at.field("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        "Gt" | "Lt" if values.len() != 1 => {
            faults.required(&at.field("values"), "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => faults.invalid(&at.field("operator"), get(requirement, "operator"), "not a valid selector operator"),
    }
    if let Err(fault) = names::qualified(text(requirement, "key")) {
        faults.invalid(&at.field("key"), get(requirement, "key"), fault);
    }
}

/// Fields of nodes can be chosen by name alone, one at a time.
fn field_requirement(requirement: &Fields, at: &At<'_>, faults: &mut Faults) {
    let values = items(requirement, "values");
    match text(requirement, "operator") {
        "In" | "NotIn" => {
            if values.len() != 1 {
                faults.required(
                    &at.field("values"),
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                );
            }
        }
        _ => faults.invalid(&at.field("operator"), get(requirement, "operator"), "not a valid selector operator"),
    }
    if text(requirement, "key") != "metadata.name" {
        faults.invalid(&at.field("key"), get(requirement, "key"), "not a valid field selector key");
        return;
    }
    let at = at.field("values");
    for (number, value) in values.iter().enumerate() {
        if let Err(fault) = names::subdomain(value.as_str().unwrap_or_default()) {
            faults.invalid(&at.index(number), value, fault);
        }
    }
}
