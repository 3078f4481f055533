//! Tests callers from outside of the machine: the source address that a pod sees, and what they
//! reach while an agent restarts. The machine and its neighbour are network namespaces. Needs root.

mod leases;
mod reused;

use agent_cluster::{Peer, Sandbox, SandboxOptions, SandboxSpec, Sandboxes};
use agent_proxy::{HostPort, Key, Known, Protocol, Rules, Service, ServiceRange, Slice};
use agent_sys::namespace::{self, Kind, hold, in_new, release};
use agent_sys::netlink::Family;
use agent_sys::netlink::links::{LOOPBACK, Links, Route, VethPair};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The machine's addresses, its neighbour's, those of a pod there, and the machine's own in its
/// ranges, one of each family.
const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const NEIGHBOUR: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
const POD_THERE: [&str; 2] = ["10.1.1.5", "fd00:1:0:1::5"];
const GATEWAY: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
const RANGES: [&str; 2] = ["10.1.0.0/24", "fd00:1::/64"];
const RANGES_THERE: [&str; 2] = ["10.1.1.0/24", "fd00:1:0:1::/64"];
/// Addresses of services that belong to no node: an external IP, and a load balancer's.
const EXTERNAL: [&str; 2] = ["203.0.113.7", "2001:db8:1::7"];
const BALANCER: [&str; 2] = ["203.0.113.8", "2001:db8:1::8"];
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for a packet between two namespaces; only refusals wait for it to pass.
const SILENCE: Duration = Duration::from_millis(500);

fn at(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A machine with a neighbour on one segment.
struct Machine {
    dir: tempfile::TempDir,
    neighbour: PathBuf,
}

impl Machine {
    fn with(test: impl FnOnce(&Self) + Send) {
        let dir = tempfile::tempdir().expect("a folder");
        let neighbour = dir.path().join("neighbour");
        in_new(&[Kind::Network], || hold(Kind::Network, &neighbour)).expect("a neighbour");
        let machine = Self { dir, neighbour };
        in_new(&[Kind::Network], || {
            let far = File::open(&machine.neighbour).expect("the neighbour");
            let mut links = Links::open()?;
            links.switch_on(LOOPBACK)?;
            links.add_veth_pair(&VethPair {
                name: "segment",
                mac: [2, 0, 0, 0, 0, 1],
                far_name: "segment",
                far_mac: [2, 0, 0, 0, 0, 2],
                far: far.as_fd(),
                mtu: 1500,
            })?;
            join(NODE);
            machine.there(|| {
                let mut links = Links::open().expect("links");
                links.switch_on(LOOPBACK).expect("the loopback link");
                join(NEIGHBOUR);
                for address in POD_THERE.map(at) {
                    let bits = Family::of(address).bits();
                    links
                        .add_address(LOOPBACK, address, bits)
                        .expect("an address");
                }
                for (range, gateway) in RANGES.into_iter().zip(NODE) {
                    let (destination, prefix) = range.split_once('/').expect("a range");
                    let route = Route {
                        destination: at(destination),
                        prefix: prefix.parse().expect("a prefix"),
                        gateway: Some(at(gateway)),
                        link: 0,
                    };
                    links.add_route(&route).expect("a route");
                }
            });
            test(&machine);
            Ok(())
        })
        .expect("a machine");
        release(&machine.neighbour).expect("it goes");
    }

    /// A newly started agent; pods' packets pass between machines untranslated.
    fn agent(&self) -> Sandboxes {
        let agent = Sandboxes::open(SandboxOptions {
            run: self.dir.path().join("pods"),
            ledger: self.dir.path().join("addresses.json"),
            kubernetes_only: true,
            tunnel: false,
        });
        let agent = agent.expect("an agent");
        let ranges = RANGES.map(|range| range.parse().expect("a range"));
        agent.give_ranges(&ranges).expect("rules");
        agent
    }

    fn there<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        namespace::inside(&[(Kind::Network, &self.neighbour)], || Ok(work())).expect("its network")
    }
}

fn join(addresses: [&str; 2]) {
    let mut links = Links::open().expect("links");
    let link = links.named("segment").expect("links").expect("the link");
    links.switch_on(link.index).expect("it is on");
    for (address, prefix) in addresses.into_iter().zip([24, 64]) {
        links
            .add_address(link.index, at(address), prefix)
            .expect("an address");
    }
}

