//! Annotations with a meaning for pods: deprecated forms of fields, and marks of the kubelet.

use super::context::each_container;
use master_schema::validate::{Faults, FieldPath, Fields, items, object, text};
use serde_json::Value;

/// Marks a mirror pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The cost of deleting a pod, by which ReplicaSets choose.
const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
pub(super) const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
/// Prefix; the name of a container follows.
pub(super) const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// Prefix; the name of a container follows.
pub(super) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

fn all(annotations: Option<&Fields>) -> impl Iterator<Item = (&str, &str)> {
    annotations
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}

/// Whether a pod is a mirror pod.
pub fn is_mirror(annotations: Option<&Fields>) -> bool {
    annotations.is_some_and(|annotations| annotations.contains_key(MIRROR))
}

/// Validates annotations of a pod or template.
pub fn of_pod(
    annotations: Option<&Fields>,
    spec: &Fields,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    for (key, value) in all(annotations) {
        let shown = Value::from(value);
        if key == MIRROR && text(spec, "nodeName").is_empty() {
            faults.invalid(
                &at.key(key),
                &shown,
                "must set spec.nodeName if mirror pod annotation is set",
            );
        } else if key == TOLERATIONS && !value.is_empty() {
            tolerations(value, at, faults);
        } else if key == COST && !is_cost(value) {
            faults.invalid(&at.key(key), &shown, "must be a 32bit integer");
        } else if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp(value, &at.field(key), faults);
        } else if let Some(name) = key.strip_prefix(APP_ARMOR) {
            let mut known = false;
            each_container(spec, &FieldPath::root("spec"), |container, _| {
                known |= text(container, "name") == name;
            });
            if !known {
                faults.invalid(&at.key(key), &Value::from(name), "container not found");
            }
            if !matches!(value, "" | "runtime/default" | "unconfined")
                && !value.starts_with("localhost/")
            {
                faults.invalid(
                    &at.key(key),
                    &shown,
                    format!("invalid AppArmor profile name: {value:?}"),
                );
            }
        }
    }
}

/// An integer in Go's format, without a plus sign or leading zeros.
fn is_cost(value: &str) -> bool {
    value
        .parse::<i32>()
        .is_ok_and(|cost| cost.to_string() == value)
}

fn tolerations(value: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    match serde_json::from_str::<Vec<Value>>(value) {
        Ok(tolerations) => super::tolerations(&tolerations, &at.field(TOLERATIONS), faults),
        Err(error) => faults.invalid(at, &Value::from(TOLERATIONS), error),
    }
}

fn seccomp(profile: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    // `docker/default` is the older name of `runtime/default`.
    if matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        return;
    }
    match profile.strip_prefix("localhost/") {
        Some(path) => {
            master_schema::validate::forms::descending_path(&Value::from(path), at, faults);
        }
        None => faults.invalid(at, &Value::from(profile), "must be a valid seccomp profile"),
    }
}

/// If a deprecated annotation and its field are both set, they must agree.
pub fn on_create(
    annotations: Option<&Fields>,
    spec: &Fields,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let noted = |key: &str| {
        annotations
            .and_then(|all| all.get(key))
            .and_then(Value::as_str)
    };
    let profile = |fields: &Fields, key: &str| -> Option<Fields> {
        object(object(fields, "securityContext")?, key).cloned()
    };
    if let (Some(own), Some(annotation)) = (profile(spec, "seccompProfile"), noted(SECCOMP_POD)) {
        let place = at.field("securityContext");
        agree(
            &own,
            annotation,
            "seccomp",
            &place.field("seccompProfile"),
            faults,
        );
    }
    let windows = object(spec, "os").is_some_and(|os| text(os, "name") == "windows");
    let of_pod = profile(spec, "appArmorProfile");
    each_container(spec, at, |container, at| {
        let place = at.field("securityContext");
        let name = text(container, "name");
        if let (Some(own), Some(annotation)) = (
            profile(container, "seccompProfile"),
            noted(&format!("{SECCOMP_CONTAINER}{name}")),
        ) {
            agree(
                &own,
                annotation,
                "seccomp",
                &place.field("seccompProfile"),
                faults,
            );
        }
        if let (Some(own), Some(annotation), false) = (
            profile(container, "appArmorProfile").or_else(|| of_pod.clone()),
            noted(&format!("{APP_ARMOR}{name}")),
            windows,
        ) {
            agree(
                &own,
                annotation,
                "apparmor",
                &place.field("appArmorProfile"),
                faults,
            );
        }
    });
}

fn agree(profile: &Fields, annotation: &str, what: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let same = match text(profile, "type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => {
            annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default")
        }
        "Localhost" => annotation.starts_with("localhost/"),
        _ => true,
    };
    if !same {
        faults.forbidden(
            &at.field("type"),
            format!("{what} type in annotation and field must match"),
        );
    } else if text(profile, "type") == "Localhost"
        && annotation.strip_prefix("localhost/") != Some(text(profile, "localhostProfile"))
    {
        let words = format!("{what} profile in annotation and field must match");
        faults.forbidden(&at.field("localhostProfile"), words);
    }
}

/// Validates changes of annotations.
pub fn update(new: Option<&Fields>, old: Option<&Fields>, at: &FieldPath<'_>, faults: &mut Faults) {
    let find = |from: Option<&Fields>, key: &str| from.and_then(|from| from.get(key)).cloned();
    for (key, value) in old.into_iter().flatten() {
        if find(new, key).as_ref() != Some(value) {
            // A profile is set as the container starts, and cannot be changed afterwards.
            if key.starts_with(APP_ARMOR) {
                faults.forbidden(
                    &at.key(key),
                    "may not remove or update AppArmor annotations",
                );
            } else if key == MIRROR {
                faults.forbidden(
                    &at.key(key),
                    "may not remove or update mirror pod annotation",
                );
            }
        }
    }
    for key in new
        .into_iter()
        .flat_map(serde_json::Map::keys)
        .filter(|key| find(old, key).is_none())
    {
        if key.starts_with(APP_ARMOR) {
            faults.forbidden(&at.key(key), "may not add AppArmor annotations");
        } else if key == MIRROR {
            faults.forbidden(&at.key(key), "may not add mirror pod annotation");
        }
    }
}

/// A token volume needs a service account; pods of a template get theirs at creation.
pub fn tokens_without_account(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if !text(spec, "serviceAccountName").is_empty() {
        return;
    }
    let list = at.field("volumes");
    for (index, volume) in items(spec, "volumes").iter().enumerate() {
        let Some(projected) = volume
            .as_object()
            .and_then(|volume| object(volume, "projected"))
        else {
            continue;
        };
        let volume = list.index(index);
        let place = volume.field("projected");
        let place = place.field("sources");
        for (index, source) in items(projected, "sources").iter().enumerate() {
            if source.get("serviceAccountToken").is_some() {
                let words = "must not be specified when serviceAccountName is not set";
                faults.forbidden(&place.index(index).field("serviceAccountToken"), words);
            }
        }
    }
}
