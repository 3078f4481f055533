//! PodDisruptionBudgets.

use super::columns::{count, number};
use super::rules::{part, status};
use config_kube::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use master_schema::cells::AGE;
use master_schema::object::spec;
use master_schema::registry::{Kind, Strategy, Subresource, column, words};
use master_schema::validate::forms::{formed, has, has_time, not_negative, optional_choice, word};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, labels, names, object, text};
use serde_json::Value;
use std::collections::BTreeSet;

/// `PodDisruptionBudget`.
pub fn pod_disruption_budget() -> Kind {
    Kind {
        short_names: words(&["pdb"]),
        subresources: vec![Subresource::Status],
        columns: vec![
            column("Min Available", |fields, _| {
                amount(fields, "minAvailable").into()
            }),
            column("Max Unavailable", |fields, _| {
                amount(fields, "maxUnavailable").into()
            }),
            number("Allowed Disruptions", |fields, _| {
                count(fields, "status", "/disruptionsAllowed").into()
            }),
            AGE,
        ],
        strategy: Strategy {
            validate,
            validate_through,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<PodDisruptionBudget>(true)
    }
}

fn validate(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    if has(spec, "minAvailable") && has(spec, "maxUnavailable") {
        faults.invalid(
            &at,
            get(fields, "spec"),
            "minAvailable and maxUnavailable cannot be both set",
        );
    }
    part(spec, "minAvailable", &at, faults);
    part(spec, "maxUnavailable", &at, faults);
    // May be empty: it then selects all pods of the namespace (none in `v1beta1`).
    labels::selector(object(spec, "selector"), &at.field("selector"), faults);
    optional_choice(
        spec,
        "unhealthyPodEvictionPolicy",
        &at,
        &["AlwaysAllow", "IfHealthyBudget"],
        faults,
    );
}

fn validate_through(subresource: Subresource, new: &Fields, _old: &Fields, faults: &mut Faults) {
    if subresource != Subresource::Status {
        return;
    }
    let (status, at) = (status(new), FieldPath::root("status"));
    conditions(status, &at.field("conditions"), faults);
    for key in [
        "disruptionsAllowed",
        "currentHealthy",
        "desiredHealthy",
        "expectedPods",
    ] {
        not_negative(status, key, &at, faults);
    }
}

/// Maximum length of a condition's reason.
const REASON: usize = 1024;
/// Maximum length of a condition's message.
const MESSAGE: usize = 32 << 10;

/// Validates conditions of the common form (apimachinery `ValidateConditions`).
fn conditions(status: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, condition) in items(status, "conditions").iter().enumerate() {
        let Some(condition) = condition.as_object() else {
            continue;
        };
        let at = at.index(index);
        if !seen.insert(text(condition, "type")) {
            faults.duplicate(&at.field("type"), word(condition, "type"));
        }
        formed(
            word(condition, "type"),
            &at.field("type"),
            names::qualified,
            faults,
        );
        faults.one_of(
            &at.field("status"),
            word(condition, "status"),
            &["False", "True", "Unknown"],
        );
        not_negative(condition, "observedGeneration", &at, faults);
        if !has_time(condition, "lastTransitionTime") {
            faults.required(&at.field("lastTransitionTime"), "must be set");
        }
        let reason = text(condition, "reason");
        if reason.is_empty() {
            faults.required(&at.field("reason"), "must be set");
        } else if !is_reason(reason) {
            let words = "a condition reason must start with alphabetic character, optionally followed by a string of \
                         alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. \
                         'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex \
                         used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
            faults.invalid(&at.field("reason"), get(condition, "reason"), words);
        } else if reason.len() > REASON {
            faults.too_long(&at.field("reason"), REASON);
        }
        if text(condition, "message").len() > MESSAGE {
            faults.too_long(&at.field("message"), MESSAGE);
        }
    }
}

fn is_reason(reason: &str) -> bool {
    let bytes = reason.as_bytes();
    let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b',' | b':');
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes
            .last()
            .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
        && bytes.iter().all(inner)
}

/// An integer or percentage of the spec.
fn amount(fields: &Fields, key: &str) -> String {
    match fields.get("spec").and_then(|spec| spec.get(key)) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => {
            "N/A".to_owned()
        }
    }
}
