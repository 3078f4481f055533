//! Config maps, secrets, service accounts, leases.

use super::cells::{AGE, at, entries};
use crate::registry::{Column, Kind, Strategy, Subresource, column};
use crate::validate::{At, Faults, Fields, default_to, get, names, object, text};
use base64::Engine;
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use serde_json::{Map, Value};

/// Bytes of data that a config map or secret holds at most.
const DATA: usize = 1 << 20;

const DATA_COLUMN: Column =
    Column { name: "Data", kind: "integer", priority: 0, cell: |fields, _| entries(fields, "data").into() };

pub(super) fn config_map() -> Kind {
    Kind {
        short_names: &["cm"],
        columns: const {
            &[
                Column {
                    cell: |fields, _| (entries(fields, "data") + entries(fields, "binaryData")).into(),
                    ..DATA_COLUMN
                },
                AGE,
            ]
        },
        strategy: Strategy {
            validate: |fields, faults| {
                data(fields, &["data", "binaryData"], faults);
            },
            validate_update: |new, old, faults| immutable(new, old, &["data", "binaryData"], faults),
            ..Strategy::default()
        },
        ..Kind::of::<ConfigMap>(true)
    }
}

pub(super) fn secret() -> Kind {
    Kind {
        columns: const { &[column("Type", |fields, _| text(fields, "type").into()), DATA_COLUMN, AGE] },
        selectable: &[("type", "/type")],
        strategy: Strategy {
            defaults: secret_defaults,
            validate: |fields, faults| {
                data(fields, &["data"], faults);
                secret_type(fields, faults);
            },
            validate_update: |new, old, faults| {
                faults.immutable(&At::root("type"), get(new, "type"), get(old, "type"));
                immutable(new, old, &["data"], faults);
            },
            ..Strategy::default()
        },
        ..Kind::of::<Secret>(true)
    }
}

/// `stringData` is write-only: it goes into `data`.
fn secret_defaults(fields: &mut Fields) {
    default_to(fields, "type", "Opaque");
    let Some(Value::Object(plain)) = fields.remove("stringData") else { return };
    let data = fields.entry("data").or_insert_with(|| Value::Object(Map::new()));
    for (key, value) in plain {
        let encoded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
        if let Some(data) = data.as_object_mut() {
            data.insert(key, Value::String(encoded));
        }
    }
}

/// Keys that the data of a type must have.
const NEEDED: &[(&str, &[&str])] = &[
    ("kubernetes.io/tls", &["tls.crt", "tls.key"]),
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"]),
    ("kubernetes.io/dockercfg", &[".dockercfg"]),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"]),
];

fn secret_type(fields: &Fields, faults: &mut Faults) {
    let needed = NEEDED.iter().find(|(kind, _)| *kind == text(fields, "type")).map_or(&[][..], |(_, keys)| keys);
    for key in needed {
        if !object(fields, "data").is_some_and(|data| data.contains_key(*key)) {
            faults.required(&At::root("data").key(key), "");
        }
    }
}

fn data(fields: &Fields, maps: &[&str], faults: &mut Faults) {
    let mut size = 0;
    for map in maps {
        let at = At::root(map);
        for (key, value) in object(fields, map).into_iter().flatten() {
            if let Err(fault) = names::config_key(key) {
                faults.invalid(&at.key(key), &Value::String(key.clone()), fault);
            }
            if *map == "binaryData" && object(fields, "data").is_some_and(|data| data.contains_key(key)) {
                faults.invalid(
                    &At::root("data").key(key),
                    &Value::String(key.clone()),
                    "duplicate of key present in binaryData",
                );
            }
            size += value.as_str().map_or(0, str::len);
        }
    }
    if size > DATA * 4 / 3 + 4 {
        faults.too_long(&At::root(maps.first().copied().unwrap_or_default()), DATA);
    }
}

fn immutable(new: &Fields, old: &Fields, maps: &[&str], faults: &mut Faults) {
    if get(old, "immutable") != &Value::Bool(true) {
        return;
    }
    if get(new, "immutable") != &Value::Bool(true) {
        faults.forbidden(&At::root("immutable"), "field is immutable when `immutable` is set");
    }
    for map in maps {
        if get(new, map) != get(old, map) {
            faults.forbidden(&At::root(map), "field is immutable when `immutable` is set");
        }
    }
}

pub(super) fn service_account() -> Kind {
    Kind {
        short_names: &["sa"],
        columns: const {
            &[
                Column {
                    name: "Secrets",
                    kind: "integer",
                    priority: 0,
                    cell: |fields, _| crate::validate::items(fields, "secrets").len().into(),
                },
                AGE,
            ]
        },
        subresources: &[Subresource::Token],
        ..Kind::of::<ServiceAccount>(true)
    }
}

pub(super) fn lease() -> Kind {
    Kind {
        columns: const { &[column("Holder", |fields, _| at(fields, "spec", "/holderIdentity").into()), AGE] },
        strategy: Strategy { validate: lease_spec, ..Strategy::default() },
        ..Kind::of::<Lease>(true)
    }
}

fn lease_spec(fields: &Fields, faults: &mut Faults) {
    let Some(spec) = object(fields, "spec") else { return };
    let at = At::root("spec");
    for (key, least) in [("leaseDurationSeconds", 1), ("leaseTransitions", 0)] {
        let value = get(spec, key);
        if value.as_i64().is_some_and(|value| value < least) {
            let detail = if least == 1 { "must be greater than 0" } else { "must be greater than or equal to 0" };
            faults.invalid(&at.field(key), value, detail);
        }
    }
}
