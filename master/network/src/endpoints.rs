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

/// The first items of a list of `count` items, and the number of the others.
fn first(list: &[String], count: usize, none: &str) -> String {
    let shown = list.get(..SHOWN).unwrap_or(list).join(",");
    match count.saturating_sub(SHOWN) {
        _ if count == 0 => none.to_owned(),
        0 => shown,
        more => format!("{shown} + {more} more..."),
    }
}

/// Each address with each port of its subset. Only those that are shown are made: an object's lists
/// can have so many pairs that no memory holds them.
fn addresses(fields: &Fields) -> String {
    let (mut list, mut count) = (Vec::new(), 0_usize);
    for subset in items(fields, "subsets").iter().filter_map(Value::as_object) {
        let hosts = items(subset, "addresses")
            .iter()
            .filter_map(|address| address.get("ip")?.as_str());
        let hosts: Vec<&str> = hosts.collect();
        let ports = items(subset, "ports");
        let mut numbers: Vec<Option<&Value>> = ports.iter().map(|port| port.get("port")).collect();
        numbers.retain(Option::is_some);
        if ports.is_empty() {
            numbers.push(None);
        }
        count = count.saturating_add(hosts.len().saturating_mul(numbers.len()));
        let pairs = numbers
            .iter()
            .flat_map(|port| hosts.iter().map(move |host| pair(host, *port)));
        list.extend(pairs.take(SHOWN.saturating_sub(list.len())));
    }
    first(&list, count, "<none>")
}

fn pair(host: &str, port: Option<&Value>) -> String {
    match port {
        None => host.to_owned(),
        Some(port) if host.contains(':') => format!("[{host}]:{port}"),
        Some(port) => format!("{host}:{port}"),
    }
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
    let ports: Vec<String> = ports.collect();
    first(&ports, ports.len(), "<unset>")
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
    first(&list, list.len(), "<unset>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cell_shows_the_first_pairs_and_makes_no_others() {
        let fields = |addresses: usize, ports: usize| {
            let addresses = vec![json!({"ip": "10.0.0.1"}); addresses];
            let ports = vec![json!({"port": 80}); ports];
            let object = json!({"subsets": [{"addresses": addresses, "ports": ports}]});
            object.as_object().cloned().unwrap()
        };
        assert_eq!(addresses(&fields(0, 1)), "<none>");
        assert_eq!(addresses(&fields(1, 0)), "10.0.0.1");
        assert_eq!(addresses(&fields(1, 2)), "10.0.0.1:80,10.0.0.1:80");
        let three = ["10.0.0.1:80"; 3].join(",");
        assert_eq!(addresses(&fields(3, 1)), three);
        let all = addresses(&fields(100_000, 100_000));
        assert_eq!(all, format!("{three} + 9999999997 more..."));
        let two = json!({"subsets": [{"addresses": [{"ip": "::1"}], "ports": [{"port": 1}]},
            {"addresses": [{"ip": "10.0.0.2"}]}]});
        assert_eq!(addresses(two.as_object().unwrap()), "[::1]:1,10.0.0.2");
    }
}
