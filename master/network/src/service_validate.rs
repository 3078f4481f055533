//! Validation of services (upstream: `ValidateService`).

use crate::service::{externally_accessible, headless, needs_health_check};
use crate::service_families;
use master_schema::object::spec;
use master_schema::validate::limits::{self, at_most};
use master_schema::validate::{
    Faults, FieldPath, Fields, get, items, labels, names, net, object, text,
};
use serde_json::{Value, json};
use std::collections::HashSet;

/// The kubelet's port, which a service of type LoadBalancer may not use.
const KUBELET: i64 = 10250;
/// Maximum timeout of session affinity in seconds.
const DAY: i64 = 86_400;

/// Validates a service.
pub(crate) fn validate(fields: &Fields, faults: &mut Faults) {
    let spec = spec(fields);
    let at = FieldPath::root("spec");
    at_most(spec, "ports", limits::SERVICE_PORTS, &at, faults);
    for list in ["externalIPs", "loadBalancerSourceRanges"] {
        at_most(spec, list, limits::SERVICE_ADDRESSES, &at, faults);
    }
    let kind = text(spec, "type");
    if items(spec, "ports").is_empty() && !headless(spec) && kind != "ExternalName" {
        faults.required(&at.field("ports"), "");
    }
    by_type(spec, kind, &at, faults);
    ports(spec, kind, &at, faults);
    labels::labels(object(spec, "selector"), &at.field("selector"), faults);
    affinity(spec, &at, faults);
    service_families::validate(spec, &at, faults);
    external_addresses(spec, &at, faults);
    if kind.is_empty() {
        faults.required(&at.field("type"), "");
    } else {
        faults.one_of(
            &at.field("type"),
            get(spec, "type"),
            &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
        );
    }
    balancer(fields, spec, kind, &at, faults);
    traffic(spec, kind, &at, faults);
}

fn by_type(spec: &Fields, kind: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    match kind {
        "LoadBalancer" | "NodePort" if headless(spec) => {
            let text = format!("may not be set to 'None' for {kind} services");
            faults.invalid(&at.field("clusterIPs").index(0), &"None".into(), text);
        }
        "ExternalName" => {
            for key in ["clusterIPs", "ipFamilies"] {
                if !items(spec, key).is_empty() {
                    faults.forbidden(&at.field(key), "may not be set for ExternalName services");
                }
            }
            if !get(spec, "ipFamilyPolicy").is_null() {
                faults.forbidden(
                    &at.field("ipFamilyPolicy"),
                    "may not be set for ExternalName services",
                );
            }
            match text(spec, "externalName") {
                "" => faults.required(&at.field("externalName"), ""),
                name => {
                    // A name may end with a dot.
                    if let Err(fault) = names::subdomain(name.strip_suffix('.').unwrap_or(name)) {
                        faults.invalid(&at.field("externalName"), get(spec, "externalName"), fault);
                    }
                }
            }
        }
        _ => {}
    }
}

fn ports(spec: &Fields, kind: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let at = at.field("ports");
    let list = items(spec, "ports");
    let (mut known_names, mut known, mut known_nodes) =
        (HashSet::new(), HashSet::new(), HashSet::new());
    for (number, port) in list.iter().enumerate() {
        let (at, Some(port)) = (at.index(number), port.as_object()) else {
            continue;
        };
        if kind == "LoadBalancer" && get(port, "port").as_i64() == Some(KUBELET) {
            let text =
                format!("may not expose port {KUBELET} externally since it is used by kubelet");
            faults.invalid(&at, get(port, "port"), text);
        }
        one_port(port, list.len() > 1, &mut known_names, &at, faults);
        let (protocol, node) = (
            text(port, "protocol"),
            get(port, "nodePort").as_i64().unwrap_or_default(),
        );
        if kind == "ClusterIP" && node != 0 {
            faults.forbidden(
                &at.field("nodePort"),
                "may not be used when `type` is 'ClusterIP'",
            );
        }
        if node != 0 && !known_nodes.insert((protocol, node)) {
            faults.duplicate(&at.field("nodePort"), get(port, "nodePort"));
        }
        if !known.insert((protocol, get(port, "port").as_i64())) {
            faults.duplicate(
                &at,
                &json!({"port": get(port, "port"), "protocol": protocol}),
            );
        }
    }
}

