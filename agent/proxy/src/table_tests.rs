use super::*;
use crate::view::{Endpoint, Hints, Port, SlicePort};
use agent_sys::namespace::{self, Kind, hold, in_new, inside, release};
use agent_sys::netlink::filter::Filter;
use agent_sys::netlink::links::{Cable, LOOPBACK, Links, Route};
use proptest::prelude::*;
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

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
    let own = ["192.0.2.1".parse().unwrap()];
    let line = |(front, pick): (&Front, &Pick)| {
        let ends = pick.endpoints.iter();
        let ends: Vec<String> = ends.map(|(ip, port)| format!("{ip}:{port}")).collect();
        let how = [(pick.as_node, " as node"), (pick.silent, " silent")];
        let how: String = how
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, word)| *word)
            .collect();
        format!(
            "{}:{}/{} > {}{how}",
            front.address,
            front.port,
            front.protocol.name(),
            ends.join(", ")
        )
    };
    let here = Here {
        node: "n1",
        zone: Some("east"),
        addresses: &own,
    };
    fronts((services, slices), here).iter().map(line).collect()
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
    service.external_local = true;
    service.internal_local = true;
    assert_eq!(
        lines(&one(service.clone(), slice(8080, ends[1..].to_vec()))),
        [
            "10.96.0.10:80/TCP >  silent",
            "192.0.2.1:30080/TCP >  silent",
            "198.51.100.1:80/TCP >  silent"
        ]
    );
    assert_eq!(
        lines(&one(service, slice(8080, ends)))[0],
        "10.96.0.10:80/TCP > 10.1.0.2:8080 silent"
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
    // One without a hint: all of them.
    let half = [zoned[0].clone(), b.clone(), zoned[2].clone()];
    assert_eq!(led(&half), "0.2, 1.2, 2.2");
    // None for this zone.
    assert_eq!(led(&zoned[2..]), "2.2");
    // Of this zone none that is ready: one elsewhere, not one on its way out here.
    let going = Endpoint {
        ready: false,
        terminating: true,
        ..zoned[0].clone()
    };
    assert_eq!(led(&[going, zoned[2].clone()]), "2.2");
    // Its own node comes before its zone, where one is meant for it.
    let noded = [
        meant(a.clone(), &["n1"], &["east"]),
        meant(b, &["n2"], &["east"]),
        meant(c, &["n3"], &["west"]),
    ];
    assert_eq!(led(&noded), "0.2");
    assert_eq!(led(&noded[1..]), "1.2");
    // Callers that may reach their own node's endpoints alone have no use for hints.
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
fn endpoints_on_their_way_out_serve_where_none_is_ready() {
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

fn any_fronts() -> impl Strategy<Value = Fronts> {
    let front = (1_u8..6, any::<bool>(), 1_u16..3).prop_map(|(last, udp, port)| Front {
        address: Ipv4Addr::new(10, 96, 0, last),
        protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
        port,
    });
    let ends = proptest::collection::btree_set((1_u8..8, 1_u16..3), 0..6);
    let pick = (ends, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(ends, stays, as_node, silent)| Pick {
            endpoints: ends
                .into_iter()
                .map(|(last, port)| (Ipv4Addr::new(10, 1, 0, last), port))
                .collect(),
            affinity: stays.then_some(60),
            as_node,
            silent,
        },
    );
    proptest::collection::btree_map(front, pick, 0..8)
}

/// What the kernel would hold after changes.
#[derive(Debug, Default, Clone, PartialEq)]
struct Model {
    entries: BTreeMap<(Name, Vec<u8>), Option<Value>>,
    chains: HashSet<String>,
}

impl Model {
    fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::AddEntries { map, entries, .. } => {
                    for (key, value) in entries {
                        if let Value::Goto(chain) = &value {
                            assert!(self.chains.contains(&**chain) || *chain == NOBODY);
                        }
                        assert!(
                            self.entries
                                .insert((map.into(), key), Some(value))
                                .is_none()
                        );
                    }
                }
                Change::AddElements { set, keys, .. } => {
                    for key in keys {
                        assert!(self.entries.insert((set.clone(), key), None).is_none());
                    }
                }
                Change::RemoveElements { set, keys, .. } => {
                    for key in keys {
                        assert!(self.entries.remove(&(set.clone(), key)).is_some());
                    }
                }
                Change::AddBranch { name, .. } => assert!(self.chains.insert(name.into_owned())),
                Change::AddTable(_)
                | Change::RemoveTable(_)
                | Change::AddChain { .. }
                | Change::AddMap { .. }
                | Change::AddMemory { .. }
                | Change::AddSet { .. }
                | Change::AddRanges { .. }
                | Change::ClearChain { .. }
                | Change::RemoveChain { .. }
                | Change::RemoveSet { .. }
                | Change::AddRule { .. } => {}
            }
        }
    }
}

