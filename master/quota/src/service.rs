//! Quota usage of a service: its number, its node ports, its load balancer.

use master_schema::quantity::{Quantities, Quantity};
use master_schema::validate::{Fields, get, items, object, text};
use serde_json::Value;

pub(crate) fn tracks(resource: &str) -> bool {
    matches!(
        resource,
        "services" | "services.nodeports" | "services.loadbalancers"
    )
}

pub(crate) fn usage(fields: &Fields) -> Quantities {
    let empty = Fields::new();
    let spec = object(fields, "spec").unwrap_or(&empty);
    let ports = items(spec, "ports");
    let (nodeports, balancers) = match text(spec, "type") {
        "NodePort" => (ports.len(), 0),
        "LoadBalancer" => {
            // Without automatic allocation, only explicit node ports count.
            let named = |port: &&Value| {
                port.get("nodePort")
                    .and_then(Value::as_i64)
                    .is_some_and(|port| port != 0)
            };
            let allocates = get(spec, "allocateLoadBalancerNodePorts") != &Value::Bool(false);
            (
                if allocates {
                    ports.len()
                } else {
                    ports.iter().filter(named).count()
                },
                1,
            )
        }
        _ => (0, 0),
    };
    let mut used = Quantities::default();
    used.set("services", Quantity::count(1));
    used.set(
        "services.nodeports",
        Quantity::count(i64::try_from(nodeports).unwrap_or(i64::MAX)),
    );
    used.set("services.loadbalancers", Quantity::count(balancers));
    used
}
