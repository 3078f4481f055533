//! The resize subresource: CPU and memory of running containers.

use super::{change, keep, spec};
use crate::podspec::{self, is_sidecar};
use master_schema::validate::{Faults, FieldPath, Fields, items, object, object_mut, text};
use serde_json::Value;

/// The resources that can be resized.
const RESIZED: [&str; 2] = ["cpu", "memory"];
/// The lists of containers, in the order in which their faults are reported.
const LISTS: [&str; 2] = ["containers", "initContainers"];

/// The old pod with the new one's resources of the pod as a whole, and the resources and resize
/// policies of its containers. A list with other containers, or with another order, is taken from
/// the new pod, so that [`validate`] refuses it.
pub(super) fn compose(result: &mut Fields, new: &Fields, old: &Fields) {
    result.clone_from(old);
    let mut given = spec(new).clone();
    // With defaults, as in the stored pod that it is compared with.
    podspec::spec_defaults(&mut given);
    let Some(own) = object_mut(result, "spec") else {
        return;
    };
    keep(own, &given, "resources");
    for list in LISTS {
        if !names(&given, list).eq(names(own, list)) {
            keep(own, &given, list);
            continue;
        }
        let containers = own.get_mut(list).and_then(Value::as_array_mut);
        let containers = containers.into_iter().flatten();
        for (container, found) in containers.zip(items(&given, list)) {
            if let (Some(container), Some(found)) = (container.as_object_mut(), found.as_object()) {
                keep(container, found, "resources");
                keep(container, found, "resizePolicy");
            }
        }
    }
}

/// The names of a list's containers.
fn names<'a>(spec: &'a Fields, list: &str) -> impl Iterator<Item = &'a str> {
    let all = items(spec, list).iter();
    all.map(|one| one.get("name").and_then(Value::as_str).unwrap_or_default())
}

/// Validates a resize.
pub(super) fn validate(new: &Fields, old: &Fields, faults: &mut Faults) {
    let nowhere = FieldPath::root("");
    if change::is_mirror(old) {
        faults.forbidden(&nowhere, "static pods cannot be resized");
        return;
    }
    // KEP-1287 leaves Windows out.
    if change::is_windows(spec(old)) {
        faults.forbidden(&nowhere, "windows pods cannot be resized");
        return;
    }
    let at = FieldPath::root("spec");
    if rearranged(spec(new), spec(old), &at, faults) {
        return;
    }
    let status = object(old, "status").unwrap_or(podspec::no_fields());
    let quality = |fields: &Fields| podspec::quality_of_service(spec(fields));
    let before = if text(status, "qosClass").is_empty() {
        quality(old)
    } else {
        text(status, "qosClass")
    };
    // The class decides in which control group the pod runs, and it stays there.
    if before != quality(new) {
        faults.invalid(
            &at,
            &Value::from(before),
            "Pod QOS Class may not change as a result of resizing",
        );
    }
    if !supported(status) {
        faults.forbidden(&at, "Pod running on node without support for resize");
    }
    kept(spec(old), spec(new), &at, faults);
    if immutable(spec(old)) != immutable(spec(new)) {
        faults.forbidden(&at, "only cpu and memory resources are mutable");
    }
    for list in ["initContainers", "containers"] {
        let place = at.field(list);
        let pairs = items(spec(old), list)
            .iter()
            .zip(items(spec(new), list))
            .enumerate();
        for (index, (before, after)) in pairs {
            let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else {
                continue;
            };
            container(list, before, after, &at, &place.index(index), faults);
        }
    }
}

/// Whether a resize would change which containers there are, or their order.
fn rearranged(new: &Fields, old: &Fields, at: &FieldPath<'_>, faults: &mut Faults) -> bool {
    let mut found = false;
    for list in LISTS {
        let place = at.field(list);
        if names(new, list).count() != names(old, list).count() {
            found = true;
            let words = format!("{list} may not be added or removed on resize");
            faults.forbidden(&place, words);
            continue;
        }
        let pairs = names(new, list).zip(names(old, list)).enumerate();
        for (index, _) in pairs.filter(|(_, (after, before))| after != before) {
            found = true;
            let words = format!("{list} may not be renamed or reordered on resize");
            faults.forbidden(&place.index(index).field("name"), words);
        }
    }
    found
}

/// Whether the kubelet supports resizing: it then reports the resources of running containers.
fn supported(status: &Fields) -> bool {
    let running = |one: &&Value| one.pointer("/state/running").is_some();
    items(status, "containerStatuses")
        .iter()
        .find(running)
        .is_none_or(|status| status.get("resources").is_some())
}

fn container(
    list: &str,
    before: &Fields,
    after: &Fields,
    spec: &FieldPath<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    kept(before, after, at, faults);
    if others(before) != others(after) {
        let sidecar = list != "containers" && is_sidecar(before);
        let whose = if sidecar {
            " for sidecar containers"
        } else {
            ""
        };
        faults.forbidden(
            spec,
            format!("only cpu and memory resources{whose} are mutable"),
        );
    }
}

/// No request or limit of a container, or of the pod as a whole, may be removed.
fn kept(before: &Fields, after: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let at = at.field("resources");
    for kind in ["requests", "limits"] {
        let gone = needs(before, kind)
            .keys()
            .any(|name| !needs(after, kind).contains_key(name));
        if gone {
            faults.forbidden(
                &at.field(kind),
                format!("resource {kind} cannot be removed"),
            );
        }
    }
}

/// Requests or limits of a container, or of a pod's spec.
fn needs<'a>(container: &'a Fields, kind: &str) -> &'a Fields {
    object(container, "resources")
        .and_then(|needs| object(needs, kind))
        .unwrap_or(podspec::no_fields())
}

/// A container without the fields that a resize may change.
fn others(container: &Fields) -> Fields {
    let mut rest = container.clone();
    rest.remove("resizePolicy");
    let resources = immutable(container);
    if resources.is_empty() {
        rest.remove("resources");
    } else {
        rest.insert("resources".to_owned(), Value::Object(resources));
    }
    rest
}

/// The resources of a container, or of a pod's spec, that no resize changes.
fn immutable(fields: &Fields) -> Fields {
    let mut rest = object(fields, "resources").cloned().unwrap_or_default();
    for kind in ["requests", "limits"] {
        if let Some(list) = rest.get_mut(kind).and_then(Value::as_object_mut) {
            list.retain(|name, _| !RESIZED.contains(&name.as_str()));
        }
        if object(&rest, kind).is_some_and(serde_json::Map::is_empty) {
            rest.remove(kind);
        }
    }
    rest
}
