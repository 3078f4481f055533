//! Validation of NetworkPolicies, IPAddresses and ServiceCIDRs (upstream: `networking/validation`).

use master_schema::object::spec;
use master_schema::validate::limits::{self, at_most};
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, items, labels, names, net, object, object_mut, text,
};
use serde_json::Value;
use std::net::IpAddr;

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

/// Ports default to TCP; a policy is of type Ingress, and of type Egress if it has egress rules.
pub(crate) fn policy_defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    for list in ["ingress", "egress"] {
        for rule in spec
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            for port in rule
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
    default_to(spec, "podSelector", Value::Object(Fields::new()));
    if items(spec, "policyTypes").is_empty() {
        let mut types = vec!["Ingress"];
        types.extend((!items(spec, "egress").is_empty()).then_some("Egress"));
        spec.insert("policyTypes".to_owned(), types.into());
    }
}

/// Validates a NetworkPolicy.
pub(crate) fn policy(fields: &Fields, faults: &mut Faults) {
    let spec = spec(fields);
    let at = FieldPath::root("spec");
    labels::selector(
        object(spec, "podSelector"),
        &at.field("podSelector"),
        faults,
    );
    for (list, peers) in [("ingress", "from"), ("egress", "to")] {
        at_most(spec, list, limits::POLICY_RULES, &at, faults);
        let at = at.field(list);
        for (number, rule) in items(spec, list).iter().enumerate() {
            let (at, Some(rule)) = (at.index(number), rule.as_object()) else {
                continue;
            };
            at_most(rule, "ports", limits::POLICY_PORTS, &at, faults);
            at_most(rule, peers, limits::POLICY_PEERS, &at, faults);
            let ports_at = at.field("ports");
            for (number, port) in items(rule, "ports").iter().enumerate() {
                policy_port(port, &ports_at.index(number), faults);
            }
            let peers_at = at.field(peers);
            for (number, peer) in items(rule, peers).iter().enumerate() {
                if let Some(peer) = peer.as_object() {
                    policy_peer(peer, &peers_at.index(number), faults);
                }
            }
        }
    }
    let types = items(spec, "policyTypes");
    let at = at.field("policyTypes");
    if types.len() > 2 {
        faults.invalid(
            &at,
            get(spec, "policyTypes"),
            "may not specify more than two policyTypes",
        );
        return;
    }
    for (number, kind) in types.iter().enumerate() {
        faults.one_of(&at.index(number), kind, &["Egress", "Ingress"]);
    }
}

fn policy_port(port: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(fields) = port.as_object() else {
        return;
    };
    if !get(fields, "protocol").is_null() {
        faults.one_of(&at.field("protocol"), get(fields, "protocol"), PROTOCOLS);
    }
    let (first, last) = (get(fields, "port"), get(fields, "endPort"));
    if !first.is_null() {
        net::port_or_name(first, &at.field("port"), faults);
    }
    let at = at.field("endPort");
    match (first, last.as_i64()) {
        (_, None) => {}
        (Value::Null, Some(_)) => faults.invalid(
            &at,
            last,
            "may not be specified when `port` is not specified",
        ),
        (Value::String(_), Some(_)) => {
            faults.invalid(&at, last, "may not be specified when `port` is non-numeric");
        }
        (_, Some(end)) => {
            if first.as_i64().is_some_and(|first| end < first) {
                faults.invalid(&at, first, "must be greater than or equal to `port`");
            }
            net::port(last, &at, faults);
        }
    }
}

fn policy_peer(peer: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for key in ["podSelector", "namespaceSelector"] {
        labels::selector(object(peer, key), &at.field(key), faults);
    }
    let selectors = usize::from(peer.contains_key("podSelector"))
        + usize::from(peer.contains_key("namespaceSelector"));
    let block = object(peer, "ipBlock");
    match (selectors, block) {
        (0, None) => faults.required(at, "must specify a peer"),
        (1.., Some(_)) => faults.forbidden(at, "may not specify both ipBlock and another peer"),
        (0, Some(block)) => ip_block(block, &at.field("ipBlock"), faults),
        (1.., None) => {}
    }
}

