//! Validation of certificate signing requests and of their approval (upstream:
//! `certificates/validation`).

use super::certificate::{conditions, of_type};
use base64::Engine;
use master_schema::object::spec;
use master_schema::registry::Subresource;
use master_schema::validate::forms::word;
use master_schema::validate::{Faults, FieldPath, Fields, get, items, names, object, text};
use serde_json::Value;
use std::collections::HashSet;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::error::X509Error;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Usages that a request may ask for.
const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
/// The signer name of `v1beta1` that `v1` forbids.
const LEGACY: &str = "kubernetes.io/legacy-unknown";
const MIN_SECONDS: i64 = 600;
/// Bytes of the parts of a signer's name, and of the whole name.
const DOMAIN: usize = 253;
const SIGNER: usize = DOMAIN + 1 + 253 + 63 + 1;
const DECISIONS: [&str; 3] = ["Approved", "Denied", "Failed"];

/// Validates a new request.
pub(super) fn request(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    if let Err(fault) = signed(text(spec, "request")) {
        faults.invalid(&at.field("request"), word(spec, "request"), fault);
    }
    let (usages, place) = (items(spec, "usages"), at.field("usages"));
    if usages.is_empty() {
        faults.required(&place, "");
    }
    for (index, usage) in usages.iter().enumerate() {
        faults.one_of(&place.index(index), usage, USAGES);
    }
    let mut known = HashSet::new();
    for (index, usage) in usages.iter().enumerate() {
        if !known.insert(usage) {
            faults.duplicate(&place.index(index), usage);
        }
    }
    let place = at.field("signerName");
    if text(spec, "signerName") == LEGACY {
        let words = "the legacy signerName is not allowed via this API version";
        faults.invalid(&place, get(spec, "signerName"), words);
    } else {
        signer(text(spec, "signerName"), &place, faults);
    }
    let seconds = get(spec, "expirationSeconds");
    if seconds
        .as_i64()
        .is_some_and(|seconds| seconds < MIN_SECONDS)
    {
        let words = "may not specify a duration less than 600 seconds (10 minutes)";
        faults.invalid(&at.field("expirationSeconds"), seconds, words);
    }
}

fn bytes(text: &str) -> Result<Vec<u8>, String> {
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .map_err(|error| error.to_string())
}

/// Whether a request (base64 of PEM) can be parsed and is signed with its own key. Unknown
/// algorithms are left to the signer.
fn signed(request: &str) -> Result<(), String> {
    let wrong = || "PEM block type must be CERTIFICATE REQUEST".to_owned();
    let text = bytes(request)?;
    let pem = Pem::iter_from_buffer(&text)
        .next()
        .and_then(Result::ok)
        .ok_or_else(wrong)?;
    if pem.label != "CERTIFICATE REQUEST" {
        return Err(wrong());
    }
    let (rest, parsed) = X509CertificationRequest::from_der(&pem.contents)
        .map_err(|error| format!("x509: malformed request: {error}"))?;
    if !rest.is_empty() {
        return Err("x509: trailing data after the request".to_owned());
    }
    match parsed.verify_signature() {
        Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm) => Ok(()),
        Err(error) => Err(format!("x509: {error}")),
    }
}

fn signer(name: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    if name.is_empty() {
        return faults.required(at, "");
    }
    let parts: Vec<&str> = name.split('/').collect();
    let [domain, path] = parts.as_slice() else {
        let words =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return faults.invalid(at, &name.into(), words);
    };
    if domain.len() > DOMAIN {
        faults.too_long(at, DOMAIN);
    }
    // Once, and not for each of their labels.
    let (shown_domain, shown_path) = (Value::from(*domain), Value::from(*path));
    for label in domain.split('.') {
        if let Err(fault) = names::label(label) {
            faults.invalid(
                at,
                &shown_domain,
                format_args!("validating label {label:?}: {fault}"),
            );
        }
    }
    if !domain.contains('.') {
        let words = "should be a domain with at least two segments separated by dots";
        faults.invalid(at, &shown_domain, words);
    }
    for label in path.split('.') {
        if let Err(fault) = names::subdomain(label) {
            faults.invalid(
                at,
                &shown_path,
                format_args!("validating label {label:?}: {fault}"),
            );
        }
    }
    if name.len() > SIGNER {
        faults.too_long(at, SIGNER);
    }
}

