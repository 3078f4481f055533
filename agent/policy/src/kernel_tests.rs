//! Tests policies with the kernel of this host. Needs root.

mod errors;

use super::tests::{Connection, Own, is_allowed, read, world};
use super::*;
use crate::model::{NamedPort, Pod};
use agent_cluster::{Sandbox, SandboxOptions, SandboxSpec, Sandboxes};
use agent_proxy::{Key, Known, Rules, Service, Slice};
use agent_sys::namespace::{self, Kind, in_new};
use agent_sys::netlink::links::{LOOPBACK, Links};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, recv, sendto,
    setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A machine of its own with pods of the namespace `shop`, each labelled with its name, which call
/// one another by addresses of a family.
struct Node {
    family: Family,
    sandboxes: Sandboxes,
    policies: Policies,
    pods: BTreeMap<&'static str, Sandbox>,
}

impl Node {
    /// Runs a test once for each family.
    fn with(names: &[&'static str], test: impl Fn(&mut Self) + Send + Sync) {
        for family in Family::BOTH {
            Self::of(family, names, &test);
        }
    }

    fn of(family: Family, names: &[&'static str], test: impl FnOnce(&mut Self) + Send) {
        let dir = tempfile::tempdir().unwrap();
        let options = SandboxOptions {
            run: dir.path().join("pods"),
            ledger: dir.path().join("addresses.json"),
            kubernetes_only: true,
            tunnel: false,
        };
        in_new(&[Kind::Network], || {
            Links::open()?.switch_on(LOOPBACK)?;
            let sandboxes = Sandboxes::open(options).unwrap();
            sandboxes
                .give_ranges(&["10.1.0.0/24", "fd00:1::/64"].map(|range| range.parse().unwrap()))
                .unwrap();
            let mut node = Self {
                family,
                sandboxes,
                policies: Policies::default(),
                pods: BTreeMap::new(),
            };
            for name in names {
                node.add(name);
            }
            test(&mut node);
            for name in node.pods.keys() {
                node.sandboxes.remove(name).unwrap();
            }
            Ok(())
        })
        .unwrap();
    }

    fn add(&mut self, name: &'static str) {
        let wanted = SandboxSpec {
            uid: name.to_owned(),
            network: true,
            ..SandboxSpec::default()
        };
        self.pods
            .insert(name, self.sandboxes.make(&wanted).unwrap());
    }

    fn at(&self, name: &str) -> IpAddr {
        let mut own = self.pods[name].addresses.iter();
        *own.find(|at| Family::of(**at) == self.family).unwrap()
    }

    /// The unspecified address.
    fn any(&self) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Serves port 80 of a pod at a service's address, and at node port 30080 at an address that
    /// the machine gets here. `policy`: the service's `externalTrafficPolicy`.
    fn publish(&self, [protocol, policy]: [&str; 2], name: &str, cluster_ip: IpAddr, own: IpAddr) {
        let mut links = Links::open().unwrap();
        links
            .add_address(LOOPBACK, own, self.family.bits())
            .unwrap();
        let service = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {
            "type": "NodePort", "clusterIP": cluster_ip, "clusterIPs": [cluster_ip],
            "externalTrafficPolicy": policy,
            "ports": [{"protocol": protocol, "port": 80, "nodePort": 30_080}],
        }});
        let service = Service::read(serde_json::from_value(service).unwrap());
        let slice = json!({
            "metadata": {"labels": {"kubernetes.io/service-name": "web"}},
            "addressType": match self.family { Family::V4 => "IPv4", Family::V6 => "IPv6" },
            "ports": [{"protocol": protocol, "port": 80}],
            "endpoints": [{"addresses": [self.at(name)], "nodeName": "n1"}],
        });
        let slice = Slice::read(serde_json::from_value(slice).unwrap()).unwrap();
        let key = Arc::new(Key {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        });
        let known = Arc::new(Known {
            services: Some([(Arc::clone(&key), Arc::new(service))].into()),
            slices: Some([(key, Arc::new(slice))].into()),
            ..Known::default()
        });
        Rules::default().apply(&known, "n1", &[own]).unwrap();
    }

