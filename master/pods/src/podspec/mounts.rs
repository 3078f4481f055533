//! Validation of volume mounts and volume devices.

use super::context::Context;
use master_schema::validate::forms::{descending_path, needed, on, word};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, object, text};
use std::collections::BTreeSet;

/// Names and paths of a list.
fn named<'a>(
    container: &'a Fields,
    list: &str,
    path: &str,
) -> (BTreeSet<&'a str>, BTreeSet<&'a str>) {
    let entries = items(container, list)
        .iter()
        .filter_map(|entry| entry.as_object());
    entries
        .map(|entry| (text(entry, "name"), text(entry, path)))
        .unzip()
}

/// Validates `volumeMounts`.
pub(super) fn mounts(
    container: &Fields,
    context: &Context<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let list = at.field("volumeMounts");
    let (devices, device_paths) = named(container, "volumeDevices", "devicePath");
    let mut paths = BTreeSet::new();
    for (number, mount) in items(container, "volumeMounts").iter().enumerate() {
        let Some(mount) = mount.as_object() else {
            continue;
        };
        let at = list.index(number);
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        needed(mount, "name", &at, faults);
        let volume = context.volumes.get(name);
        if volume.is_none() {
            faults.not_found(&at.field("name"), word(mount, "name"));
        }
        needed(mount, "mountPath", &at, faults);
        if !paths.insert(path) {
            faults.invalid(
                &at.field("mountPath"),
                word(mount, "mountPath"),
                "must be unique",
            );
        }
        if devices.contains(name) {
            faults.invalid(
                &at.field("name"),
                word(mount, "name"),
                "must not already exist in volumeDevices",
            );
        }
        if device_paths.contains(path) {
            let words = "must not already exist as a path in volumeDevices";
            faults.invalid(&at.field("mountPath"), word(mount, "mountPath"), words);
        }
        sub_paths(mount, &at, &list, faults);
        propagation(container, mount, &list, faults);
        recursive(mount, &list.field("recursiveReadOnly"), faults);
    }
}

/// Validates sub-paths; upstream reports malformed ones at the list.
fn sub_paths(mount: &Fields, at: &FieldPath<'_>, list: &FieldPath<'_>, faults: &mut Faults) {
    let given = |key: &str| !text(mount, key).is_empty();
    if given("subPath") {
        descending_path(get(mount, "subPath"), &list.field("subPath"), faults);
    }
    if given("subPathExpr") {
        if given("subPath") {
            let words = "subPathExpr and subPath are mutually exclusive";
            faults.invalid(&at.field("subPathExpr"), get(mount, "subPathExpr"), words);
        }
        descending_path(
            get(mount, "subPathExpr"),
            &list.field("subPathExpr"),
            faults,
        );
    }
}

fn propagation(container: &Fields, mount: &Fields, list: &FieldPath<'_>, faults: &mut Faults) {
    if !mount.contains_key("mountPropagation") {
        return;
    }
    let place = list.field("mountPropagation");
    faults.one_of(
        &place,
        get(mount, "mountPropagation"),
        &["Bidirectional", "HostToContainer", "None"],
    );
    let privileged =
        object(container, "securityContext").is_some_and(|security| on(security, "privileged"));
    // What the container mounts appears on the node.
    if text(mount, "mountPropagation") == "Bidirectional" && !privileged {
        faults.forbidden(
            &place,
            "Bidirectional mount propagation is available only to privileged containers",
        );
    }
}

fn recursive(mount: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    // KEP-3857: without it, what is mounted below a read-only volume can be written.
    match text(mount, "recursiveReadOnly") {
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !on(mount, "readOnly") {
                faults.forbidden(at, "may only be specified when readOnly is true");
            }
            if !matches!(text(mount, "mountPropagation"), "" | "None") {
                faults.forbidden(
                    at,
                    "may only be specified when mountPropagation is None or not specified",
                );
            }
        }
        _ if !mount.contains_key("recursiveReadOnly") => {}
        _ => faults.unsupported(
            at,
            get(mount, "recursiveReadOnly"),
            &["Disabled", "Enabled", "IfPossible"],
        ),
    }
}

/// Validates `volumeDevices`.
pub(super) fn devices(
    container: &Fields,
    context: &Context<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let list = at.field("volumeDevices");
    let (mounted, mounted_paths) = named(container, "volumeMounts", "mountPath");
    let (mut paths, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (number, device) in items(container, "volumeDevices").iter().enumerate() {
        let Some(device) = device.as_object() else {
            continue;
        };
        let at = list.index(number);
        let (name, path) = (text(device, "name"), text(device, "devicePath"));
        let (at_name, at_path) = (at.field("name"), at.field("devicePath"));
        needed(device, "name", &at, faults);
        if names.contains(name) {
            faults.invalid(&at_name, word(device, "name"), "must be unique");
        }
        match context.volumes.get(name) {
            None => faults.not_found(&at_name, word(device, "name")),
            Some(volume)
                if volume.contains_key("persistentVolumeClaim")
                    || volume.contains_key("ephemeral") => {}
            Some(_) => {
                let words = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                faults.invalid(&at_name, word(device, "name"), words);
            }
        }
        needed(device, "devicePath", &at, faults);
        if paths.contains(path) {
            faults.invalid(&at_path, word(device, "devicePath"), "must be unique");
        }
        if path.split('/').any(|part| part == "..") {
            faults.invalid(
                &at_path,
                get(device, "devicePath"),
                "can not contain backsteps ('..')",
            );
        } else {
            paths.insert(path);
        }
        if mounted.contains(name) {
            faults.invalid(
                &at_name,
                word(device, "name"),
                "must not already exist in volumeMounts",
            );
        }
        if mounted_paths.contains(path) {
            faults.invalid(
                &at_path,
                word(device, "devicePath"),
                "must not already exist as a path in volumeMounts",
            );
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}
