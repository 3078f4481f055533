//! PersistentVolumes and PersistentVolumeClaims.

use crate::volume_sources;
use crate::volume_validate as rules;
use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use master_schema::cells::{AGE, at};
use master_schema::object::spec;
use master_schema::object::{meta_text, metadata, now};
use master_schema::registry::{Kind, Strategy, Subresource, column, wide, words};
use master_schema::validate::{Fields, default_to, get, items, object, object_mut, text};
use serde_json::{Value, json};

/// Deprecated annotation with the class of a volume or claim.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// The kind PersistentVolume.
pub fn volume() -> Kind {
    Kind {
        short_names: words(&["pv"]),
        subresources: vec![Subresource::Status],
        columns: vec![
            column("Capacity", |fields, _| {
                text(object_of(spec(fields), "capacity"), "storage").into()
            }),
            column("Access Modes", |fields, _| modes(spec(fields)).into()),
            column("Reclaim Policy", |fields, _| {
                text(spec(fields), "persistentVolumeReclaimPolicy").into()
            }),
            column("Status", |fields, _| phase(fields).into()),
            column("Claim", |fields, _| claim_of(fields).into()),
            column("StorageClass", |fields, _| class(fields).into()),
            column("VolumeAttributesClass", |fields, _| {
                unset(spec(fields), "volumeAttributesClassName").into()
            }),
            column("Reason", |fields, _| {
                text(object_of(fields, "status"), "reason").into()
            }),
            AGE,
            wide("VolumeMode", |fields, _| {
                unset(spec(fields), "volumeMode").into()
            }),
        ],
        strategy: Strategy {
            defaults: |fields| {
                if let Some(spec) = object_mut(fields, "spec") {
                    // Of volumes that people make; those of a StorageClass are deleted by default.
                    default_to(spec, "persistentVolumeReclaimPolicy", "Retain");
                    default_to(spec, "volumeMode", "Filesystem");
                    volume_sources::defaults(spec);
                }
            },
            create: |fields| {
                let status = json!({"phase": "Pending", "lastPhaseTransitionTime": now()});
                fields.insert("status".to_owned(), status);
            },
            through: |_, volume, _, old| note_phase_change(volume, old),
            validate: rules::volume,
            validate_update: rules::volume_update,
            ..Strategy::default()
        },
        ..Kind::of::<PersistentVolume>(false)
    }
}

/// Notes when the phase of a volume changed (KEP-3762), unless the writer says another time.
fn note_phase_change(volume: &mut Fields, old: &Fields) {
    let key = "lastPhaseTransitionTime";
    let before = object_of(old, "status");
    let Some(after) = volume.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    let is_said = !get(after, key).is_null() && get(after, key) != get(before, key);
    if text(after, "phase") != text(before, "phase") && !is_said {
        after.insert(key.to_owned(), now().into());
    }
}

/// The kind PersistentVolumeClaim.
pub fn claim() -> Kind {
    Kind {
        short_names: words(&["pvc"]),
        subresources: vec![Subresource::Status],
        columns: vec![
            column("Status", |fields, _| phase(fields).into()),
            column("Volume", |fields, _| {
                text(spec(fields), "volumeName").into()
            }),
            column("Capacity", |fields, _| claimed(fields).into()),
            column("Access Modes", |fields, _| claimed_modes(fields).into()),
            column("StorageClass", |fields, _| class(fields).into()),
            column("VolumeAttributesClass", |fields, _| {
                unset(spec(fields), "volumeAttributesClassName").into()
            }),
            AGE,
            wide("VolumeMode", |fields, _| {
                unset(spec(fields), "volumeMode").into()
            }),
        ],
        strategy: Strategy {
            defaults: |fields| {
                if let Some(spec) = object_mut(fields, "spec") {
                    claim_defaults(spec);
                }
            },
            create: |fields| drop(fields.insert("status".to_owned(), json!({"phase": "Pending"}))),
            validate: rules::claim,
            validate_update: rules::claim_update,
            ..Strategy::default()
        },
        ..Kind::of::<PersistentVolumeClaim>(true)
    }
}

/// Sets defaults of a claim's spec, also in templates: `dataSource` and `dataSourceRef` default to
/// each other.
pub(crate) fn claim_defaults(spec: &mut Fields) {
    default_to(spec, "volumeMode", "Filesystem");
    let (source, reference) = (
        get(spec, "dataSource").clone(),
        get(spec, "dataSourceRef").clone(),
    );
    // KEP-1495; of another namespace (KEP-3294) the older field cannot say the same.
    match (source.is_null(), reference.is_null()) {
        (false, true) => drop(spec.insert("dataSourceRef".to_owned(), source)),
        (true, false)
            if reference
                .get("namespace")
                .is_none_or(|namespace| namespace == "") =>
        {
            spec.insert("dataSource".to_owned(), reference);
        }
        (true | false, true | false) => {}
    }
}

fn object_of<'a>(fields: &'a Fields, key: &str) -> &'a Fields {
    static EMPTY: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Fields::new);
    object(fields, key).unwrap_or(&EMPTY)
}

fn unset<'a>(fields: &'a Fields, key: &str) -> &'a str {
    get(fields, key).as_str().unwrap_or("<unset>")
}

fn phase(fields: &Fields) -> &str {
    if meta_text(fields, "deletionTimestamp").is_empty() {
        text(object_of(fields, "status"), "phase")
    } else {
        "Terminating"
    }
}

/// Access modes in their short form, without duplicates and in a fixed order.
fn modes(fields: &Fields) -> String {
    let has = |mode: &str| {
        items(fields, "accessModes")
            .iter()
            .any(|found| found == mode)
    };
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let shown: Vec<&str> = known
        .iter()
        .filter(|(mode, _)| has(mode))
        .map(|(_, short)| *short)
        .collect();
    shown.join(",")
}

fn claim_of(fields: &Fields) -> String {
    object(spec(fields), "claimRef")
        .map(|claim| format!("{}/{}", text(claim, "namespace"), text(claim, "name")))
        .unwrap_or_default()
}

/// The storage class, from the field or the deprecated annotation.
fn class(fields: &Fields) -> &str {
    let annotation = object(metadata(fields), "annotations")
        .map_or(&Value::Null, |notes| get(notes, CLASS_ANNOTATION));
    annotation
        .as_str()
        .unwrap_or_else(|| text(spec(fields), "storageClassName"))
}

fn claimed(fields: &Fields) -> &str {
    if text(spec(fields), "volumeName").is_empty() {
        return "";
    }
    match at(fields, "status", "/capacity/storage") {
        "<none>" => "0",
        storage => storage,
    }
}

fn claimed_modes(fields: &Fields) -> String {
    if text(spec(fields), "volumeName").is_empty() {
        String::new()
    } else {
        modes(object_of(fields, "status"))
    }
}
