use super::*;
use crate::view::{Endpoint, Hints, SlicePort};

type Services = Objects<Service>;
type Slices = Objects<Slice>;

fn key(name: &str) -> Arc<Key> {
    Arc::new(Key {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    })
}

fn service(address: &str, port: u16) -> Service {
    Service {
        addresses: vec![address.parse().unwrap()],
        ports: vec![Port {
            name: "web".to_owned(),
            protocol: Protocol::Tcp,
            port,
            node_port: None,
        }],
        ..Service::default()
    }
}

fn ready(address: &str, node: &str) -> Endpoint {
    Endpoint {
        address: address.parse().unwrap(),
        ready: true,
        serving: true,
        terminating: false,
        hostname: None,
        node: Some(node.to_owned()),
        hints: None,
    }
}

fn slice(port: u16, endpoints: Vec<Endpoint>) -> Slice {
    Slice {
        service: "web".to_owned(),
        ports: vec![SlicePort {
            name: "web".to_owned(),
            protocol: Protocol::Tcp,
            port,
        }],
        endpoints,
        foreign: false,
    }
}

fn one(service: Service, slice: Slice) -> (Services, Slices) {
    (
        [(key("web"), Arc::new(service))].into(),
        [(key("web-abcde"), Arc::new(slice))].into(),
    )
}

/// `address:port/protocol > endpoint, endpoint`.
fn lines((services, slices): &(Services, Slices)) -> Vec<String> {
    let own = ["192.0.2.1", "2001:db8::1"].map(|own| own.parse().unwrap());
    let line = |(front, pick): (&Front, &Pick)| {
        let ends = pick.endpoints.iter();
        let ends: Vec<String> = ends.map(|(ip, port)| format!("{ip}:{port}")).collect();
        let how = [(pick.as_node, " as node"), (pick.silent, " silent")];
        let how: String = how
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, word)| *word)
            .collect();
        let inside = pick.inside.iter();
        let inside: Vec<String> = inside.map(|(ip, port)| format!("{ip}:{port}")).collect();
        let how = match inside.as_slice() {
            [] => how,
            all => format!("{how}, inside {}", all.join(", ")),
        };
        let from = pick.sources.iter();
        let from: Vec<String> = from.map(|range| format!(" from {range}")).collect();
        format!(
            "{}:{}/{} > {}{how}{}",
            front.address,
            front.port,
            front.protocol.name(),
            ends.join(", "),
            from.concat()
        )
    };
    let here = Here {
        node: "n1",
        zone: Some("east"),
        addresses: &own,
        name_servers: &["10.1.0.1", "fd00:1::1"].map(|own| own.parse().unwrap()),
    };
    fronts(services, slices, here).iter().map(line).collect()
}

#[test]
fn the_node_itself_answers_for_the_clusters_name_server() {
    let object = |proxy: &str| {
        let port = |name: &str, protocol: &str| serde_json::json!({"name": name, "protocol": protocol, "port": 53});
        serde_json::from_value(serde_json::json!({
            "metadata": {"labels": {"service.kubernetes.io/service-proxy-name": proxy}},
            "spec": {
                "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:96::a"],
                "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")],
            },
        }))
        .unwrap()
    };
    let own = Service::read(object("pratique-name-server"));
    let all = lines(&one(own, slice(1, vec![ready("10.1.0.9", "n2")])));
    assert_eq!(
        all,
        [
            "10.96.0.10:53/TCP > 10.1.0.1:10248",
            "10.96.0.10:53/UDP > 10.1.0.1:10248",
            "fd00:96::a:53/TCP > fd00:1::1:10248",
            "fd00:96::a:53/UDP > fd00:1::1:10248",
        ]
    );
    let others = Service::read(object("another-proxy"));
    assert!(lines(&one(others, slice(1, Vec::new()))).is_empty());
}

