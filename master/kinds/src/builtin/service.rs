//! Services.

use super::cells::{AGE, load_balancer, pairs};
use crate::registry::{Kind, Subresource, column, wide};
use crate::validate::{Fields, get, items, object, text};
use config_kube::k8s_openapi::api::core::v1::Service;
use serde_json::Value;

pub(super) fn service() -> Kind {
    Kind {
        short_names: &["svc"],
        categories: &["all"],
        subresources: &[Subresource::Status],
        columns: const {
            &[
                column("Type", |fields, _| text(spec(fields), "type").into()),
                column("Cluster-IP", |fields, _| or_none(text(spec(fields), "clusterIP")).into()),
                column("External-IP", |fields, _| external(fields).into()),
                column("Port(s)", |fields, _| ports(fields).into()),
                AGE,
                wide("Selector", |fields, _| pairs(object(spec(fields), "selector")).into()),
            ]
        },
        selectable: &[("spec.clusterIP", "/spec/clusterIP"), ("spec.type", "/spec/type")],
        ..Kind::of::<Service>(true)
    }
}

pub(super) fn spec(fields: &Fields) -> &Fields {
    static EMPTY: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Fields::new);
    object(fields, "spec").unwrap_or(&EMPTY)
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

/// Where a service is reached from outside.
fn external(fields: &Fields) -> String {
    let spec = spec(fields);
    let own: Vec<&str> = items(spec, "externalIPs").iter().filter_map(Value::as_str).collect();
    match text(spec, "type") {
        "ExternalName" => text(spec, "externalName").to_owned(),
        "LoadBalancer" => {
            let balancers = load_balancer(fields);
            let all: Vec<&str> = (!balancers.is_empty()).then_some(balancers.as_str()).into_iter().chain(own).collect();
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        _ => or_none(&own.join(",")).to_owned(),
    }
}

fn ports(fields: &Fields) -> String {
    let ports: Vec<String> = items(spec(fields), "ports").iter().filter_map(Value::as_object).map(port).collect();
    or_none(&ports.join(",")).to_owned()
}

fn port(port: &Fields) -> String {
    let (number, protocol) = (get(port, "port"), text(port, "protocol"));
    match get(port, "nodePort").as_i64() {
        Some(node) if node > 0 => format!("{number}:{node}/{protocol}"),
        Some(_) | None => format!("{number}/{protocol}"),
    }
}
