use super::*;
use agent_proxy::{Port, SlicePort};
use std::collections::BTreeMap;
use std::sync::Arc;

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

fn port(name: &str, port: u16) -> Port {
    Port {
        name: name.to_owned(),
        protocol: Protocol::Tcp,
        port,
        node_port: None,
    }
}

fn slice(service: &str, ports: &[(&str, u16)], endpoints: &[Endpoint]) -> Slice {
    let port = |(name, port): &(&str, u16)| SlicePort {
        name: (*name).to_owned(),
        protocol: Protocol::Tcp,
        port: *port,
    };
    Slice {
        service: service.to_owned(),
        ports: ports.iter().map(port).collect(),
        endpoints: endpoints.to_vec(),
        foreign: false,
    }
}

/// A service with an address, headless ones of which two of three endpoints are ready and none is,
/// and names of something outside and of another service.
pub(crate) fn known() -> Known {
    let web = Service {
        addresses: vec!["10.96.0.10".parse().unwrap(), "fd00::10".parse().unwrap()],
        ports: vec![port("web", 80), port("", 90)],
        ..Service::default()
    };
    let headless = Service {
        headless: true,
        ports: vec![port("web", 80), port("", 90)],
        ..Service::default()
    };
    let alias = |name: &str| Service {
        external_name: Some(name.to_owned()),
        ..Service::default()
    };
    let ports = [("web", 8080), ("", 9090)];
    let behind_web = [
        endpoint("10.1.0.7", Some("web-0"), true),
        endpoint("10.1.0.8", None, true),
        endpoint("10.1.0.9", Some("web-2"), false),
    ];
    let behind_data = [
        endpoint("10.1.0.2", Some("data-0"), true),
        endpoint("10.1.0.3", None, true),
        endpoint("10.1.0.4", Some("data-2"), false),
    ];
    let services = [
        ("web", web),
        ("data", headless.clone()),
        ("idle", headless),
        ("out", alias("Example.com.")),
        ("chain", alias("web.shop.svc.cluster.local")),
    ];
    let slices = [
        ("web-x", slice("web", &ports, &behind_web)),
        ("data-x", slice("data", &ports, &behind_data)),
        (
            "idle-x",
            slice(
                "idle",
                &ports,
                &[endpoint("10.1.0.5", Some("idle-0"), false)],
            ),
        ),
        // Written by hand: an alias has no endpoints.
        (
            "out-x",
            slice("out", &ports, &[endpoint("10.1.0.6", Some("out-0"), true)]),
        ),
    ];
    let services = services.map(|(name, service)| (Arc::new(key("shop", name)), Arc::new(service)));
    let slices = slices.map(|(name, slice)| (Arc::new(key("shop", name)), Arc::new(slice)));
    Known {
        services: Some(services.into()),
        slices: Some(slices.into()),
        nodes: Some(BTreeMap::new()),
        namespaces: Some(["bare", "shop"].map(str::to_owned).into()),
        ..Known::default()
    }
}

pub(crate) fn index() -> Index {
    Index::of(Arc::new(known()))
}

