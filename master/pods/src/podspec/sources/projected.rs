//! Validation of downward API volumes and projected volumes.

use super::keys::{field_selector, paths, resource_selector};
use master_schema::validate::forms::{file_mode, has, needed, number, plain_path, word};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, labels, names, object, text};
use serde_json::Value;
use std::collections::BTreeSet;

/// Fields of the pod that a file can contain.
const FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
/// Minimum lifetime of a token in seconds.
const TOKEN: i64 = 600;
/// Minimum and maximum of a certificate's maximum lifetime, in seconds.
const CERTIFICATE: (i64, i64) = (3600, 91 * 24 * 3600);

pub(crate) fn downward(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    file_mode(source, "defaultMode", at, faults);
    for file in items(source, "items").iter().filter_map(Value::as_object) {
        downward_file(file, at, faults);
    }
}

/// One file; upstream reports its faults at the source, without an index.
fn downward_file(file: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(file, "path", at, faults);
    plain_path(get(file, "path"), &at.field("path"), faults);
    match (object(file, "fieldRef"), object(file, "resourceFieldRef")) {
        (Some(field), resource) => {
            field_selector(field, FIELDS, &at.field("fieldRef"), faults);
            if resource.is_some() {
                let words = "fieldRef and resourceFieldRef can not be specified simultaneously";
                faults.invalid(at, &Value::from("resource"), words);
            }
        }
        (None, Some(resource)) => {
            resource_selector(resource, true, &at.field("resourceFieldRef"), faults);
        }
        (None, None) => faults.required(at, "one of fieldRef and resourceFieldRef is required"),
    }
    file_mode(file, "mode", at, faults);
}

/// Paths that are in use.
#[derive(Default)]
struct Paths<'a>(BTreeSet<&'a str>);

impl<'a> Paths<'a> {
    fn take(&mut self, path: &'a str, shown: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
        if !path.is_empty() && !self.0.insert(path) {
            faults.invalid(at, shown, "conflicting duplicate paths");
        }
    }
}

pub(crate) fn projected(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    file_mode(source, "defaultMode", at, faults);
    let list = at.field("sources");
    let mut taken = Paths::default();
    for (number, projection) in items(source, "sources").iter().enumerate() {
        let Some(projection) = projection.as_object() else {
            continue;
        };
        let place = list.index(number);
        for kind in ["secret", "configMap"] {
            let Some(inner) = object(projection, kind) else {
                continue;
            };
            needed(inner, "name", &place.field(kind), faults);
            paths(inner, &place.field(kind), faults);
            for item in items(inner, "items").iter().filter_map(Value::as_object) {
                taken.take(text(item, "path"), word(inner, "name"), at, faults);
            }
        }
        if let Some(inner) = object(projection, "downwardAPI") {
            for file in items(inner, "items").iter().filter_map(Value::as_object) {
                downward_file(file, &place.field("downwardAPI"), faults);
                taken.take(text(file, "path"), get(file, "path"), at, faults);
            }
        }
        // Its path may be another file's, too: upstream only warns of that.
        if let Some(inner) = object(projection, "serviceAccountToken") {
            token(inner, &place.field("serviceAccountToken"), at, faults);
        }
        if let Some(inner) = object(projection, "clusterTrustBundle") {
            bundle(inner, &place.field("clusterTrustBundle"), faults);
            taken.take(text(inner, "path"), get(inner, "path"), at, faults);
        }
        if let Some(inner) = object(projection, "podCertificate") {
            certificate(inner, &place.field("podCertificate"), faults);
            for key in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
                taken.take(text(inner, key), get(inner, key), at, faults);
            }
        }
        if projection.len() > 1 {
            faults.forbidden(&place, "may not specify more than 1 volume type per source");
        }
    }
}

/// A service account token; upstream reports faults of its path at the volume.
fn token(source: &Fields, at: &FieldPath<'_>, volume: &FieldPath<'_>, faults: &mut Faults) {
    let life = number(source, "expirationSeconds");
    let place = at.field("expirationSeconds");
    if life < TOKEN {
        faults.invalid(
            &place,
            &life.into(),
            "may not specify a duration less than 10 minutes",
        );
    }
    if life > 1 << 32 {
        faults.invalid(
            &place,
            &life.into(),
            "may not specify a duration larger than 2^32 seconds",
        );
    }
    needed(source, "path", volume, faults);
    plain_path(get(source, "path"), &volume.field("path"), faults);
}

fn bundle(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    match (source.get("name"), source.get("signerName")) {
        (Some(_), Some(_)) => faults.wrong(at, "only one of name and signerName may be used"),
        (Some(name), None) => {
            if name == "" {
                faults.required(&at.field("name"), "must be a valid object name");
            }
            let own = name.as_str().unwrap_or_default();
            // The trust bundle of a signer is named `signer:domain:path:name`; its last part is a
            // DNS name.
            if let Err(fault) = names::subdomain(own.rsplit_once(':').map_or(own, |(_, last)| last))
            {
                faults.invalid(
                    &at.field("name"),
                    name,
                    format!("not a valid clustertrustbundlename: {fault}"),
                );
            }
            if has(source, "labelSelector") {
                let words = "labelSelector must be unset if name is specified";
                faults.invalid(
                    &at.field("labelSelector"),
                    get(source, "labelSelector"),
                    words,
                );
            }
        }
        (None, Some(signer)) => {
            if signer == "" {
                faults.required(&at.field("signerName"), "must be a valid signer name");
            }
            signer_name(source, at, faults);
            labels::selector(
                object(source, "labelSelector"),
                &at.field("labelSelector"),
                faults,
            );
        }
        (None, None) => faults.required(at, "either name or signerName must be specified"),
    }
    needed(source, "path", at, faults);
    plain_path(get(source, "path"), &at.field("path"), faults);
}

fn signer_name(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let name = text(source, "signerName");
    let place = at.field("signerName");
    match name.split_once('/') {
        None if name.is_empty() => faults.required(&place, ""),
        Some((domain, path))
            if !path.is_empty() && domain.contains('.') && names::subdomain(domain).is_ok() => {}
        Some(_) | None => {
            let words =
                "must be a fully qualified domain and path of the form 'example.com/signer-name'";
            faults.invalid(&place, word(source, "signerName"), words);
        }
    }
}

/// A key and certificate that the kubelet requests for the pod.
fn certificate(source: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    signer_name(source, at, faults);
    let kinds = [
        "RSA3072",
        "RSA4096",
        "ECDSAP256",
        "ECDSAP384",
        "ECDSAP521",
        "ED25519",
    ];
    faults.one_of(&at.field("keyType"), word(source, "keyType"), &kinds);
    if let Some(life) = get(source, "maxExpirationSeconds").as_i64() {
        let place = at.field("maxExpirationSeconds");
        if life < CERTIFICATE.0 {
            faults.invalid(
                &place,
                &life.into(),
                format!(
                    "if provided, maxExpirationSeconds must be >= {}",
                    CERTIFICATE.0
                ),
            );
        }
        if life > CERTIFICATE.1 {
            faults.invalid(
                &place,
                &life.into(),
                format!(
                    "if provided, maxExpirationSeconds must be <= {}",
                    CERTIFICATE.1
                ),
            );
        }
    }
    let keys = ["credentialBundlePath", "keyPath", "certificateChainPath"];
    if keys.iter().all(|key| text(source, key).is_empty()) {
        let words =
            "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        faults.required(at, words);
    }
    for key in keys {
        plain_path(get(source, key), &at.field(key), faults);
    }
}
