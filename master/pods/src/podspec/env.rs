//! Validation of environment variables: names, and the sources of values.

use super::context::Context;
use super::sources::{field_selector, resource_selector};
use master_schema::validate::forms::{
    formed, needed, needed_form, optional_form, plain_path, word,
};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, names, object, text};
use serde_json::Value;

/// Fields of the pod that a variable can contain.
const FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Validates `env`.
pub(super) fn variables(
    container: &Fields,
    context: &Context<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let list = at.field("env");
    for (number, variable) in items(container, "env").iter().enumerate() {
        let Some(variable) = variable.as_object() else {
            continue;
        };
        let at = list.index(number);
        needed_form(variable, "name", &at, names::env_name, faults);
        if let Some(from) = object(variable, "valueFrom") {
            value_from(
                from,
                text(variable, "value"),
                context,
                &at.field("valueFrom"),
                faults,
            );
        }
    }
}

fn value_from(
    from: &Fields,
    value: &str,
    context: &Context<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let mut sources = 0;
    if let Some(field) = object(from, "fieldRef") {
        sources += 1;
        field_selector(field, FIELDS, &at.field("fieldRef"), faults);
    }
    if let Some(resource) = object(from, "resourceFieldRef") {
        sources += 1;
        resource_selector(resource, false, &at.field("resourceFieldRef"), faults);
    }
    for key in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(reference) = object(from, key) {
            sources += 1;
            key_of(reference, &at.field(key), faults);
        }
    }
    if let Some(file) = object(from, "fileKeyRef") {
        sources += 1;
        file_key(file, context, &at.field("fileKeyRef"), faults);
    }
    let nothing = Value::String(String::new());
    if sources == 0 {
        let words = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or \
                     `fileKeyRef`";
        faults.invalid(at, &nothing, words);
    } else if !value.is_empty() {
        faults.invalid(
            at,
            &nothing,
            "may not be specified when `value` is not empty",
        );
    } else if sources > 1 {
        faults.invalid(
            at,
            &nothing,
            "may not have more than one field specified at a time",
        );
    }
}

/// Validates a key of a ConfigMap or Secret.
fn key_of(reference: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    formed(
        word(reference, "name"),
        &at.field("name"),
        names::subdomain,
        faults,
    );
    needed_form(reference, "key", at, names::config_key, faults);
}

/// Validates a key of a file in a volume that another container writes.
fn file_key(reference: &Fields, context: &Context<'_>, at: &FieldPath<'_>, faults: &mut Faults) {
    // KEP-3721: a container writes the file into a volume that this pod alone has.
    needed_form(reference, "key", at, names::env_name, faults);
    needed(reference, "path", at, faults);
    plain_path(get(reference, "path"), &at.field("path"), faults);
    let name = text(reference, "volumeName");
    let place = at.field("volumeName");
    if name.is_empty() {
        faults.required(&place, "");
        return;
    }
    match context.volumes.get(name) {
        None => faults.not_found(&place, get(reference, "volumeName")),
        Some(volume) if !volume.contains_key("emptyDir") => {
            let words = "referenced volume must be of type emptyDir";
            faults.invalid(&place, get(reference, "volumeName"), words);
        }
        Some(_) => {}
    }
}

/// Validates `envFrom`; upstream reports a wrong number of sources at the list.
pub(super) fn sources(container: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let list = at.field("envFrom");
    for (number, source) in items(container, "envFrom").iter().enumerate() {
        let Some(source) = source.as_object() else {
            continue;
        };
        let at = list.index(number);
        optional_form(source, "prefix", &at, names::env_name, faults);
        let mut sources = 0;
        for key in ["configMapRef", "secretRef"] {
            if let Some(reference) = object(source, key) {
                sources += 1;
                needed_form(reference, "name", &at.field(key), names::subdomain, faults);
            }
        }
        let nothing = Value::String(String::new());
        if sources == 0 {
            faults.invalid(
                &list,
                &nothing,
                "must specify one of: `configMapRef` or `secretRef`",
            );
        } else if sources > 1 {
            faults.invalid(
                &list,
                &nothing,
                "may not have more than one field specified at a time",
            );
        }
    }
}
