//! Endpoints and EndpointSlices.

use crate::endpoints_validate as rules;
use config_kube::k8s_openapi::api::core::v1::Endpoints;
use config_kube::k8s_openapi::api::discovery::v1::EndpointSlice;
use master_schema::cells::AGE;
use master_schema::registry::{Kind, Strategy, column, words};
use master_schema::validate::{Fields, get, items, text};
use serde_json::Value;

/// Entries that a cell shows.
const SHOWN: usize = 3;

/// The kind Endpoints.
pub fn endpoints() -> Kind {
    Kind {
        short_names: words(&["ep"]),
        columns: vec![
            column("Endpoints", |fields, _| addresses(fields).into()),
            AGE,
        ],
        strategy: Strategy {
            defaults: rules::defaults,
            validate: rules::endpoints,
            made_by_update: true,
            ..Strategy::default()
        },
        deprecated: Some(
            "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".into(),
        ),
        ..Kind::of::<Endpoints>(true)
    }
}

/// The kind EndpointSlice.
pub fn slice() -> Kind {
    Kind {
        columns: vec![
            column("AddressType", |fields, _| {
                text(fields, "addressType").into()
            }),
            column("Ports", |fields, _| ports(fields).into()),
            column("Endpoints", |fields, _| slice_addresses(fields).into()),
            AGE,
        ],
        strategy: Strategy {
            defaults: rules::slice_defaults,
            validate: rules::slice,
            validate_update: rules::slice_update,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<EndpointSlice>(true)
    }
}

/// The first items of a list, and the number of the others.
fn first(list: &[String], none: &str) -> String {
    match list {
        [] => none.to_owned(),
        list if list.len() > SHOWN => format!(
            "{} + {} more...",
            list[..SHOWN].join(","),
            list.len() - SHOWN
        ),
        list => list.join(","),
    }
}

fn addresses(fields: &Fields) -> String {
    let mut list = Vec::new();
    for subset in items(fields, "subsets").iter().filter_map(Value::as_object) {
        let hosts = items(subset, "addresses")
            .iter()
            .filter_map(|address| address.get("ip")?.as_str());
        let hosts: Vec<&str> = hosts.collect();
        let ports = items(subset, "ports");
        if ports.is_empty() {
            list.extend(hosts.iter().map(|host| (*host).to_owned()));
        }
        for port in ports.iter().filter_map(|port| port.get("port")) {
            list.extend(hosts.iter().map(|host| {
                if host.contains(':') {
                    format!("[{host}]:{port}")
                } else {
                    format!("{host}:{port}")
                }
            }));
        }
    }
    first(&list, "<none>")
}

fn ports(fields: &Fields) -> String {
    let ports = items(fields, "ports")
        .iter()
        .filter_map(Value::as_object)
        .map(|port| {
            let (name, number) = (text(port, "name"), get(port, "port"));
            match (name, number.as_i64()) {
                (_, Some(number)) => number.to_string(),
                ("", None) => "*".to_owned(),
                (name, None) => name.to_owned(),
            }
        });
    first(&ports.collect::<Vec<_>>(), "<unset>")
}

fn slice_addresses(fields: &Fields) -> String {
    let endpoints = items(fields, "endpoints")
        .iter()
        .filter_map(Value::as_object);
    let addresses = endpoints.flat_map(|endpoint| items(endpoint, "addresses"));
    let list: Vec<String> = addresses
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    first(&list, "<unset>")
}
