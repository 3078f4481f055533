//! Certificate signing requests.

use super::certificate_validate as rules;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use master_schema::cells::{AGE, at};
use master_schema::object::now;
use master_schema::registry::{Kind, Strategy, Subresource, column, selectable, words};
use master_schema::validate::{Fields, get, items, names, object, object_mut, text};
use serde_json::Value;
use std::collections::HashMap;

pub(super) fn request() -> Kind {
    Kind {
        short_names: words(&["csr"]),
        subresources: vec![Subresource::Approval, Subresource::Status],
        columns: vec![
            AGE,
            column("SignerName", |fields, _| {
                at(fields, "spec", "/signerName").into()
            }),
            column("Requestor", |fields, _| {
                at(fields, "spec", "/username").into()
            }),
            column("RequestedDuration", |fields, _| duration(fields).into()),
            column("Condition", |fields, _| condition(fields).into()),
        ],
        selectable: vec![selectable("spec.signerName", "/spec/signerName")],
        strategy: Strategy {
            names: names::path_segment,
            // An approval is for what was asked, so that never changes.
            update: |new, old| put(new, "spec", old.get("spec")),
            through,
            validate_create: rules::request,
            validate_through: rules::status,
            ..Strategy::default()
        },
        ..Kind::of::<CertificateSigningRequest>(false)
    }
}

fn put(fields: &mut Fields, key: &str, value: Option<&Value>) {
    match value {
        Some(value) => drop(fields.insert(key.to_owned(), value.clone())),
        None => drop(fields.remove(key)),
    }
}

/// The conditions of a request's status.
pub(super) fn conditions(fields: &Fields) -> &[Value] {
    object(fields, "status").map_or(&[][..], |status| items(status, "conditions"))
}

/// The indexes of the conditions of a type.
pub(super) fn of_type(conditions: &[Value], kind: &str) -> Vec<usize> {
    let same = |condition: &Value| condition.get("type").is_some_and(|found| found == kind);
    (0..conditions.len())
        .filter(|index| same(&conditions[*index]))
        .collect()
}

/// A write of `approval` changes the conditions alone; a write of `status` keeps the conditions
/// Approved and Denied unless their number differs, which validation refuses. Absent times are set.
fn through(subresource: Subresource, result: &mut Fields, new: &Fields, old: &Fields) {
    let mut list = conditions(new).to_vec();
    let before = conditions(old);
    if subresource == Subresource::Approval {
        put(result, "status", old.get("status"));
    } else if subresource == Subresource::Status {
        for kind in ["Approved", "Denied"] {
            let (now, then) = (of_type(&list, kind), of_type(before, kind));
            if now.len() == then.len() {
                now.into_iter()
                    .zip(then)
                    .for_each(|(now, then)| list[now] = before[then].clone());
            }
        }
    } else {
        return;
    }
    // Of several with one type and status the first counts.
    let mut known = Times::new();
    for condition in before {
        let key = ["type", "status"].map(|key| condition.get(key));
        known
            .entry(key)
            .or_insert(condition.get("lastTransitionTime"));
    }
    list.iter_mut()
        .filter_map(Value::as_object_mut)
        .for_each(|condition| stamp(condition, &known));
    if let Some(status) = object_mut(result, "status") {
        put(
            status,
            "conditions",
            Some(&Value::Array(list)).filter(|list| **list != Value::Array(Vec::new())),
        );
    }
}

/// The times of the transitions to earlier conditions, by their type and status.
type Times<'a> = HashMap<[Option<&'a Value>; 2], Option<&'a Value>>;

fn stamp(condition: &mut Fields, before: &Times<'_>) {
    if text(condition, "lastUpdateTime").is_empty() {
        condition.insert("lastUpdateTime".to_owned(), now().into());
    }
    if text(condition, "lastTransitionTime").is_empty() {
        // A transition is a change of the status: a condition that stays keeps its time.
        let key = ["type", "status"].map(|key| condition.get(key));
        let known = before.get(&key).copied().flatten().cloned();
        condition.insert(
            "lastTransitionTime".to_owned(),
            known.unwrap_or_else(|| now().into()),
        );
    }
}

fn duration(fields: &Fields) -> String {
    let seconds = object(fields, "spec").and_then(|spec| get(spec, "expirationSeconds").as_i64());
    seconds.map_or("<none>".to_owned(), master_schema::cells::human)
}

fn condition(fields: &Fields) -> String {
    let status = object(fields, "status");
    let conditions = status.map_or(&[][..], |status| items(status, "conditions"));
    let has = |kind: &str| {
        conditions
            .iter()
            .any(|condition| condition.get("type").is_some_and(|found| found == kind))
    };
    let issued = status.is_some_and(|status| !text(status, "certificate").is_empty());
    let mut words: Vec<&str> = ["Approved", "Denied", "Failed"]
        .into_iter()
        .filter(|kind| has(kind))
        .collect();
    if issued {
        words.push("Issued");
    }
    if words.is_empty() {
        "Pending".to_owned()
    } else {
        words.join(",")
    }
}
