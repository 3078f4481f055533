//! Tests pods' shares of the connection table, and where Services may lead pods, in a network
//! namespace that represents the machine. Needs root.

use agent_cluster::shares::{self, Shares, size_for};
use agent_cluster::{Sandbox, SandboxOptions, SandboxSpec, Sandboxes};
use agent_proxy::NAME_SERVER_PORT;
use agent_proxy::{Key, Known, Service, Slice};
use agent_sys::namespace::{self, Kind};
use agent_sys::netlink::Family;
use agent_sys::netlink::filter::Filter;
use agent_sys::netlink::links::{LOOPBACK, Links};
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

/// Long enough for a packet between two namespaces; only refusals wait for it to pass.
const SILENCE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a test on a machine of its own with these pods.
fn with_pods<const N: usize>(names: [&str; N], test: impl FnOnce([Sandbox; N]) + Send) {
    let dir = tempfile::tempdir().expect("a folder");
    namespace::in_new(&[Kind::Network], || {
        Links::open()?.switch_on(LOOPBACK)?;
        let options = SandboxOptions {
            run: dir.path().join("pods"),
            ledger: dir.path().join("addresses.json"),
            kubernetes_only: true,
            tunnel: false,
        };
        let agent = Sandboxes::open(options).expect("an agent");
        let ranges = ["10.1.0.0/24", "fd00:1::/64"].map(|range| range.parse().expect("a range"));
        agent.give_ranges(&ranges).expect("rules");
        let make = |uid: &str| {
            let wanted = SandboxSpec {
                uid: uid.to_owned(),
                network: true,
                ..SandboxSpec::default()
            };
            agent.make(&wanted).expect("a sandbox")
        };
        test(names.map(make));
        for uid in names {
            agent.remove(uid).expect("it goes");
        }
        Ok(())
    })
    .expect("a machine");
}

/// Runs `work` in a pod's network.
fn within<T: Send>(sandbox: &Sandbox, work: impl FnOnce() -> T + Send) -> T {
    let network = sandbox.held(Kind::Network).expect("a network");
    namespace::inside(&[(Kind::Network, &network)], || Ok(work())).expect("its network")
}

fn connects(to: IpAddr, port: u16) -> bool {
    TcpStream::connect_timeout(&(to, port).into(), PATIENCE).is_ok()
}

/// How many connections the machine remembers.
fn remembered() -> usize {
    let count = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count");
    count
        .expect("as the kernel and the API have it")
        .trim()
        .parse()
        .expect("as the kernel and the API have it")
}

