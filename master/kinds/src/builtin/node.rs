//! Nodes.

use super::cells::{AGE, at, labels};
use crate::registry::{Kind, Strategy, Subresource, column, wide};
use crate::validate::{At, Faults, Fields, get, items, names, object, text};
use config_kube::identity::NODE_ROLE_LABEL_PREFIX;
use config_kube::k8s_openapi::api::core::v1::Node;
use serde_json::Value;

pub(super) fn node() -> Kind {
    Kind {
        short_names: &["no"],
        subresources: &[Subresource::Proxy, Subresource::Status],
        columns: const {
            &[
                column("Status", |fields, _| status(fields).into()),
                column("Roles", |fields, _| roles(fields).into()),
                AGE,
                column("Version", |fields, _| at(fields, "status", "/nodeInfo/kubeletVersion").into()),
                wide("Internal-IP", |fields, _| address(fields, "InternalIP").into()),
                wide("External-IP", |fields, _| address(fields, "ExternalIP").into()),
                wide("OS-Image", |fields, _| info(fields, "/nodeInfo/osImage").into()),
                wide("Kernel-Version", |fields, _| info(fields, "/nodeInfo/kernelVersion").into()),
                wide("Container-Runtime", |fields, _| info(fields, "/nodeInfo/containerRuntimeVersion").into()),
            ]
        },
        selectable: &[("spec.unschedulable", "/spec/unschedulable")],
        strategy: Strategy {
            defaults: allocatable,
            validate,
            validate_update,
            status_at_creation: true,
            ..Strategy::default()
        },
        ..Kind::of::<Node>(false)
    }
}

fn info<'a>(fields: &'a Fields, pointer: &str) -> &'a str {
    match at(fields, "status", pointer) {
        "<none>" => "<unknown>",
        text => text,
    }
}

/// What is allocatable is what there is, where nothing else is said.
fn allocatable(fields: &mut Fields) {
    let Some(status) = fields.get_mut("status").and_then(Value::as_object_mut) else { return };
    if let Some(capacity) = status.get("capacity").cloned() {
        status.entry("allocatable").or_insert(capacity);
    }
}

fn status(fields: &Fields) -> String {
    let conditions = object(fields, "status").map_or(&[][..], |status| items(status, "conditions"));
    let ready = conditions.iter().find(|condition| condition.get("type").is_some_and(|kind| kind == "Ready"));
    let mut text = match ready.and_then(|ready| ready.get("status")).and_then(Value::as_str) {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if object(fields, "spec").is_some_and(|spec| get(spec, "unschedulable") == &Value::Bool(true)) {
        text.push_str(",SchedulingDisabled");
    }
    text
}

fn roles(fields: &Fields) -> String {
    let mut roles: Vec<&str> = labels(fields)
        .filter_map(|(key, value)| match key.strip_prefix(NODE_ROLE_LABEL_PREFIX) {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => Some(value),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn address<'a>(fields: &'a Fields, kind: &str) -> &'a str {
    let addresses = object(fields, "status").map_or(&[][..], |status| items(status, "addresses"));
    let found = addresses.iter().find(|address| address.get("type").is_some_and(|found| found == kind));
    found.and_then(|address| address.get("address")).and_then(Value::as_str).unwrap_or("<none>")
}

fn validate(fields: &Fields, faults: &mut Faults) {
    let Some(spec) = object(fields, "spec") else { return };
    let at = At::root("spec");
    let at = at.field("taints");
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (number, taint) in items(spec, "taints").iter().enumerate() {
        let at = at.index(number);
        let Some(fields) = taint.as_object() else { continue };
        let (key, effect) = (text(fields, "key"), text(fields, "effect"));
        if let Err(fault) = names::qualified(key) {
            faults.invalid(&at.field("key"), get(fields, "key"), fault);
        }
        if let Err(fault) = names::label_value(text(fields, "value")) {
            faults.invalid(&at.field("value"), get(fields, "value"), fault);
        }
        if effect.is_empty() {
            faults.required(&at.field("effect"), "");
        } else {
            faults.one_of(&at.field("effect"), get(fields, "effect"), &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
        if seen.contains(&(key, effect)) {
            faults.duplicate(&at, taint);
        }
        seen.push((key, effect));
    }
}

/// A provider ID or pod range, once set, stays.
fn validate_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let (Some(new), Some(old)) = (object(new, "spec"), object(old, "spec")) else { return };
    let at = At::root("spec");
    for key in ["providerID", "podCIDR", "podCIDRs"] {
        if old.contains_key(key) && get(new, key) != get(old, key) {
            faults.forbidden(&at.field(key), "node updates may not change it except from \"\" to valid");
        }
    }
}