fn pod(agent: &Sandboxes, uid: &str) -> Sandbox {
    let wanted = SandboxSpec {
        uid: uid.to_owned(),
        network: true,
        ..SandboxSpec::default()
    };
    agent.make(&wanted).expect("a sandbox")
}

fn within<T: Send>(sandbox: &Sandbox, work: impl FnOnce() -> T + Send) -> T {
    let network = sandbox.held(Kind::Network).expect("a network");
    namespace::inside(&[(Kind::Network, &network)], || Ok(work())).expect("its network")
}

/// A server of both protocols at port 80 of a pod.
struct Server {
    connections: TcpListener,
    datagrams: UdpSocket,
}

impl Server {
    fn of(pod: &Sandbox, address: IpAddr) -> Self {
        within(pod, || {
            let datagrams = UdpSocket::bind((address, 80)).expect("a socket");
            datagrams
                .set_read_timeout(Some(PATIENCE))
                .expect("a time limit");
            Self {
                connections: TcpListener::bind((address, 80)).expect("a socket"),
                datagrams,
            }
        })
    }

    /// The source addresses that it sees of a call, by each protocol; each call gets an answer.
    fn sees(&self, call: impl Fn() -> (TcpStream, UdpSocket)) -> [IpAddr; 2] {
        let (mut stream, socket) = call();
        let (mut accepted, by_connection) = self.connections.accept().expect("a caller");
        accepted.write_all(b"me").expect("it is sent");
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).expect("an answer");
        socket.send(b"who").expect("it is sent");
        let (_, from) = self
            .datagrams
            .recv_from(&mut [0; 8])
            .expect("a caller's datagram");
        self.datagrams.send_to(b"me", from).expect("it is sent");
        socket.recv(&mut answer).expect("an answer");
        [by_connection.ip(), from.ip()]
    }
}

/// Calls an address by each protocol; datagrams have the source address `from`.
fn call(from: IpAddr, to: IpAddr, port: u16) -> (TcpStream, UdpSocket) {
    let socket = UdpSocket::bind((from, 0)).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    socket.connect((to, port)).expect("it is called");
    let stream = TcpStream::connect_timeout(&(to, port).into(), PATIENCE);
    (stream.expect("it is reached"), socket)
}

/// The neighbour as a node of the cluster.
fn neighbour() -> Peer {
    Peer {
        name: "n2".to_owned(),
        addresses: NEIGHBOUR.map(at).into(),
        ranges: RANGES_THERE
            .map(|range| range.parse().expect("a range"))
            .into(),
        trusted: true,
    }
}

/// A service with a node port, and its endpoints by node.
fn service(name: &str, node_port: u16, policy: &str, ends: &[(&str, &str)]) -> Known {
    let own = ["10.96.0.1", "fd00:96::1"].map(|base| format!("{base}{}", node_port % 1000));
    let port = |name: &str, protocol: &str| json!({"name": name, "protocol": protocol, "port": 80});
    let ports = [port("tcp", "TCP"), port("udp", "UDP")];
    let mut open = ports.clone();
    for port in &mut open {
        port["nodePort"] = json!(node_port);
    }
    let object = json!({"metadata": {"namespace": "shop", "name": name}, "spec": {
        "type": "NodePort", "clusterIP": own[0], "clusterIPs": own, "ports": open,
        "externalTrafficPolicy": policy,
    }});
    let service = Service::read(serde_json::from_value(object).expect("a service"));
    let ends: Vec<Value> = ends
        .iter()
        .map(|(node, address)| json!({"addresses": [address], "nodeName": node}))
        .collect();
    let object = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": ports, "endpoints": ends,
    });
    let slice = Slice::read(serde_json::from_value(object).expect("a slice")).expect("a slice");
    let key = Arc::new(Key {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    });
    Known {
        services: Some([(Arc::clone(&key), Arc::new(service))].into()),
        slices: Some([(key, Arc::new(slice))].into()),
        ..Known::default()
    }
}

/// All of these together.
fn known(all: Vec<Known>, host_ports: Vec<HostPort>) -> Arc<Known> {
    let mut known = Known {
        services: Some([].into()),
        slices: Some([].into()),
        host_ports: vec![("a".to_owned(), host_ports)],
        ..Known::default()
    };
    for one in all {
        let (services, slices) = (known.services.as_mut(), known.slices.as_mut());
        services
            .expect("they are known")
            .extend(one.services.unwrap_or_default());
        slices
            .expect("they are known")
            .extend(one.slices.unwrap_or_default());
    }
    Arc::new(known)
}

