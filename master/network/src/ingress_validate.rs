//! Validation of ingresses and their classes (upstream: `networking/validation`).

use crate::service_validate::load_balancer;
use master_schema::object::metadata;
use master_schema::object::spec;
use master_schema::validate::{Faults, FieldPath, Fields, get, items, names, net, object, text};
use serde_json::Value;

/// The deprecated annotation that names a class.
const CLASS: &str = "kubernetes.io/ingress.class";
/// Bytes of a controller's name.
const CONTROLLER: usize = 250;

/// Validates an ingress.
pub(crate) fn ingress(fields: &Fields, faults: &mut Faults) {
    let spec = spec(fields);
    let at = FieldPath::root("spec");
    tls(spec, &at.field("tls"), faults);
    let backend = object(spec, "defaultBackend");
    if items(spec, "rules").is_empty() && backend.is_none() {
        let text = "either `defaultBackend` or `rules` must be specified";
        faults.invalid(&at, get(spec, "rules"), text);
    }
    rules(spec, &at.field("rules"), faults);
    if let Some(backend) = backend {
        self::backend(backend, &at.field("defaultBackend"), faults);
    }
    let class = get(spec, "ingressClassName");
    if let Some(name) = class.as_str()
        && let Err(fault) = names::subdomain(name)
    {
        faults.invalid(&at.field("ingressClassName"), class, fault);
    }
}

/// A new ingress names its class by field or by annotation, not by both.
pub(crate) fn ingress_create(fields: &Fields, faults: &mut Faults) {
    let class = get(spec(fields), "ingressClassName");
    let note =
        object(metadata(fields), "annotations").map_or(&Value::Null, |notes| get(notes, CLASS));
    if !class.is_null() && !note.is_null() {
        let root = FieldPath::root("metadata");
        let text = "can not be set when the class field is also set";
        faults.invalid(&root.field("annotations").field(CLASS), note, text);
    }
}

fn tls(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for (number, entry) in items(spec, "tls").iter().enumerate() {
        let (at, Some(entry)) = (at.index(number), entry.as_object()) else {
            continue;
        };
        let hosts = at.field("hosts");
        for (number, host) in items(entry, "hosts").iter().enumerate() {
            host_name(host, &hosts.index(number), faults);
        }
        let secret = text(entry, "secretName");
        if !secret.is_empty()
            && let Err(fault) = names::subdomain(secret)
        {
            faults.invalid(&at.field("secretName"), get(entry, "secretName"), fault);
        }
    }
}

fn host_name(host: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let name = host.as_str().unwrap_or_default();
    let fits = if name.contains('*') {
        names::wildcard(name)
    } else {
        names::subdomain(name)
    };
    if let Err(fault) = fits {
        faults.invalid(at, host, fault);
    }
}

fn rules(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for (number, rule) in items(spec, "rules").iter().enumerate() {
        let (at, Some(rule)) = (at.index(number), rule.as_object()) else {
            continue;
        };
        let host = text(rule, "host");
        if !host.is_empty() {
            if host.parse::<std::net::IpAddr>().is_ok() {
                faults.invalid(
                    &at.field("host"),
                    get(rule, "host"),
                    "must be a DNS name, not an IP address",
                );
            }
            host_name(get(rule, "host"), &at.field("host"), faults);
        }
        let Some(http) = object(rule, "http") else {
            continue;
        };
        let at = at.field("http");
        let at = at.field("paths");
        if items(http, "paths").is_empty() {
            faults.required(&at, "");
        }
        for (number, path) in items(http, "paths").iter().enumerate() {
            if let Some(path) = path.as_object() {
                self::path(path, &at.index(number), faults);
            }
        }
    }
}

fn path(path: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let (value, kind) = (get(path, "path"), get(path, "pathType"));
    let (place, own) = (at.field("path"), text(path, "path"));
    match kind.as_str() {
        None => faults.required(&at.field("pathType"), "pathType must be specified"),
        Some("Exact" | "Prefix") => {
            if !own.starts_with('/') {
                faults.invalid(&place, value, "must be an absolute path");
            }
            // Proxies disagree about which path these name.
            for bad in ["//", "/./", "/../", "%2f", "%2F"] {
                if own.contains(bad) {
                    faults.invalid(&place, value, format!("must not contain '{bad}'"));
                }
            }
            for bad in ["/..", "/."] {
                if own.ends_with(bad) {
                    faults.invalid(&place, value, format!("cannot end with '{bad}'"));
                }
            }
        }
        Some("ImplementationSpecific") => {
            if !own.is_empty() && !own.starts_with('/') {
                faults.invalid(&place, value, "must be an absolute path");
            }
        }
        Some(_) => {
            let known = ["Exact", "ImplementationSpecific", "Prefix"];
            faults.one_of(&at.field("pathType"), kind, &known);
        }
    }
    let nothing = Fields::new();
    backend(
        object(path, "backend").unwrap_or(&nothing),
        &at.field("backend"),
        faults,
    );
}

