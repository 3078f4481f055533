//! Tests pods' addresses and links with the kernel of this host, in a network namespace that
//! represents the machine: which source addresses a pod can use, which addresses it reaches, and
//! the size of its packets. Needs root.

use agent_cluster::{Sandbox, SandboxOptions, SandboxSpec, Sandboxes, link_name};
use agent_sys::namespace::{self, Kind};
use agent_sys::netlink::links::{Burst, LOOPBACK, Links, Route};
use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

/// The link of a pod's own network.
const LINK: &str = "eth0";
/// Long enough for a packet between two namespaces; only refusals wait for it to pass.
const SILENCE: Duration = Duration::from_millis(500);

/// Runs a test on a machine of its own.
fn on_a_machine(test: impl FnOnce(SandboxOptions) + Send) {
    let dir = tempfile::tempdir().expect("a folder");
    let options = SandboxOptions {
        run: dir.path().join("pods"),
        ledger: dir.path().join("addresses.json"),
        kubernetes_only: true,
        tunnel: false,
    };
    namespace::in_new(&[Kind::Network], || {
        Links::open()?.switch_on(LOOPBACK)?;
        test(options);
        Ok(())
    })
    .expect("a machine");
}

/// A newly started agent, with ranges of both families.
fn agent(options: SandboxOptions) -> Sandboxes {
    let own = Sandboxes::open(options).expect("an agent");
    let ranges = ["10.1.0.0/24", "fd00:1::/64"].map(|range| range.parse().expect("a range"));
    own.give_ranges(&ranges).expect("rules");
    own
}

fn pod(uid: &str) -> SandboxSpec {
    SandboxSpec {
        uid: uid.to_owned(),
        network: true,
        ..SandboxSpec::default()
    }
}

/// Runs `work` in a pod's network.
fn within<T: Send>(sandbox: &Sandbox, work: impl FnOnce() -> T + Send) -> T {
    let network = sandbox.held(Kind::Network).expect("a network");
    namespace::inside(&[(Kind::Network, &network)], || Ok(work())).expect("its network")
}

fn connects(to: IpAddr, port: u16) -> bool {
    TcpStream::connect_timeout(&(to, port).into(), Duration::from_secs(20)).is_ok()
}

/// The number of a pod's link, in its network.
fn index_of(links: &mut Links) -> u32 {
    let link = links.named(LINK).expect("the kernel's answer");
    link.expect("a pod's link").index
}

#[test]
fn pods_reach_each_other_and_the_node_by_their_addresses() {
    on_a_machine(|options| {
        let agent = agent(options);
        let (a, b) = (
            agent.make(&pod("a")).expect("the kernel"),
            agent.make(&pod("b")).expect("the kernel"),
        );
        assert_ne!(a.addresses, b.addresses);
        for (place, (any, gateway)) in (0..).zip([("0.0.0.0", "10.1.0.1"), ("::", "fd00:1::1")]) {
            let (at_a, at_b) = (a.addresses[place], b.addresses[place]);
            let serve = |sandbox: &Sandbox| {
                within(sandbox, || {
                    TcpListener::bind((any, 80)).expect("the kernel")
                })
            };
            let (in_a, in_b) = (serve(&a), serve(&b));
            assert!(within(&a, || connects(at_b, 80)), "pod to pod");
            let (_, peer) = in_b.accept().expect("the kernel");
            assert_eq!(peer.ip(), at_a, "no address is changed on the way");
            assert!(within(&a, || connects(at_a, 80)), "a pod to itself");
            assert!(connects(at_a, 80), "node to pod");
            in_a.accept().expect("the kernel");
            let (_, peer) = in_a.accept().expect("the kernel");
            assert_eq!(
                peer.ip().to_string(),
                gateway,
                "the node speaks as the pods' gateway"
            );
            let node = TcpListener::bind((any, 7777)).expect("the kernel");
            assert!(
                within(&b, || connects(gateway.parse().expect("the kernel"), 7777)),
                "pod to node"
            );
            assert_eq!(node.accept().expect("the kernel").1.ip(), at_b);
        }
    });
}

