//! Namespaces.

use super::cells::{AGE, at};
use crate::object::{meta_text, metadata_mut};
use crate::registry::{Kind, Strategy, Subresource, column};
use crate::validate::{At, Faults, Fields, items, meta, names, object, object_mut, text};
use config_kube::k8s_openapi::api::core::v1::Namespace;
use serde_json::{Value, json};

/// Who holds every namespace: the one who empties it.
const HOLD: &str = "kubernetes";

pub(super) fn namespace() -> Kind {
    Kind {
        short_names: &["ns"],
        subresources: &[Subresource::Finalize, Subresource::Status],
        columns: const {
            &[
                column("Status", |fields, _| at(fields, "status", "/phase").into()),
                AGE,
            ]
        },
        selectable: &[("status.phase", "/status/phase")],
        strategy: Strategy {
            names: names::label,
            defaults: tell_name,
            create: |fields| {
                // A generated name was not there yet when it was told.
                tell_name(fields);
                hold(fields);
                fields.insert("status".to_owned(), json!({"phase": "Active"}));
            },
            update: keep_spec,
            validate: |fields, faults| finalizers(fields, false, faults),
            validate_through: change,
            status_at_creation: true,
            ..Strategy::default()
        },
        ..Kind::of::<Namespace>(false)
    }
}

/// The name is a label as well.
fn tell_name(fields: &mut Fields) {
    let name = meta_text(fields, "name").to_owned();
    if !name.is_empty()
        && let Some(labels) = object_mut(metadata_mut(fields), "labels")
    {
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
    }
}

/// A namespace does not go before it is emptied.
fn hold(fields: &mut Fields) {
    let finalizers = object_mut(fields, "spec")
        .map(|spec| spec.entry("finalizers").or_insert_with(|| json!([])));
    if let Some(list) = finalizers.and_then(Value::as_array_mut)
        && !list.iter().any(|own| own == HOLD)
    {
        list.push(HOLD.into());
    }
}

/// Checks the names of who holds a namespace; upstream tells each with its place where they are written by themselves.
fn finalizers(fields: &Fields, indexed: bool, faults: &mut Faults) {
    let root = At::root("spec");
    let at = root.field("finalizers");
    let list = object(fields, "spec").map_or(&[][..], |spec| items(spec, "finalizers"));
    for (index, finalizer) in list.iter().enumerate() {
        let item = at.index(index);
        meta::finalizer(finalizer, if indexed { &item } else { &at }, faults);
    }
}

fn change(subresource: Subresource, new: &Fields, _: &Fields, faults: &mut Faults) {
    if subresource == Subresource::Finalize {
        return finalizers(new, true, faults);
    }
    let phase = object(new, "status").map_or("", |status| text(status, "phase"));
    let going = !meta_text(new, "deletionTimestamp").is_empty();
    let (fits, not) = if going {
        ("Terminating", "not ")
    } else {
        ("Active", "")
    };
    if phase != fits {
        let at = At::root("status");
        let words = format!("may only be '{fits}' if `deletionTimestamp` is {not}empty");
        // Upstream writes the field as its own language does.
        faults.invalid(&at.field("Phase"), &phase.into(), words);
    }
}

/// The spec holds finalizers only, which change by their own subresource.
fn keep_spec(new: &mut Fields, old: &Fields) {
    match old.get("spec") {
        Some(spec) => drop(new.insert("spec".to_owned(), spec.clone())),
        None => drop(new.remove("spec")),
    }
}
