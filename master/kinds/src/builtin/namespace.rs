//! Namespaces.

use config_kube::k8s_openapi::api::core::v1::Namespace;
use master_schema::cells::{AGE, at};
use master_schema::object::{meta_text, metadata_mut};
use master_schema::registry::{Kind, Strategy, Subresource, column, selectable, words};
use master_schema::validate::{
    Faults, FieldPath, Fields, items, meta, names, object, object_mut, text,
};
use serde_json::{Value, json};

/// The finalizer of every namespace; the controller that empties it removes it.
const FINALIZER: &str = "kubernetes";

pub(super) fn namespace() -> Kind {
    Kind {
        short_names: words(&["ns"]),
        subresources: vec![Subresource::Finalize, Subresource::Status],
        columns: vec![
            column("Status", |fields, _| at(fields, "status", "/phase").into()),
            AGE,
        ],
        selectable: vec![selectable("status.phase", "/status/phase")],
        strategy: Strategy {
            names: names::label,
            defaults: set_name_label,
            create: |fields| {
                // A generated name did not exist yet when the label was set.
                set_name_label(fields);
                add_finalizer(fields);
                fields.insert("status".to_owned(), json!({"phase": "Active"}));
            },
            update: keep_spec,
            // The status carries labels, too, and policies trust this one.
            through: |_, result, _, _| set_name_label(result),
            validate: |fields, faults| finalizers(fields, false, faults),
            validate_through: change,
            status_at_creation: true,
            ..Strategy::default()
        },
        ..Kind::of::<Namespace>(false)
    }
}

/// Sets the label with the name.
fn set_name_label(fields: &mut Fields) {
    let name = meta_text(fields, "name").to_owned();
    if !name.is_empty()
        && let Some(labels) = object_mut(metadata_mut(fields), "labels")
    {
        // KEP-2161: NetworkPolicies select a namespace by its name with it.
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
    }
}

/// Adds the finalizer to the spec.
fn add_finalizer(fields: &mut Fields) {
    let finalizers = object_mut(fields, "spec")
        .map(|spec| spec.entry("finalizers").or_insert_with(|| json!([])));
    if let Some(list) = finalizers.and_then(Value::as_array_mut)
        && !list.iter().any(|own| own == FINALIZER)
    {
        list.push(FINALIZER.into());
    }
}

/// Validates finalizers; upstream reports the index only in a write of the `finalize` subresource.
fn finalizers(fields: &Fields, indexed: bool, faults: &mut Faults) {
    let root = FieldPath::root("spec");
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
        let at = FieldPath::root("status");
        let words = format!("may only be '{fits}' if `deletionTimestamp` is {not}empty");
        // Upstream reports the Go field's name.
        faults.invalid(&at.field("Phase"), &phase.into(), words);
    }
}

/// The spec holds finalizers only, which change through the subresource `finalize`.
fn keep_spec(new: &mut Fields, old: &Fields) {
    match old.get("spec") {
        Some(spec) => drop(new.insert("spec".to_owned(), spec.clone())),
        None => drop(new.remove("spec")),
    }
}
