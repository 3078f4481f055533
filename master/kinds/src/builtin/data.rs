//! ConfigMaps and Secrets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use master_schema::cells::{AGE, entries};
use master_schema::object::metadata;
use master_schema::registry::{Column, Kind, Strategy, column, integer, selectable, words};
use master_schema::validate::{Faults, FieldPath, Fields, default_to, get, names, object, text};
use serde_json::{Map, Value};

/// Bytes of data in a ConfigMap or Secret.
// Upstream: `MaxSecretSize`; etcd takes requests of 1.5 MiB.
const DATA: usize = 1 << 20;

const DATA_COLUMN: Column = integer("Data", |fields, _| entries(fields, "data").into());

pub(super) fn config_map() -> Kind {
    Kind {
        short_names: words(&["cm"]),
        columns: vec![
            integer("Data", |fields, _| {
                (entries(fields, "data") + entries(fields, "binaryData")).into()
            }),
            AGE,
        ],
        strategy: Strategy {
            validate: map,
            validate_update: |new, old, faults| {
                immutable(new, old, &["data", "binaryData"], faults);
            },
            ..Strategy::default()
        },
        ..Kind::of::<ConfigMap>(true)
    }
}

pub(super) fn secret() -> Kind {
    Kind {
        columns: vec![
            column("Type", |fields, _| text(fields, "type").into()),
            DATA_COLUMN,
            AGE,
        ],
        selectable: vec![selectable("type", "/type")],
        strategy: Strategy {
            defaults: secret_defaults,
            validate: |fields, faults| {
                if keys(fields, "data", faults) > DATA {
                    faults.too_long(&FieldPath::root("data"), DATA);
                }
                content(fields, faults);
            },
            validate_update: |new, old, faults| {
                faults.immutable(&FieldPath::root("type"), get(new, "type"), get(old, "type"));
                immutable(new, old, &["data"], faults);
            },
            warn: warn_secret,
            ..Strategy::default()
        },
        ..Kind::of::<Secret>(true)
    }
}

/// `stringData` is write-only and merged into `data`.
fn secret_defaults(fields: &mut Fields) {
    default_to(fields, "type", "Opaque");
    let Some(Value::Object(plain)) = fields.remove("stringData") else {
        return;
    };
    let data = fields
        .entry("data")
        .or_insert_with(|| Value::Object(Map::new()));
    for (key, value) in plain {
        let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
        if let Some(data) = data.as_object_mut() {
            data.insert(key, Value::String(encoded));
        }
    }
}

/// Validates the keys of a map; returns the bytes of its values.
fn keys(fields: &Fields, map: &str, faults: &mut Faults) -> usize {
    let at = FieldPath::root(map);
    let mut size = 0;
    for (key, value) in object(fields, map).into_iter().flatten() {
        if let Err(fault) = names::config_key(key) {
            faults.invalid(&at.key(key), &Value::String(key.clone()), fault);
        }
        size += value.as_str().map_or(0, decoded_size);
    }
    size
}

/// The decoded size of a base64 string.
fn decoded_size(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

fn map(fields: &Fields, faults: &mut Faults) {
    let nothing = Fields::new();
    let of = |key: &str| object(fields, key).unwrap_or(&nothing);
    let (plain, binary) = (of("data"), of("binaryData"));
    keys(fields, "data", faults);
    let size = keys(fields, "binaryData", faults)
        + plain
            .values()
            .map(|value| value.as_str().map_or(0, str::len))
            .sum::<usize>();
    for (own, other, key) in [
        ("data", "binaryData", plain),
        ("binaryData", "data", binary),
    ]
    .into_iter()
    .flat_map(|(own, other, map)| map.keys().map(move |key| (own, other, key)))
    {
        if of(other).contains_key(key) {
            let words = format!("duplicate of key present in {other}");
            faults.invalid(
                &FieldPath::root(own).key(key),
                &Value::String(key.clone()),
                words,
            );
        }
    }
    if size > DATA {
        // The empty path means the whole object.
        faults.too_long(&FieldPath::root(""), DATA);
    }
}

/// Checks that a secret of a known type has the keys that its type demands.
fn content(fields: &Fields, faults: &mut Faults) {
    let nothing = Fields::new();
    let data = object(fields, "data").unwrap_or(&nothing);
    let at = FieldPath::root("data");
    let needed = |keys: &[&str], faults: &mut Faults| {
        for key in keys.iter().filter(|key| !data.contains_key(**key)) {
            faults.required(&at.key(key), "");
        }
    };
    match text(fields, "type") {
        "kubernetes.io/service-account-token" => {
            let (account, root) = (
                "kubernetes.io/service-account.name",
                FieldPath::root("metadata"),
            );
            if object(metadata(fields), "annotations")
                .is_none_or(|notes| text(notes, account).is_empty())
            {
                faults.required(&root.field("annotations").key(account), "");
            }
        }
        "kubernetes.io/dockercfg" => document(data, ".dockercfg", &at, faults),
        "kubernetes.io/dockerconfigjson" => document(data, ".dockerconfigjson", &at, faults),
        // One of both is enough (upstream): a name or a password may be all that is asked for.
        "kubernetes.io/basic-auth"
            if !data.contains_key("username") && !data.contains_key("password") =>
        {
            needed(&["username", "password"], faults);
        }
        "kubernetes.io/ssh-auth" if text(data, "ssh-privatekey").is_empty() => {
            faults.required(&at.key("ssh-privatekey"), "");
        }
        "kubernetes.io/tls" => needed(&["tls.crt", "tls.key"], faults),
        _ => {}
    }
}

/// A key's value must be a JSON object.
fn document(data: &Fields, key: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(value) = data.get(key) else {
        return faults.required(&at.key(key), "");
    };
    let text = STANDARD
        .decode(value.as_str().unwrap_or_default())
        .unwrap_or_default();
    // The value is left out: a refusal is shown and logged.
    if let Err(error) = serde_json::from_slice::<Option<Fields>>(&text) {
        faults.invalid(&at.key(key), &"<secret contents redacted>".into(), error);
    }
}

/// Warns about a certificate or key that cannot be parsed.
fn warn_secret(fields: &Fields, _: Option<&Fields>, warnings: &mut Vec<String>) {
    if text(fields, "type") != "kubernetes.io/tls" {
        return;
    }
    let nothing = Fields::new();
    let data = object(fields, "data").unwrap_or(&nothing);
    let is_pem = |key: &str| {
        let text = STANDARD.decode(text(data, key)).unwrap_or_default();
        x509_parser::pem::Pem::iter_from_buffer(&text)
            .next()
            .is_some_and(|pem| pem.is_ok())
    };
    let wrong = [("tls.crt", "certificate"), ("tls.key", "key")]
        .into_iter()
        .find(|(key, _)| !is_pem(key));
    warnings
        .extend(wrong.map(|(_, word)| format!("tls: failed to find any PEM data in {word} input")));
}

fn immutable(new: &Fields, old: &Fields, maps: &[&str], faults: &mut Faults) {
    if get(old, "immutable") != &Value::Bool(true) {
        return;
    }
    // Kubelets stop to watch such an object (KEP-1412), so that it can never change again.
    if get(new, "immutable") != &Value::Bool(true) {
        faults.forbidden(
            &FieldPath::root("immutable"),
            "field is immutable when `immutable` is set",
        );
    }
    for map in maps {
        if get(new, map) != get(old, map) {
            faults.forbidden(
                &FieldPath::root(map),
                "field is immutable when `immutable` is set",
            );
        }
    }
}