    /// Puts these policies in force.
    fn say(&self, policies: &[serde_json::Value]) {
        let pod = |name: &&'static str| {
            let pod = Pod {
                namespace: "shop".to_owned(),
                labels: [("app".to_owned(), (*name).to_owned())].into(),
                addresses: self.pods[*name].addresses.clone(),
                ports: vec![NamedPort {
                    name: "web".to_owned(),
                    protocol: 6,
                    port: 80,
                }],
            };
            ((*name).to_owned(), Arc::new(pod))
        };
        let pods: BTreeMap<String, Arc<Pod>> = self.pods.keys().map(pod).collect();
        let own = pods
            .values()
            .flat_map(|pod| pod.addresses.iter().map(move |at| (*at, Arc::clone(pod))))
            .collect();
        let policies = policies.iter().enumerate();
        let policies = policies.map(|(number, policy)| {
            let key = Key {
                namespace: "shop".to_owned(),
                name: number.to_string(),
            };
            (key, Arc::new(read(policy)))
        });
        let world = World {
            pods: Some(pods),
            namespaces: Some([("shop".to_owned(), Arc::default())].into()),
            policies: Some(policies.collect()),
        };
        let families = Family::BOTH.into();
        assert!(self.policies.follow(&families, &world, &own).unwrap());
    }

    fn within<T: Send>(&self, name: &str, work: impl FnOnce() -> T + Send) -> T {
        let network = self.pods[name].held(Kind::Network).unwrap();
        namespace::inside(&[(Kind::Network, &network)], || Ok(work())).unwrap()
    }

    fn serve(&self, name: &str, port: u16) -> TcpListener {
        let any = self.any();
        self.within(name, || TcpListener::bind((any, port)).unwrap())
    }

    /// The same world with its pods of this node at the addresses of the test's pods; the test's
    /// other pods have no labels.
    fn placed(&self, (world, own): (World, Own)) -> (World, Own) {
        let theirs = own.iter().filter(|(at, _)| at.is_ipv4());
        let mut theirs = theirs.map(|(_, pod)| (**pod).clone());
        let mut pods = world.pods.unwrap_or_default();
        pods.retain(|_, pod| !pod.addresses.iter().any(|at| own.contains_key(at)));
        let mut here = Own::new();
        for (name, sandbox) in &self.pods {
            let pod = Arc::new(Pod {
                addresses: sandbox.addresses.clone(),
                ..theirs.next().unwrap_or_default()
            });
            here.extend(sandbox.addresses.iter().map(|at| (*at, Arc::clone(&pod))));
            pods.insert((*name).to_owned(), pod);
        }
        let pods = Some(pods);
        (World { pods, ..world }, here)
    }

    /// Whether datagrams are answered; the first ones may be lost. An expected answer is waited for
    /// longer.
    fn hears(&self, from: &str, to: &str, port: u16, should: bool) -> bool {
        let (any, at) = (self.any(), self.at(to));
        let socket = self.within(from, || UdpSocket::bind((any, 0)).unwrap());
        socket.connect((at, port)).unwrap();
        let (limit, most) = if should { (SECOND, 60) } else { (SILENCE, 1) };
        socket.set_read_timeout(Some(limit)).unwrap();
        (0..most).any(|_| {
            socket.send(b"who").unwrap();
            socket.recv(&mut [0; 8]).is_ok()
        })
    }

    /// Whether a connection is answered. An expected answer is waited for longer.
    fn reaches(&self, from: &str, to: &str, port: u16, should: bool) -> bool {
        let address = (self.at(to), port).into();
        let limit = if should { PATIENCE } else { SILENCE };
        self.within(from, || TcpStream::connect_timeout(&address, limit).is_ok())
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
/// Long enough for a packet between two namespaces; only refusals wait for it to pass.
const SILENCE: Duration = Duration::from_millis(500);

#[test]
fn traffic_that_policies_allow_arrives_whole_in_bursts_of_any_size() {
    Node::with(&["a", "b"], |node| {
        let listener = node.serve("b", 80);
        let ports = json!([{"port": 80}]);
        node.say(&[
            json!({"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{
                "from": [{"podSelector": {"matchLabels": {"app": "a"}}}], "ports": ports,
            }]}),
            json!({"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Egress"],
                "egress": [{"ports": ports}]}),
        ]);
        let to = (node.at("b"), 80);
        let mut client = node.within("a", || TcpStream::connect(to).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        let sent: Vec<u8> = (0..1_500_000_u32).flat_map(u32::to_ne_bytes).collect();
        let mut came = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                client.write_all(&sent).unwrap();
                drop(client);
            });
            server.read_to_end(&mut came).unwrap();
        });
        assert!(sent == came, "{} bytes came to {}", came.len(), to.0);
    });
}

