//! Certificate signing requests.

use super::cells::{AGE, at};
use crate::registry::{Kind, Strategy, Subresource, column};
use crate::validate::{At, Faults, Fields, get, items, names, object, text};
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use serde_json::Value;

pub(super) fn request() -> Kind {
    Kind {
        short_names: &["csr"],
        subresources: &[Subresource::Approval, Subresource::Status],
        columns: const {
            &[
                AGE,
                column("SignerName", |fields, _| at(fields, "spec", "/signerName").into()),
                column("Requestor", |fields, _| at(fields, "spec", "/username").into()),
                column("RequestedDuration", |fields, _| duration(fields).into()),
                column("Condition", |fields, _| condition(fields).into()),
            ]
        },
        selectable: &[("spec.signerName", "/spec/signerName")],
        strategy: Strategy { names: names::subdomain, validate, validate_update, ..Strategy::default() },
        ..Kind::of::<CertificateSigningRequest>(false)
    }
}

fn duration(fields: &Fields) -> String {
    let seconds = object(fields, "spec").and_then(|spec| get(spec, "expirationSeconds").as_i64());
    seconds.map_or("<none>".to_owned(), super::cells::human)
}

fn condition(fields: &Fields) -> String {
    let status = object(fields, "status");
    let conditions = status.map_or(&[][..], |status| items(status, "conditions"));
    let has = |kind: &str| conditions.iter().any(|condition| condition.get("type").is_some_and(|found| found == kind));
    let issued = status.is_some_and(|status| !text(status, "certificate").is_empty());
    let mut words: Vec<&str> = ["Approved", "Denied", "Failed"].into_iter().filter(|kind| has(kind)).collect();
    if issued {
        words.push("Issued");
    }
    if words.is_empty() { "Pending".to_owned() } else { words.join(",") }
}

/// Usages that a request may ask for.
const USAGES: &[&str] = &[
    "signing",
    "digital signature",
    "content commitment",
    "key encipherment",
    "key agreement",
    "data encipherment",
    "cert sign",
    "crl sign",
    "encipher only",
    "decipher only",
    "any",
    "server auth",
    "client auth",
    "code signing",
    "email protection",
    "s/mime",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "timestamping",
    "ocsp signing",
    "microsoft sgc",
    "netscape sgc",
];

fn validate(fields: &Fields, faults: &mut Faults) {
    static EMPTY: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Fields::new);
    let spec = object(fields, "spec").unwrap_or(&EMPTY);
    let at = At::root("spec");
    if text(spec, "request").is_empty() {
        faults.required(&at.field("request"), "");
    }
    let usages = at.field("usages");
    if items(spec, "usages").is_empty() {
        faults.required(&usages, "usages must be specified");
    }
    for (number, usage) in items(spec, "usages").iter().enumerate() {
        faults.one_of(&usages.index(number), usage, USAGES);
    }
    let signer = text(spec, "signerName");
    let place = at.field("signerName");
    match signer.split_once('/') {
        Some((domain, path)) if domain.contains('.') && !path.is_empty() => {
            for part in path.split('.') {
                if let Err(fault) = names::subdomain(part) {
                    faults.invalid(&place, get(spec, "signerName"), fault);
                }
            }
        }
        Some(_) | None if signer.is_empty() => faults.required(&place, ""),
        Some(_) | None => {
            faults.invalid(
                &place,
                get(spec, "signerName"),
                "must be a fully qualified domain and path of the form 'example.com/signer-name'",
            );
        }
    }
    let seconds = get(spec, "expirationSeconds");
    if seconds.as_i64().is_some_and(|seconds| seconds < 600) {
        faults.invalid(
            &at.field("expirationSeconds"),
            seconds,
            "may not specify a duration less than 600 seconds (10 minutes)",
        );
    }
}

/// The request never changes; approval and denial stay and exclude each other; a certificate stays.
fn validate_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    faults.immutable(&At::root("spec"), get(new, "spec"), get(old, "spec"));
    let conditions = |fields| object(fields, "status").map_or(&[][..], |status| items(status, "conditions"));
    let has = |list: &[Value], kind: &str| list.iter().any(|found| found.get("type").is_some_and(|k| k == kind));
    let (now, before) = (conditions(new), conditions(old));
    let at = At::root("status");
    let at = at.field("conditions");
    for kind in ["Approved", "Denied", "Failed"] {
        if has(before, kind) && !has(now, kind) {
            faults.forbidden(&at, format!("updates may not remove a condition of type {kind:?}"));
        }
    }
    if has(now, "Approved") && has(now, "Denied") {
        faults.invalid(
            &at,
            &Value::String("Denied".to_owned()),
            "Approved and Denied conditions are mutually exclusive",
        );
    }
    let certificate = |fields| object(fields, "status").map_or(&Value::Null, |status| get(status, "certificate"));
    if !certificate(old).is_null() {
        let at = At::root("status");
        faults.immutable(&at.field("certificate"), certificate(new), certificate(old));
    }
}