#[test]
fn a_caller_from_outside_is_seen_as_itself_where_its_node_alone_answers() {
    Machine::with(|machine| {
        let agent = machine.agent();
        let a = pod(&agent, "a");
        let own: Vec<String> = a.addresses.iter().map(IpAddr::to_string).collect();
        let here: Vec<(&str, &str)> = own.iter().map(|at| ("n1", &**at)).collect();
        let there: Vec<(&str, &str)> = POD_THERE.iter().map(|at| ("n2", *at)).collect();
        let host_port = |address: &IpAddr| {
            [Protocol::Tcp, Protocol::Udp].map(|protocol| HostPort {
                address: None,
                protocol,
                port: 8080,
                pod: *address,
                pod_port: 80,
            })
        };
        let known = known(
            vec![
                service("open", 30_080, "Cluster", &here),
                service("local", 30_081, "Local", &[&*here, &*there].concat()),
                service("elsewhere", 30_082, "Local", &there),
                service("empty", 30_083, "Cluster", &[]),
            ],
            a.addresses.iter().flat_map(host_port).collect(),
        );
        Rules::default()
            .apply(&known, "n1", &NODE.map(at))
            .expect("rules");
        for place in 0..2 {
            let server = Server::of(&a, a.addresses[place]);
            let (node, caller) = (at(NODE[place]), at(NEIGHBOUR[place]));
            for (port, seen) in [
                (30_080, GATEWAY[place]),
                (30_081, NEIGHBOUR[place]),
                (8080, NEIGHBOUR[place]),
            ] {
                let callers = server.sees(|| machine.there(|| call(caller, node, port)));
                assert_eq!(callers, [at(seen); 2], "port {port} of {node}");
            }
            let ends = |port: u16| {
                let to = (node, port).into();
                let ends = machine.there(|| TcpStream::connect_timeout(&to, SILENCE));
                ends.expect_err("nobody answers").kind()
            };
            // A load balancer tries another node; here nothing is answered in its place.
            assert_eq!(ends(30_082), ErrorKind::TimedOut);
            assert_eq!(ends(30_083), ErrorKind::ConnectionRefused);
            server.connections.set_nonblocking(true).expect("a setting");
            assert!(server.connections.accept().is_err());
        }
        agent.remove("a").expect("it goes");
    });
}

/// A service at all addresses that one can have outside of the cluster, with port 30,084 of the
/// node, and these pods as endpoints here.
fn at_all_addresses(policy: &str, pods: &[&Sandbox]) -> Arc<Known> {
    let ends = pods.iter().flat_map(|pod| &pod.addresses);
    let ends: Vec<String> = ends.map(IpAddr::to_string).collect();
    let ends: Vec<(&str, &str)> = ends.iter().map(|at| ("n1", &**at)).collect();
    let mut one = service("names", 30_084, policy, &ends);
    for service in one.services.iter_mut().flat_map(|all| all.values_mut()) {
        let service = Arc::make_mut(service);
        service.external = EXTERNAL.map(at).into();
        service.balancers = BALANCER.map(at).into();
    }
    known(vec![one], Vec::new())
}

