//! Validation of volumes and claims and their updates (upstream: `ValidatePersistentVolume…`).

use crate::volume_sources;
use master_schema::object::metadata;
use master_schema::object::spec;
use master_schema::quantity::Quantity;
use master_schema::validate::limits::{self, at_most};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, labels, names, object, text};
use serde_json::Value;

const MODES: &[&str] = &[
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

fn modes(spec: &Fields, at: &FieldPath<'_>, missing: &str, faults: &mut Faults) {
    at_most(spec, "accessModes", limits::ACCESS_MODES, at, faults);
    let place = at.field("accessModes");
    let modes = items(spec, "accessModes");
    if modes.is_empty() {
        faults.required(&place, missing);
    }
    for mode in modes {
        faults.one_of(&place, mode, MODES);
    }
    // KEP-2485: one pod alone, which another mode beside it would undo.
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        faults.forbidden(
            &place,
            "may not use ReadWriteOncePod with other access modes",
        );
    }
}

/// A quantity that must be present and positive.
fn positive(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    match value.as_str().and_then(Quantity::parse) {
        Some(quantity) if quantity > Quantity::ZERO => {}
        Some(_) | None => faults.invalid(at, value, "must be greater than zero"),
    }
}

fn class_name(spec: &Fields, key: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let name = text(spec, key);
    if !name.is_empty()
        && let Err(fault) = names::subdomain(name)
    {
        faults.invalid(&at.field(key), get(spec, key), fault);
    }
}

fn volume_mode(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if !get(spec, "volumeMode").is_null() {
        faults.one_of(
            &at.field("volumeMode"),
            get(spec, "volumeMode"),
            VOLUME_MODES,
        );
    }
}

/// Validates a volume.
pub(crate) fn volume(fields: &Fields, faults: &mut Faults) {
    let spec = spec(fields);
    let at = FieldPath::root("spec");
    modes(spec, &at, "", faults);
    let capacity = object(spec, "capacity").filter(|capacity| !capacity.is_empty());
    let place = at.field("capacity");
    match capacity {
        None => faults.required(&place, ""),
        Some(capacity) => {
            if !capacity.contains_key("storage") || capacity.len() > 1 {
                faults.one_of(&place, get(spec, "capacity"), &["storage"]);
            }
            for (name, value) in capacity {
                positive(value, &place.key(name), faults);
            }
        }
    }
    let policy = text(spec, "persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        let known = ["Delete", "Recycle", "Retain"];
        faults.one_of(
            &at.field("persistentVolumeReclaimPolicy"),
            get(spec, "persistentVolumeReclaimPolicy"),
            &known,
        );
    }
    let affinity = object(spec, "nodeAffinity");
    let place = at.field("nodeAffinity");
    if let Some(affinity) = affinity {
        match object(affinity, "required") {
            Some(required) => labels::node_selector(required, &place.field("required"), faults),
            None => faults.required(
                &place.field("required"),
                "must specify required node constraints",
            ),
        }
    }
    volume_sources::validate(spec, &at, faults);
    // The disk is in one node, and the scheduler learns which by this.
    if object(spec, "local").is_some() && affinity.is_none_or(Fields::is_empty) {
        faults.required(&place, "Local volume requires node affinity");
    }
    let root = object(spec, "hostPath").is_some_and(|host| matches!(text(host, "path"), "/"));
    // Recycling deletes all below the path.
    if root && policy == "Recycle" {
        let text = "may not be 'recycle' for a hostPath mount of '/'";
        faults.forbidden(&at.field("persistentVolumeReclaimPolicy"), text);
    }
    class_name(spec, "storageClassName", &at, faults);
    volume_mode(spec, &at, faults);
    let attributes = get(spec, "volumeAttributesClassName");
    if attributes == "" {
        faults.required(
            &at.field("volumeAttributesClassName"),
            "an empty string is disallowed",
        );
    }
    class_name(spec, "volumeAttributesClassName", &at, faults);
}

