//! Which changes of a pod are allowed, in the pod itself and through its subresources.

use super::{annotations, keep, resize, spec, status};
use crate::podspec;
use master_schema::object::metadata;
use master_schema::registry::Subresource;
use master_schema::validate::{Faults, FieldPath, Fields, get, items, object, object_mut, text};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// Upstream's error for changes of a pod's spec.
const MUTABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
                       `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
                       additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set \
                       to 1 if it was previously negative)";

/// The result of a write through a subresource.
pub(super) fn through(subresource: Subresource, result: &mut Fields, new: &Fields, old: &Fields) {
    if subresource == Subresource::EphemeralContainers {
        // All else stays as stored: who may add a debugger may not change the pod.
        result.clone_from(old);
        if let Some(own) = object_mut(result, "spec") {
            let mut given = spec(new).clone();
            // With defaults, or a container that is sent back unchanged would differ from the
            // stored one.
            podspec::spec_defaults(&mut given);
            keep(own, &given, "ephemeralContainers");
        }
    } else if subresource == Subresource::Resize {
        resize::compose(result, new, old);
    } else if subresource == Subresource::Status {
        status::compose(result, old);
    }
}

/// Validates a change through a subresource.
pub(super) fn validate_through(
    subresource: Subresource,
    new: &Fields,
    old: &Fields,
    faults: &mut Faults,
) {
    let place = FieldPath::root("metadata");
    let place = place.field("annotations");
    if subresource == Subresource::EphemeralContainers {
        super::validate(new, faults);
        podspec::annotations_update(annotations(new), annotations(old), &place, faults);
        ephemeral(new, old, faults);
    } else if subresource == Subresource::Resize {
        super::validate(new, faults);
        resize::validate(new, old, faults);
    } else if subresource == Subresource::Status {
        podspec::annotations_update(annotations(new), annotations(old), &place, faults);
        status::validate(new, old, faults);
    }
}

/// Ephemeral containers may be added, never changed or removed.
fn ephemeral(new: &Fields, old: &Fields, faults: &mut Faults) {
    // The object only mirrors a file of the node: nothing would start the container.
    if podspec::is_mirror(annotations(old)) {
        faults.forbidden(
            &FieldPath::root(""),
            "static pods do not support ephemeral containers",
        );
        return;
    }
    let at = FieldPath::root("spec");
    let at = at.field("ephemeralContainers");
    let list = |fields| items(spec(fields), "ephemeralContainers");
    let name = |one: &Value| {
        let name = one.get("name").and_then(Value::as_str);
        name.unwrap_or_default().to_owned()
    };
    // Of several with one name the first counts.
    let mut given: HashMap<String, &Value> = HashMap::new();
    for one in list(new) {
        given.entry(name(one)).or_insert(one);
    }
    // KEP-277: what has run inside a pod stays visible in its spec.
    for known in list(old) {
        let name = name(known);
        match given.get(&name).copied() {
            None => faults.forbidden(
                &at,
                format!("existing ephemeral containers {name:?} may not be removed\n"),
            ),
            Some(found) if found != known => {
                faults.forbidden(
                    &at,
                    format!("existing ephemeral containers {name:?} may not be changed\n"),
                );
            }
            Some(_) => {}
        }
    }
}

/// Validates an update of a pod.
pub(super) fn validate(new: &Fields, old: &Fields, faults: &mut Faults) {
    let place = FieldPath::root("metadata");
    podspec::annotations_update(
        annotations(new),
        annotations(old),
        &place.field("annotations"),
        faults,
    );
    let (new, old) = (spec(new), spec(old));
    let at = FieldPath::root("spec");
    // Upstream stops here, too: the rest compares containers by their places.
    if !same_containers(new, old, &at, faults) || !deadline(new, old, &at, faults) {
        return;
    }
    added_tolerations(new, old, &at.field("tolerations"), faults);
    removed_gates(new, old, &at.field("schedulingGates"), faults);
    if new == old {
        return;
    }
    let mut allowed = restored(new, old);
    if !items(old, "schedulingGates").is_empty() {
        gated(&mut allowed, old, &at, faults);
    }
    if allowed != *old {
        faults.forbidden(&at, MUTABLE);
    }
}

/// Containers may be neither added nor removed; [`restored`] lets their images change.
fn same_containers(new: &Fields, old: &Fields, at: &FieldPath<'_>, faults: &mut Faults) -> bool {
    for list in ["containers", "initContainers"] {
        let at = at.field(list);
        if items(new, list).len() != items(old, list).len() {
            faults.forbidden(&at, "pod updates may not add or remove containers");
            return false;
        }
    }
    true
}

/// `activeDeadlineSeconds` may only be reduced; returns whether to check the rest of the spec.
fn deadline(new: &Fields, old: &Fields, at: &FieldPath<'_>, faults: &mut Faults) -> bool {
    let at = at.field("activeDeadlineSeconds");
    let value = get(new, "activeDeadlineSeconds");
    // Zero, which a new pod may not have, ends a running one at once (upstream).
    match (get(old, "activeDeadlineSeconds").as_i64(), value.as_i64()) {
        (_, Some(after)) if !(0..=i64::from(i32::MAX)).contains(&after) => {
            faults.invalid(&at, value, "must be between 0 and 2147483647, inclusive");
            false
        }
        (Some(before), Some(after)) if after > before => {
            faults.invalid(&at, value, "must be less than or equal to previous value");
            false
        }
        (Some(_), None) => {
            faults.invalid(
                &at,
                value,
                "must not update from a positive integer to nil value",
            );
            true
        }
        (Some(_) | None, Some(_) | None) => true,
    }
}

/// Tolerations may be added; of existing ones only `tolerationSeconds` may change.
fn added_tolerations(new: &Fields, old: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let timeless = |toleration: &Value| {
        let mut fields = toleration.as_object().cloned().unwrap_or_default();
        fields.remove("tolerationSeconds");
        fields
    };
    // A pod on a tainted node needs the toleration that let it come.
    let after: HashSet<Fields> = items(new, "tolerations").iter().map(timeless).collect();
    if !items(old, "tolerations")
        .iter()
        .all(|toleration| after.contains(&timeless(toleration)))
    {
        faults.forbidden(
            at,
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
}

/// Scheduling gates may only be removed.
fn removed_gates(new: &Fields, old: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    // KEP-3521: a gate that is added later could come after the scheduler's decision.
    let before: HashSet<&Value> = items(old, "schedulingGates").iter().collect();
    for (index, gate) in items(new, "schedulingGates").iter().enumerate() {
        if !before.contains(gate) {
            let name = gate.get("name").and_then(Value::as_str).unwrap_or_default();
            let words = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            faults.forbidden(&at.index(index).field("name"), words);
        }
    }
}

/// The new spec with all mutable fields as they were, so that any remaining difference is
/// forbidden.
fn restored(new: &Fields, old: &Fields) -> Fields {
    let mut allowed = new.clone();
    for key in ["tolerations", "activeDeadlineSeconds", "schedulingGates"] {
        keep(&mut allowed, old, key);
    }
    let grace = |fields| get(fields, "terminationGracePeriodSeconds").as_i64();
    // The one repair of what older versions stored (see the defaults of pods).
    if grace(old).is_some_and(|before| before < 0) && grace(new) == Some(1) {
        keep(&mut allowed, old, "terminationGracePeriodSeconds");
    }
    for list in ["containers", "initContainers"] {
        let Some(containers) = allowed.get_mut(list).and_then(Value::as_array_mut) else {
            continue;
        };
        for (container, before) in containers.iter_mut().zip(items(old, list)) {
            if let (Some(container), Some(before)) = (container.as_object_mut(), before.as_object())
            {
                keep(container, before, "image");
            }
        }
    }
    allowed
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// While a pod has scheduling gates, its node constraints may be tightened; allowed changes are
/// reverted in `allowed`.
fn gated(allowed: &mut Fields, old: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    // KEP-3838: the program that holds a gate narrows the choice of nodes before it opens it.
    let before = object(old, "nodeSelector").unwrap_or(podspec::no_fields());
    let after = object(allowed, "nodeSelector").cloned().unwrap_or_default();
    if before
        .iter()
        .any(|(key, value)| after.get(key) != Some(value))
    {
        let words = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        faults.invalid(&at.field("nodeSelector"), &Value::Object(after), words);
    }
    keep(allowed, old, "nodeSelector");
    let nodes = |fields: &Fields| {
        object(fields, "affinity")
            .and_then(|own| own.get("nodeAffinity"))
            .cloned()
    };
    if nodes(allowed) == nodes(old) {
        return;
    }
    let place = at.field("affinity");
    let terms = |affinity: Option<Value>| {
        let terms = affinity.and_then(|own| {
            own.get(REQUIRED)?
                .get("nodeSelectorTerms")?
                .as_array()
                .cloned()
        });
        terms.unwrap_or_default()
    };
    more_terms(
        &terms(nodes(allowed)),
        &terms(nodes(old)),
        &place.field("nodeAffinity"),
        faults,
    );
    match (
        nodes(old),
        allowed.get_mut("affinity").and_then(Value::as_object_mut),
    ) {
        (Some(before), Some(affinity)) => drop(affinity.insert("nodeAffinity".to_owned(), before)),
        (Some(before), None) => {
            let only = Map::from_iter([("nodeAffinity".to_owned(), before)]);
            allowed.insert("affinity".to_owned(), Value::Object(only));
        }
        (None, Some(affinity)) => {
            affinity.remove("nodeAffinity");
            if affinity.is_empty() && !old.contains_key("affinity") {
                allowed.remove("affinity");
            }
        }
        (None, None) => {}
    }
}

/// Terms are alternatives, so none may be added or removed; each may get further requirements.
fn more_terms(new: &[Value], old: &[Value], at: &FieldPath<'_>, faults: &mut Faults) {
    let place = at.field(REQUIRED);
    let place = place.field("nodeSelectorTerms");
    if !old.is_empty() && old.len() != new.len() {
        let words = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        faults.invalid(&place, &Value::Array(new.to_vec()), words);
        return;
    }
    for (index, (before, after)) in old.iter().zip(new).enumerate() {
        let list = |term: &Value, key: &str| {
            term.get(key)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        let keys = ["matchExpressions", "matchFields"];
        // An empty term matches no node: a first requirement would widen the choice.
        let was_empty = keys.iter().all(|key| list(before, key).is_empty());
        let grown = keys
            .iter()
            .all(|key| list(after, key).starts_with(&list(before, key)));
        if !grown || (was_empty && keys.iter().any(|key| !list(after, key).is_empty())) {
            let words = "only additions are allowed (no mutations or deletions)";
            faults.invalid(&place.index(index), after, words);
        }
    }
}

/// Whether a pod runs on Windows.
pub(super) fn is_windows(spec: &Fields) -> bool {
    object(spec, "os").is_some_and(|os| text(os, "name") == "windows")
}

/// Whether a pod is a mirror pod.
pub(super) fn is_mirror(fields: &Fields) -> bool {
    podspec::is_mirror(object(metadata(fields), "annotations"))
}
