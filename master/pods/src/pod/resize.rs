//! The resize subresource: CPU and memory of running containers.

use super::{change, keep, spec};
use crate::podspec::{self, is_sidecar};
use config_kube::Amount;
use master_schema::validate::{At, Faults, Fields, items, object, object_mut, text};
use serde_json::Value;

/// The resources that can be resized.
const RESIZED: [&str; 2] = ["cpu", "memory"];

/// The old pod with the new one's resources and resize policies, container by container.
pub(super) fn compose(result: &mut Fields, new: &Fields, old: &Fields) {
    result.clone_from(old);
    let mut given = spec(new).clone();
    podspec::spec_defaults(&mut given);
    let Some(own) = object_mut(result, "spec") else {
        return;
    };
    for list in ["containers", "initContainers"] {
        let Some(containers) = own.get_mut(list).and_then(Value::as_array_mut) else {
            continue;
        };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            let same = |found: &&Fields| text(found, "name") == text(container, "name");
            let Some(found) = items(&given, list)
                .iter()
                .filter_map(Value::as_object)
                .find(same)
                .cloned()
            else {
                continue;
            };
            keep(container, &found, "resources");
            keep(container, &found, "resizePolicy");
        }
    }
}

/// Validates a resize.
pub(super) fn validate(new: &Fields, old: &Fields, faults: &mut Faults) {
    let nowhere = At::root("");
    if change::is_mirror(old) {
        faults.forbidden(&nowhere, "static pods cannot be resized");
        return;
    }
    if change::is_windows(spec(old)) {
        faults.forbidden(&nowhere, "windows pods cannot be resized");
        return;
    }
    let whole = |fields: &Fields| {
        object(spec(fields), "resources").is_some_and(|needs| {
            ["requests", "limits"]
                .iter()
                .any(|list| object(needs, list).is_some_and(|list| !list.is_empty()))
        })
    };
    if whole(old) || whole(new) {
        faults.forbidden(&nowhere, "pods with pod-level resources cannot be resized");
        return;
    }
    let at = At::root("spec");
    let status = object(old, "status").unwrap_or(podspec::no_fields());
    let quality = |fields: &Fields| podspec::quality_of_service(spec(fields));
    let before = if text(status, "qosClass").is_empty() {
        quality(old)
    } else {
        text(status, "qosClass")
    };
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
    spec: &At<'_>,
    at: &At<'_>,
    faults: &mut Faults,
) {
    let main = list == "containers";
    if !main && !is_sidecar(before) {
        if before != after {
            faults.forbidden(
                spec,
                "resources for non-sidecar init containers are immutable",
            );
        }
        return;
    }
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
    if others(before) != others(after) {
        let whose = if main { "" } else { " for sidecar containers" };
        faults.forbidden(
            spec,
            format!("only cpu and memory resources{whose} are mutable"),
        );
    }
    memory(before, after, &at.field("limits"), faults);
}

/// A running container cannot get a memory limit that it did not start with, unless its resize policy
/// restarts it.
fn memory(before: &Fields, after: &Fields, at: &At<'_>, faults: &mut Faults) {
    let restarts = items(after, "resizePolicy")
        .iter()
        .filter_map(Value::as_object)
        .any(|policy| {
            text(policy, "resourceName") == "memory"
                && text(policy, "restartPolicy") == "RestartContainer"
        });
    let limit = |container| {
        needs(container, "limits")
            .get("memory")
            .and_then(Value::as_str)?
            .parse::<Amount>()
            .ok()
    };
    if !restarts && limit(before).is_none() && limit(after).is_some() {
        let words = "memory limits cannot be added unless resizePolicy is RestartContainer";
        faults.forbidden(&at.key("memory"), words);
    }
}

/// Requests or limits of a container.
fn needs<'a>(container: &'a Fields, kind: &str) -> &'a Fields {
    object(container, "resources")
        .and_then(|needs| object(needs, kind))
        .unwrap_or(podspec::no_fields())
}

/// A container without the fields that a resize may change.
fn others(container: &Fields) -> Fields {
    let mut rest = container.clone();
    rest.remove("resizePolicy");
    let Some(resources) = rest.get_mut("resources").and_then(Value::as_object_mut) else {
        return rest;
    };
    for kind in ["requests", "limits"] {
        if let Some(list) = resources.get_mut(kind).and_then(Value::as_object_mut) {
            list.retain(|name, _| !RESIZED.contains(&name.as_str()));
        }
        if object(resources, kind).is_some_and(serde_json::Map::is_empty) {
            resources.remove(kind);
        }
    }
    rest
}
