//! Validation of conditions (apimachinery `meta/v1/validation`).

use super::forms::{has_time, number, word};
use super::{Faults, FieldPath, Fields, get, names, text};
use serde_json::Value;
use std::collections::HashSet;

/// Bytes of a reason and of a message.
const REASON: usize = 1 << 10;
const MESSAGE: usize = 32 << 10;

/// Validates a list of conditions.
pub fn all(conditions: &[Value], at: &FieldPath<'_>, faults: &mut Faults) {
    let mut known = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let (at, Some(condition)) = (at.index(index), condition.as_object()) else {
            continue;
        };
        if !known.insert(text(condition, "type")) {
            faults.duplicate(&at, word(condition, "type"));
        }
        one(condition, &at, faults);
    }
}

/// Validates one condition.
fn one(condition: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let kind = text(condition, "type");
    if kind.is_empty() {
        faults.required(&at.field("type"), "is required");
    } else if let Err(fault) = names::qualified(kind) {
        faults.invalid(&at.field("type"), get(condition, "type"), fault);
    }
    if text(condition, "status").is_empty() {
        faults.required(&at.field("status"), "");
    } else {
        faults.one_of(
            &at.field("status"),
            get(condition, "status"),
            &["False", "True", "Unknown"],
        );
    }
    if number(condition, "observedGeneration") < 0 {
        let words = "must be greater than or equal to zero";
        faults.invalid(
            &at.field("observedGeneration"),
            get(condition, "observedGeneration"),
            words,
        );
    }
    if !has_time(condition, "lastTransitionTime") {
        faults.required(&at.field("lastTransitionTime"), "");
    }
    let reason = text(condition, "reason");
    if reason.is_empty() {
        faults.required(&at.field("reason"), "");
    } else {
        if !is_reason(reason) {
            let words = "a condition reason must start with alphabetic character, optionally followed by a string of \
                         alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. \
                         'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex \
                         used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
            faults.invalid(&at.field("reason"), get(condition, "reason"), words);
        }
        if reason.len() > REASON {
            faults.too_long(&at.field("reason"), REASON);
        }
    }
    if text(condition, "message").len() > MESSAGE {
        faults.too_long(&at.field("message"), MESSAGE);
    }
}

fn is_reason(reason: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let bytes = reason.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(|b| word(*b))
        && bytes.iter().all(|b| word(*b) || matches!(b, b',' | b':'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_fault_of_a_condition_is_reported() {
        let good = json!({"type": "Ready", "status": "True", "reason": "R1,x", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let bad = json!({"type": "-", "status": "Yes", "reason": "1", "observedGeneration": -1,
            "lastTransitionTime": "0001-01-01T00:00:00Z"});
        let mut faults = Faults::default();
        all(
            &[good.clone(), bad, good, json!({})],
            &FieldPath::root("c"),
            &mut faults,
        );
        let found: Vec<String> = faults
            .found()
            .map(|(field, reason, _)| format!("{field} {reason}"))
            .collect();
        assert_eq!(
            found,
            [
                "c[1].type FieldValueInvalid",
                "c[1].status FieldValueNotSupported",
                "c[1].observedGeneration FieldValueInvalid",
                "c[1].lastTransitionTime FieldValueRequired",
                "c[1].reason FieldValueInvalid",
                "c[2] FieldValueDuplicate",
                "c[3].type FieldValueRequired",
                "c[3].status FieldValueRequired",
                "c[3].lastTransitionTime FieldValueRequired",
                "c[3].reason FieldValueRequired",
            ]
        );
    }
}