/// The source and the mode of a volume are immutable, and so is its node affinity once it is set:
/// data may be on it.
pub(crate) fn volume_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let (before, after) = (spec(old), spec(new));
    let at = FieldPath::root("spec");
    if volume_sources::of(before) != volume_sources::of(after) {
        let text = "spec.persistentvolumesource is immutable after creation";
        faults.forbidden(&at.field("persistentvolumesource"), text);
    }
    faults.immutable(
        &at.field("volumeMode"),
        get(after, "volumeMode"),
        get(before, "volumeMode"),
    );
    if !get(before, "nodeAffinity").is_null()
        && get(before, "nodeAffinity") != get(after, "nodeAffinity")
    {
        let text = "field is immutable, except for updating from beta label to GA";
        faults.invalid(&at.field("nodeAffinity"), get(after, "nodeAffinity"), text);
    }
}

/// Validates a claim.
pub(crate) fn claim(fields: &Fields, faults: &mut Faults) {
    claim_spec(spec(fields), &FieldPath::root("spec"), faults);
}

/// Validates a claim's spec, also in templates.
pub(crate) fn claim_spec(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    modes(spec, at, "at least 1 access mode is required", faults);
    labels::selector(object(spec, "selector"), &at.field("selector"), faults);
    let resources = object(spec, "resources");
    let place = at.field("resources");
    match resources
        .and_then(|resources| object(resources, "requests"))
        .and_then(|requests| requests.get("storage"))
    {
        None => faults.required(&place.key("storage"), ""),
        Some(storage) => positive(storage, &place.key("storage"), faults),
    }
    class_name(spec, "storageClassName", at, faults);
    volume_mode(spec, at, faults);
    for key in ["dataSource", "dataSourceRef"] {
        if let Some(source) = object(spec, key) {
            data_source(source, &at.field(key), faults);
        }
    }
    let (source, reference) = (object(spec, "dataSource"), object(spec, "dataSourceRef"));
    if let (Some(source), Some(reference)) = (source, reference) {
        let same = ["apiGroup", "kind", "name"]
            .iter()
            .all(|key| get(source, key) == get(reference, key));
        if !text(reference, "namespace").is_empty() {
            let text = "may not be specified when dataSourceRef.namespace is specified";
            faults.invalid(&at.field("dataSource"), get(spec, "dataSource"), text);
        } else if !same {
            faults.invalid(
                &at.field("dataSource"),
                get(spec, "dataSource"),
                "must match dataSourceRef",
            );
        }
    }
    class_name(spec, "volumeAttributesClassName", at, faults);
}

fn data_source(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for key in ["name", "kind"] {
        if text(source, key).is_empty() {
            faults.required(&at.field(key), "");
        }
    }
    match text(source, "apiGroup") {
        "" if text(source, "kind") != "PersistentVolumeClaim" => {
            let text = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            faults.invalid(at, get(source, "kind"), text);
        }
        "" => {}
        group => {
            if let Err(fault) = names::subdomain(group) {
                faults.invalid(&at.field("apiGroup"), get(source, "apiGroup"), fault);
            }
        }
    }
}

