//! The source of a persistent volume: exactly one, with its required fields.

use master_schema::validate::forms::driver_name;
use master_schema::validate::{Faults, FieldPath, Fields, default_to, get, object, text};
use serde_json::Value;

/// Sources and their required strings.
const SOURCES: &[(&str, &[&str])] = &[
    ("awsElasticBlockStore", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("azureFile", &["secretName", "shareName"]),
    ("cephfs", &[]),
    ("cinder", &["volumeID"]),
    ("csi", &["driver", "volumeHandle"]),
    ("fc", &[]),
    ("flexVolume", &["driver"]),
    ("flocker", &[]),
    ("gcePersistentDisk", &["pdName"]),
    ("glusterfs", &["endpoints", "path"]),
    ("hostPath", &["path"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("local", &["path"]),
    ("nfs", &["server", "path"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("quobyte", &["registry", "volume"]),
    ("rbd", &["image"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("storageos", &[]),
    ("vsphereVolume", &["volumePath"]),
];

/// The sources in a volume's spec.
pub(crate) fn of(spec: &Fields) -> Vec<(&'static str, &Value)> {
    SOURCES
        .iter()
        .filter_map(|(name, _)| spec.get(*name).map(|source| (*name, source)))
        .collect()
}

/// Sets upstream's defaults of sources.
pub(crate) fn defaults(spec: &mut Fields) {
    let defaults: &[(&str, &[(&str, &str)])] = &[
        ("hostPath", &[("type", "")]),
        ("iscsi", &[("iscsiInterface", "default")]),
        (
            "rbd",
            &[
                ("pool", "rbd"),
                ("user", "admin"),
                ("keyring", "/etc/ceph/keyring"),
            ],
        ),
        (
            "scaleIO",
            &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")],
        ),
        (
            "azureDisk",
            &[
                ("cachingMode", "ReadWrite"),
                ("kind", "Shared"),
                ("fsType", "ext4"),
            ],
        ),
    ];
    for (source, fields) in defaults {
        let Some(source) = spec.get_mut(*source).and_then(Value::as_object_mut) else {
            continue;
        };
        for (key, value) in *fields {
            default_to(source, key, *value);
        }
    }
    if let Some(disk) = spec.get_mut("azureDisk").and_then(Value::as_object_mut) {
        default_to(disk, "readOnly", false);
    }
}

/// Validates that there is exactly one source, and its fields.
pub(crate) fn validate(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let found = of(spec);
    if found.is_empty() {
        faults.required(at, "must specify a volume type");
    }
    for (number, (name, source)) in found.iter().enumerate() {
        if number > 0 {
            faults.forbidden(&at.field(name), "may not specify more than 1 volume type");
            continue;
        }
        let Some(source) = source.as_object() else {
            continue;
        };
        let at = at.field(name);
        let needed = SOURCES
            .iter()
            .find(|(known, _)| known == name)
            .map_or(&[][..], |(_, needed)| needed);
        for key in needed {
            if text(source, key).is_empty() {
                faults.required(&at.field(key), "");
            }
        }
        paths(name, source, &at, faults);
    }
}

fn paths(name: &str, source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let path = text(source, "path");
    let place = at.field("path");
    match name {
        "hostPath" | "local" if path.split('/').any(|part| part == "..") => {
            faults.invalid(&place, get(source, "path"), "must not contain '..'");
        }
        "nfs" if !path.is_empty() && !path.starts_with('/') => {
            faults.invalid(&place, get(source, "path"), "must be an absolute path");
        }
        "csi" => {
            let driver = text(source, "driver");
            if !driver.is_empty() {
                driver_name(get(source, "driver"), &at.field("driver"), faults);
            }
            for key in [
                "controllerPublishSecretRef",
                "nodePublishSecretRef",
                "nodeStageSecretRef",
            ] {
                let Some(secret) = object(source, key) else {
                    continue;
                };
                for part in ["name", "namespace"] {
                    if text(secret, part).is_empty() {
                        faults.required(&at.field(key).field(part), "");
                    }
                }
            }
        }
        "fc" => {
            let some = |key: &str| {
                get(source, key)
                    .as_array()
                    .is_some_and(|list| !list.is_empty())
            };
            if !some("targetWWNs") && !some("wwids") {
                faults.required(
                    &at.field("targetWWNs"),
                    "must specify either targetWWNs or wwids, but not both",
                );
            }
        }
        _ => {}
    }
}