#[test]
fn packets_are_let_through_as_policies_say() {
    Node::with(&["a", "b", "c"], |node| {
        let _web = node.serve("b", 80);
        let _other = node.serve("b", 81);
        let _far = node.serve("c", 80);
        node.say(&[]);
        assert!(
            node.reaches("a", "b", 81, true),
            "without policies all is open"
        );
        let to_b = json!({"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{
            "from": [{"podSelector": {"matchLabels": {"app": "a"}}}],
            "ports": [{"port": "web"}],
        }]});
        node.say(std::slice::from_ref(&to_b));
        for (from, to, port, should) in [
            ("a", "b", 80, true),
            ("a", "b", 81, false),
            ("c", "b", 80, false),
            ("a", "c", 80, true),
            ("b", "c", 80, true),
            ("b", "b", 81, true),
        ] {
            assert_eq!(
                node.reaches(from, to, port, should),
                should,
                "{from} to {to}:{port}"
            );
        }
        let at_b = (node.at("b"), 81).into();
        assert!(
            TcpStream::connect_timeout(&at_b, PATIENCE).is_ok(),
            "its own node reaches a pod always"
        );
        let block = format!("{}/{}", node.at("c"), node.family.bits());
        let all = match node.family {
            Family::V4 => "10.1.0.0/24",
            Family::V6 => "fd00:1::/64",
        };
        let from_a = json!({"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Egress"], "egress": [{
            "to": [{"ipBlock": {"cidr": all, "except": [block]}}],
            "ports": [{"port": 79, "endPort": 80}],
        }]});
        node.say(&[to_b, from_a]);
        for (from, to, should) in [("a", "b", true), ("a", "c", false), ("b", "c", true)] {
            assert_eq!(node.reaches(from, to, 80, should), should, "{from} to {to}");
        }
    });
}

#[test]
fn a_new_pod_is_silent_until_its_policies_are_in_force() {
    Node::with(&["a"], |node| {
        node.say(&[]);
        node.add("b");
        let _web = node.serve("b", 80);
        assert!(!node.reaches("a", "b", 80, false));
        assert!(!node.reaches("b", "a", 80, false));
        node.say(&[]);
        assert!(node.reaches("a", "b", 80, true));
    });
}

#[test]
fn what_is_no_longer_allowed_is_cut_in_both_directions() {
    Node::with(&["a", "b"], |node| {
        node.say(&[]);
        let listener = node.serve("b", 80);
        let to_b = (node.at("b"), 80);
        let mut client = node.within("a", || TcpStream::connect(to_b).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        let any = node.any();
        let datagrams = node.within("b", || UdpSocket::bind((any, 53)).unwrap());
        let asking = node.within("a", || UdpSocket::bind((any, 0)).unwrap());
        asking.connect((node.at("b"), 53)).unwrap();
        datagrams.set_read_timeout(Some(PATIENCE)).unwrap();
        asking.send(b"1").unwrap();
        let (_, asker) = datagrams.recv_from(&mut [0; 8]).unwrap();
        let closed = json!({"podSelector": {"matchLabels": {"app": "b"}}});
        node.say(&[closed]);
        client.write_all(b"up").unwrap();
        server.write_all(b"down").unwrap();
        datagrams.send_to(b"2", asker).unwrap();
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(SILENCE)).unwrap();
        }
        asking.set_read_timeout(Some(SILENCE)).unwrap();
        let mut buffer = [0; 8];
        assert!(server.read(&mut buffer).is_err(), "from the client");
        assert!(client.read(&mut buffer).is_err(), "from the server");
        assert!(asking.recv(&mut buffer).is_err(), "a datagram's answer");
        // The connection was stopped and not lost: once the policy is deleted, TCP sends the data
        // again.
        node.say(&[]);
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        assert_eq!(server.read(&mut buffer).unwrap(), 2);
        assert_eq!(client.read(&mut buffer).unwrap(), 4);
    });
}

#[test]
fn a_pod_reaches_itself_through_a_service_and_a_port_of_the_node() {
    Node::with(&["a"], |node| {
        let [cluster_ip, own]: [IpAddr; 2] = match node.family {
            Family::V4 => ["10.96.0.10", "192.0.2.1"],
            Family::V6 => ["fd00:96::10", "2001:db8::1"],
        }
        .map(|text| text.parse().unwrap());
        node.publish(["TCP", "Cluster"], "a", cluster_ip, own);
        let listener = node.serve("a", 80);
        // No policy selects it; then one that lets nobody reach it.
        let closed = json!({"podSelector": {"matchLabels": {"app": "a"}}});
        for policies in [&[][..], &[closed]] {
            node.say(policies);
            for called in [(cluster_ip, 80), (own, 30_080)] {
                let client = node.within("a", || {
                    TcpStream::connect_timeout(&called.into(), PATIENCE).unwrap()
                });
                let (_, caller) = listener.accept().unwrap();
                // With its own address it would answer itself without the node, which translates
                // addresses.
                assert_ne!(caller.ip(), node.at("a"), "{called:?}");
                drop(client);
            }
        }
    });
}

/// Types of ICMPv6 that the kernel does not track: groups, routers, neighbours.
const UNTRACKED_TYPES: [u8; 9] = [130, 131, 132, 133, 134, 135, 136, 137, 143];
const ECHO_REQUEST: u8 = 128;