fn one_port<'a>(
    port: &'a Fields,
    needs_name: bool,
    known: &mut HashSet<&'a str>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    match text(port, "name") {
        "" if needs_name => faults.required(&at.field("name"), ""),
        "" => {}
        name => {
            if let Err(fault) = names::label(name) {
                faults.invalid(&at.field("name"), get(port, "name"), fault);
            }
            if !known.insert(name) {
                faults.duplicate(&at.field("name"), get(port, "name"));
            }
        }
    }
    net::port(get(port, "port"), &at.field("port"), faults);
    if text(port, "protocol").is_empty() {
        faults.required(&at.field("protocol"), "");
    } else {
        faults.one_of(
            &at.field("protocol"),
            get(port, "protocol"),
            &["SCTP", "TCP", "UDP"],
        );
    }
    net::port_or_name(get(port, "targetPort"), &at.field("targetPort"), faults);
    if let Some(protocol) = get(port, "appProtocol").as_str()
        && let Err(fault) = names::qualified(protocol)
    {
        faults.invalid(&at.field("appProtocol"), get(port, "appProtocol"), fault);
    }
}

fn affinity(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let config_at = at.field("sessionAffinityConfig");
    let config = object(spec, "sessionAffinityConfig");
    match text(spec, "sessionAffinity") {
        "" => faults.required(&at.field("sessionAffinity"), ""),
        "ClientIP" => {
            let client = config.and_then(|config| object(config, "clientIP"));
            let client_at = config_at.field("clientIP");
            let timeout_at = client_at.field("timeoutSeconds");
            let Some(client) = client else {
                return faults.required(&config_at, "when session affinity type is ClientIP");
            };
            match get(client, "timeoutSeconds").as_i64() {
                None => faults.required(&timeout_at, "when session affinity type is ClientIP"),
                Some(1..=DAY) => {}
                Some(_) => faults.invalid(
                    &timeout_at,
                    get(client, "timeoutSeconds"),
                    format!("must be greater than 0 and less than {DAY}"),
                ),
            }
        }
        "None" => {
            if config.is_some() {
                faults.forbidden(&config_at, "must not be set when session affinity is None");
            }
        }
        _ => faults.one_of(
            &at.field("sessionAffinity"),
            get(spec, "sessionAffinity"),
            &["ClientIP", "None"],
        ),
    }
}

fn external_addresses(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let at = at.field("externalIPs");
    for (number, value) in items(spec, "externalIPs").iter().enumerate() {
        let at = at.index(number);
        if let Some(address) = net::address(value, &at, faults) {
            // Nodes would redirect their own loopback and link-local traffic.
            net::no_special(address, value, &at, faults);
        }
    }
}

fn balancer(fields: &Fields, spec: &Fields, kind: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    const ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let is_balancer = kind == "LoadBalancer";
    // Upstream's path is the name of the Go field.
    let at_ranges = at.field("LoadBalancerSourceRanges");
    let ranges = items(spec, "loadBalancerSourceRanges");
    if !ranges.is_empty() {
        if !is_balancer {
            faults.forbidden(&at_ranges, ONLY);
        }
        for (number, value) in ranges.iter().enumerate() {
            let trimmed = Value::from(value.as_str().unwrap_or_default().trim());
            net::range(&trimmed, &at_ranges.index(number), faults);
        }
    } else if let Some(list) = object(master_schema::object::metadata(fields), "annotations")
        .map(|notes| get(notes, RANGES))
        && let Some(list) = list.as_str()
    {
        let root = FieldPath::root("metadata");
        let at = root.field("annotations");
        let at = at.key(RANGES);
        if !is_balancer {
            faults.forbidden(&at, ONLY);
        }
        let bad = list
            .split(',')
            .any(|range| net::Range::parse(range.trim()).is_none());
        if !list.trim().is_empty() && bad {
            let text = "must be a list of IP ranges. For example, 10.240.0.0/24,10.250.0.0/24";
            faults.invalid(&at, &list.into(), text);
        }
    }
    let nodes = at.field("allocateLoadBalancerNodePorts");
    match (
        is_balancer,
        get(spec, "allocateLoadBalancerNodePorts").is_null(),
    ) {
        (true, true) => faults.required(&nodes, ""),
        (false, false) => faults.forbidden(&nodes, ONLY),
        (true, false) | (false, true) => {}
    }
    let class = get(spec, "loadBalancerClass");
    if !is_balancer && !class.is_null() {
        faults.forbidden(&at.field("loadBalancerClass"), ONLY);
    } else if let Some(name) = class.as_str()
        && let Err(fault) = names::qualified(name)
    {
        faults.invalid(&at.field("loadBalancerClass"), class, fault);
    }
}