#[test]
fn a_pod_can_neither_speak_with_another_address_nor_reach_what_is_the_machines() {
    on_a_machine(|options| {
        let agent = agent(options);
        let (a, b) = (
            agent.make(&pod("a")).unwrap(),
            agent.make(&pod("b")).unwrap(),
        );
        let at_b = b.addresses[0];
        let heard = within(&b, || UdpSocket::bind(("0.0.0.0", 9)).unwrap());
        heard
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let served = within(&b, || TcpListener::bind(("0.0.0.0", 9)).unwrap());
        // A connection is tried again until the veth pairs carry packets; from then on none is
        // lost.
        assert!(within(&a, || connects(at_b, 9)));
        served.accept().unwrap();
        let own = a.addresses[0];
        let speak = |from: IpAddr| {
            within(&a, || {
                let socket = UdpSocket::bind((from, 0)).unwrap();
                socket.send_to(b"x", (at_b, 9)).unwrap();
            });
        };
        for foreign in ["10.1.0.77", "10.1.0.1", "192.0.2.1"] {
            let foreign: IpAddr = foreign.parse().unwrap();
            // As root of its own network namespace the pod takes another address and sends from it,
            // then from its own.
            within(&a, || {
                let mut links = Links::open().unwrap();
                let index = index_of(&mut links);
                links.add_address(index, foreign, 32).unwrap();
            });
            speak(foreign);
            speak(own);
            let (_, first) = heard.recv_from(&mut [0; 8]).unwrap();
            assert_eq!(first.ip(), own, "{foreign} was heard");
        }
        // From the other pod, whose network is unchanged: a server on the machine's loopback, and
        // one that represents a cloud's metadata service.
        let loopback = TcpListener::bind(("127.0.0.1", 8080)).unwrap();
        let mut links = Links::open().unwrap();
        let metadata: IpAddr = "169.254.169.254".parse().unwrap();
        links.add_address(LOOPBACK, metadata, 32).unwrap();
        let service = TcpListener::bind((metadata, 80)).unwrap();
        let names = TcpListener::bind((metadata, 53)).unwrap();
        assert!(connects(metadata, 80), "the machine itself reaches it");
        service.accept().unwrap();
        let reach = |to: &str, port: u16| {
            let to: IpAddr = to.parse().unwrap();
            within(&b, || {
                TcpStream::connect_timeout(&(to, port).into(), SILENCE).is_ok()
            })
        };
        assert!(!reach("127.0.0.1", 8080), "it is the pod's own loopback");
        assert!(!reach("169.254.169.254", 80));
        assert!(reach("169.254.169.254", 53), "names may be asked there");
        names.accept().unwrap();
        // The pod routes loopback addresses to the gateway, to reach the machine's.
        let machine_hears = UdpSocket::bind(("0.0.0.0", 9)).unwrap();
        machine_hears
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        within(&b, || {
            let socket = agent_sys::socket::udp_on_interface(LINK, 0).unwrap();
            let socket = UdpSocket::from(socket);
            socket.send_to(b"loopback", ("127.0.0.1", 9)).unwrap();
            socket.send_to(b"gateway", ("10.1.0.1", 9)).unwrap();
        });
        let mut heard = [0; 16];
        let (length, _) = machine_hears.recv_from(&mut heard).unwrap();
        assert_eq!(&heard[..length], b"gateway");
        // A route to the machine's loopback by the gateway changes nothing.
        within(&b, || {
            let mut links = Links::open().unwrap();
            let index = index_of(&mut links);
            fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").unwrap();
            links
                .add_route(&Route {
                    destination: "127.0.0.2".parse().unwrap(),
                    prefix: 32,
                    gateway: Some("10.1.0.1".parse().unwrap()),
                    link: index,
                })
                .unwrap();
        });
        let second = TcpListener::bind(("127.0.0.2", 8080)).unwrap();
        assert!(!reach("127.0.0.2", 8080));
        for listener in [loopback, second] {
            listener.set_nonblocking(true).unwrap();
            assert!(listener.accept().is_err());
        }
        agent.remove("a").unwrap();
        agent.remove("b").unwrap();
    });
}

