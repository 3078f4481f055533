//! Dynamic resource allocation: device classes, claims, templates, slices.

use crate::{slice as slices, status, validate as rules};
use config_kube::k8s_openapi::api::resource::v1::{
    DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use master_schema::cells::AGE;
use master_schema::object::meta_text;
use master_schema::object::spec;
use master_schema::registry::{Kind, Strategy, Subresource, column, selectable};
use master_schema::validate::{Fields, get, items, object, object_mut, text};

/// The kind DeviceClass.
pub fn class() -> Kind {
    let strategy = Strategy {
        validate: rules::class,
        generation: true,
        ..Strategy::default()
    };
    Kind {
        columns: vec![AGE],
        strategy,
        ..Kind::of::<DeviceClass>(false)
    }
}

/// The kind ResourceClaim.
pub fn claim() -> Kind {
    Kind {
        subresources: vec![Subresource::Status],
        columns: vec![column("State", |fields, _| state(fields).into()), AGE],
        strategy: Strategy {
            defaults: |fields| rules::claim_defaults(object_mut(fields, "spec")),
            validate_create: rules::claim,
            validate_update: rules::same_spec,
            validate_through: |_, new, old, faults| status::status(new, old, faults),
            status_carries_metadata: false,
            ..Strategy::default()
        },
        ..Kind::of::<ResourceClaim>(true)
    }
}

/// The state of a claim, for its table.
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

/// The kind ResourceClaimTemplate.
pub fn template() -> Kind {
    let strategy = Strategy {
        defaults: rules::template_defaults,
        validate_create: rules::template,
        validate_update: rules::same_spec,
        ..Strategy::default()
    };
    Kind {
        columns: vec![AGE],
        strategy,
        ..Kind::of::<ResourceClaimTemplate>(true)
    }
}

/// The kind ResourceSlice.
pub fn slice() -> Kind {
    Kind {
        columns: vec![
            column("Node", |fields, _| node(fields).into()),
            column("Driver", |fields, _| text(spec(fields), "driver").into()),
            column("Pool", |fields, _| {
                object(spec(fields), "pool")
                    .map_or("", |pool| text(pool, "name"))
                    .into()
            }),
            AGE,
        ],
        selectable: vec![
            selectable("spec.nodeName", "/spec/nodeName"),
            selectable("spec.driver", "/spec/driver"),
        ],
        strategy: Strategy {
            create: |fields| slices::stamp_taints(fields, None),
            update: |new, old| slices::stamp_taints(new, Some(old)),
            validate: slices::slice,
            validate_update: slices::slice_update,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<ResourceSlice>(false)
    }
}

fn node(fields: &Fields) -> &str {
    match get(spec(fields), "nodeName").as_str() {
        Some(node) => node,
        None => "<unset>",
    }
}
