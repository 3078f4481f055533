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

#[cfg(test)]
mod tests {
    use config_kube::k8s_openapi::api::networking::v1::NetworkPolicy;
    use master_schema::schema::{Schemas, Source, definitions};
    use serde_json::{Value, json};

    /// A policy with a value in every field, but for its kind and version, which the server writes.
    fn full() -> Value {
        let time = "2026-01-01T00:00:00Z";
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u",
            "controller": true, "blockOwnerDeletion": true});
        let managed = json!({"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}},
            "manager": "m", "operation": "Apply", "subresource": "s", "time": time});
        let metadata = json!({"annotations": {"a": "b"}, "creationTimestamp": time,
            "deletionGracePeriodSeconds": 1, "deletionTimestamp": time, "finalizers": ["a"],
            "generateName": "g", "generation": 1, "labels": {"a": "b"}, "managedFields": [managed],
            "name": "p", "namespace": "shop", "ownerReferences": [owner], "resourceVersion": "1",
            "selfLink": "s", "uid": "u"});
        let requirement = json!({"key": "a", "operator": "In", "values": ["b"]});
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [requirement]});
        let block = json!({"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]});
        let peers =
            json!([{"namespaceSelector": selector, "podSelector": selector}, {"ipBlock": block}]);
        let ports = json!([{"port": 80, "endPort": 90, "protocol": "TCP"}, {"port": "web"}]);
        json!({"metadata": metadata, "spec": {
            "podSelector": selector, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers, "ports": ports}], "egress": [{"to": peers, "ports": ports}],
        }})
    }

    /// The places of a tree's values, as JSON pointers; a value's own is `at`.
    fn places(value: &Value, at: &str) -> Vec<String> {
        let below: Vec<(String, &Value)> = match value {
            Value::Object(fields) => fields
                .iter()
                .map(|(key, value)| (format!("{at}/{key}"), value))
                .collect(),
            Value::Array(items) => (0..)
                .zip(items)
                .map(|(number, value): (usize, _)| (format!("{at}/{number}"), value))
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        };
        let own = below.iter().map(|(place, _)| place.clone());
        let deeper = below.iter().flat_map(|(place, value)| places(value, place));
        own.chain(deeper).collect()
    }

    /// A node decodes each policy, and closes a namespace with one that it can't decode.
    #[test]
    fn every_policy_that_the_api_takes_can_be_decoded() {
        let source = Source::of::<NetworkPolicy>();
        let schemas = Schemas::compile(&definitions(std::slice::from_ref(&source)));
        // How many faults a policy's types have; one with none of a wrong type is decoded.
        let faults = |policy: &Value| {
            let mut fields = policy.as_object().unwrap().clone();
            let checked = schemas.check(source.name(), &mut fields);
            if checked.wrong.is_empty() {
                let decoded = serde_json::from_value::<NetworkPolicy>(Value::Object(fields));
                assert!(decoded.is_ok(), "{:?}: {policy}", decoded.err());
            }
            checked.unknown.len() + checked.wrong.len()
        };
        let full = full();
        assert_eq!(faults(&full), 0);
        let values = [
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(1.5),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(""),
            json!("text"),
            json!([]),
            json!([null]),
            json!([7]),
            json!(["text"]),
            json!([[]]),
            json!({}),
            json!({"a": null}),
            json!({"a": 7}),
            json!({"a": {}}),
        ];
        for place in places(&full, "") {
            let found = values.iter().filter(|value| {
                let mut policy = full.clone();
                *policy.pointer_mut(&place).unwrap() = Value::clone(value);
                faults(&policy) > 0
            });
            // Only what server-side apply keeps about owners of fields has no type.
            let has_type = !place.contains("/fieldsV1");
            assert_eq!(found.count() > 0, has_type, "{place}");
        }
    }
}