/// A socket for messages of ICMP, as root of a container may open one.
fn icmp(family: Family) -> OwnedFd {
    let (domain, protocol) = match family {
        Family::V4 => (AddressFamily::Inet, SockProtocol::Icmp),
        Family::V6 => (AddressFamily::Inet6, SockProtocol::IcmpV6),
    };
    let socket = socket(domain, SockType::Raw, SockFlag::empty(), protocol).unwrap();
    let limit = TimeVal::milliseconds(200);
    setsockopt(&socket, ReceiveTimeout, &limit).unwrap();
    socket
}

#[test]
fn no_icmpv6_passes_that_policies_do_not_judge() {
    Node::of(Family::V6, &["a", "b"], |node| {
        let [sender, listener] = ["a", "b"].map(|name| node.within(name, || icmp(node.family)));
        let IpAddr::V6(to) = node.at("b") else {
            panic!("an address of the other family");
        };
        let to = SockaddrIn6::from(SocketAddrV6::new(to, 0, 0, 0));
        let send = |kind: u8| {
            let message = [&[kind, 0, 0, 0][..], &[0; 20], b"a message"].concat();
            sendto(sender.as_raw_fd(), &message, &to, MsgFlags::empty()).unwrap();
        };
        // The listener gets all messages to the pod; the pods' own kernels send such messages, too.
        let heard = || {
            let mut kinds = Vec::new();
            let mut buffer = [0; 256];
            while let Ok(length) = recv(listener.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                if buffer[..length].ends_with(b"a message") {
                    kinds.push(buffer[0]);
                }
            }
            kinds
        };
        node.say(&[]);
        send(ECHO_REQUEST);
        assert_eq!(heard(), [ECHO_REQUEST], "without policies all is open");
        let to_b = json!({"podSelector": {"matchLabels": {"app": "b"}}});
        let from_a =
            json!({"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Egress"]});
        for policy in [to_b, from_a] {
            node.say(std::slice::from_ref(&policy));
            send(ECHO_REQUEST);
            UNTRACKED_TYPES.into_iter().for_each(send);
            assert_eq!(heard(), [0; 0], "{policy}");
        }
    });
}

/// Number of worlds whose packets are sent. Each takes about as long as the wait for one dropped
/// packet.
const WORLDS: usize = 12;

/// Answers datagrams by the same, for as long as the tests run.
fn echo(socket: UdpSocket) {
    std::thread::spawn(move || {
        let mut buffer = [0; 8];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..length], from).ok();
        }
    });
}

#[test]
fn the_kernel_judges_packets_as_the_policies_say() {
    let mut runner = TestRunner::deterministic();
    let worlds: Vec<_> = (0..WORLDS)
        .map(|_| world().new_tree(&mut runner).unwrap().current())
        .collect();
    Node::with(&["a", "b", "c"], |node| {
        let ports = [78, 80];
        let names: Vec<&'static str> = node.pods.keys().copied().collect();
        let places = || {
            let names = names.iter();
            names.flat_map(|name| ports.map(|port| (*name, port)))
        };
        let _servers: Vec<TcpListener> = places()
            .map(|(name, port)| node.serve(name, port))
            .collect();
        let any = node.any();
        for (name, port) in places() {
            echo(node.within(name, || UdpSocket::bind((any, port)).unwrap()));
        }
        let (mut passed, mut dropped) = ([0; 2], [0; 2]);
        for world in &worlds {
            let (world, own) = node.placed(world.clone());
            let families = Family::BOTH.into();
            assert!(node.policies.follow(&families, &world, &own).unwrap());
            let calls: Vec<_> = names
                .iter()
                .flat_map(|from| places().map(move |(to, port)| (*from, to, port)))
                .flat_map(|call| [6, 17].map(|protocol| (call, protocol)))
                .collect();
            let (node, own, world) = (&*node, &own, &world);
            std::thread::scope(|scope| {
                let call = |((from, to, port), protocol): (_, u8)| {
                    let connection = Connection {
                        client: node.at(from),
                        server: node.at(to),
                        protocol,
                        port,
                    };
                    let should = is_allowed(world, own, connection);
                    let reached = scope.spawn(move || match protocol {
                        6 => node.reaches(from, to, port, should),
                        _ => node.hears(from, to, port, should),
                    });
                    (connection, should, reached)
                };
                let calls: Vec<_> = calls.into_iter().map(call).collect();
                for (connection, should, reached) in calls {
                    let reached = reached.join().unwrap();
                    assert_eq!(reached, should, "{connection:?} in {world:?}");
                    let counts = if should { &mut passed } else { &mut dropped };
                    counts[usize::from(connection.protocol == 17)] += 1;
                }
            });
        }
        let counts = [passed, dropped].concat();
        assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
    });
}