#[test]
fn datagrams_of_a_caller_outside_go_where_the_service_leads_now_wherever_it_calls() {
    Machine::with(|machine| {
        let agent = machine.agent();
        let (a, b) = (pod(&agent, "a"), pod(&agent, "b"));
        machine.there(|| {
            let mut links = Links::open().expect("links");
            for (place, gateway) in NODE.map(at).into_iter().enumerate() {
                for destination in [EXTERNAL[place], BALANCER[place]].map(at) {
                    let route = Route {
                        destination,
                        prefix: Family::of(destination).bits(),
                        gateway: Some(gateway),
                        link: 0,
                    };
                    links.add_route(&route).expect("a route");
                }
            }
        });
        for policy in ["Cluster", "Local"] {
            let mut rules = Rules::default();
            let mut lead = |pods: &[&Sandbox]| {
                let known = at_all_addresses(policy, pods);
                rules.apply(&known, "n1", &NODE.map(at)).expect("rules");
            };
            for place in 0..2 {
                let [first, second] = [&a, &b].map(|pod| Server::of(pod, pod.addresses[place]));
                lead(&[&a]);
                let called = [
                    (NODE[place], 30_084),
                    (EXTERNAL[place], 80),
                    (BALANCER[place], 80),
                ];
                // Each keeps sending from the same port, as a DNS client or a telephone does.
                let callers = called.map(|(address, port)| {
                    machine.there(|| {
                        let socket = UdpSocket::bind((at(NEIGHBOUR[place]), 0)).expect("a socket");
                        socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
                        socket.connect((at(address), port)).expect("it is called");
                        socket
                    })
                });
                let arrive = |server: &Server, what: &str| {
                    for (caller, called) in callers.iter().zip(called) {
                        caller.send(what.as_bytes()).expect("it is sent");
                        let mut text = [0; 8];
                        let got = server.datagrams.recv(&mut text);
                        let got = got.unwrap_or_else(|error| {
                            panic!("{called:?}, {policy}, {what}: {error}")
                        });
                        assert_eq!(&text[..got], what.as_bytes(), "{called:?}, {policy}");
                    }
                };
                arrive(&first, "first");
                lead(&[&b]);
                arrive(&second, "second");
                lead(&[]);
                for (caller, called) in callers.iter().zip(called) {
                    caller.send(b"third").expect("it is sent");
                    let heard = caller.recv(&mut [0; 8]).expect_err("nobody answers");
                    assert_eq!(heard.kind(), ErrorKind::ConnectionRefused, "{called:?}");
                }
                // One that called while there was no endpoint finds the first one at once.
                lead(&[&a]);
                arrive(&first, "fourth");
            }
        }
        for name in ["a", "b"] {
            agent.remove(name).expect("it goes");
        }
    });
}

/// A range of services of each family, and an address in it.
const SERVICE_RANGES: [&str; 2] = ["10.96.0.0/16", "fd00:96::/112"];
const OF_SERVICES: [&str; 2] = ["10.96.0.185", "fd00:96::185"];

/// Checks that calls by each protocol are refused.
fn is_refused(to: IpAddr) {
    let stream = TcpStream::connect_timeout(&(to, 80).into(), PATIENCE);
    let heard = stream.expect_err("nobody answers").kind();
    assert_eq!(heard, ErrorKind::ConnectionRefused, "{to}");
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    socket.connect((to, 80)).expect("it is called");
    // The machine's own callers get nftables' error already as they send.
    socket.send(b"who").ok();
    let heard = socket.recv(&mut [0; 8]).expect_err("nobody answers").kind();
    assert_eq!(heard, ErrorKind::ConnectionRefused, "{to}");
}

#[test]
fn nobody_outside_answers_in_place_of_a_service_that_does_not_exist() {
    Machine::with(|machine| {
        let agent = machine.agent();
        let (a, b) = (pod(&agent, "a"), pod(&agent, "b"));
        // The neighbour is the machine's router, and accepts every connection.
        let mut links = Links::open().expect("links");
        for (to, router) in OF_SERVICES.map(at).into_iter().zip(NEIGHBOUR.map(at)) {
            let bits = Family::of(to).bits();
            let route = Route {
                destination: to,
                prefix: bits,
                gateway: Some(router),
                link: 0,
            };
            links.add_route(&route).expect("a route");
            machine.there(|| {
                let mut links = Links::open().expect("links");
                links.add_address(LOOPBACK, to, bits).expect("an address");
            });
        }
        let others = OF_SERVICES.map(|to| {
            machine.there(|| {
                let datagrams = UdpSocket::bind((at(to), 80)).expect("a socket");
                datagrams.set_nonblocking(true).expect("a setting");
                (
                    TcpListener::bind((at(to), 80)).expect("a socket"),
                    datagrams,
                )
            })
        });
        for to in OF_SERVICES.map(at) {
            let called = within(&a, || {
                TcpStream::connect_timeout(&(to, 80).into(), PATIENCE)
            });
            called.expect("the neighbour, while the ranges of services are not known");
        }
        // A service that has the addresses for a while.
        let ends: Vec<String> = b.addresses.iter().map(IpAddr::to_string).collect();
        let ends: Vec<(&str, &str)> = ends.iter().map(|at| ("n1", &**at)).collect();
        let service = service("web", 30_085, "Cluster", &ends);
        let with = |services: Vec<Known>| {
            let range = |text: &str| ServiceRange(vec![text.parse().expect("a range")]);
            let ranges = SERVICE_RANGES.map(|text| (text.to_owned(), Arc::new(range(text))));
            Arc::new(Known {
                service_ranges: Some(ranges.into()),
                nodes: Some([].into()),
                ..(*known(services, Vec::new())).clone()
            })
        };
        let mut rules = Rules::default();
        let mut lead = |known: &Arc<Known>| rules.apply(known, "n1", &NODE.map(at)).expect("rules");
        lead(&with(vec![service]));
        let callers = OF_SERVICES.map(at).into_iter().zip(&a.addresses);
        let callers = callers.zip(&b.addresses).map(|((to, from), end)| {
            let server = Server::of(&b, *end);
            let (_, socket) = within(&a, || call(*from, to, 80));
            socket.send(b"who").expect("it is sent");
            let got = server.datagrams.recv(&mut [0; 8]);
            assert_eq!(got.expect("a datagram of the service's"), 3);
            socket
        });
        let callers: Vec<UdpSocket> = callers.collect();
        lead(&with(Vec::new()));
        for socket in &callers {
            socket.send(b"secret").expect("it is sent");
            let heard = socket.recv(&mut [0; 8]).expect_err("nobody answers");
            assert_eq!(heard.kind(), ErrorKind::ConnectionRefused);
        }
        for to in OF_SERVICES.map(at) {
            within(&a, || is_refused(to));
            is_refused(to);
        }
        for (connections, datagrams) in &others {
            let got = datagrams.recv(&mut [0; 8]).expect_err("nothing came");
            assert_eq!(got.kind(), ErrorKind::WouldBlock);
            connections.set_nonblocking(true).expect("a setting");
            // The earlier one.
            connections.accept().expect("a caller");
            assert!(connections.accept().is_err());
        }
        for name in ["a", "b"] {
            agent.remove(name).expect("it goes");
        }
    });
}