proptest! {
    #[test]
    fn step_by_step_and_at_once_give_the_same(states in proptest::collection::vec(any_fronts(), 1..8)) {
        let (mut model, mut chains) = (Model::default(), Chains::default());
        let mut held = &Fronts::new();
        for state in &states {
            model.apply(chains.lead(held, state));
            held = state;
        }
        let mut fresh = Model::default();
        fresh.apply(difference(&Entries::default(), &entries(states.last().unwrap())));
        prop_assert_eq!(model.entries, fresh.entries);
        prop_assert!(fresh.chains.is_subset(&model.chains));
        prop_assert!(chains.lead(held, held).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn the_kernel_takes_every_change(states in proptest::collection::vec(any_fronts(), 1..8)) {
        in_new(&[Kind::Network], || {
            let mut filter = Filter::open()?;
            let (mut chains, mut held) = (Chains::default(), &Fronts::new());
            filter.apply(&all(&entries(held)))?;
            for state in &states {
                let changes = chains.lead(held, state);
                if !changes.is_empty() {
                    filter.apply(&changes)?;
                }
                held = state;
            }
            filter.apply(&all(&entries(held)))
        })
        .unwrap();
    }
}

/// The address of the host on which servers and callers are: callers have none of their own on a loopback network.
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

/// A server that says its name to each caller, for as long as the test runs.
fn serve(name: &'static str) -> u16 {
    let listener = TcpListener::bind((HOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.write_all(name.as_bytes()).ok();
        }
    });
    port
}

fn ask(port: u16) -> Result<String, std::io::ErrorKind> {
    let address = SocketAddr::from(([10, 96, 0, 1], port));
    let mut stream = TcpStream::connect(address).map_err(|error| error.kind())?;
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .map_err(|error| error.kind())?;
    Ok(text)
}

/// In a network of its own, where the services' range is routed somewhere.
fn in_a_network(test: impl FnOnce(&mut Filter) + Send) {
    in_new(&[Kind::Network], || {
        let mut links = Links::open()?;
        links.switch_on(LOOPBACK)?;
        links.add_address(LOOPBACK, HOST.into(), 32)?;
        links.add_route(&Route {
            destination: "10.96.0.0".parse().unwrap(),
            prefix: 16,
            gateway: None,
            link: LOOPBACK,
        })?;
        test(&mut Filter::open()?);
        Ok(())
    })
    .unwrap();
}

fn front(port: u16, protocol: Protocol) -> Front {
    Front {
        address: Ipv4Addr::new(10, 96, 0, 1),
        protocol,
        port,
    }
}

fn pick(ports: &[u16], affinity: Option<u32>) -> Pick {
    Pick {
        endpoints: ports.iter().map(|port| (HOST, *port)).collect(),
        affinity,
        ..Pick::default()
    }
}

#[test]
fn callers_reach_every_endpoint_and_stay_where_they_should() {
    in_a_network(|filter| {
        let (a, b) = (serve("a"), serve("b"));
        let wanted: Fronts = [
            (front(80, Protocol::Tcp), pick(&[a, b], None)),
            (front(81, Protocol::Tcp), pick(&[a, b], Some(600))),
            (front(82, Protocol::Tcp), pick(&[], None)),
        ]
        .into();
        let held = entries(&wanted);
        filter.apply(&all(&held)).unwrap();
        // Each of the two is missed by all of these calls in one of 2^63 runs.
        let seen: HashSet<String> = (0..64).map(|_| ask(80).unwrap()).collect();
        assert_eq!(seen.len(), 2, "both are reached");
        let first = ask(81).unwrap();
        assert!((0..32).all(|_| ask(81).unwrap() == first), "a client stays");
        // The endpoint with which the client stays goes; the other one takes over.
        let rest = if first == "a" { b } else { a };
        let mut next = wanted;
        next.insert(front(81, Protocol::Tcp), pick(&[rest], Some(600)));
        next.insert(front(82, Protocol::Tcp), pick(&[a], None));
        next.remove(&front(80, Protocol::Tcp));
        let wanted = entries(&next);
        filter.apply(&difference(&held, &wanted)).unwrap();
        assert!((0..8).all(|_| ask(81).unwrap() != first));
        assert_eq!(ask(82).unwrap(), "a");
    });
}

#[test]
fn datagrams_go_to_an_endpoint_and_answers_come_back() {
    in_a_network(|filter| {
        let server = UdpSocket::bind((HOST, 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        let wanted = [(front(53, Protocol::Udp), pick(&[port], None))].into();
        filter.apply(&all(&entries(&wanted))).unwrap();
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client.connect("10.96.0.1:53").unwrap();
        for socket in [&client, &server] {
            socket
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
        }
        client.send(b"who").unwrap();
        let mut buffer = [0; 16];
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"who");
        server.send_to(b"me", from).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), 2);
    });
}