/// As much as objects of a few MiB may say: a service of 20,000 ports with an address, a headless
/// one with 20 endpoints of as many ports, one with 5,000 endpoints of either family, and an
/// address that is of an endpoint in 3,000 services.
pub(crate) fn crowded() -> Known {
    let ports = || (1..=20_000).map(|number| port(&format!("p{number}"), number));
    let wide = Service {
        addresses: vec!["10.96.0.20".parse().unwrap(), "fd00::20".parse().unwrap()],
        ports: ports().collect(),
        ..Service::default()
    };
    let headless = || Service {
        headless: true,
        ..Service::default()
    };
    let many = |address: &dyn Fn(u32) -> IpAddr, count: u32, ports: Vec<SlicePort>| Slice {
        service: String::new(),
        ports,
        endpoints: (0..count)
            .map(|at| endpoint(&address(at).to_string(), None, true))
            .collect(),
        foreign: false,
    };
    let v4 = |at: u32| IpAddr::V4(Ipv4Addr::from((10 << 24) + (2 << 16) + at));
    let v6 = |at: u32| IpAddr::V6(Ipv6Addr::from((0xfd02 << 112) + u128::from(at)));
    let all = ports().map(|own| SlicePort {
        name: own.name,
        protocol: own.protocol,
        port: own.port,
    });
    let slices = [
        ("deep", many(&v4, 20, all.collect())),
        ("long", many(&v4, 5000, Vec::new())),
        ("long", many(&v6, 5000, Vec::new())),
    ];
    let slices = slices.into_iter().zip(0..).map(|((service, slice), at)| {
        let name = key("shop", &format!("{service}-{at}"));
        let service = service.to_owned();
        (Arc::new(name), Arc::new(Slice { service, ..slice }))
    });
    let same = |name: &String| {
        let slice = slice(name, &[], &[endpoint("192.0.2.9", None, true)]);
        (Arc::new(key("shop", name)), Arc::new(slice))
    };
    let sharing: Vec<String> = (0..3000).map(|at| format!("same-{at}")).collect();
    let services = [("wide", wide), ("deep", headless()), ("long", headless())];
    let services = services.map(|(name, service)| (name.to_owned(), service));
    let shared = sharing.iter().map(|name| (name.clone(), headless()));
    let services = services.into_iter().chain(shared);
    let services =
        services.map(|(name, service)| (Arc::new(key("shop", &name)), Arc::new(service)));
    Known {
        services: Some(services.collect()),
        slices: Some(slices.chain(sharing.iter().map(same)).collect()),
        ..Known::default()
    }
}

#[test]
fn however_many_ports_and_endpoints_a_name_has_no_more_is_found_than_an_answer_holds() {
    let index = Index::of(Arc::new(crowded()));
    let found = |name: &str, kind| {
        let Outcome::Found(found) = look_up(&index, name, kind) else {
            unreachable!("{name} is there")
        };
        found
    };
    let in_zone = |name: &str, kind| found(&format!("{name}.shop.svc.cluster.local"), kind);
    let most = MOST_RECORDS;
    for (name, kind, count) in [
        ("wide", Kind::Srv, most),
        ("deep", Kind::Srv, most),
        ("10-2-0-7.deep", Kind::Srv, most),
        ("_p20000._tcp.deep", Kind::Srv, 20),
        ("_p20000._tcp.wide", Kind::Srv, 2),
        ("deep", Kind::A, 20),
        ("long", Kind::A, MOST_ADDRESSES),
        ("long", Kind::Aaaa, MOST_ADDRESSES),
        ("long", Kind::Txt, 0),
        ("long", Kind::Srv, 0),
    ] {
        let found = in_zone(name, kind);
        assert_eq!(found.len(), count, "{name} {kind:?}");
        assert_eq!(is_cut(&found), count >= most, "{name} {kind:?}");
    }
    assert_eq!(found("9.2.0.192.in-addr.arpa", Kind::Ptr).len(), most);
    let hosts: BTreeSet<String> = in_zone("deep", Kind::Srv)
        .into_iter()
        .filter_map(|data| match data {
            Data::Srv { host, .. } => Some(host),
            Data::Address(_) | Data::Ptr(_) | Data::Cname(_) | Data::Text(_) => None,
        })
        .collect();
    assert_eq!(hosts.len(), 20, "no endpoint takes the place of another");
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
    let outcome = look_up(&index(), name, kind);
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
        found("data.shop.svc.cluster.local", Kind::Aaaa),
        [""; 0],
        "but the name is there"
    );
}

