//! Validation of metadata, for every kind (apimachinery `api/validation`).

use super::{Faults, FieldPath, Fields, get, items, labels, limits, names, object, text};
use serde_json::Value;
use std::collections::HashSet;

/// Bytes of all annotations together.
const ANNOTATIONS: usize = 256 << 10;

/// The format of a kind's names.
pub type NameRule = fn(&str) -> Result<(), String>;

/// Validates a new object's metadata.
pub fn validate(meta: &Fields, namespaced: bool, rule: NameRule, faults: &mut Faults) {
    let at = FieldPath::root("metadata");
    let name = text(meta, "name");
    if name.is_empty() {
        faults.required(&at.field("name"), "name or generateName is required");
    } else if let Err(fault) = rule(name) {
        faults.invalid(&at.field("name"), get(meta, "name"), fault);
    }
    // Random letters follow, so it may end where a name may not.
    let generate = text(meta, "generateName");
    if !generate.is_empty()
        && let Err(fault) = rule(generate.trim_end_matches(['-', '.']))
    {
        faults.invalid(&at.field("generateName"), get(meta, "generateName"), fault);
    }
    let namespace = text(meta, "namespace");
    if namespaced {
        if namespace.is_empty() {
            faults.required(&at.field("namespace"), "");
        } else if let Err(fault) = names::label(namespace) {
            faults.invalid(&at.field("namespace"), get(meta, "namespace"), fault);
        }
    } else if !namespace.is_empty() {
        faults.forbidden(&at.field("namespace"), "not allowed on this type");
    }
    labels_and_annotations(meta, faults);
    limits::at_most(meta, "ownerReferences", limits::OWNERS, &at, faults);
    limits::at_most(meta, "finalizers", limits::FINALIZERS, &at, faults);
    owners(meta, &at, faults);
    finalizers(meta, &at, faults);
}

/// Validates the labels and annotations in metadata.
pub fn labels_and_annotations(meta: &Fields, faults: &mut Faults) {
    let root = FieldPath::root("metadata");
    labels::labels(object(meta, "labels"), &root.field("labels"), faults);
    let (annotations, at) = (object(meta, "annotations"), root.field("annotations"));
    labels::annotations(annotations, &at, faults);
    let pairs = annotations.into_iter().flatten();
    let sizes = pairs.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len));
    if sizes.sum::<usize>() > ANNOTATIONS {
        faults.too_long(&at, ANNOTATIONS);
    }
}

fn owners(meta: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let at = at.field("ownerReferences");
    let mut controllers = 0;
    for (number, owner) in items(meta, "ownerReferences").iter().enumerate() {
        let at = at.index(number);
        let Some(owner) = owner.as_object() else {
            continue;
        };
        for key in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, key).is_empty() {
                faults.invalid(&at.field(key), get(owner, key), "must not be empty");
            }
        }
        controllers += usize::from(get(owner, "controller") == &Value::Bool(true));
    }
    if controllers > 1 {
        let all = get(meta, "ownerReferences");
        faults.invalid(
            &at,
            all,
            "Only one reference can have Controller set to true",
        );
    }
}

fn finalizers(meta: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let at = at.field("finalizers");
    for (number, finalizer) in items(meta, "finalizers").iter().enumerate() {
        self::finalizer(finalizer, &at.index(number), faults);
    }
}

/// Validates the name of a finalizer.
pub fn finalizer(finalizer: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let name = finalizer.as_str().unwrap_or_default();
    if let Err(fault) = names::qualified(name) {
        faults.invalid(at, finalizer, fault);
    } else if !name.contains('/') && !matches!(name, "orphan" | "foregroundDeletion" | "kubernetes")
    {
        let words = "name is neither a standard finalizer name nor is it fully qualified";
        faults.invalid(at, finalizer, words);
    }
}

/// Validates changes of metadata.
pub fn validate_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("metadata");
    for key in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        faults.immutable(&at.field(key), get(new, key), get(old, key));
    }
    if old.contains_key("deletionTimestamp") {
        let known: HashSet<&Value> = items(old, "finalizers").iter().collect();
        // Or a deletion could be put off for ever by those who may change the object.
        for finalizer in items(new, "finalizers") {
            if !known.contains(finalizer) {
                let text = "no new finalizers can be added if the object is being deleted, found new finalizers";
                faults.forbidden(&at.field("finalizers"), format!("{text} {finalizer}"));
            }
        }
    }
}