/// Runs `test` on a machine with one pod behind a cable; it gets the place of the pod's network.
fn with_a_pod(test: impl FnOnce(&mut Filter, &Path) + Send) {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("pod");
    in_new(&[Kind::Network], || hold(Kind::Network, &place)).unwrap();
    let (near, far) = (Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 1, 0, 2));
    let join = |name: &str, own: Ipv4Addr, other: Ipv4Addr| {
        let mut links = Links::open().unwrap();
        links.switch_on(LOOPBACK).unwrap();
        let link = links.named(name).unwrap().unwrap().index;
        links.switch_on(link).unwrap();
        links.add_address(link, own.into(), 32).unwrap();
        let to = |destination: Ipv4Addr, prefix, gateway: Option<IpAddr>| Route {
            destination: destination.into(),
            prefix,
            gateway,
            link,
        };
        links.add_route(&to(other, 32, None)).unwrap();
        let rest = to(Ipv4Addr::UNSPECIFIED, 0, Some(other.into()));
        links.add_route(&rest).unwrap();
    };
    in_new(&[Kind::Network], || {
        let network = File::open(&place).unwrap();
        Links::open()?.lay(&Cable {
            name: "pod-1",
            mac: [2, 0, 0, 0, 0, 1],
            far_name: "eth0",
            far_mac: [2, 0, 0, 0, 0, 2],
            far: network.as_fd(),
            mtu: 1500,
        })?;
        join("pod-1", near, far);
        inside(&[(Kind::Network, &place)], || {
            join("eth0", far, near);
            Ok(())
        })?;
        test(&mut Filter::open()?, &place);
        Ok(())
    })
    .unwrap();
    release(&place).unwrap();
}

/// What a caller hears by TCP and by UDP.
fn heard() -> [std::io::ErrorKind; 2] {
    let tcp = TcpStream::connect("10.96.0.1:80").unwrap_err();
    let client = UdpSocket::bind("0.0.0.0:0").unwrap();
    client.connect("10.96.0.1:53").unwrap();
    let limit = Some(Duration::from_secs(60));
    client.set_read_timeout(limit).unwrap();
    // The packet filter tells the machine's own callers already as they send.
    client.send(b"who").ok();
    let udp = client.recv(&mut [0; 8]).unwrap_err();
    [tcp.kind(), udp.kind()]
}

#[test]
fn callers_of_a_service_without_endpoints_are_refused() {
    with_a_pod(|filter, pod| {
        let none = [
            (front(80, Protocol::Tcp), pick(&[], None)),
            (front(53, Protocol::Udp), pick(&[], None)),
        ];
        filter.apply(&all(&entries(&none.into()))).unwrap();
        let refused = [std::io::ErrorKind::ConnectionRefused; 2];
        let of_pod = inside(&[(Kind::Network, pod)], || Ok(heard())).unwrap();
        assert_eq!(of_pod, refused, "a pod");
        assert_eq!(heard(), refused, "the machine itself");
    });
}

#[test]
fn a_pod_has_the_ports_of_its_node_that_it_asks_for_and_no_other_pods() {
    let own: [IpAddr; 2] = [
        "192.0.2.1".parse().unwrap(),
        "198.51.100.1".parse().unwrap(),
    ];
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
    ];
    let mut fronts = Fronts::new();
    add_host_ports(&mut fronts, &all, &own);
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
        ]
    );
}

#[test]
fn a_port_of_the_node_leads_to_its_pod() {
    with_a_pod(|filter, pod| {
        let at: IpAddr = "192.0.2.1".parse().unwrap();
        Links::open()
            .unwrap()
            .add_address(LOOPBACK, at, 32)
            .unwrap();
        let port = HostPort {
            address: None,
            protocol: Protocol::Tcp,
            port: 8080,
            pod: "10.1.0.2".parse().unwrap(),
            pod_port: 80,
        };
        let mut fronts = Fronts::new();
        add_host_ports(&mut fronts, &[("u".to_owned(), vec![port])], &[at]);
        filter.apply(&all(&entries(&fronts))).unwrap();
        let bind = || Ok(TcpListener::bind(("0.0.0.0", 80)).unwrap());
        let listener = inside(&[(Kind::Network, pod)], bind).unwrap();
        // As the sandbox's cable is set.
        namespace::set("net/ipv4/conf/pod-1/route_localnet", "1").unwrap();
        let limit = Duration::from_secs(60);
        for at in [at, Ipv4Addr::LOCALHOST.into()] {
            let called = TcpStream::connect_timeout(&(at, 8080).into(), limit);
            assert!(called.is_ok(), "{at}: {called:?}");
            listener.accept().unwrap();
        }
    });
}
