//! Validation of events (upstream: `core/validation/events.go`): the older version is validated
//! less strictly than the newer. Faults have the paths of the stored form, whichever version was
//! sent.

use super::event::{about, either};
use master_schema::object::meta_text;
use master_schema::validate::forms::{has_time, number};
use master_schema::validate::{Faults, FieldPath, Fields, get, names, object, text};
use serde_json::Value;

/// Bytes of an action, a reason, a reporter's instance, and a note.
const WORD: usize = 128;
const NOTE: usize = 1024;

/// The fields of the newer version with their names in the stored form.
const FIELDS: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("reason", "reason"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingController", "reportingController"),
    ("reportingInstance", "reportingInstance"),
];

/// Validates what applies to every event.
pub(super) fn legacy(fields: &Fields, faults: &mut Faults) {
    let (about, own) = (about(fields), meta_text(fields, "namespace"));
    let namespace = text(about, "namespace");
    let fits = match (text(fields, "eventTime").is_empty(), namespace.is_empty()) {
        // Events about objects of the whole cluster are in `default`.
        (true, true) => matches!(own, "" | "default"),
        (true, false) => namespace == own,
        // Newer reporters may use `kube-system`, too.
        (false, true) => matches!(own, "default" | "kube-system"),
        (false, false) => true,
    };
    if !fits {
        let at = FieldPath::root("involvedObject");
        faults.invalid(
            &at.field("namespace"),
            &namespace.into(),
            "does not match event.namespace",
        );
    }
    if !text(fields, "eventTime").is_empty() {
        reported(fields, faults);
    }
    if let Err(fault) = names::subdomain(own) {
        faults.invalid(&FieldPath::root("namespace"), &own.into(), fault);
    }
}

fn reported(fields: &Fields, faults: &mut Faults) {
    let (at, reporter) = (
        FieldPath::root("reportingController"),
        either(fields, "reportingController", "reportingComponent"),
    );
    if reporter.is_empty() {
        faults.required(&at, "");
    }
    if let Err(fault) = names::qualified(reporter) {
        faults.invalid(&at, &reporter.into(), fault);
    }
    for key in ["reportingInstance", "action", "reason"] {
        if text(fields, key).is_empty() {
            faults.required(&FieldPath::root(key), "");
        }
        short(text(fields, key), WORD, key, faults);
    }
    short(either(fields, "message", "note"), NOTE, "message", faults);
}

fn short(found: &str, most: usize, key: &str, faults: &mut Faults) {
    if found.len() > most {
        // Upstream shows no value here: it is long, that is the fault.
        faults.invalid(
            &FieldPath::root(key),
            &"".into(),
            format!("can have at most {most} characters"),
        );
    }
}

/// Validates what applies to new events of the newer version.
pub(super) fn create(fields: &Fields, faults: &mut Faults) {
    series(fields, faults);
    if text(fields, "eventTime").is_empty() {
        faults.required(&FieldPath::root("eventTime"), "");
    }
    let kind = text(fields, "type");
    if !matches!(kind, "Normal" | "Warning") {
        faults.invalid(
            &FieldPath::root("type"),
            &"".into(),
            format!("has invalid value: {kind}"),
        );
    }
    for (served, stored) in FIELDS
        .iter()
        .filter(|(served, _)| served.starts_with("deprecated"))
    {
        let is_set = match get(fields, served) {
            Value::Object(source) => source.values().any(|part| part != ""),
            Value::Number(count) => count.as_i64() != Some(0),
            other @ (Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_)) => {
                !other.is_null()
            }
        };
        if is_set {
            faults.invalid(&FieldPath::root(stored), &"".into(), "needs to be unset");
        }
    }
}

fn series(fields: &Fields, faults: &mut Faults) {
    let Some(series) = object(fields, "series") else {
        return;
    };
    if number(series, "count") < 2 {
        faults.invalid(
            &FieldPath::root("series.count"),
            &"".into(),
            "should be at least 2",
        );
    }
    if !has_time(series, "lastObservedTime") {
        faults.required(&FieldPath::root("series.lastObservedTime"), "");
    }
}

/// An event's series, without a time that is not set: reading the newer version, which requires it,
/// adds the zero time to a series that the older one stored without.
fn comparable_series(fields: &Fields) -> Value {
    let mut series = get(fields, "series").clone();
    if let Some(series) = series.as_object_mut()
        && !has_time(series, "lastObservedTime")
    {
        series.remove("lastObservedTime");
    }
    series
}

/// In the newer version, everything but the series is immutable.
pub(super) fn change(new: &Fields, old: &Fields, faults: &mut Faults) {
    if comparable_series(new) != comparable_series(old) {
        series(new, faults);
    }
    for (served, stored) in FIELDS {
        faults.immutable(&FieldPath::root(stored), get(new, served), get(old, served));
    }
}