/// Validates a decision: an approval, or the signer's result.
pub(super) fn status(subresource: Subresource, new: &Fields, old: &Fields, faults: &mut Faults) {
    let root = FieldPath::root("status");
    let at = root.field("conditions");
    let (now, before) = (conditions(new), conditions(old));
    all_conditions(now, before, &at, faults);
    let certificate =
        |fields| object(fields, "status").map_or("", |status| text(status, "certificate"));
    let (issued, known) = (certificate(new), certificate(old));
    if issued != known
        && let Err(fault) = chain(issued)
    {
        faults.invalid(
            &root.field("certificate"),
            &"<certificate data>".into(),
            fault,
        );
    }
    // A signer may have acted on a decision already, so none is taken back.
    for kind in DECISIONS {
        if of_type(now, kind).len() < of_type(before, kind).len() {
            faults.forbidden(
                &at,
                format!("updates may not remove a condition of type {kind:?}"),
            );
        }
    }
    // The right to approve for a signer is asked for at writes of `approval` alone.
    if subresource != Subresource::Approval {
        for kind in ["Approved", "Denied"] {
            if of_type(now, kind).len() > of_type(before, kind).len() {
                faults.forbidden(
                    &at,
                    format!("updates may not add a condition of type {kind:?}"),
                );
            }
        }
    }
    if issued != known && !known.is_empty() {
        faults.forbidden(
            &root.field("certificate"),
            "updates may not modify existing certificate content",
        );
    }
}

/// Validates conditions; invalid ones that were stored before may stay.
fn all_conditions(now: &[Value], before: &[Value], at: &FieldPath<'_>, faults: &mut Faults) {
    if now == before {
        return;
    }
    let mut known: HashSet<&str> = HashSet::new();
    for (index, condition) in now.iter().enumerate() {
        let (at, Some(condition)) = (at.index(index), condition.as_object()) else {
            continue;
        };
        let kind = text(condition, "type");
        if kind.is_empty() {
            faults.required(&at.field("type"), "");
        }
        let allowed: &[&str] = if DECISIONS.contains(&kind) {
            &["True"]
        } else {
            &["False", "True", "Unknown"]
        };
        if text(condition, "status").is_empty() {
            faults.required(&at.field("status"), "");
        } else {
            faults.one_of(&at.field("status"), get(condition, "status"), allowed);
        }
        let other = if kind == "Approved" {
            "Denied"
        } else {
            "Approved"
        };
        if matches!(kind, "Approved" | "Denied") && known.contains(other) {
            let words = "Approved and Denied conditions are mutually exclusive";
            faults.invalid(&at.field("type"), &kind.into(), words);
        }
        if !known.insert(kind) {
            faults.duplicate(&at.field("type"), &kind.into());
        }
    }
}

/// Whether a string (base64 of PEM) holds certificates and nothing else.
fn chain(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    let text = bytes(text)?;
    let mut blocks = 0;
    for pem in Pem::iter_from_buffer(&text) {
        let Ok(pem) = pem else { break };
        if pem.label != "CERTIFICATE" {
            return Err(format!(
                "only CERTIFICATE PEM blocks are allowed, found {:?}",
                pem.label
            ));
        }
        X509Certificate::from_der(&pem.contents)
            .map_err(|error| format!("x509: malformed certificate: {error}"))?;
        blocks += 1;
    }
    if blocks == 0 {
        Err("must contain at least one CERTIFICATE PEM block".to_owned())
    } else {
        Ok(())
    }
}
