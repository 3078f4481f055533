//! Fields that a pod of an operating system must not set.

use super::context::each_container;
use master_schema::validate::forms::{has, on};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, object, text};

/// Validates `os` and the fields that it forbids.
pub(super) fn validate(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(system) = object(spec, "os") else {
        return;
    };
    let place = at.field("os");
    // Refused here, what the system does not know does not fail on a node first (KEP-2802).
    match text(system, "name") {
        "" => faults.required(&place.field("name"), "cannot be empty"),
        "linux" => linux(spec, at, faults),
        "windows" => windows(spec, at, faults),
        _ => faults.unsupported(&place, get(system, "name"), &["linux", "windows"]),
    }
}

fn linux(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let words = "windows options cannot be set for a linux pod";
    let options = |fields: &Fields| {
        object(fields, "securityContext").is_some_and(|own| has(own, "windowsOptions"))
    };
    if options(spec) {
        faults.forbidden(&at.field("securityContext").field("windowsOptions"), words);
    }
    each_container(spec, at, |container, at| {
        if options(container) {
            faults.forbidden(&at.field("securityContext").field("windowsOptions"), words);
        }
    });
}

const WORDS: &str = "cannot be set for a windows pod";

fn windows(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let of_pod = [
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "fsGroup",
        "fsGroupChangePolicy",
        "runAsUser",
        "runAsGroup",
        "supplementalGroups",
        "supplementalGroupsPolicy",
        "seLinuxChangePolicy",
    ];
    let place = at.field("securityContext");
    if let Some(context) = object(spec, "securityContext") {
        for key in of_pod.into_iter().filter(|key| has(context, key)) {
            faults.forbidden(&place.field(key), WORDS);
        }
        if !items(context, "sysctls").is_empty() {
            faults.forbidden(&place.field("sysctls"), WORDS);
        }
    }
    for key in ["hostUsers", "shareProcessNamespace"]
        .into_iter()
        .filter(|key| has(spec, key))
    {
        faults.forbidden(&at.field(key), WORDS);
    }
    for key in ["hostPID", "hostIPC"]
        .into_iter()
        .filter(|key| on(spec, key))
    {
        faults.forbidden(&at.field(key), WORDS);
    }
    let of_container = [
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "capabilities",
        "readOnlyRootFilesystem",
        "privileged",
        "allowPrivilegeEscalation",
        "procMount",
        "runAsUser",
        "runAsGroup",
    ];
    each_container(spec, at, |container, at| {
        let Some(context) = object(container, "securityContext") else {
            return;
        };
        let place = at.field("securityContext");
        for key in of_container.into_iter().filter(|key| has(context, key)) {
            faults.forbidden(&place.field(key), WORDS);
        }
    });
}