fn any_of(to: IpAddr) -> IpAddr {
    match Family::of(to) {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Datagrams of a pod to as many ports, each of which is a flow of its own.
fn flood(from: &Sandbox, to: IpAddr, flows: u16) {
    within(from, || {
        let socket = UdpSocket::bind((any_of(to), 0)).expect("a socket");
        for port in 10_000..10_000 + flows {
            // A closed port's error is returned by the next call.
            while socket.send_to(b"x", (to, port)).is_err() {}
        }
    });
}

#[test]
fn a_pod_takes_no_more_than_its_share_of_the_connections_and_leaves_others_theirs() {
    with_pods(["a", "b", "c"], |[a, b, c]| {
        let shares = Shares {
            open: 16,
            opened: 10_000,
        };
        for (place, family) in (0..).zip(Family::BOTH) {
            let table = shares::table(family, shares);
            Filter::open(family).unwrap().apply(&table).unwrap();
            let (at_b, at_c) = (b.addresses[place], c.addresses[place]);
            let served = within(&c, || TcpListener::bind((any_of(at_c), 80)).unwrap());
            let reach = |from: &Sandbox| {
                let to = (at_c, 80).into();
                within(from, || TcpStream::connect_timeout(&to, SILENCE).ok())
            };
            assert!(within(&a, || connects(at_c, 80)));
            served.accept().unwrap();
            let before = remembered();
            flood(&a, at_b, 600);
            assert!(remembered() <= before + 16, "{family:?}: {}", remembered());
            assert!(reach(&a).is_none(), "its share is used up");
            assert!(within(&b, || connects(at_c, 80)), "and no other's");
            served.accept().unwrap();
            assert!(connects(at_c, 80), "nor the machine's");
            served.accept().unwrap();
            // New rules keep the counts.
            let table = shares::table(family, shares);
            Filter::open(family).unwrap().apply(&table).unwrap();
            assert!(reach(&a).is_none());
        }
    });
}

#[test]
fn a_pod_opens_no_more_connections_in_a_second_than_its_share_and_its_flows_go_on() {
    with_pods(["a", "b"], |[a, b]| {
        let shares = Shares {
            open: 100_000,
            opened: 1,
        };
        let table = shares::table(Family::V4, shares);
        Filter::open(Family::V4).unwrap().apply(&table).unwrap();
        let heard = within(&b, || UdpSocket::bind(("0.0.0.0", 9)).unwrap());
        heard.set_read_timeout(Some(PATIENCE)).unwrap();
        let served = within(&b, || TcpListener::bind(("0.0.0.0", 9)).unwrap());
        assert!(within(&a, || connects(b.addresses[0], 9)));
        served.accept().unwrap();
        // Nobody answers: for the kernel each of these is new.
        within(&a, || {
            let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
            socket.connect((b.addresses[0], 9)).unwrap();
            for _ in 0..100 {
                socket.send(b"x").unwrap();
            }
        });
        for _ in 0..100 {
            heard.recv(&mut [0; 8]).unwrap();
        }
        let before = remembered();
        flood(&a, b.addresses[0], 4000);
        let more = remembered().saturating_sub(before);
        assert!(more < 2000, "{more} in far less than 2000 seconds");
    });
}

#[test]
fn dns_queries_to_the_node_take_no_entry_of_the_connection_table() {
    with_pods(["a"], |[a]| {
        for gateway in ["10.1.0.1", "fd00:1::1"] {
            let gateway: IpAddr = gateway.parse().unwrap();
            let server = UdpSocket::bind((gateway, 53)).unwrap();
            let by_connection = TcpListener::bind((gateway, 53)).unwrap();
            assert!(within(&a, || connects(gateway, 53)));
            let (mut accepted, _) = by_connection.accept().unwrap();
            let patience = Some(PATIENCE);
            server.set_read_timeout(patience).unwrap();
            let before = remembered();
            for _ in 0..50 {
                let asking = within(&a, || UdpSocket::bind((any_of(gateway), 0)).unwrap());
                asking.set_read_timeout(patience).unwrap();
                asking.send_to(b"who", (gateway, 53)).unwrap();
                let (_, from) = server.recv_from(&mut [0; 8]).unwrap();
                server.send_to(b"me", from).unwrap();
                asking.recv(&mut [0; 8]).unwrap();
            }
            let mut stream = within(&a, || TcpStream::connect((gateway, 53)).unwrap());
            stream.write_all(b"who").unwrap();
            drop(stream);
            accepted.read_to_end(&mut Vec::new()).unwrap();
            let (mut second, _) = by_connection.accept().unwrap();
            let mut asked = Vec::new();
            second.read_to_end(&mut asked).unwrap();
            assert_eq!(asked, b"who");
            assert!(remembered() <= before, "{before}, then {}", remembered());
        }
    });
}

#[test]
fn queries_to_the_clusters_dns_service_reach_the_node_and_are_answered() {
    with_pods(["a"], |[a]| {
        let object = json!({
            "metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "pratique-name-server"}},
            "spec": {
                "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:96::a"],
                "ports": [{"name": "dns", "protocol": "UDP", "port": 53}, {"name": "dns-tcp", "port": 53}],
            },
        });
        let service = Service::read(serde_json::from_value(object).unwrap());
        let places = [("10.96.0.10", "10.1.0.1"), ("fd00:96::a", "fd00:1::1")]
            .map(|(front, own)| [front, own].map(|at| at.parse::<IpAddr>().unwrap()));
        let known = Known {
            services: Some([(Arc::default(), Arc::new(service))].into()),
            slices: Some([].into()),
            name_servers: places.map(|[_, own]| own).into(),
            ..Known::default()
        };
        let mut rules = agent_proxy::Rules::default();
        rules.apply(&Arc::new(known), "n1", &[]).unwrap();
        for [front, own] in places {
            let server = UdpSocket::bind((own, NAME_SERVER_PORT)).unwrap();
            let by_connection = TcpListener::bind((own, NAME_SERVER_PORT)).unwrap();
            let asking = within(&a, || UdpSocket::bind((any_of(front), 0)).unwrap());
            for socket in [&server, &asking] {
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
            }
            // It listens only at that address.
            asking.connect((front, 53)).unwrap();
            asking.send(b"who").unwrap();
            let (_, from) = server.recv_from(&mut [0; 8]).unwrap();
            assert_eq!(from.ip(), a.addresses[usize::from(front.is_ipv6())]);
            server.send_to(b"me", from).unwrap();
            asking.recv(&mut [0; 8]).unwrap();
            assert!(within(&a, || connects(front, 53)));
            by_connection.accept().unwrap();
        }
    });
}

#[test]
fn connections_are_remembered_as_long_as_upstreams_are() {
    with_pods([], |[]| {
        let read = |name: &str| {
            let path = format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
            std::fs::read_to_string(path).unwrap().trim().to_owned()
        };
        assert_eq!(read("tcp_timeout_close_wait"), "3600");
        assert_eq!(read("tcp_timeout_established"), "86400");
        assert_eq!(read("tcp_timeout_time_wait"), "30");
    });
}

/// A Service of the namespace `shop` at one address, port 80, whose endpoints its author wrote.
fn service_with(at: &str, endpoints: &[&str]) -> Arc<Known> {
    let (meta, port) = (
        json!({"namespace": "shop", "name": "web"}),
        json!({"name": "", "port": 80}),
    );
    let object =
        json!({"metadata": meta, "spec": {"clusterIP": at, "clusterIPs": [at], "ports": [port]}});
    let service =
        Service::read(serde_json::from_value(object).expect("as the kernel and the API have it"));
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|at| json!({"addresses": [at]}))
        .collect();
    let object = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IP", "ports": [port], "endpoints": endpoints,
    });
    let slice =
        Slice::read(serde_json::from_value(object).expect("as the kernel and the API have it"))
            .expect("as the kernel and the API have it");
    let key = Arc::new(Key {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
    });
    Arc::new(Known {
        services: Some([(Arc::clone(&key), Arc::new(service))].into()),
        slices: Some([(key, Arc::new(slice))].into()),
        ..Known::default()
    })
}