#[test]
fn pods_of_other_nodes_come_in_unchanged_while_an_agent_starts_anew() {
    Machine::with(|machine| {
        let peer = neighbour();
        let first = machine.agent();
        let a = pod(&first, "a");
        let unreached = first.give_peers(std::slice::from_ref(&peer));
        assert_eq!(unreached.expect("routes"), []);
        let servers = [0, 1].map(|place| Server::of(&a, a.addresses[place]));
        let come = |what: &str| {
            for (place, server) in servers.iter().enumerate() {
                for from in [POD_THERE[place], NEIGHBOUR[place]] {
                    let to = a.addresses[place];
                    let seen = server.sees(|| machine.there(|| call(at(from), to, 80)));
                    assert_eq!(seen, [at(NEIGHBOUR[place]), at(from)], "{what}");
                }
            }
        };
        let go = |what: &str| {
            for (there, own) in POD_THERE.map(at).into_iter().zip(&a.addresses) {
                let (listener, stream) = machine.there(|| {
                    let listener = TcpListener::bind((there, 80)).expect("a socket");
                    let to = (there, 80).into();
                    let stream = within(&a, || TcpStream::connect_timeout(&to, PATIENCE));
                    (listener, stream)
                });
                stream.expect(what);
                let (_, from) = listener.accept().expect("a caller");
                assert_eq!(from.ip(), *own, "{what}");
            }
        };
        come("before");
        go("before");
        drop(first);
        // It knows its ranges, and not the other nodes yet.
        let second = machine.agent();
        come("anew");
        go("anew");
        // A node that was deleted while no agent ran is no longer admitted.
        second.give_peers(&[]).expect("no routes");
        let to = (a.addresses[0], 80).into();
        let reached = machine.there(|| TcpStream::connect_timeout(&to, SILENCE));
        assert!(reached.is_err(), "{reached:?}");
        second.remove("a").expect("it goes");
    });
}

/// A UDP flow between a pod and the neighbour, with a datagram each way.
struct Flow {
    name: String,
    pod: UdpSocket,
    neighbour: UdpSocket,
}

impl Flow {
    /// The client calls at `to` until the server hears it, and the server answers: the first
    /// datagram over a new link may be lost.
    fn begin(name: &str, [client, server]: [&UdpSocket; 2], to: SocketAddr) {
        let mut text = [0; 8];
        let mut call = || {
            client.send_to(b"who", to).expect("it is sent");
            server.recv_from(&mut text).ok()
        };
        server.set_read_timeout(Some(SILENCE)).expect("a limit");
        let called = (0..PATIENCE.as_secs()).find_map(|_| call());
        let (_, from) = called.expect(name);
        for socket in [client, server] {
            socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
        }
        server.send_to(b"me", from).expect("it is sent");
        let (_, by) = client.recv_from(&mut text).expect(name);
        assert_eq!(by, to, "{name}");
    }

