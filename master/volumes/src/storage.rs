//! StorageClasses, CSI drivers, CSI nodes, volume attachments and capacities.

use crate::storage_validate as rules;
use config_kube::k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment, VolumeAttributesClass,
};
use master_schema::cells::{AGE, at, flag, named_default};
use master_schema::object::spec;
use master_schema::registry::{Kind, Strategy, Subresource, boolean, column, integer, words};
use master_schema::validate::{Fields, get, items, text};
use serde_json::Value;

/// Annotation of the default StorageClass.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const DEFAULT_CLASS_BETA: &str = "storageclass.beta.kubernetes.io/is-default-class";

/// The kind StorageClass.
pub fn class() -> Kind {
    Kind {
        short_names: words(&["sc"]),
        named: false,
        columns: vec![
            column("Name", |fields, _| {
                named_default(fields, &[DEFAULT_CLASS, DEFAULT_CLASS_BETA]).into()
            }),
            column("Provisioner", |fields, _| {
                text(fields, "provisioner").into()
            }),
            column("ReclaimPolicy", |fields, _| {
                or(text(fields, "reclaimPolicy"), "Delete").into()
            }),
            column("VolumeBindingMode", |fields, _| {
                or(text(fields, "volumeBindingMode"), "Immediate").into()
            }),
            column("AllowVolumeExpansion", |fields, _| {
                flag(fields, "allowVolumeExpansion")
            }),
            AGE,
        ],
        strategy: Strategy {
            defaults: rules::class_defaults,
            validate: rules::class,
            validate_update: rules::class_update,
            ..Strategy::default()
        },
        ..Kind::of::<StorageClass>(false)
    }
}

fn or<'a>(text: &'a str, none: &'a str) -> &'a str {
    if text.is_empty() { none } else { text }
}

/// The kind VolumeAttributesClass.
pub fn attributes_class() -> Kind {
    Kind {
        short_names: words(&["vac"]),
        columns: vec![
            column("DriverName", |fields, _| text(fields, "driverName").into()),
            AGE,
        ],
        strategy: Strategy {
            validate: rules::attributes,
            validate_update: rules::attributes_update,
            ..Strategy::default()
        },
        ..Kind::of::<VolumeAttributesClass>(false)
    }
}

/// The kind VolumeAttachment.
pub fn attachment() -> Kind {
    Kind {
        subresources: vec![Subresource::Status],
        columns: vec![
            column("Attacher", |fields, _| {
                text(spec(fields), "attacher").into()
            }),
            column("PV", |fields, _| {
                at(fields, "spec", "/source/persistentVolumeName")
                    .replace("<none>", "")
                    .into()
            }),
            column("Node", |fields, _| text(spec(fields), "nodeName").into()),
            column("Attached", |fields, _| {
                let attached = fields
                    .get("status")
                    .is_some_and(|status| status["attached"] == true);
                if attached { "true" } else { "false" }.into()
            }),
            AGE,
        ],
        strategy: Strategy {
            validate: rules::attachment,
            validate_through: |_, new, _, faults| rules::attachment_status(new, faults),
            validate_update: rules::attachment_update,
            ..Strategy::default()
        },
        ..Kind::of::<VolumeAttachment>(false)
    }
}

/// The kind CSIDriver.
pub fn driver() -> Kind {
    Kind {
        columns: vec![
            boolean("AttachRequired", |fields, _| {
                flag(spec(fields), "attachRequired")
            }),
            boolean("PodInfoOnMount", |fields, _| {
                flag(spec(fields), "podInfoOnMount")
            }),
            boolean("StorageCapacity", |fields, _| {
                flag(spec(fields), "storageCapacity")
            }),
            column("TokenRequests", |fields, _| audiences(fields).into()),
            boolean("RequiresRepublish", |fields, _| {
                flag(spec(fields), "requiresRepublish")
            }),
            column("Modes", |fields, _| lifecycles(fields).into()),
            AGE,
        ],
        strategy: Strategy {
            defaults: rules::driver_defaults,
            validate: rules::driver,
            validate_update: rules::driver_update,
            ..Strategy::default()
        },
        ..Kind::of::<CSIDriver>(false)
    }
}

fn audiences(fields: &Fields) -> String {
    let requests = items(spec(fields), "tokenRequests").iter();
    let list: Vec<&str> = requests
        .map(|request| request["audience"].as_str().unwrap_or_default())
        .collect();
    if list.is_empty() {
        "<unset>".to_owned()
    } else {
        list.join(",")
    }
}

fn lifecycles(fields: &Fields) -> String {
    let list: Vec<&str> = items(spec(fields), "volumeLifecycleModes")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    if list.is_empty() {
        "<none>".to_owned()
    } else {
        list.join(",")
    }
}

/// The kind CSINode.
pub fn node() -> Kind {
    Kind {
        columns: vec![
            integer("Drivers", |fields, _| {
                items(spec(fields), "drivers").len().into()
            }),
            AGE,
        ],
        strategy: Strategy {
            validate: rules::node,
            validate_update: rules::node_update,
            ..Strategy::default()
        },
        ..Kind::of::<CSINode>(false)
    }
}

/// The kind CSIStorageCapacity.
pub fn capacity() -> Kind {
    Kind {
        columns: vec![
            column("StorageClassName", |fields, _| {
                text(fields, "storageClassName").into()
            }),
            column("Capacity", |fields, _| {
                get(fields, "capacity").as_str().unwrap_or("<unset>").into()
            }),
        ],
        strategy: Strategy {
            validate: rules::capacity,
            validate_update: rules::capacity_update,
            ..Strategy::default()
        },
        ..Kind::of::<CSIStorageCapacity>(true)
    }
}
