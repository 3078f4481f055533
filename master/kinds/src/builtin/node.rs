//! Nodes.

use super::node_validate as rules;
use config_kube::identity::NODE_ROLE_LABEL_PREFIX;
use config_kube::k8s_openapi::api::core::v1::Node;
use master_schema::cells::{AGE, at, labels};
use master_schema::registry::{Kind, Strategy, Subresource, column, selectable, wide, words};
use master_schema::validate::{Fields, get, items, object, text};
use serde_json::{Value, json};

pub(super) fn node() -> Kind {
    Kind {
        short_names: words(&["no"]),
        subresources: vec![Subresource::Power, Subresource::Proxy, Subresource::Status],
        columns: vec![
            column("Status", |fields, _| status(fields).into()),
            column("Roles", |fields, _| roles(fields).into()),
            AGE,
            column("Version", |fields, _| {
                at(fields, "status", "/nodeInfo/kubeletVersion").into()
            }),
            wide("Internal-IP", |fields, _| {
                address(fields, "InternalIP").into()
            }),
            wide("External-IP", |fields, _| {
                address(fields, "ExternalIP").into()
            }),
            wide("OS-Image", |fields, _| {
                info(fields, "/nodeInfo/osImage").into()
            }),
            wide("Kernel-Version", |fields, _| {
                info(fields, "/nodeInfo/kernelVersion").into()
            }),
            wide("Container-Runtime", |fields, _| {
                info(fields, "/nodeInfo/containerRuntimeVersion").into()
            }),
        ],
        selectable: vec![selectable("spec.unschedulable", "/spec/unschedulable")],
        strategy: Strategy {
            defaults,
            create: |fields| drop_source(fields),
            update: |new, _| drop_source(new),
            validate: rules::node,
            validate_update: rules::change,
            warn: rules::warn,
            // A kubelet registers its Node together with the first status.
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

fn defaults(fields: &mut Fields) {
    allocatable(fields);
    if let Value::Object(spec) = fields
        .entry("spec")
        .or_insert_with(|| Value::Object(Fields::new()))
    {
        ranges(spec);
    }
}

/// `podCIDR` and the first item of `podCIDRs` are the same range: each defaults to the other.
fn ranges(spec: &mut Fields) {
    let (one, first) = (
        text(spec, "podCIDR").to_owned(),
        items(spec, "podCIDRs").first().cloned(),
    );
    match first {
        Some(first) if one.is_empty() => drop(spec.insert("podCIDR".to_owned(), first)),
        Some(first) if first == one.as_str() => {}
        None if one.is_empty() => {}
        Some(_) | None => drop(spec.insert("podCIDRs".to_owned(), json!([one]))),
    }
}

/// Dynamic kubelet configuration was removed upstream; its field is not stored.
fn drop_source(fields: &mut Fields) {
    if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("configSource");
    }
}

/// `allocatable` defaults to `capacity`.
fn allocatable(fields: &mut Fields) {
    let Some(status) = fields.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    if let Some(capacity) = status.get("capacity").cloned() {
        status.entry("allocatable").or_insert(capacity);
    }
}

fn status(fields: &Fields) -> String {
    let conditions = object(fields, "status").map_or(&[][..], |status| items(status, "conditions"));
    let ready = conditions
        .iter()
        .find(|condition| condition.get("type").is_some_and(|kind| kind == "Ready"));
    let mut text = match ready
        .and_then(|ready| ready.get("status"))
        .and_then(Value::as_str)
    {
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
        .filter_map(
            |(key, value)| match key.strip_prefix(NODE_ROLE_LABEL_PREFIX) {
                Some(role) => Some(role),
                None if key == "kubernetes.io/role" => Some(value),
                None => None,
            },
        )
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() {
        "<none>".to_owned()
    } else {
        roles.join(",")
    }
}

fn address<'a>(fields: &'a Fields, kind: &str) -> &'a str {
    let addresses = object(fields, "status").map_or(&[][..], |status| items(status, "addresses"));
    let found = addresses
        .iter()
        .find(|address| address.get("type").is_some_and(|found| found == kind));
    found
        .and_then(|address| address.get("address"))
        .and_then(Value::as_str)
        .unwrap_or("<none>")
}
