//! `Requestor`: records who requested a certificate, who decided on it, and who decided on a
//! machine. Always enabled.

use crate::plugin::{Admitted, Operation, Plugin, Request};
use config_kube::identity::{DECIDED_BY, GROUP};
use jiff::Timestamp;
use master_client::{BoxFuture, UserInfo};
use master_schema::error::ApiError;
use master_schema::validate::{Fields, get, items, object, object_mut};
use serde_json::{Value, json};

/// The plugin.
#[derive(Debug)]
pub(crate) struct Requestor;

impl Plugin for Requestor {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && (is_request(request) || is_machine(request))
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        if is_machine(request) {
            if request.subresource.is_none() {
                decided(request.user, object, request.old);
            }
        } else {
            if request.operation == Operation::Create {
                stamp(request.user, object);
            }
            approved(request.user, object, request.old);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

fn is_request(request: &Request<'_>) -> bool {
    request.is("certificates.k8s.io", "certificatesigningrequests")
}

fn is_machine(request: &Request<'_>) -> bool {
    request.is(GROUP, "machines")
}

/// Records the requestor of a certificate request, as the server authenticated it.
fn stamp(user: &UserInfo, fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    for key in ["uid", "extra"] {
        spec.remove(key);
    }
    spec.insert("username".to_owned(), user.name.clone().into());
    spec.insert("groups".to_owned(), json!(user.groups));
    if !user.uid.is_empty() {
        spec.insert("uid".to_owned(), user.uid.clone().into());
    }
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), json!(user.extra));
    }
}

/// The fields of a Machine that hold an admin's decision.
const DECISIONS: [&str; 8] = [
    "configDigests",
    "ek",
    "insecureNoTpm",
    "nodeName",
    "readmitUntil",
    "retired",
    "role",
    "static",
];

/// Records in a Machine who last decided whether it may join, and when; the caller cannot set it.
fn decided(user: &UserInfo, fields: &mut Fields, old: Option<&Fields>) {
    let decisions = |fields: Option<&Fields>| {
        let spec = fields.and_then(|fields| object(fields, "spec"));
        DECISIONS.map(|key| spec.map_or(&Value::Null, |spec| get(spec, key)).clone())
    };
    let same = old.is_some() && decisions(old) == decisions(Some(fields));
    let by = if same {
        old.and_then(decided_by)
    } else {
        Some(by_now(user))
    };
    note(fields, by);
}

/// Records in a request who approved or denied it, and when; the caller cannot set it.
fn approved(user: &UserInfo, fields: &mut Fields, old: Option<&Fields>) {
    let decision = |fields: &Fields| {
        let conditions =
            object(fields, "status").map_or(&[][..], |status| items(status, "conditions"));
        let word = |condition: &&Value| {
            ["Approved", "Denied"]
                .iter()
                .any(|word| condition["type"] == *word)
        };
        let what = |condition: &Value| {
            ["type", "status", "reason", "message"].map(|key| condition[key].clone())
        };
        conditions.iter().filter(word).map(what).collect::<Vec<_>>()
    };
    let (now, before) = (decision(fields), old.map(decision).unwrap_or_default());
    let by = if now == before {
        old.and_then(decided_by)
    } else {
        Some(by_now(user))
    };
    note(fields, by);
}

fn decided_by(fields: &Fields) -> Option<Value> {
    object(object(fields, "metadata")?, "annotations")?
        .get(DECIDED_BY)
        .cloned()
}

fn by_now(user: &UserInfo) -> Value {
    format!(
        "{} at {}",
        user.name,
        Timestamp::now()
            .round(jiff::Unit::Second)
            .unwrap_or_default()
    )
    .into()
}

fn note(fields: &mut Fields, by: Option<Value>) {
    let Some(metadata) = object_mut(fields, "metadata") else {
        return;
    };
    match by {
        Some(by) => {
            if let Some(annotations) = object_mut(metadata, "annotations") {
                annotations.insert(DECIDED_BY.to_owned(), by);
            } else {
                metadata.insert("annotations".to_owned(), json!({ DECIDED_BY: by }));
            }
        }
        None => {
            if let Some(annotations) = object_mut(metadata, "annotations") {
                annotations.remove(DECIDED_BY);
            }
        }
    }
}