#[test]
fn a_pod_has_no_more_of_ipv6_than_it_has_of_ipv4() {
    on_a_machine(|options| {
        let agent = agent(options);
        let (a, b) = (
            agent.make(&pod("a")).unwrap(),
            agent.make(&pod("b")).unwrap(),
        );
        let (own, at_b) = (a.addresses[1], b.addresses[1]);
        let heard = within(&b, || UdpSocket::bind(("::", 9)).unwrap());
        heard
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let served = within(&b, || TcpListener::bind(("::", 9)).unwrap());
        assert!(within(&a, || connects(at_b, 9)));
        served.accept().unwrap();
        let has = |sandbox: &Sandbox| {
            within(sandbox, || {
                let all = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
                all.lines().filter(|line| line.ends_with("eth0")).count()
            })
        };
        assert_eq!(has(&b), 1, "its own address and no link-local one");
        for foreign in ["fd00:1::77", "fd00:1::1", "fe80::77", "2001:db8::1"] {
            let foreign: IpAddr = foreign.parse().unwrap();
            within(&a, || {
                let mut links = Links::open().unwrap();
                let index = index_of(&mut links);
                links.add_address(index, foreign, 128).unwrap();
                for from in [foreign, own] {
                    let scope =
                        u32::from(foreign == from && foreign.to_string().starts_with("fe80"))
                            * index;
                    let from = match from {
                        IpAddr::V6(from) => std::net::SocketAddrV6::new(from, 0, 0, scope),
                        IpAddr::V4(_) => unreachable!(),
                    };
                    let socket = UdpSocket::bind(from).unwrap();
                    // The kernel may refuse to send from a link-local address to another network.
                    socket.send_to(b"x", (at_b, 9)).ok();
                }
            });
            let (_, first) = heard.recv_from(&mut [0; 8]).unwrap();
            assert_eq!(first.ip(), own, "{foreign} was heard");
        }
        // What stands for a cloud's metadata service, and for the machine's own link-local address.
        let mut links = Links::open().unwrap();
        for only in ["fd00:ec2::254", "fd20:ce::254", "64:ff9b::a9fe:a9fe"] {
            let only: IpAddr = only.parse().unwrap();
            links.add_address(LOOPBACK, only, 128).unwrap();
            let service = TcpListener::bind((only, 80)).unwrap();
            let names = TcpListener::bind((only, 53)).unwrap();
            let own = TcpStream::connect_timeout(&(only, 80).into(), Duration::from_secs(20));
            assert!(own.is_ok(), "the machine itself reaches {only}: {own:?}");
            service.accept().unwrap();
            let reach = |port: u16| {
                let to = (only, port).into();
                within(&b, || TcpStream::connect_timeout(&to, SILENCE).is_ok())
            };
            assert!(!reach(80), "{only}");
            assert!(reach(53), "names may be asked at {only}");
            names.accept().unwrap();
        }
        agent.remove("a").unwrap();
        agent.remove("b").unwrap();
    });
}

#[test]
fn a_machine_still_accepts_router_advertisements_when_it_forwards() {
    on_a_machine(|options| {
        let read = |link: &str, name: &str| {
            let path = format!("/proc/sys/net/ipv6/conf/{link}/{name}");
            fs::read_to_string(path).unwrap().trim().to_owned()
        };
        namespace::set("net/ipv6/conf/lo/accept_ra", "1").unwrap();
        namespace::set("net/ipv6/conf/default/accept_ra", "0").unwrap();
        let agent = agent(options);
        assert_eq!(read("all", "forwarding"), "1");
        assert_eq!(read("lo", "accept_ra"), "2");
        assert_eq!(read("default", "accept_ra"), "0", "it did not before");
        agent.make(&pod("a")).unwrap();
        assert_eq!(read(&link_name("a"), "accept_ra"), "0", "of no pod");
        agent.remove("a").unwrap();
    });
}

#[test]
fn pods_of_a_node_with_ipv4_alone_have_no_ipv6() {
    on_a_machine(|options| {
        let agent = Sandboxes::open(options).unwrap();
        agent
            .give_ranges(&["10.1.0.0/24".parse().unwrap()])
            .unwrap();
        let made = agent.make(&pod("a")).unwrap();
        assert_eq!(made.addresses.len(), 1);
        let on =
            |link: &str| fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6"));
        assert_eq!(within(&made, || on(LINK)).unwrap().trim(), "1");
        assert_eq!(on(&link_name("a")).unwrap().trim(), "1");
        let passes_on = fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding").unwrap();
        assert_eq!(passes_on.trim(), "0");
        agent.remove("a").unwrap();
    });
}

#[test]
fn what_stays_on_the_node_is_larger_than_what_leaves_it() {
    on_a_machine(|options| {
        let agent = agent(options);
        let a = agent.make(&pod("a")).unwrap();
        let near = Links::open().unwrap().named(&link_name("a")).unwrap();
        let far = within(&a, || Links::open().unwrap().named(LINK).unwrap());
        let bytes = 3 << 16;
        // As many packets of 1500 bytes as make 64 KiB; bursts to the pod of any size pass.
        for (end, packets) in [(far, 44), (near, 65_535)] {
            let end = end.unwrap();
            assert_eq!((end.mtu, end.burst), (4500, Burst { bytes, packets }));
        }
        for (to, size) in [
            ("10.1.0.77", 4500),
            ("fd00:1::77", 4500),
            ("10.1.0.1", 1500),
            ("fd00:1::1", 1500),
            ("10.1.1.7", 1500),
            ("192.0.2.7", 1500),
            ("2001:db8::7", 1500),
        ] {
            let at = to.parse().unwrap();
            let largest = within(&a, || Links::open().unwrap().largest_packet_to(at).unwrap());
            assert_eq!(largest, Some(size), "{to}");
        }
        agent.remove("a").unwrap();
    });
}