fn backend(backend: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    match (object(backend, "service"), object(backend, "resource")) {
        (Some(_), Some(_)) => faults.invalid(
            at,
            &"".into(),
            "cannot set both resource and service backends",
        ),
        (None, None) => faults.invalid(at, &"".into(), "resource or service backend is required"),
        (None, Some(resource)) => {
            let at = at.field("resource");
            for key in ["kind", "name"] {
                if text(resource, key).is_empty() {
                    faults.required(&at.field(key), "");
                }
            }
        }
        (Some(service), None) => {
            let at = at.field("service");
            match text(service, "name") {
                "" => faults.required(&at.field("name"), ""),
                name => {
                    if let Err(fault) = names::label(name) {
                        faults.invalid(&at.field("name"), get(service, "name"), fault);
                    }
                }
            }
            backend_port(object(service, "port"), &at, faults);
        }
    }
}

fn backend_port(port: Option<&Fields>, at: &FieldPath<'_>, faults: &mut Faults) {
    let name = port.map_or("", |port| text(port, "name"));
    let number = port.map_or(&Value::Null, |port| get(port, "number"));
    let place = at.field("port");
    match (name, number.as_i64().unwrap_or_default()) {
        ("", 0) => faults.required(&place, "port name or number is required"),
        ("", _) => net::port(number, &place.field("number"), faults),
        (_, 0) => net::port_or_name(&name.into(), &place.field("name"), faults),
        (_, _) => faults.invalid(
            &place,
            &"".into(),
            "cannot set both port name & port number",
        ),
    }
}

/// Validates an update, including the status.
pub(crate) fn ingress_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    if get(new, "status") != get(old, "status") {
        load_balancer(new, old, faults);
    }
}

/// Validates an IngressClass.
pub(crate) fn class(fields: &Fields, faults: &mut Faults) {
    let spec = spec(fields);
    let at = FieldPath::root("spec");
    let controller = text(spec, "controller");
    let place = at.field("controller");
    if controller.is_empty() {
        faults.required(&place, "");
    } else if controller.len() > CONTROLLER {
        faults.too_long(&place, CONTROLLER);
    } else if let Err(fault) = names::domain_path(controller) {
        faults.invalid(&place, get(spec, "controller"), fault);
    }
    let Some(parameters) = object(spec, "parameters") else {
        return;
    };
    let at = at.field("parameters");
    let group = get(parameters, "apiGroup");
    if let Some(name) = group.as_str()
        && let Err(fault) = names::subdomain(name)
    {
        faults.invalid(&at.field("apiGroup"), group, fault);
    }
    for key in ["kind", "name"] {
        if text(parameters, key).is_empty() {
            faults.required(&at.field(key), "");
        } else if let Err(fault) = names::path_segment(text(parameters, key)) {
            faults.invalid(&at.field(key), get(parameters, key), fault);
        }
    }
    let namespace = get(parameters, "namespace");
    let place = at.field("namespace");
    match text(parameters, "scope") {
        "Namespace" => match namespace.as_str().unwrap_or_default() {
            "" => faults.required(&place, "`parameters.scope` is set to 'Namespace'"),
            name => {
                if let Err(fault) = names::label(name) {
                    faults.invalid(&place, namespace, fault);
                }
            }
        },
        "Cluster" => {
            if !namespace.is_null() {
                faults.forbidden(&place, "`parameters.scope` is set to 'Cluster'");
            }
        }
        _ => faults.one_of(
            &at.field("scope"),
            get(parameters, "scope"),
            &["Cluster", "Namespace"],
        ),
    }
}

/// The controller is immutable: ingresses of the class depend on it.
pub(crate) fn class_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    faults.immutable(
        &at.field("controller"),
        get(spec(new), "controller"),
        get(spec(old), "controller"),
    );
}