#[test]
fn clients_are_remembered_by_the_services_own_address_wherever_they_call() {
    let parsed = |texts: &[&str]| -> Vec<IpAddr> {
        let all = texts.iter();
        all.map(|text| text.parse().unwrap()).collect()
    };
    let mut service = service("10.96.0.10", 80);
    service.addresses.extend(parsed(&["fd00:96::10"]));
    service.ports[0].node_port = Some(30080);
    service.external = parsed(&["198.51.100.1", "2001:db8::7"]);
    service.balancers = parsed(&["198.51.100.2", "2001:db8::8"]);
    let addresses = parsed(&["192.0.2.1", "2001:db8::1"]);
    let here = Here {
        node: "n1",
        zone: None,
        addresses: &addresses,
        name_servers: &[],
    };
    let slice = Arc::new(slice(8080, vec![ready("10.1.0.2", "n1")]));
    for affinity in [None, Some(60)] {
        service.affinity = affinity;
        let all = of_service(&service, &[&slice], here);
        assert_eq!(all.len(), 8);
        for (_, front, pick) in all {
            let own = service.addresses[usize::from(front.address.is_ipv6())];
            let own = affinity.map(|_| Front {
                address: own,
                protocol: Protocol::Tcp,
                port: 80,
            });
            assert_eq!(pick.own_front, own, "{front:?}");
        }
    }
}

#[test]
fn no_service_takes_what_was_allocated_to_another() {
    let mut given = service("10.96.0.10", 80);
    given.ports[0].node_port = Some(30080);
    let mut taker = service("10.96.0.20", 80);
    taker.ports.push(Port {
        port: 30080,
        ..taker.ports[0].clone()
    });
    taker.external = vec![given.addresses[0], "192.0.2.1".parse().unwrap()];
    taker.balancers = taker.external.clone();
    let of = |service: &str, end: &str| Slice {
        service: service.to_owned(),
        ..slice(8080, vec![ready(end, "n1")])
    };
    // The first by name is the taker.
    let services = [
        (key("taker"), Arc::new(taker)),
        (key("web"), Arc::new(given)),
    ];
    let slices = [
        (key("taker-1"), Arc::new(of("taker", "10.1.0.66"))),
        (key("web-1"), Arc::new(of("web", "10.1.0.2"))),
    ];
    let lines = lines(&(services.into(), slices.into()));
    for front in ["10.96.0.10:80/TCP", "192.0.2.1:30080/TCP"] {
        let of_front = lines.iter().filter(|line| line.starts_with(front));
        let of_front: Vec<&String> = of_front.collect();
        assert!(
            matches!(&of_front[..], [one] if one.contains("> 10.1.0.2:8080")),
            "{lines:?}"
        );
    }
}

#[test]
fn a_service_is_at_its_address_on_nodes_and_outside() {
    let mut service = service("10.96.0.10", 80);
    service.ports[0].node_port = Some(30080);
    service.external = vec!["198.51.100.1".parse().unwrap()];
    let ends = vec![ready("10.1.0.2", "n1"), ready("10.1.1.2", "n2")];
    assert_eq!(
        lines(&one(service.clone(), slice(8080, ends.clone()))),
        [
            "10.96.0.10:80/TCP > 10.1.0.2:8080, 10.1.1.2:8080",
            "192.0.2.1:30080/TCP > 10.1.0.2:8080, 10.1.1.2:8080 as node",
            "198.51.100.1:80/TCP > 10.1.0.2:8080, 10.1.1.2:8080 as node",
        ]
    );
    // Addresses of another family than the service's are ignored.
    let mut alone = service.clone();
    alone.external.push("2001:db8::7".parse().unwrap());
    let six = ready("fd00:1::2", "n1");
    let mixed = [ends.clone(), vec![six.clone()]].concat();
    assert_eq!(
        lines(&one(alone.clone(), slice(8080, mixed.clone()))).len(),
        3
    );
    alone.addresses.push("fd00:96::10".parse().unwrap());
    assert_eq!(
        lines(&one(alone, slice(8080, mixed)))[3..],
        [
            "2001:db8::1:30080/TCP > fd00:1::2:8080 as node",
            "2001:db8::7:80/TCP > fd00:1::2:8080 as node",
            "fd00:96::10:80/TCP > fd00:1::2:8080",
        ]
    );
    service.external_local = true;
    service.internal_local = true;
    assert_eq!(
        lines(&one(service.clone(), slice(8080, ends[1..].to_vec()))),
        [
            "10.96.0.10:80/TCP >  silent",
            "192.0.2.1:30080/TCP >  silent, inside 10.1.1.2:8080",
            "198.51.100.1:80/TCP >  silent, inside 10.1.1.2:8080"
        ]
    );
    assert_eq!(
        lines(&one(service, slice(8080, ends)))[..2],
        [
            "10.96.0.10:80/TCP > 10.1.0.2:8080 silent",
            "192.0.2.1:30080/TCP > 10.1.0.2:8080 silent, inside 10.1.0.2:8080, 10.1.1.2:8080",
        ]
    );
}