fn traffic(spec: &Fields, kind: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let policies = ["Cluster", "Local"];
    let (external, place) = (
        get(spec, "externalTrafficPolicy"),
        at.field("externalTrafficPolicy"),
    );
    if externally_accessible(spec) {
        if text(spec, "externalTrafficPolicy").is_empty() {
            faults.required(&place, "");
        } else {
            faults.one_of(&place, external, &policies);
        }
    } else if !text(spec, "externalTrafficPolicy").is_empty() {
        faults.invalid(
            &place,
            external,
            "may only be set for externally-accessible services",
        );
    }
    let (health, place) = (
        get(spec, "healthCheckNodePort"),
        at.field("healthCheckNodePort"),
    );
    let number = health.as_i64().unwrap_or_default();
    if needs_health_check(spec) {
        if number == 0 {
            faults.required(&place, "");
        } else {
            net::port(health, &place, faults);
        }
    } else if number != 0 {
        let text =
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        faults.invalid(&place, health, text);
    }
    let internal = get(spec, "internalTrafficPolicy");
    if !internal.is_null() {
        faults.one_of(&at.field("internalTrafficPolicy"), internal, &policies);
    } else if matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer") {
        faults.required(&at.field("internalTrafficPolicy"), "");
    }
    let distribution = get(spec, "trafficDistribution");
    if !distribution.is_null() {
        // KEP-4444; `PreferClose` is the older name of `PreferSameZone` (KEP-3015).
        let known = ["PreferClose", "PreferSameNode", "PreferSameZone"];
        faults.one_of(&at.field("trafficDistribution"), distribution, &known);
    }
}

/// Validates an update of a service.
pub(crate) fn validate_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    let (before, after) = (spec(old), spec(new));
    service_families::validate_update(after, before, &at, faults);
    let both = |wanted: fn(&Fields) -> bool| wanted(before) && wanted(after);
    if both(needs_health_check)
        && get(before, "healthCheckNodePort") != get(after, "healthCheckNodePort")
    {
        faults.forbidden(&at.field("healthCheckNodePort"), "field is immutable");
    }
    let class = get(after, "loadBalancerClass");
    if both(|spec| text(spec, "type") == "LoadBalancer")
        && get(before, "loadBalancerClass") != class
    {
        faults.invalid(
            &at.field("loadBalancerClass"),
            class,
            "may not change once set",
        );
    }
    if get(new, "status") != get(old, "status") {
        status(new, old, text(after, "type"), faults);
    }
}

fn status(new: &Fields, old: &Fields, kind: &str, faults: &mut Faults) {
    if kind != "LoadBalancer" && !points(new).is_empty() {
        let root = FieldPath::root("status");
        let at = root.field("loadBalancer");
        let words = "may only be used when `spec.type` is \"LoadBalancer\"";
        faults.forbidden(&at.field("ingress"), words);
        return;
    }
    load_balancer(new, old, faults);
}

/// The entries of a load balancer's status.
fn points(fields: &Fields) -> &[Value] {
    let balancer = object(fields, "status").and_then(|status| object(status, "loadBalancer"));
    balancer.map_or(&[][..], |balancer| items(balancer, "ingress"))
}

/// Validates the entries of a load balancer's status, of services and ingresses.
pub(crate) fn load_balancer(new: &Fields, old: &Fields, faults: &mut Faults) {
    let root = FieldPath::root("status");
    let at = root.field("loadBalancer");
    let at = at.field("ingress");
    let points = points(new);
    // As many as were stored before there was a limit may stay.
    if points.len() > limits::SERVICE_ADDRESSES.max(self::points(old).len()) {
        faults.too_many(&at, points.len(), limits::SERVICE_ADDRESSES);
    }
    for (number, point) in points.iter().enumerate() {
        let (at, Some(point)) = (at.index(number), point.as_object()) else {
            continue;
        };
        let mode = get(point, "ipMode");
        if !text(point, "ip").is_empty() {
            net::address(get(point, "ip"), &at.field("ip"), faults);
        } else if !mode.is_null() {
            faults.forbidden(
                &at.field("ipMode"),
                "may not be specified when `ip` is not set",
            );
        }
        if !mode.is_null() {
            faults.one_of(&at.field("ipMode"), mode, &["Proxy", "VIP"]);
        }
        let host = text(point, "hostname");
        if !host.is_empty() {
            if let Err(fault) = names::subdomain(host) {
                faults.invalid(&at.field("hostname"), get(point, "hostname"), fault);
            }
            if host.parse::<std::net::IpAddr>().is_ok() {
                faults.invalid(
                    &at.field("hostname"),
                    get(point, "hostname"),
                    "must be a DNS name, not an IP address",
                );
            }
        }
    }
}
