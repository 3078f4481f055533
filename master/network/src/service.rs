//! Services: columns, defaults, and the fields that an update keeps or drops.

use crate::service_validate;
use config_kube::k8s_openapi::api::core::v1::Service;
use master_schema::cells::{AGE, load_balancer, pairs};
use master_schema::object::spec;
use master_schema::registry::{Kind, Strategy, Subresource, column, selectable, wide, words};
use master_schema::validate::{Fields, default_to, get, items, names, object, object_mut, text};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// Default timeout of session affinity in seconds.
const AFFINITY: i64 = 10_800;

/// The kind Service.
pub fn service() -> Kind {
    Kind {
        short_names: words(&["svc"]),
        categories: words(&["all"]),
        subresources: vec![Subresource::Proxy, Subresource::Status],
        columns: vec![
            column("Type", |fields, _| text(spec(fields), "type").into()),
            column("Cluster-IP", |fields, _| {
                or_none(text(spec(fields), "clusterIP")).into()
            }),
            column("External-IP", |fields, _| external(fields).into()),
            column("Port(s)", |fields, _| ports(fields).into()),
            AGE,
            wide("Selector", |fields, _| {
                pairs(object(spec(fields), "selector")).into()
            }),
        ],
        selectable: vec![
            selectable("spec.clusterIP", "/spec/clusterIP"),
            selectable("spec.type", "/spec/type"),
        ],
        strategy: Strategy {
            made_by_update: true,
            // Upstream: the gate `RelaxedServiceNameValidation`.
            names: names::label,
            defaults,
            create,
            update,
            validate: service_validate::validate,
            validate_update: service_validate::validate_update,
            ..Strategy::default()
        },
        ..Kind::of::<Service>(true)
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

/// The external addresses of a service.
fn external(fields: &Fields) -> String {
    let spec = spec(fields);
    let own: Vec<&str> = items(spec, "externalIPs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    match text(spec, "type") {
        "ExternalName" => text(spec, "externalName").to_owned(),
        "LoadBalancer" => {
            let balancers = load_balancer(fields);
            let all: Vec<&str> = (!balancers.is_empty())
                .then_some(balancers.as_str())
                .into_iter()
                .chain(own)
                .collect();
            if all.is_empty() {
                "<pending>".to_owned()
            } else {
                all.join(",")
            }
        }
        _ => or_none(&own.join(",")).to_owned(),
    }
}

fn ports(fields: &Fields) -> String {
    let ports: Vec<String> = items(spec(fields), "ports")
        .iter()
        .filter_map(Value::as_object)
        .map(port)
        .collect();
    or_none(&ports.join(",")).to_owned()
}

fn port(port: &Fields) -> String {
    let (number, protocol) = (get(port, "port"), text(port, "protocol"));
    match get(port, "nodePort").as_i64() {
        Some(node) if node > 0 => format!("{number}:{node}/{protocol}"),
        Some(_) | None => format!("{number}/{protocol}"),
    }
}

pub(crate) fn headless(spec: &Fields) -> bool {
    matches!(items(spec, "clusterIPs"), [only] if only == "None")
}

pub(crate) fn externally_accessible(spec: &Fields) -> bool {
    match text(spec, "type") {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !items(spec, "externalIPs").is_empty(),
        _ => false,
    }
}

/// Whether load balancers check each node's health on a port of its own.
pub fn needs_health_check(spec: &Fields) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

fn needs_address(spec: &Fields) -> bool {
    matches!(
        text(spec, "type"),
        "ClusterIP" | "NodePort" | "LoadBalancer"
    )
}

fn needs_node_ports(spec: &Fields) -> bool {
    matches!(text(spec, "type"), "NodePort" | "LoadBalancer")
}

fn defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    default_to(spec, "sessionAffinity", "None");
    match text(spec, "sessionAffinity") {
        // A patch from ClientIP to None leaves it behind.
        "None" => drop(spec.remove("sessionAffinityConfig")),
        "ClientIP" => {
            let client = object_mut(spec, "sessionAffinityConfig")
                .and_then(|config| object_mut(config, "clientIP"));
            if let Some(client) = client {
                default_to(client, "timeoutSeconds", AFFINITY);
            }
        }
        _ => {}
    }
    default_to(spec, "type", "ClusterIP");
    for port in spec
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let Some(port) = port.as_object_mut() else {
            continue;
        };
        default_to(port, "protocol", "TCP");
        // Zero and the empty name are what an `IntOrString` has without a value.
        if matches!(get(port, "targetPort"), Value::Null)
            || get(port, "targetPort") == 0
            || get(port, "targetPort") == ""
        {
            let number = get(port, "port").clone();
            port.insert("targetPort".to_owned(), number);
        }
        remove_zero(port, "nodePort");
    }
    remove_zero(spec, "healthCheckNodePort");
    if externally_accessible(spec) {
        default_to(spec, "externalTrafficPolicy", "Cluster");
    }
    if needs_address(spec) {
        default_to(spec, "internalTrafficPolicy", "Cluster");
    }
    if text(spec, "type") != "LoadBalancer" {
        return;
    }
    default_to(spec, "allocateLoadBalancerNodePorts", true);
    let points = fields
        .get_mut("status")
        .and_then(|status| status.pointer_mut("/loadBalancer/ingress"));
    for point in points.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(point) = point
            .as_object_mut()
            .filter(|point| !text(point, "ip").is_empty())
        {
            // KEP-1860: how addresses were treated before there was a mode.
            default_to(point, "ipMode", "VIP");
        }
    }
}