#[test]
fn balancers_are_open_to_the_ranges_that_the_service_names() {
    let read = |ranges: &[&str]| {
        let spec = serde_json::json!({
            "type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:96::10"],
            "externalIPs": ["198.51.100.1"], "loadBalancerSourceRanges": ranges,
            "ports": [{"name": "web", "port": 80, "nodePort": 30080}],
        });
        let ingress = ["203.0.113.1", "2001:db8:1::1", "198.51.100.1"];
        let ingress = ingress.map(|ip| serde_json::json!({"ip": ip}));
        let status = serde_json::json!({"loadBalancer": {"ingress": ingress}});
        let service = serde_json::json!({"spec": spec, "status": status});
        let service = Service::read(serde_json::from_value(service).unwrap());
        let all = lines(&one(service, slice(8080, vec![ready("10.1.0.2", "n1")])));
        let from = |line: &String| {
            let (front, _) = line.split_once(" > ")?;
            let (_, from) = line.split_once(" from ")?;
            Some(format!("{front} {from}"))
        };
        all.iter().filter_map(from).collect::<Vec<_>>()
    };
    assert_eq!(read(&[]), [""; 0]);
    // A range of one family does not restrict the other. An external address that is also a
    // balancer's stays restricted.
    assert_eq!(
        read(&[" 10.0.0.0/8 ", "10.9.0.0/16"]),
        [
            "198.51.100.1:80/TCP 10.0.0.0/8 from 10.9.0.0/16",
            "203.0.113.1:80/TCP 10.0.0.0/8 from 10.9.0.0/16",
        ]
    );
    // A range holds the node's own address: then balancers' addresses may call, too, as its
    // programs call from there.
    assert_eq!(
        read(&["2001:db8::/64"]),
        ["2001:db8:1::1:80/TCP 2001:db8::/64 from 2001:db8:1::1/128"]
    );
}

#[test]
fn hints_lead_callers_near_only_where_all_endpoints_have_them() {
    let meant = |endpoint: Endpoint, nodes: &[&str], zones: &[&str]| Endpoint {
        hints: Some(Box::new(Hints {
            nodes: nodes.iter().map(|&name| name.to_owned()).collect(),
            zones: zones.iter().map(|&name| name.to_owned()).collect(),
        })),
        ..endpoint
    };
    let service = service("10.96.0.10", 80);
    let led = |endpoints: &[Endpoint]| -> String {
        let lines = lines(&one(service.clone(), slice(1, endpoints.to_vec())));
        let (_, ends) = lines[0].split_once(" > ").unwrap();
        ends.replace("10.1.", "").replace(":1", "")
    };
    let [a, b, c] = ["10.1.0.2", "10.1.1.2", "10.1.2.2"].map(|address| ready(address, "n"));
    let zoned = [
        meant(a.clone(), &[], &["east"]),
        meant(b.clone(), &[], &["east", "west"]),
        meant(c.clone(), &[], &["west"]),
    ];
    assert_eq!(led(&zoned), "0.2, 1.2");
    // One has no hint: all count.
    let half = [zoned[0].clone(), b.clone(), zoned[2].clone()];
    assert_eq!(led(&half), "0.2, 1.2, 2.2");
    // None has a hint for this zone.
    assert_eq!(led(&zoned[2..]), "2.2");
    // None of this zone is ready: one elsewhere counts, not a terminating one here.
    let going = Endpoint {
        ready: false,
        terminating: true,
        ..zoned[0].clone()
    };
    assert_eq!(led(&[going, zoned[2].clone()]), "2.2");
    // A hint for the caller's node takes precedence over its zone.
    let noded = [
        meant(a.clone(), &["n1"], &["east"]),
        meant(b, &["n2"], &["east"]),
        meant(c, &["n3"], &["west"]),
    ];
    assert_eq!(led(&noded), "0.2");
    assert_eq!(led(&noded[1..]), "1.2");
    // Callers that may reach only their own node's endpoints ignore hints.
    let local = Service {
        internal_local: true,
        ..service.clone()
    };
    let on_n1 = Endpoint {
        node: Some("n1".to_owned()),
        ..meant(a, &["n2"], &["west"])
    };
    assert_eq!(
        lines(&one(local, slice(1, vec![on_n1, noded[1].clone()]))),
        ["10.96.0.10:80/TCP > 10.1.0.2:1 silent"]
    );
}

