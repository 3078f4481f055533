//! Validation of Endpoints and EndpointSlices (upstream: `discovery/validation`,
//! `ValidateEndpoints`).

use master_schema::validate::limits::{self, at_most};
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, items, names, net, object, text,
};
use serde_json::Value;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Endpoints of a slice, addresses of an endpoint, zones of a hint (upstream's).
const ENDPOINTS: usize = 1000;
const ADDRESSES: usize = 100;
const HINTS: usize = 8;
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

/// Ports default to an empty name and TCP.
pub(crate) fn slice_defaults(fields: &mut Fields) {
    for port in fields
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(port) = port.as_object_mut() {
            default_to(port, "name", "");
            default_to(port, "protocol", "TCP");
        }
    }
}

/// Ports default to TCP.
pub(crate) fn defaults(fields: &mut Fields) {
    for subset in fields
        .get_mut("subsets")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        for port in subset
            .get_mut("ports")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(port) = port.as_object_mut() {
                default_to(port, "protocol", "TCP");
            }
        }
    }
}

/// Validates a slice.
pub(crate) fn slice(fields: &Fields, faults: &mut Faults) {
    let kind = text(fields, "addressType");
    let at = FieldPath::root("addressType");
    if kind.is_empty() {
        faults.required(&at, "");
    } else {
        faults.one_of(&at, get(fields, "addressType"), &["FQDN", "IPv4", "IPv6"]);
    }
    let at = FieldPath::root("endpoints");
    let endpoints = items(fields, "endpoints");
    if endpoints.len() > ENDPOINTS {
        return faults.too_many(&at, endpoints.len(), ENDPOINTS);
    }
    for (number, endpoint) in endpoints.iter().enumerate() {
        if let Some(endpoint) = endpoint.as_object() {
            self::endpoint(endpoint, kind, &at.index(number), faults);
        }
    }
    slice_ports(fields, faults);
}

fn endpoint(endpoint: &Fields, kind: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    // Consumers may use the first alone (the documentation of the API).
    let addresses = items(endpoint, "addresses");
    let place = at.field("addresses");
    if addresses.is_empty() {
        faults.required(&place, "must contain at least 1 address");
    } else if addresses.len() > ADDRESSES {
        faults.too_many(&place, addresses.len(), ADDRESSES);
    }
    for (number, value) in addresses.iter().enumerate() {
        address(value, kind, &place.index(number), faults);
    }
    let node = get(endpoint, "nodeName");
    if let Some(name) = node.as_str()
        && let Err(fault) = names::subdomain(name)
    {
        faults.invalid(&at.field("nodeName"), node, fault);
    }
    let host = get(endpoint, "hostname");
    if let Some(name) = host.as_str()
        && let Err(fault) = names::label(name)
    {
        faults.invalid(&at.field("hostname"), host, fault);
    }
    let at = at.field("hints");
    let Some(hints) = object(endpoint, "hints") else {
        return;
    };
    for list in ["forZones", "forNodes"] {
        let at = at.field(list);
        let mut seen = HashSet::new();
        let places = items(hints, list);
        if places.len() > HINTS {
            faults.too_many(&at, places.len(), HINTS);
        }
        for (number, place) in places.iter().enumerate() {
            let (at, name) = (at.index(number), place.get("name").unwrap_or(&Value::Null));
            let at = at.field("name");
            if !seen.insert(name.as_str()) {
                faults.duplicate(&at, name);
            }
            if let Err(fault) = names::label_value(name.as_str().unwrap_or_default()) {
                faults.invalid(&at, name, fault);
            }
        }
    }
}

fn address(value: &Value, kind: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let own = value.as_str().unwrap_or_default();
    let parsed = match kind {
        "IPv4" => own
            .parse::<Ipv4Addr>()
            .map(IpAddr::V4)
            .map_err(|_bad| "must be a valid IPv4 address"),
        "IPv6" => own
            .parse::<Ipv6Addr>()
            .map(IpAddr::V6)
            .map_err(|_bad| "must be a valid IPv6 address"),
        _ => {
            if let Err(fault) = names::subdomain(own) {
                faults.invalid(at, value, fault);
            } else if !own.contains('.') {
                faults.invalid(
                    at,
                    value,
                    "should be a domain with at least two segments separated by dots",
                );
            }
            return;
        }
    };
    match parsed {
        Ok(address) => net::no_special(address, value, at, faults),
        Err(fault) => faults.invalid(at, value, fault),
    }
}

