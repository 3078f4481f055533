//! Tests an agent whose calls the kernel refuses: in a process of its own, since the limit that
//! causes it applies to the process. Needs root.

use agent_cluster::{Peer, SandboxOptions, SandboxSpec, Sandboxes};
use agent_sys::namespace::{self, Kind, hold, in_new, release};
use agent_sys::netlink::links::{LOOPBACK, Links, Route, VethPair};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);

fn at(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Switches a machine's link to the segment on and gives it an address.
fn join(address: &str) -> Links {
    let mut links = Links::open().expect("links");
    let segment = links.named("segment").expect("links").expect("the link");
    links.switch_on(segment.index).expect("it is on");
    links
        .add_address(segment.index, at(address), 24)
        .expect("an address");
    links
}

/// The result of a call while the process can open no file and no socket.
fn without_descriptors<T>(call: impl FnOnce() -> T) -> T {
    let limit = Resource::RLIMIT_NOFILE;
    let (now, most) = getrlimit(limit).expect("a limit");
    setrlimit(limit, 0, most).expect("none");
    let outcome = call();
    setrlimit(limit, now, most).expect("as before");
    outcome
}

#[test]
fn packets_of_an_untrusted_node_are_dropped_even_if_its_route_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = dir.path().join("neighbour");
    in_new(&[Kind::Network], || hold(Kind::Network, &place)).expect("a neighbour");
    let options = SandboxOptions {
        run: dir.path().join("pods"),
        ledger: dir.path().join("addresses.json"),
        kubernetes_only: true,
        tunnel: false,
    };
    let there = |work: &(dyn Fn() -> UdpSocket + Sync)| {
        namespace::inside(&[(Kind::Network, &place)], || Ok(work())).expect("its network")
    };
    in_new(&[Kind::Network], || {
        let far = File::open(&place).expect("the neighbour");
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
        drop(join("192.0.2.1"));
        let agent = Sandboxes::open(options).expect("an agent");
        let range = "10.1.0.0/24".parse().expect("a range");
        agent.give_ranges(&[range]).expect("rules");
        let wanted = SandboxSpec {
            uid: "a".to_owned(),
            network: true,
            ..SandboxSpec::default()
        };
        let pod = agent.make(&wanted).expect("a sandbox");
        let own = pod.addresses[0];
        let network = pod.held(Kind::Network).expect("a network");
        let server = namespace::inside(&[(Kind::Network, &network)], || {
            UdpSocket::bind((own, 80))
                .map_err(|source| agent_sys::Error::new("bind", "a socket", source))
        })?;
        let client = there(&|| {
            let mut links = join("192.0.2.2");
            let route = Route {
                destination: at("10.1.0.0"),
                prefix: 24,
                gateway: Some(at("192.0.2.1")),
                link: 0,
            };
            links.add_route(&route).expect("a route");
            let client = UdpSocket::bind((at("192.0.2.2"), 0)).expect("a socket");
            client.connect((own, 80)).expect("it is called");
            client
        });
        let mut peer = Peer {
            name: "n2".to_owned(),
            addresses: vec![at("192.0.2.2")],
            ranges: vec!["10.1.1.0/24".parse().expect("a range")],
            trusted: true,
        };
        let given = agent.give_peers(std::slice::from_ref(&peer));
        assert_eq!(given.expect("routes"), []);
        // The first datagram over a new link may be lost.
        let mut text = [0; 8];
        server.set_read_timeout(Some(PAUSE)).expect("a limit");
        let called = (0..120).any(|_| {
            client.send(b"first").expect("it is sent");
            server.recv(&mut text).is_ok()
        });
        assert!(called);
        peer.trusted = false;
        without_descriptors(|| agent.give_peers(&[peer])).expect_err("no route");
        client.send(b"theirs").expect("it is sent");
        let machine = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        machine.send_to(b"machine", (own, 80)).expect("it is sent");
        server.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let mut next = || {
            let got = server.recv(&mut text).expect("a datagram");
            String::from_utf8_lossy(&text[..got]).into_owned()
        };
        let heard = std::iter::repeat_with(&mut next).find(|text| text != "first");
        assert_eq!(heard.as_deref(), Some("machine"));
        agent.remove("a").expect("it goes");
        Ok(())
    })
    .expect("a machine");
    release(&place).expect("it goes");
}
