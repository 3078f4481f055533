//! Writes objects as the server does: defaults, strategy, validation.

use master_kinds::builtin;
use master_schema::registry::{Kind, Subresource};
use master_schema::schema::{Checked, Schemas, definitions};
use master_schema::validate::{Faults, Fields};
use serde_json::Value;

/// A kind by its group and plural.
pub(crate) fn kind(group: &str, plural: &str) -> Kind {
    let found = builtin::all()
        .into_iter()
        .find(|kind| kind.group == group && kind.plural == plural);
    found.unwrap_or_else(|| unreachable!("{plural}.{group} is a built-in kind"))
}

/// The fields of an object.
pub(crate) fn fields(object: &Value) -> Fields {
    object.as_object().cloned().unwrap()
}

/// An object after the check against its kind's schema, which finds no fault.
pub(crate) fn checked(kind: &Kind, object: &Value) -> Value {
    let schemas = Schemas::compile(&definitions(std::slice::from_ref(&kind.source)));
    let mut fields = fields(object);
    let found = schemas.check(kind.source.name(), &mut fields);
    assert_eq!(found, Checked::default());
    Value::Object(fields)
}

/// A new object after defaults and strategy.
pub(crate) fn made(kind: &Kind, object: &Value) -> Fields {
    let mut fields = fields(object);
    (kind.strategy.defaults)(&mut fields);
    (kind.strategy.create)(&mut fields);
    fields
}

/// A changed object after defaults and strategy.
pub(crate) fn changed(kind: &Kind, object: &Value, old: &Fields) -> Fields {
    let mut fields = fields(object);
    (kind.strategy.defaults)(&mut fields);
    (kind.strategy.update)(&mut fields, old);
    fields
}

/// Faults as `path: message`, in order.
pub(crate) fn messages(faults: Faults) -> Vec<String> {
    match faults.into_error("", "Kind", "name") {
        Ok(()) => Vec::new(),
        Err(error) => error
            .details
            .causes
            .iter()
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect(),
    }
}

/// The faults of a new object.
pub(crate) fn faults(kind: &Kind, object: &Value) -> Vec<String> {
    let made = made(kind, object);
    let mut faults = Faults::default();
    (kind.strategy.validate)(&made, &mut faults);
    (kind.strategy.validate_create)(&made, &mut faults);
    messages(faults)
}

/// The faults of a write through a subresource.
pub(crate) fn through_faults(
    kind: &Kind,
    subresource: Subresource,
    new: &Value,
    old: &Value,
) -> Vec<String> {
    let (new, old) = (fields(new), fields(old));
    let mut result = old.clone();
    if subresource == Subresource::Finalize {
        result.clone_from(&new);
    } else if let Some(status) = new.get("status") {
        result.insert("status".to_owned(), status.clone());
    }
    (kind.strategy.through)(subresource, &mut result, &new, &old);
    let mut faults = Faults::default();
    (kind.strategy.validate_update)(&result, &old, &mut faults);
    (kind.strategy.validate_through)(subresource, &result, &old, &mut faults);
    messages(faults)
}

/// The warnings of a new object.
pub(crate) fn warnings(kind: &Kind, object: &Value) -> Vec<String> {
    let mut all = Vec::new();
    (kind.strategy.warn)(&made(kind, object), None, &mut all);
    all
}

/// Asserts that each expected text is the beginning of one fault, in order.
#[track_caller]
pub(crate) fn starts(faults: &[String], expected: &[&str]) {
    let fits = faults.len() == expected.len()
        && faults
            .iter()
            .zip(expected)
            .all(|(fault, start)| fault.starts_with(start));
    assert!(fits, "{faults:#?} instead of {expected:#?}");
}

/// The faults of an update.
pub(crate) fn change_faults(kind: &Kind, object: &Value, old: &Value) -> Vec<String> {
    let old = made(kind, old);
    let new = changed(kind, object, &old);
    let mut faults = Faults::default();
    (kind.strategy.validate)(&new, &mut faults);
    (kind.strategy.validate_update)(&new, &old, &mut faults);
    messages(faults)
}

/// Paths and messages of faults, cut after the type of fault.
pub(crate) fn short(faults: Vec<String>) -> Vec<String> {
    let cut = |fault: String| {
        let (path, message) = fault.split_once(": ").unwrap();
        let kind = message.split_whitespace().next().unwrap();
        format!("{path} {}", kind.trim_end_matches(':'))
    };
    faults.into_iter().map(cut).collect()
}