/// A claim may be bound once and may grow; the rest of its spec is immutable.
pub(crate) fn claim_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let (before, after) = (spec(old), spec(new));
    let at = FieldPath::root("spec");
    let bound = object(old, "status").is_some_and(|status| text(status, "phase") == "Bound");
    let mut allowed = after.clone();
    let mut as_before = |key: &str| match before.get(key) {
        Some(value) => drop(allowed.insert(key.to_owned(), value.clone())),
        None => drop(allowed.remove(key)),
    };
    if text(before, "volumeName").is_empty() {
        as_before("volumeName");
    }
    // A claim without a class may get one (a default class may be set later).
    if get(before, "storageClassName").is_null() && beta_class(old).is_none() {
        as_before("storageClassName");
    }
    if bound {
        // KEP-3751: its driver changes the volume in place.
        as_before("volumeAttributesClassName");
        let requested = |spec: &Fields| {
            object(spec, "resources")
                .and_then(|all| object(all, "requests"))
                .cloned()
        };
        let old_size = requested(before).and_then(|requests| requests.get("storage").cloned());
        if let (Some(size), Some(Value::Object(resources))) =
            (old_size, allowed.get_mut("resources"))
            && let Some(requests) = resources.get_mut("requests").and_then(Value::as_object_mut)
        {
            requests.insert("storage".to_owned(), size);
        }
        shrunk(old, requested(before), requested(after), &at, faults);
    }
    attributes_class(before, after, object(old, "status"), &at, faults);
    if allowed != *before {
        let text = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound \
                    claims";
        faults.forbidden(&at, text);
    }
    let root = FieldPath::root("metadata");
    let notes = root.field("annotations");
    if beta_class(new) != beta_class(old) {
        faults.immutable(
            &notes.key(BETA_CLASS),
            &beta_class(new).into(),
            &beta_class(old).into(),
        );
    }
    faults.immutable(
        &at.field("volumeMode"),
        get(after, "volumeMode"),
        get(before, "volumeMode"),
    );
}

/// A claim's VolumeAttributesClass may be taken back as long as none was applied (KEP-3751). After
/// that it may only be replaced: a volume has no attributes to which it could go back.
fn attributes_class(
    before: &Fields,
    after: &Fields,
    status: Option<&Fields>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let key = "volumeAttributesClassName";
    let class = get(after, key);
    let is_applied =
        status.is_some_and(|status| !get(status, "currentVolumeAttributesClassName").is_null());
    if !is_applied || class == get(before, key) {
        return;
    }
    let nothing = match class.as_str() {
        None => "nil",
        Some("") => "empty string",
        Some(_) => return,
    };
    let text = format!(
        "update to {nothing} is forbidden when status.currentVolumeAttributesClassName is not nil"
    );
    faults.forbidden(&at.field(key), text);
}

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

fn beta_class(fields: &Fields) -> Option<&str> {
    object(metadata(fields), "annotations").and_then(|notes| get(notes, BETA_CLASS).as_str())
}

/// A request may be reduced again, down to the size of the volume.
fn shrunk(
    old: &Fields,
    before: Option<Fields>,
    after: Option<Fields>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let size = |map: Option<Fields>| map.and_then(|map| Quantity::parse(text(&map, "storage")));
    let (Some(before), Some(after)) = (size(before), size(after)) else {
        return;
    };
    let real = size(
        object(old, "status")
            .and_then(|status| object(status, "capacity"))
            .cloned(),
    );
    // KEP-1790: a request that cannot be served is taken back; a volume never shrinks.
    if after < before && real.is_none_or(|real| after <= real) {
        let place = at.field("resources");
        let place = place.field("requests");
        faults.forbidden(
            &place.field("storage"),
            "field can not be less than status.capacity",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_applied_class_of_attributes_is_replaced_but_not_taken_back() {
        let claim = |class: &Value, current: &Value| {
            let status = json!({"phase": "Bound", "currentVolumeAttributesClassName": current});
            let claim = json!({"spec": {"volumeAttributesClassName": class}, "status": status});
            claim.as_object().cloned().unwrap()
        };
        let faults = |to: &Value, current: &Value| {
            let mut faults = Faults::default();
            let old = claim(&json!("gold"), current);
            claim_update(&claim(to, current), &old, &mut faults);
            let found = faults.found();
            found
                .map(|(_, _, text)| text.to_owned())
                .collect::<Vec<_>>()
        };
        let none: [String; 0] = [];
        let end = "is forbidden when status.currentVolumeAttributesClassName is not nil";
        for (to, name) in [(Value::Null, "nil"), (json!(""), "empty string")] {
            let found = faults(&to, &json!("gold"));
            assert!(
                matches!(found.as_slice(), [only] if only.ends_with(&format!("update to {name} {end}"))),
                "{found:?}"
            );
            assert_eq!(faults(&to, &Value::Null), none, "it was never applied");
        }
        assert_eq!(faults(&json!("silver"), &json!("gold")), none);
    }
}