/// The specification, 2.4.1: a resolver goes on with its search path then.
#[test]
fn a_headless_service_without_ready_endpoints_has_no_name() {
    let idle = "idle.shop.svc.cluster.local";
    for below in ["", "idle-0.", "10-1-0-5.", "_tcp.", "_web._tcp."] {
        for kind in [Kind::A, Kind::Aaaa, Kind::Srv, Kind::Other] {
            let name = format!("{below}{idle}");
            assert_eq!(found(&name, kind), ["Missing"], "{name} {kind:?}");
        }
    }
}

/// As CoreDNS: StatefulSets whose service has an address find their pods so.
#[test]
fn endpoints_have_names_below_a_service_that_has_an_address() {
    let of = |host: &str| found(&format!("{host}.web.shop.svc.cluster.local"), Kind::A);
    assert_eq!(of("web-0"), ["10.1.0.7"]);
    assert_eq!(of("10-1-0-8"), ["10.1.0.8"]);
    for missing in ["web-2", "10-1-0-7", "10-1-0-9", "data-0", "10-1-0-2"] {
        assert_eq!(of(missing), ["Missing"], "{missing}");
    }
    assert_eq!(
        found("web-0.web.shop.svc.cluster.local", Kind::Aaaa),
        [""; 0]
    );
    for alias in ["out-0.out", "10-1-0-6.out", "web-0.chain", "_tcp.out"] {
        let name = format!("{alias}.shop.svc.cluster.local");
        assert_eq!(found(&name, Kind::A), ["Missing"], "{name}");
    }
}

/// As CoreDNS: programs that look for members of their group ask so.
#[test]
fn all_ports_are_found_by_the_plain_names_of_services_and_endpoints() {
    assert_eq!(
        found("web.shop.svc.cluster.local", Kind::Srv),
        [
            "50 80 web.shop.svc.cluster.local 10.96.0.10",
            "50 80 web.shop.svc.cluster.local fd00::10",
            "50 90 web.shop.svc.cluster.local 10.96.0.10",
            "50 90 web.shop.svc.cluster.local fd00::10",
        ]
    );
    assert_eq!(
        found("data.shop.svc.cluster.local", Kind::Srv),
        [
            "25 8080 10-1-0-3.data.shop.svc.cluster.local 10.1.0.3",
            "25 8080 data-0.data.shop.svc.cluster.local 10.1.0.2",
            "25 9090 10-1-0-3.data.shop.svc.cluster.local 10.1.0.3",
            "25 9090 data-0.data.shop.svc.cluster.local 10.1.0.2",
        ]
    );
    for (host, service, address) in [("data-0", "data", "10.1.0.2"), ("web-0", "web", "10.1.0.7")] {
        let name = format!("{host}.{service}.shop.svc.cluster.local");
        assert_eq!(
            found(&name, Kind::Srv),
            [8080, 9090].map(|port| format!("50 {port} {name} {address}"))
        );
    }
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
    assert_eq!(
        found("_._tcp.web.shop.svc.cluster.local", Kind::Srv),
        ["Missing"],
        "a port without a name has none here"
    );
}

#[test]
fn names_that_are_not_there_are_distinguished_from_those_without_such_records() {
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
    let nothing = look_up(&Index::default(), "web.shop.svc.cluster.local", Kind::A);
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
    assert_eq!(
        found("8.0.1.10.in-addr.arpa", Kind::Ptr),
        ["10-1-0-8.web.shop.svc.cluster.local"]
    );
    assert_eq!(found("8.0.1.10.in-addr.arpa", Kind::A), [""; 0]);
    // Of endpoints that are not ready, and of those of an alias.
    for last in [4, 5, 6, 9] {
        let name = format!("{last}.0.1.10.in-addr.arpa");
        assert_eq!(found(&name, Kind::Ptr), ["Foreign"], "{name}");
    }
    let name = "0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa";
    assert_eq!(found(name, Kind::Ptr), ["web.shop.svc.cluster.local"]);
    assert_eq!(found("1.1.1.1.in-addr.arpa", Kind::Ptr), ["Foreign"]);
    assert_eq!(found("1.1.1.in-addr.arpa", Kind::Ptr), ["Foreign"]);
}
