//! Namespaces.

use super::cells::{AGE, at};
use crate::object::{meta_text, metadata_mut};
use crate::registry::{Kind, Strategy, Subresource, column};
use crate::validate::{Fields, names, object_mut};
use config_kube::k8s_openapi::api::core::v1::Namespace;
use serde_json::json;

pub(super) fn namespace() -> Kind {
    Kind {
        short_names: &["ns"],
        subresources: &[Subresource::Finalize, Subresource::Status],
        columns: const { &[column("Status", |fields, _| at(fields, "status", "/phase").into()), AGE] },
        selectable: &[("status.phase", "/status/phase")],
        strategy: Strategy {
            names: names::label,
            defaults: |fields| {
                let name = meta_text(fields, "name").to_owned();
                if let Some(labels) = object_mut(metadata_mut(fields), "labels") {
                    labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
                }
            },
            create: |fields| {
                fields.insert("spec".to_owned(), json!({"finalizers": ["kubernetes"]}));
                fields.insert("status".to_owned(), json!({"phase": "Active"}));
            },
            update: keep_spec,
            status_at_creation: true,
            ..Strategy::default()
        },
        ..Kind::of::<Namespace>(false)
    }
}

/// The spec holds finalizers only, which change by their own subresource.
fn keep_spec(new: &mut Fields, old: &Fields) {
    match old.get("spec") {
        Some(spec) => drop(new.insert("spec".to_owned(), spec.clone())),
        None => drop(new.remove("spec")),
    }
}
