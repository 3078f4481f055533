//! Devices that are claimed: classes, claims, templates, slices.

use super::cells::AGE;
use super::service::spec;
use crate::object::meta_text;
use crate::registry::{Kind, Subresource, column};
use crate::validate::{Fields, get, items, object, text};
use config_kube::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};

pub(super) fn class() -> Kind {
    Kind { columns: const { &[AGE] }, ..Kind::of::<DeviceClass>(false) }
}

pub(super) fn claim() -> Kind {
    Kind {
        subresources: &[Subresource::Status],
        columns: const { &[column("State", |fields, _| state(fields).into()), AGE] },
        ..Kind::of::<ResourceClaim>(true)
    }
}

/// What became of a claim.
fn state(fields: &Fields) -> String {
    let status = object(fields, "status");
    let mut words = Vec::new();
    if !meta_text(fields, "deletionTimestamp").is_empty() {
        words.push("deleted");
    }
    if status.is_some_and(|status| !get(status, "allocation").is_null()) {
        words.push("allocated");
    }
    match status.map_or(&[][..], |status| items(status, "reservedFor")) {
        [] if words.is_empty() => words.push("pending"),
        [] => {}
        _ => words.push("reserved"),
    }
    words.join(",")
}

pub(super) fn template() -> Kind {
    Kind { columns: const { &[AGE] }, ..Kind::of::<ResourceClaimTemplate>(true) }
}

pub(super) fn slice() -> Kind {
    Kind {
        columns: const {
            &[
                column("Node", |fields, _| node(fields).into()),
                column("Driver", |fields, _| text(spec(fields), "driver").into()),
                column("Pool", |fields, _| object(spec(fields), "pool").map_or("", |pool| text(pool, "name")).into()),
                AGE,
            ]
        },
        selectable: &[("spec.nodeName", "/spec/nodeName"), ("spec.driver", "/spec/driver")],
        ..Kind::of::<ResourceSlice>(false)
    }
}

fn node(fields: &Fields) -> &str {
    match get(spec(fields), "nodeName").as_str() {
        Some(node) => node,
        None => "<unset>",
    }
}
