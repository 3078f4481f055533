//! Objects on their way in, as the server takes them: defaults, strategy, validation.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
#![allow(dead_code, reason = "each test file uses its own part")]

use master_kinds::builtin;
use master_kinds::registry::Kind;
use master_kinds::validate::{Faults, Fields};
use serde_json::Value;

/// A kind by its group and plural.
pub(crate) fn kind(group: &str, plural: &str) -> Kind {
    let found = builtin::all().into_iter().find(|kind| kind.group == group && kind.plural == plural);
    found.unwrap_or_else(|| unreachable!("{plural}.{group} is a built-in kind"))
}

/// The fields of an object.
pub(crate) fn fields(object: &Value) -> Fields {
    object.as_object().cloned().unwrap()
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
pub(crate) fn told(faults: Faults) -> Vec<String> {
    match faults.into_error("", "Kind", "name") {
        Ok(()) => Vec::new(),
        Err(error) => error.details.causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect(),
    }
}

/// What is wrong with a new object.
pub(crate) fn faults(kind: &Kind, object: &Value) -> Vec<String> {
    let mut faults = Faults::default();
    (kind.strategy.validate)(&made(kind, object), &mut faults);
    told(faults)
}

/// What is wrong with a change of an object that was made before.
pub(crate) fn change_faults(kind: &Kind, object: &Value, old: &Value) -> Vec<String> {
    let old = made(kind, old);
    let new = changed(kind, object, &old);
    let mut faults = Faults::default();
    (kind.strategy.validate)(&new, &mut faults);
    (kind.strategy.validate_update)(&new, &old, &mut faults);
    told(faults)
}
