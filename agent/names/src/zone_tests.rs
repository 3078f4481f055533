use super::*;
use agent_proxy::{Port, Protocol, SlicePort};
use std::collections::BTreeMap;

fn key(namespace: &str, name: &str) -> Key {
    Key {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn endpoint(address: &str, hostname: Option<&str>, ready: bool) -> Endpoint {
    Endpoint {
        address: address.parse().unwrap(),
        ready,
        serving: ready,
        terminating: false,
        hostname: hostname.map(str::to_owned),
        node: None,
        hints: None,
    }
}

/// A service with an address, a headless one with three endpoints, and a name of something outside.
pub(crate) fn known() -> Known {
    let port = Port {
        name: "web".to_owned(),
        protocol: Protocol::Tcp,
        port: 80,
        node_port: None,
    };
    let web = Service {
        addresses: vec!["10.96.0.10".parse().unwrap(), "fd00::10".parse().unwrap()],
        ports: vec![port.clone()],
        ..Service::default()
    };
    let data = Service {
        headless: true,
        ports: vec![port],
        ..Service::default()
    };
    let out = Service {
        external_name: Some("Example.com.".to_owned()),
        ..Service::default()
    };
    let chain = Service {
        external_name: Some("web.shop.svc.cluster.local".to_owned()),
        ..Service::default()
    };
    let slice = Slice {
        service: "data".to_owned(),
        ports: vec![SlicePort {
            name: "web".to_owned(),
            protocol: Protocol::Tcp,
            port: 8080,
        }],
        endpoints: vec![
            endpoint("10.1.0.2", Some("data-0"), true),
            endpoint("10.1.0.3", None, true),
            endpoint("10.1.0.4", Some("data-2"), false),
        ],
    };
    let services = [("web", web), ("data", data), ("out", out), ("chain", chain)];
    let services = services.map(|(name, service)| (Arc::new(key("shop", name)), Arc::new(service)));
    Known {
        services: Some(services.into()),
        slices: Some([(Arc::new(key("shop", "data-x")), Arc::new(slice))].into()),
        nodes: Some(BTreeMap::new()),
        namespaces: Some(["bare", "shop"].map(str::to_owned).into()),
        ..Known::default()
    }
}

fn found(name: &str, kind: Kind) -> Vec<String> {
    let words = |data: &Data| match data {
        Data::Address(address) => address.to_string(),
        Data::Srv {
            port,
            weight,
            host,
            address,
        } => format!("{weight} {port} {host} {address}"),
        Data::Ptr(name) | Data::Cname(name) => name.clone(),
        Data::Text(text) => (*text).to_owned(),
    };
    let outcome = look_up(&known(), name, kind);
    if let Outcome::Found(found) = outcome {
        return found.iter().map(words).collect();
    }
    vec![format!("{outcome:?}")]
}

#[test]
fn services_have_their_addresses() {
    assert_eq!(found("web.shop.svc.cluster.local", Kind::A), ["10.96.0.10"]);
    assert_eq!(
        found("web.shop.svc.cluster.local", Kind::Aaaa),
        ["fd00::10"]
    );
    assert_eq!(found("web.shop.svc.cluster.local", Kind::Txt), [""; 0]);
    assert_eq!(found("dns-version.cluster.local", Kind::Txt), ["1.1.0"]);
}

#[test]
fn headless_services_have_those_of_their_ready_endpoints() {
    assert_eq!(
        found("data.shop.svc.cluster.local", Kind::A),
        ["10.1.0.2", "10.1.0.3"]
    );
    assert_eq!(
        found("data-0.data.shop.svc.cluster.local", Kind::A),
        ["10.1.0.2"]
    );
    assert_eq!(
        found("10-1-0-3.data.shop.svc.cluster.local", Kind::A),
        ["10.1.0.3"]
    );
    assert_eq!(
        found("data-2.data.shop.svc.cluster.local", Kind::A),
        ["Missing"]
    );
    assert_eq!(
        found("data-0.web.shop.svc.cluster.local", Kind::A),
        ["Missing"]
    );
}

#[test]
fn named_ports_are_found_by_service_records() {
    assert_eq!(
        found("_web._tcp.web.shop.svc.cluster.local", Kind::Srv),
        [
            "100 80 web.shop.svc.cluster.local 10.96.0.10",
            "100 80 web.shop.svc.cluster.local fd00::10"
        ]
    );
    assert_eq!(
        found("_web._tcp.data.shop.svc.cluster.local", Kind::Srv),
        [
            "50 8080 10-1-0-3.data.shop.svc.cluster.local 10.1.0.3",
            "50 8080 data-0.data.shop.svc.cluster.local 10.1.0.2"
        ]
    );
    assert_eq!(
        found("_web._udp.web.shop.svc.cluster.local", Kind::Srv),
        ["Missing"]
    );
    assert_eq!(found("_tcp.web.shop.svc.cluster.local", Kind::A), [""; 0]);
}

#[test]
fn names_that_are_not_there_are_told_apart_from_those_without_such_records() {
    assert_eq!(found("cluster.local", Kind::A), [""; 0]);
    assert_eq!(found("shop.svc.cluster.local", Kind::A), [""; 0]);
    assert_eq!(found("none.svc.cluster.local", Kind::A), ["Missing"]);
    assert_eq!(found("none.shop.svc.cluster.local", Kind::A), ["Missing"]);
    assert_eq!(
        found("example.com.shop.svc.cluster.local", Kind::A),
        ["Missing"]
    );
    assert_eq!(found("example.com", Kind::A), ["Foreign"]);
    assert_eq!(found("mycluster.local", Kind::A), ["Foreign"]);
    let nothing = look_up(&Known::default(), "web.shop.svc.cluster.local", Kind::A);
    assert_eq!(nothing, Outcome::Unknown);
}

#[test]
fn a_namespace_is_there_without_services() {
    assert_eq!(found("bare.svc.cluster.local", Kind::A), [""; 0]);
    assert_eq!(found("bare.pod.cluster.local", Kind::A), [""; 0]);
    assert_eq!(found("pod.cluster.local", Kind::A), [""; 0]);
    assert_eq!(found("none.pod.cluster.local", Kind::A), ["Missing"]);
}

#[test]
fn addresses_of_pods_have_names_in_each_namespace() {
    let of = |pod: &str, kind| found(&format!("{pod}.pod.cluster.local"), kind);
    assert_eq!(of("10-1-0-9.bare", Kind::A), ["10.1.0.9"]);
    assert_eq!(of("10-1-0-9.bare", Kind::Aaaa), [""; 0]);
    assert_eq!(of("fd00-1--9.shop", Kind::Aaaa), ["fd00:1::9"]);
    assert_eq!(of("--1.shop", Kind::Aaaa), ["::1"]);
    for missing in [
        "10-1-0-9.none",
        "10-1-0.shop",
        "10-1-0-256.shop",
        "web.shop",
    ] {
        assert_eq!(of(missing, Kind::A), ["Missing"], "{missing}");
    }
}

#[test]
fn a_name_of_something_outside_stands_for_all_kinds() {
    assert_eq!(
        found("out.shop.svc.cluster.local", Kind::A),
        ["example.com"]
    );
    assert_eq!(
        found("out.shop.svc.cluster.local", Kind::Txt),
        ["example.com"]
    );
}

#[test]
fn addresses_have_names() {
    assert_eq!(
        found("10.0.96.10.in-addr.arpa", Kind::Ptr),
        ["web.shop.svc.cluster.local"]
    );
    assert_eq!(
        found("2.0.1.10.in-addr.arpa", Kind::Ptr),
        ["data-0.data.shop.svc.cluster.local"]
    );
    let name = "0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa";
    assert_eq!(found(name, Kind::Ptr), ["web.shop.svc.cluster.local"]);
    assert_eq!(found("1.1.1.1.in-addr.arpa", Kind::Ptr), ["Foreign"]);
    assert_eq!(found("1.1.1.in-addr.arpa", Kind::Ptr), ["Foreign"]);
}
