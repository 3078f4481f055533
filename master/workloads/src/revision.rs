//! ControllerRevisions.

use super::columns::number;
use config_kube::k8s_openapi::api::apps::v1::ControllerRevision;
use master_schema::cells::AGE;
use master_schema::object::metadata;
use master_schema::registry::{Kind, Strategy, column};
use master_schema::validate::forms::NOT_NEGATIVE;
use master_schema::validate::{FieldPath, Fields, get, items, text};
use serde_json::Value;

/// `ControllerRevision`.
pub fn controller_revision() -> Kind {
    Kind {
        columns: vec![
            column("Controller", |fields, _| controller(fields).into()),
            number("Revision", |fields, _| {
                get(fields, "revision").as_i64().unwrap_or_default().into()
            }),
            AGE,
        ],
        strategy: Strategy {
            validate: |fields, faults| {
                if !fields.contains_key("data") {
                    faults.required(&FieldPath::root("data"), "data is mandatory");
                }
                let revision = get(fields, "revision");
                if revision.as_i64().is_some_and(|revision| revision < 0) {
                    faults.invalid(&FieldPath::root("revision"), revision, NOT_NEGATIVE);
                }
            },
            validate_update: |new, old, faults| {
                faults.immutable(&FieldPath::root("data"), get(new, "data"), get(old, "data"));
            },
            ..Strategy::default()
        },
        ..Kind::of::<ControllerRevision>(true)
    }
}

/// Kind, group and name of the owner that controls it.
fn controller(fields: &Fields) -> String {
    let owners = items(metadata(fields), "ownerReferences")
        .iter()
        .filter_map(Value::as_object);
    let Some(owner) = owners
        .into_iter()
        .find(|owner| get(owner, "controller") == &Value::Bool(true))
    else {
        return "<none>".to_owned();
    };
    let kind = text(owner, "kind").to_lowercase();
    match text(owner, "apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", text(owner, "name")),
        None => format!("{kind}/{}", text(owner, "name")),
    }
}