fn ip_block(block: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if text(block, "cidr").is_empty() {
        return faults.required(&at.field("cidr"), "");
    }
    let whole = net::range(get(block, "cidr"), &at.field("cidr"), faults);
    at_most(block, "except", limits::POLICY_PEERS, at, faults);
    let place = at.field("except");
    for (number, value) in items(block, "except").iter().enumerate() {
        let part = net::range(value, &place.index(number), faults);
        if let (Some(whole), Some(part)) = (whole, part)
            && !(whole.contains(part.first()) && whole.prefix() < part.prefix())
        {
            faults.invalid(
                &place.index(number),
                value,
                "must be a strict subset of `cidr`",
            );
        }
    }
}

/// The name of an IPAddress is the address in canonical form.
pub(crate) fn address_name(name: &str) -> Result<(), String> {
    match name.parse::<IpAddr>() {
        Ok(address) if address.to_string() == name => Ok(()),
        Ok(address) => Err(format!("must be in canonical form (\"{address}\")")),
        Err(_no_address) => Err(net::NO_ADDRESS.to_owned()),
    }
}

/// Validates an IPAddress.
pub(crate) fn address(fields: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    let at = at.field("parentRef");
    let Some(parent) = object(spec(fields), "parentRef") else {
        return faults.required(&at, "");
    };
    if !text(parent, "group").is_empty()
        && let Err(fault) = names::subdomain(text(parent, "group"))
    {
        faults.invalid(&at.field("group"), get(parent, "group"), fault);
    }
    for key in ["resource", "name"] {
        if text(parent, key).is_empty() {
            faults.required(&at.field(key), "");
        } else if let Err(fault) = names::path_segment(text(parent, key)) {
            faults.invalid(&at.field(key), get(parent, key), fault);
        }
    }
    if !text(parent, "namespace").is_empty()
        && let Err(fault) = names::path_segment(text(parent, "namespace"))
    {
        faults.invalid(&at.field("namespace"), get(parent, "namespace"), fault);
    }
}

/// The parent is immutable: an address is not handed to another service.
pub(crate) fn address_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    faults.immutable(
        &at.field("parentRef"),
        get(spec(new), "parentRef"),
        get(spec(old), "parentRef"),
    );
}

/// Validates a ServiceCIDR.
pub(crate) fn cidrs(fields: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    let at = at.field("cidrs");
    let list = items(spec(fields), "cidrs");
    if list.is_empty() {
        return faults.required(&at, "at least one CIDR required");
    }
    if list.len() > 2 {
        return faults.invalid(
            &at,
            get(spec(fields), "cidrs"),
            "may only hold up to 2 values",
        );
    }
    let mut known: Vec<net::Range> = Vec::new();
    for (number, value) in list.iter().enumerate() {
        let known_faults = faults.found().count();
        let Some(range) = net::range(value, &at.index(number), faults) else {
            continue;
        };
        let is_reported = faults.found().count() > known_faults;
        if !is_reported && value.as_str() != Some(range.to_string().as_str()) {
            let text = format!("must be in canonical form (\"{range}\")");
            faults.invalid(&at.index(number), value, text);
        }
        if known.iter().any(|other| other.is_ipv6() == range.is_ipv6()) {
            let text = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/96";
            faults.invalid(&at, get(spec(fields), "cidrs"), text);
        }
        known.push(range);
    }
}

/// Ranges are immutable, except that a second one may be added.
pub(crate) fn cidrs_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    let at = at.field("cidrs");
    let (before, after) = (items(spec(old), "cidrs"), items(spec(new), "cidrs"));
    let grown = before.len() == 1 && after.len() == 2;
    for (number, value) in before.iter().enumerate() {
        if after.get(number) != Some(value) || after.len() > before.len() && !grown {
            faults.invalid(
                &at.index(number),
                after.get(number).unwrap_or(&Value::Null),
                "field is immutable",
            );
        }
    }
}