#[test]
fn terminating_endpoints_serve_if_none_is_ready() {
    let going = Endpoint {
        ready: false,
        terminating: true,
        ..ready("10.1.0.3", "n1")
    };
    let service = service("10.96.0.10", 80);
    let both = vec![ready("10.1.0.2", "n1"), going.clone()];
    assert_eq!(
        lines(&one(service.clone(), slice(1, both))),
        ["10.96.0.10:80/TCP > 10.1.0.2:1"]
    );
    let last = vec![going.clone()];
    assert_eq!(
        lines(&one(service.clone(), slice(1, last))),
        ["10.96.0.10:80/TCP > 10.1.0.3:1"]
    );
    let none = vec![Endpoint {
        serving: false,
        ..going
    }];
    assert_eq!(
        lines(&one(service.clone(), slice(1, none))),
        ["10.96.0.10:80/TCP > "]
    );
    let foreign = Service {
        foreign: true,
        ..service
    };
    assert!(lines(&one(foreign, slice(1, Vec::new()))).is_empty());
}

#[test]
fn a_label_keeps_a_service_from_this_proxy() {
    let foreign = |labels: serde_json::Value| {
        let spec = serde_json::json!({"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"]});
        let service = serde_json::json!({"metadata": {"labels": labels}, "spec": spec});
        Service::read(serde_json::from_value(service).unwrap()).foreign
    };
    assert!(!foreign(serde_json::json!({"app": "web"})));
    for label in ["service-proxy-name", "headless"] {
        let label = format!("service.kubernetes.io/{label}");
        assert!(foreign(serde_json::json!({label: ""})));
    }
}

