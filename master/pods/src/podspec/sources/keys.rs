//! Validation of keys that become files, and of field and resource references.

use config_kube::Amount;
use master_schema::validate::forms::{file_mode, formed, needed, plain_path, word};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, names, text};
use serde_json::Value;

/// The `items` of a Secret or ConfigMap: key, path and mode.
pub(super) fn paths(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let list = at.field("items");
    for (number, item) in items(source, "items").iter().enumerate() {
        let Some(item) = item.as_object() else {
            continue;
        };
        let at = list.index(number);
        needed(item, "key", &at, faults);
        needed(item, "path", &at, faults);
        plain_path(get(item, "path"), &at.field("path"), faults);
        file_mode(item, "mode", &at, faults);
    }
}

/// Field labels of a pod that upstream knows at all.
const READABLE: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "spec.hostname",
    "spec.host",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Splits `metadata.labels['key']` into path and key.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

/// Validates a field reference: a supported field, or one label or annotation.
pub(crate) fn field_selector(
    selector: &Fields,
    supported: &[&str],
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    needed(selector, "apiVersion", at, faults);
    if text(selector, "apiVersion").is_empty() {
        return;
    }
    needed(selector, "fieldPath", at, faults);
    let path = text(selector, "fieldPath");
    if path.is_empty() {
        return;
    }
    if text(selector, "apiVersion") != "v1" {
        let version = text(selector, "apiVersion");
        let words = format!("error converting fieldPath: unsupported pod version: {version}");
        faults.invalid(&at.field("fieldPath"), get(selector, "fieldPath"), words);
        return;
    }
    if let Some((map, key)) = subscript(path) {
        match map {
            "metadata.annotations" => {
                if let Err(fault) = names::qualified(&key.to_lowercase()) {
                    faults.invalid(at, &Value::from(key.to_lowercase()), fault);
                }
            }
            "metadata.labels" => formed(&Value::from(key), at, names::qualified, faults),
            known if READABLE.contains(&known) => {
                faults.invalid(at, &Value::from(known), "does not support subscript");
            }
            _ => unknown(selector, path, at, faults),
        }
    } else if !READABLE.contains(&path) {
        unknown(selector, path, at, faults);
    } else if !supported.contains(&path) {
        let mut sorted = supported.to_vec();
        sorted.sort_unstable();
        faults.unsupported(&at.field("fieldPath"), get(selector, "fieldPath"), &sorted);
    }
}

fn unknown(selector: &Fields, path: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let words = format!("error converting fieldPath: field label not supported: {path}");
    faults.invalid(&at.field("fieldPath"), get(selector, "fieldPath"), words);
}

/// Resources of a container that can be referenced, in order.
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// Divisors of resources counted in bytes.
const BYTES: &[&str] = &[
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
];

/// Validates a resource reference; in a volume, it must name the container.
pub(crate) fn resource_selector(
    selector: &Fields,
    volume: bool,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let resource = text(selector, "resource");
    let huge =
        resource.starts_with("requests.hugepages-") || resource.starts_with("limits.hugepages-");
    if volume && text(selector, "containerName").is_empty() {
        faults.required(&at.field("containerName"), "");
    } else if resource.is_empty() {
        faults.required(&at.field("resource"), "");
    } else if !RESOURCES.contains(&resource) && !huge {
        faults.unsupported(&at.field("resource"), get(selector, "resource"), RESOURCES);
    }
    let divisor = text(selector, "divisor");
    let Ok(amount) = divisor.parse::<Amount>() else {
        return;
    };
    // Go's unset divisor.
    if amount == Amount::ZERO {
        return;
    }
    let same = |known: &&str| known.parse::<Amount>().is_ok_and(|known| known == amount);
    let bytes = BYTES.iter().any(same);
    let of = match resource {
        "limits.cpu" | "requests.cpu" => {
            // Here and below upstream shows the resource as the value that is invalid.
            let words = "only divisor's values 1m and 1 are supported with the cpu resource";
            if !["1m", "1"].iter().any(same) {
                faults.invalid(&at.field("divisor"), word(selector, "resource"), words);
            }
            return;
        }
        "limits.memory" | "requests.memory" => "memory",
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => "local ephemeral storage",
        _ if huge => "hugepages",
        _ => return,
    };
    if !bytes {
        let words = format!(
            "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the \
             {of} resource"
        );
        faults.invalid(&at.field("divisor"), word(selector, "resource"), words);
    }
}