    /// The neighbour calls a pod from one of its addresses.
    fn from(machine: &Machine, pod: &Sandbox, own: IpAddr, address: IpAddr) -> Self {
        let name = format!("from {address}");
        let bind = |address| UdpSocket::bind((address, 0)).expect("a socket");
        let (neighbour, pod) = (machine.there(|| bind(address)), within(pod, || bind(own)));
        let to = pod.local_addr().expect("an address");
        Self::begin(&name, [&neighbour, &pod], to);
        neighbour.connect(to).expect("an address");
        Self {
            name,
            pod,
            neighbour,
        }
    }

    /// A pod calls an address that leads to one of the neighbour's.
    fn to(machine: &Machine, pod: &Sandbox, own: IpAddr, [to, end]: [SocketAddr; 2]) -> Self {
        let name = format!("to {to}");
        let bind = |address: SocketAddr| UdpSocket::bind(address).expect("a socket");
        let pod = within(pod, || bind((own, 0).into()));
        let neighbour = machine.there(|| bind(end));
        Self::begin(&name, [&pod, &neighbour], to);
        let back = pod.local_addr().expect("an address");
        neighbour.connect(back).expect("an address");
        Self {
            name,
            pod,
            neighbour,
        }
    }

    /// The next datagram that the pod gets, except calls.
    fn heard(&self) -> String {
        let mut text = [0; 32];
        let mut next = || {
            let got = self.pod.recv(&mut text).expect(&self.name);
            String::from_utf8_lossy(&text[..got]).into_owned()
        };
        let first = next();
        if first == "who" { self.heard() } else { first }
    }

    /// The neighbour sends again, and the pod gets it.
    fn goes_on(&self, when: &str) {
        self.neighbour.send(when.as_bytes()).expect("it is sent");
        assert_eq!(self.heard(), when, "{}", self.name);
    }

    /// The neighbour sends again, and the next datagram that the pod gets is its machine's.
    fn is_silent(&self, when: &str) {
        self.neighbour.send(b"theirs").expect("it is sent");
        let to = self.pod.local_addr().expect("an address");
        let any = ["0.0.0.0:0", "[::]:0"][usize::from(to.is_ipv6())];
        let machine = UdpSocket::bind(any).expect("a socket");
        machine.send_to(b"machine", to).expect("it is sent");
        assert_eq!(self.heard(), "machine", "{} {when}", self.name);
    }
}

#[test]
fn a_node_that_is_not_trusted_or_gone_is_not_heard_on_established_connections() {
    Machine::with(|machine| {
        let agent = machine.agent();
        let a = pod(&agent, "a");
        let trusted = neighbour();
        let give = |peers: &[Peer]| assert_eq!(agent.give_peers(peers).expect("routes"), []);
        give(std::slice::from_ref(&trusted));
        let ends: Vec<(&str, &str)> = POD_THERE.iter().map(|at| ("n2", *at)).collect();
        let web = known(vec![service("web", 30_085, "Cluster", &ends)], Vec::new());
        let mut rules = Rules::default();
        rules.apply(&web, "n1", &NODE.map(at)).expect("rules");
        let flows = (0..2).flat_map(|place| {
            let (own, there) = (a.addresses[place], at(POD_THERE[place]));
            let cluster_ip = at(["10.96.0.185", "fd00:96::185"][place]);
            let direct: SocketAddr = (there, 81).into();
            let service = [(cluster_ip, 80).into(), (there, 80).into()];
            [
                Flow::from(machine, &a, own, there),
                Flow::from(machine, &a, own, at(NEIGHBOUR[place])),
                Flow::to(machine, &a, own, [direct, direct]),
                Flow::to(machine, &a, own, service),
            ]
        });
        let flows: Vec<Flow> = flows.collect();
        let goes_on = |when| flows.iter().for_each(|flow| flow.goes_on(when));
        let is_silent = |when| flows.iter().for_each(|flow| flow.is_silent(when));
        goes_on("at first");
        let suspect = Peer {
            trusted: false,
            ..trusted.clone()
        };
        give(&[suspect]);
        is_silent("without trust");
        give(std::slice::from_ref(&trusted));
        goes_on("with trust again");
        give(&[]);
        is_silent("without its Node");
        give(&[trusted]);
        goes_on("with its Node again");
        agent.remove("a").expect("it goes");
    });
}