/// Removes a field with the value zero, which means the same as absent.
fn remove_zero(fields: &mut Fields, key: &str) {
    if get(fields, key) == 0 {
        fields.remove(key);
    }
}

/// `clusterIPs` defaults to `clusterIP`.
fn create(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    let first = text(spec, "clusterIP").to_owned();
    if items(spec, "clusterIPs").is_empty() {
        spec.remove("clusterIPs");
        if !first.is_empty() {
            spec.insert("clusterIPs".to_owned(), Value::from(vec![first]));
        }
    }
}

fn update(new: &mut Fields, old: &Fields) {
    let old = spec(old);
    let Some(new) = object_mut(new, "spec") else {
        return;
    };
    drop_dependent(new, old);
    keep_allocated(new, old);
    same_address(new, old);
}

/// Drops fields of the old type that the update left unchanged.
fn drop_dependent(new: &mut Fields, old: &Fields) {
    // A client may change the type alone. What it changes itself stays, and validation refuses it.
    if needs_address(old) && !needs_address(new) {
        if get(new, "clusterIP") == get(old, "clusterIP")
            && get(new, "clusterIPs") == get(old, "clusterIPs")
        {
            new.remove("clusterIP");
            new.remove("clusterIPs");
        }
        drop_same(new, old, "ipFamilies");
        drop_same(new, old, "ipFamilyPolicy");
        drop_same(new, old, "internalTrafficPolicy");
    }
    if needs_node_ports(old) && !needs_node_ports(new) && node_ports(new) == node_ports(old) {
        for port in new
            .get_mut("ports")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            port.as_object_mut().map(|port| port.remove("nodePort"));
        }
    }
    if needs_health_check(old) && !needs_health_check(new) {
        drop_same(new, old, "healthCheckNodePort");
    }
    if text(old, "type") == "LoadBalancer" && text(new, "type") != "LoadBalancer" {
        drop_same(new, old, "allocateLoadBalancerNodePorts");
        drop_same(new, old, "loadBalancerClass");
    }
    if externally_accessible(old) && !externally_accessible(new) {
        drop_same(new, old, "externalTrafficPolicy");
    }
}

fn drop_same(new: &mut Fields, old: &Fields, key: &str) {
    if get(new, key) == get(old, key) {
        new.remove(key);
    }
}

/// Node ports of a service's ports, in order.
pub fn node_ports(spec: &Fields) -> Vec<i64> {
    let ports = items(spec, "ports")
        .iter()
        .filter_map(|port| port.get("nodePort")?.as_i64());
    ports.filter(|port| *port != 0).collect()
}

/// Keeps allocated values that the update leaves out.
fn keep_allocated(new: &mut Fields, old: &Fields) {
    if needs_address(old) && needs_address(new) {
        if text(new, "clusterIP").is_empty() && items(new, "clusterIPs").is_empty() {
            copy(new, old, "clusterIP");
        }
        if items(new, "clusterIPs").is_empty() && get(new, "clusterIP") == get(old, "clusterIP") {
            copy(new, old, "clusterIPs");
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        keep_node_ports(new, old);
    }
    if needs_health_check(old)
        && needs_health_check(new)
        && get(new, "healthCheckNodePort").is_null()
    {
        copy(new, old, "healthCheckNodePort");
    }
}

fn copy(new: &mut Fields, old: &Fields, key: &str) {
    if let Some(value) = old.get(key) {
        new.insert(key.to_owned(), value.clone());
    }
}

fn keep_node_ports(new: &mut Fields, old: &Fields) {
    fn key(port: &Fields) -> (&Value, &Value) {
        (get(port, "port"), get(port, "protocol"))
    }
    // Of several with one port and protocol the first counts.
    let mut known: HashMap<(&Value, &Value), &Fields> = HashMap::new();
    for before in items(old, "ports").iter().filter_map(Value::as_object) {
        known.entry(key(before)).or_insert(before);
    }
    let requested: HashSet<i64> = node_ports(new).into_iter().collect();
    for port in new
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let Some(port) = port
            .as_object_mut()
            .filter(|port| get(port, "nodePort").is_null())
        else {
            continue;
        };
        let node = known
            .get(&key(port))
            .map(|before| get(before, "nodePort"))
            .filter(|node| node.as_i64().is_some_and(|n| n != 0));
        if let Some(node) =
            node.filter(|node| node.as_i64().is_some_and(|node| !requested.contains(&node)))
        {
            port.insert("nodePort".to_owned(), node.clone());
        }
    }
}

/// An update that changes only one of `clusterIP` and `clusterIPs` changes both.
fn same_address(new: &mut Fields, old: &Fields) {
    let unchanged =
        items(new, "clusterIPs").is_empty() || get(new, "clusterIPs") == get(old, "clusterIPs");
    if get(new, "clusterIP") == get(old, "clusterIP") || !unchanged {
        return;
    }
    match text(new, "clusterIP").to_owned() {
        first if first.is_empty() => drop(new.remove("clusterIPs")),
        first => drop(new.insert("clusterIPs".to_owned(), Value::from(vec![first]))),
    }
}