#[test]
fn a_label_keeps_callers_from_the_endpoints_of_a_slice() {
    let ends = |label: &str, value: &str| {
        let object = serde_json::json!({
            "metadata": {"labels": {"kubernetes.io/service-name": "web", label: value}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.9"]}],
            "ports": [{"name": "web", "port": 8080}],
        });
        let slice = Slice::read(serde_json::from_value(object).unwrap()).unwrap();
        assert_eq!((slice.ports.len(), slice.endpoints.len()), (1, 1));
        lines(&one(service("10.96.0.10", 80), slice))
    };
    let proxy = "service.kubernetes.io/service-proxy-name";
    for (label, value) in [("app", "web"), (proxy, "pratique-name-server")] {
        assert_eq!(ends(label, value), ["10.96.0.10:80/TCP > 10.1.0.9:8080"]);
    }
    for label in [proxy, "service.kubernetes.io/headless"] {
        assert_eq!(ends(label, ""), ["10.96.0.10:80/TCP > "], "{label}");
    }
}

#[test]
fn a_pod_has_the_ports_of_its_node_that_it_asks_for_and_no_other_pods() {
    let own: [IpAddr; 3] =
        ["192.0.2.1", "198.51.100.1", "2001:db8::1"].map(|own| own.parse().unwrap());
    let ports = |uid: &str, pod: &str, ports: serde_json::Value| {
        let spec = serde_json::json!({"containers": [{"name": "c", "ports": ports}]});
        let spec = serde_json::from_value(spec).unwrap();
        let read = HostPort::read(&spec, pod.parse().unwrap());
        (uid.to_owned(), read)
    };
    let all = [
        ports(
            "z",
            "10.1.0.2",
            serde_json::json!([
                {"containerPort": 80, "hostPort": 8080},
                {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "198.51.100.1"},
                {"containerPort": 81},
                {"containerPort": 82, "hostPort": 8082, "hostIP": "203.0.113.1"},
                {"containerPort": 83, "hostPort": 8083, "hostIP": "127.0.0.1"},
            ]),
        ),
        ports(
            "a",
            "10.1.0.3",
            serde_json::json!([{"containerPort": 90, "hostPort": 8080}]),
        ),
        ports(
            "z",
            "fd00:1::2",
            serde_json::json!([
                {"containerPort": 80, "hostPort": 8080},
                {"containerPort": 82, "hostPort": 8082, "hostIP": "192.0.2.1"},
                {"containerPort": 83, "hostPort": 8083, "hostIP": "::1"},
                {"containerPort": 84, "hostPort": 8084, "hostIP": "2001:db8::1"},
            ]),
        ),
    ];
    let mut fronts = Fronts::new();
    let known = Known {
        host_ports: all.to_vec(),
        ..Known::default()
    };
    add_host_ports(&mut fronts, &known, &own);
    let line = |(front, pick): (&Front, &Pick)| {
        let (at, port) = pick.endpoints[0];
        let how = if pick.as_node { " as node" } else { "" };
        format!(
            "{}:{}/{} > {at}:{port}{how}",
            front.address,
            front.port,
            front.protocol.name()
        )
    };
    assert_eq!(
        fronts.iter().map(line).collect::<Vec<_>>(),
        [
            "127.0.0.1:8080/TCP > 10.1.0.2:80 as node",
            "127.0.0.1:8083/TCP > 10.1.0.2:83 as node",
            "192.0.2.1:8080/TCP > 10.1.0.2:80",
            "198.51.100.1:8080/TCP > 10.1.0.2:80",
            "198.51.100.1:53/UDP > 10.1.0.2:53",
            "2001:db8::1:8080/TCP > fd00:1::2:80",
            "2001:db8::1:8084/TCP > fd00:1::2:84",
        ]
    );
}

#[test]
fn ports_that_the_machine_answers_itself_go_to_no_pod_and_no_service() {
    let own: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap()];
    let balanced = Service {
        external_local: true,
        health_port: Some(30_500),
        ..service("10.96.0.10", 80)
    };
    let port = |protocol, port| HostPort {
        address: None,
        protocol,
        port,
        pod: "10.1.0.2".parse().unwrap(),
        pod_port: 80,
    };
    let ports = vec![
        port(Protocol::Tcp, 30_500),
        port(Protocol::Udp, 30_500),
        port(Protocol::Tcp, 30_501),
    ];
    let (services, slices) = one(balanced, slice(1, Vec::new()));
    let known = Known {
        services: Some(services),
        slices: Some(slices),
        host_ports: vec![("z".to_owned(), ports)],
        ..Known::default()
    };
    let mut fronts = Fronts::new();
    add_host_ports(&mut fronts, &known, &own);
    let line = |front: &Front| format!("{}:{}", front.address, front.port);
    let at_node = |fronts: &Fronts| -> Vec<String> {
        let own = fronts.keys().filter(|front| own.contains(&front.address));
        own.map(line).collect()
    };
    assert_eq!(at_node(&fronts), ["192.0.2.1:30501", "192.0.2.1:30500"]);
    // A service may name an address of the node, as one on bare metal does, for ports that are not
    // the machine's.
    for (protocol, number) in MACHINE_PORTS {
        let named = |number| {
            let mut named = service("10.96.0.10", number);
            named.ports[0].protocol = protocol;
            named.external = own.clone();
            named.balancers = own.clone();
            let (services, slices) = one(named, slice(1, vec![ready("10.1.0.2", "n1")]));
            let here = Here {
                node: "n1",
                zone: None,
                addresses: &own,
                name_servers: &[],
            };
            super::fronts(&services, &slices, here)
        };
        assert!(at_node(&named(number)).is_empty(), "{number}");
        assert_eq!(at_node(&named(number + 5000)).len(), 1, "{number}");
    }
}

#[test]
fn what_is_no_address_of_its_family_is_no_endpoint() {
    let endpoint = |address: &str| serde_json::json!({"addresses": [address]});
    let odd = [
        "::ffff:10.1.0.2",
        "::ffff:127.0.0.1",
        "web.example.org",
        "",
        "10.1.0.02",
        "fe80::1%eth0",
    ];
    let endpoints: Vec<_> = odd.into_iter().chain(["fd00:1::2"]).map(endpoint).collect();
    let slice = serde_json::json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv6",
        "endpoints": endpoints,
        "ports": [{"port": 80}, {"port": 70_000}, {"port": -1}, {"name": "all"}, {"port": 80, "protocol": "SCTP"}],
    });
    let read = Slice::read(serde_json::from_value(slice).unwrap()).unwrap();
    let addresses: Vec<String> = read
        .endpoints
        .iter()
        .map(|one| one.address.to_string())
        .collect();
    assert_eq!(addresses, ["fd00:1::2"]);
    assert_eq!(read.ports.len(), 1);
}