#[test]
fn no_service_leads_a_pod_to_what_is_the_machines() {
    with_pods(["b"], |[b]| {
        let mut links = Links::open().unwrap();
        for (service, ends) in [
            (
                "10.96.0.1",
                &[
                    "192.0.2.7",
                    "127.0.0.1",
                    "169.254.169.254",
                    "168.63.129.16",
                    "100.100.100.200",
                ][..],
            ),
            (
                "fd00:96::1",
                &[
                    "2001:db8::7",
                    "fd00:ec2::254",
                    "fd20:ce::254",
                    "64:ff9b::a9fe:a9fe",
                ][..],
            ),
        ] {
            let front: IpAddr = service.parse().unwrap();
            for (number, end) in ends.iter().enumerate() {
                let at: IpAddr = end.parse().unwrap();
                if !at.is_loopback() {
                    let bits = Family::of(at).bits();
                    links.add_address(LOOPBACK, at, bits).unwrap();
                }
                let listener = TcpListener::bind((at, 80)).unwrap();
                let known = service_with(service, &[end]);
                agent_proxy::Rules::default()
                    .apply(&known, "n1", &[])
                    .unwrap();
                let reached = within(&b, || {
                    let limit = if number == 0 { PATIENCE } else { SILENCE };
                    TcpStream::connect_timeout(&(front, 80).into(), limit).is_ok()
                });
                assert_eq!(reached, number == 0, "{end}");
                listener.set_nonblocking(true).unwrap();
                assert_eq!(listener.accept().is_ok(), number == 0, "{end}");
            }
        }
    });
}

#[test]
fn shares_of_all_pods_leave_a_half_of_the_table_and_memory_bounds_it() {
    const GIB: u64 = 1 << 30;
    let sizes = [1, 2, 4, 16, 1024].map(|gib| size_for(gib * GIB));
    assert_eq!(sizes, [262_144, 262_144, 524_288, 2_097_152, 2_097_152]);
    for size in sizes {
        let size = u32::try_from(size).unwrap();
        for (pods, families) in [(110, 1), (110, 2), (1000, 2)] {
            let shares = Shares::of(size, pods, families);
            assert!(shares.open * pods * families <= size / 2, "{shares:?}");
            // Twelve pods that open and close as fast as they may leave an eighth, still.
            let closed = shares.opened * (30 + 2);
            assert!(closed * 12 <= size * 3 / 8, "{shares:?}");
        }
    }
    assert_eq!(
        Shares::of(524_288, 110, 1),
        Shares {
            open: 2383,
            opened: 512
        }
    );
    assert_eq!(Shares::of(0, 0, 0), Shares { open: 1, opened: 1 });
}