fn slice_ports(fields: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("ports");
    let ports = items(fields, "ports");
    if ports.len() > limits::SLICE_PORTS {
        faults.too_many(&at, ports.len(), limits::SLICE_PORTS);
    }
    let mut seen = HashSet::new();
    for (number, port) in ports.iter().enumerate() {
        let (at, Some(port)) = (at.index(number), port.as_object()) else {
            continue;
        };
        let name = text(port, "name");
        if !name.is_empty()
            && let Err(fault) = names::label(name)
        {
            faults.invalid(&at.field("name"), get(port, "name"), fault);
        }
        if !seen.insert(name) {
            faults.duplicate(&at.field("name"), &name.into());
        }
        faults.one_of(&at.field("protocol"), get(port, "protocol"), PROTOCOLS);
        application(port, &at, faults);
    }
}

fn application(port: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let protocol = get(port, "appProtocol");
    if let Some(name) = protocol.as_str()
        && let Err(fault) = names::qualified(name)
    {
        faults.invalid(&at.field("appProtocol"), protocol, fault);
    }
}

/// The address type is immutable.
pub(crate) fn slice_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    faults.immutable(
        &FieldPath::root("addressType"),
        get(new, "addressType"),
        get(old, "addressType"),
    );
}

/// Validates endpoints.
pub(crate) fn endpoints(fields: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("subsets");
    let subsets = items(fields, "subsets");
    if subsets.len() > limits::SUBSETS {
        faults.too_many(&at, subsets.len(), limits::SUBSETS);
    }
    for (number, subset) in subsets.iter().enumerate() {
        let (at, Some(subset)) = (at.index(number), subset.as_object()) else {
            continue;
        };
        let lists = ["addresses", "notReadyAddresses"];
        if lists.iter().all(|list| items(subset, list).is_empty()) {
            faults.required(&at, "must specify `addresses` or `notReadyAddresses`");
        }
        at_most(subset, "ports", limits::SERVICE_PORTS, &at, faults);
        for list in lists {
            at_most(subset, list, limits::SUBSET_ADDRESSES, &at, faults);
            let at = at.field(list);
            for (number, address) in items(subset, list).iter().enumerate() {
                if let Some(address) = address.as_object() {
                    subset_address(address, &at.index(number), faults);
                }
            }
        }
        let ports = items(subset, "ports");
        let at = at.field("ports");
        for (number, port) in ports.iter().enumerate() {
            if let Some(port) = port.as_object() {
                subset_port(port, ports.len() > 1, &at.index(number), faults);
            }
        }
    }
}

fn subset_address(address: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if let Some(parsed) = net::address(get(address, "ip"), &at.field("ip"), faults) {
        net::no_special(parsed, get(address, "ip"), &at.field("ip"), faults);
    }
    for (key, rule) in [
        ("hostname", names::label as fn(&str) -> Result<(), String>),
        ("nodeName", names::subdomain),
    ] {
        let value = text(address, key);
        if !value.is_empty()
            && let Err(fault) = rule(value)
        {
            faults.invalid(&at.field(key), get(address, key), fault);
        }
    }
}

fn subset_port(port: &Fields, needs_name: bool, at: &FieldPath<'_>, faults: &mut Faults) {
    match text(port, "name") {
        "" if needs_name => faults.required(&at.field("name"), ""),
        "" => {}
        name => {
            if let Err(fault) = names::label(name) {
                faults.invalid(&at.field("name"), get(port, "name"), fault);
            }
        }
    }
    net::port(get(port, "port"), &at.field("port"), faults);
    faults.one_of(&at.field("protocol"), get(port, "protocol"), PROTOCOLS);
    application(port, at, faults);
}
