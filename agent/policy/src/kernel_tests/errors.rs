//! Tests ICMP errors: the kernel judges them by the connection of the packet that they quote.

use super::*;
use agent_sys::netlink::links::{Route, VethPair, octets};
use nix::sys::socket::SockaddrStorage;
use nix::sys::socket::sockopt::{Ipv4Ttl, Ipv6Ttl};
use std::fs::File;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use tests_harness::wait::eventually;

/// The payload that forged errors quote.
const QUOTED: &[u8] = b"a message";

/// Types and codes of errors: for all of them the kernel looks up the quoted connection.
fn kinds(family: Family) -> &'static [(u8, u8)] {
    match family {
        // Unreachable, too large, source quench, redirect, time exceeded, parameter problem.
        Family::V4 => &[(3, 3), (3, 4), (4, 0), (5, 1), (11, 0), (12, 0)],
        // The same as far as they exist in ICMPv6; all types below 128 are errors.
        Family::V6 => &[(1, 4), (2, 0), (3, 0), (4, 0), (100, 0)],
    }
}

/// The Internet checksum (RFC 1071).
fn sum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| {
        let low = word.get(1).copied().unwrap_or_default();
        u32::from(u16::from_be_bytes([word[0], low]))
    });
    let sum = words.sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    (!u16::try_from(folded).unwrap()).to_be_bytes()
}

/// An error that quotes a datagram.
fn error((kind, code): (u8, u8), from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let length = u8::try_from(8 + QUOTED.len()).unwrap();
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let datagram = [ports.as_slice(), &[0, length, 0, 0], QUOTED].concat();
    let ends = [octets(from.ip()), octets(to.ip())].concat();
    let header = if from.is_ipv4() {
        let mut header = vec![0x45, 0, 0, 20 + length, 0, 1, 0, 0, 64, 17, 0, 0];
        header.extend(ends);
        let sum = sum(&header);
        header[10..12].copy_from_slice(&sum);
        header
    } else {
        [&[0x60, 0, 0, 0, 0, length, 17, 64], ends.as_slice()].concat()
    };
    // The largest packet, where the error is about that.
    let mut message = [&[kind, code, 0, 0, 0, 0, 5, 0], &header[..], &datagram].concat();
    // For IPv6 the kernel fills it in.
    if from.is_ipv4() {
        let sum = sum(&message);
        message[2..4].copy_from_slice(&sum);
    }
    message
}

fn send(socket: &OwnedFd, message: &[u8], to: IpAddr) {
    let to = SockaddrStorage::from(SocketAddr::new(to, 0));
    sendto(socket.as_raw_fd(), message, &to, MsgFlags::empty()).unwrap();
}

/// Types and codes of the messages that a socket has received since; `of`: which messages count.
fn heard(socket: &OwnedFd, family: Family, of: impl Fn(&[u8]) -> bool) -> Vec<(u8, u8)> {
    // With IPv4 the packet's header comes, too.
    let begin = match family {
        Family::V4 => 20,
        Family::V6 => 0,
    };
    let mut all = Vec::new();
    let mut buffer = [0; 2048];
    while let Ok(length) = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
        if of(&buffer[..length]) {
            all.push((buffer[begin], buffer[begin + 1]));
        }
    }
    all
}

fn forged(message: &[u8]) -> bool {
    message.ends_with(QUOTED)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, PATIENCE, "", || Ok(holds().then_some(()))).unwrap();
}

/// Two sockets that have exchanged a datagram each way, so that the connection is known.
fn connect(client: &UdpSocket, server: &UdpSocket, at: IpAddr) -> [SocketAddr; 2] {
    let to = SocketAddr::new(at, server.local_addr().unwrap().port());
    client.connect(to).unwrap();
    let mut buffer = [0; 8];
    for socket in [client, server] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    client.send(b"who").unwrap();
    let (_, from) = server.recv_from(&mut buffer).unwrap();
    server.send_to(b"me", from).unwrap();
    client.recv(&mut buffer).unwrap();
    [from, to]
}

#[test]
fn no_pod_reaches_another_past_its_policies_by_an_error_about_a_connection_of_others() {
    Node::with(&["a", "b", "c"], |node| {
        let any = node.any();
        let bind = |name| node.within(name, || UdpSocket::bind((any, 0)).unwrap());
        let [of_a, of_b, other] = ["a", "b", "c"].map(bind);
        node.say(&[]);
        let [a, b] = connect(&of_a, &of_b, node.at("b"));
        let asking = bind("a");
        let [asker, own] = connect(&asking, &other, node.at("c"));
        let from_c =
            json!({"podSelector": {"matchLabels": {"app": "c"}}, "policyTypes": ["Egress"]});
        node.say(&[from_c]);
        let [at_a, at_b, at_c] =
            ["a", "b", "c"].map(|name| node.within(name, || icmp(node.family)));
        for kind in kinds(node.family) {
            // A third one, to either end.
            send(&at_c, &error(*kind, a, b), a.ip());
            send(&at_c, &error(*kind, b, a), b.ip());
            // About its own connection, and to another than its end.
            send(&at_c, &error(*kind, asker, own), b.ip());
        }
        assert_eq!(heard(&at_a, node.family, forged), []);
        assert_eq!(heard(&at_b, node.family, forged), []);
        // The ends themselves.
        for kind in kinds(node.family) {
            send(&at_b, &error(*kind, a, b), a.ip());
            send(&at_a, &error(*kind, b, a), b.ip());
        }
        assert_eq!(heard(&at_a, node.family, forged), kinds(node.family));
        assert_eq!(heard(&at_b, node.family, forged), kinds(node.family));
    });
}

#[test]
fn no_pod_tells_the_machine_of_errors_of_other_connections() {
    Node::with(&["b", "c"], |node| {
        let any = node.any();
        let own = UdpSocket::bind((any, 0)).unwrap();
        let of_b = node.within("b", || UdpSocket::bind((any, 0)).unwrap());
        node.say(&[]);
        let [machine, b] = connect(&own, &of_b, node.at("b"));
        let unknown = SocketAddr::new(node.at("b"), 9);
        let here = icmp(node.family);
        let [at_b, at_c] = ["b", "c"].map(|name| node.within(name, || icmp(node.family)));
        for kind in kinds(node.family) {
            send(&at_c, &error(*kind, machine, b), machine.ip());
            send(&at_c, &error(*kind, machine, unknown), machine.ip());
        }
        assert_eq!(heard(&here, node.family, forged), []);
        for kind in kinds(node.family) {
            send(&at_b, &error(*kind, machine, b), machine.ip());
        }
        assert_eq!(heard(&here, node.family, forged), kinds(node.family));
    });
}

/// Sends until the error is that the port is closed.
fn is_refused(socket: &UdpSocket) {
    socket.set_read_timeout(Some(SECOND)).unwrap();
    until("a refusal", || {
        // Either call gets the error.
        let answer = socket.send(b"who").and_then(|_| socket.recv(&mut [0; 8]));
        answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
}

#[test]
fn errors_about_a_pods_own_connections_come_whichever_end_it_is() {
    Node::with(&["a", "b"], |node| {
        let [cluster_ip, own]: [IpAddr; 2] = match node.family {
            Family::V4 => ["10.96.0.10", "192.0.2.1"],
            Family::V6 => ["fd00:96::10", "2001:db8::1"],
        }
        .map(|text| text.parse().unwrap());
        node.publish(["UDP", "Cluster"], "b", cluster_ip, own);
        // b may receive and a may send, not the other way round.
        let to_b = json!({"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{
            "from": [{"podSelector": {"matchLabels": {"app": "a"}}}],
        }], "egress": [], "policyTypes": ["Ingress", "Egress"]});
        let to_a = json!({"podSelector": {"matchLabels": {"app": "a"}}});
        node.say(&[to_b, to_a]);
        let any = node.any();
        let bind = |name| node.within(name, || UdpSocket::bind((any, 0)).unwrap());
        // From the server: at its own address, a service's and, for the machine, its own.
        for called in [node.at("b"), cluster_ip] {
            let client = bind("a");
            client.connect((called, 80)).unwrap();
            is_refused(&client);
        }
        let client = UdpSocket::bind((any, 0)).unwrap();
        client.connect((node.at("b"), 80)).unwrap();
        is_refused(&client);
        // From a client that is gone.
        let (client, server) = (bind("a"), bind("b"));
        let [from, _] = connect(&client, &server, node.at("b"));
        drop(client);
        server.connect(from).unwrap();
        is_refused(&server);
    });
}

/// Two networks beyond the machine's, and the machine's address on its segment.
struct Routers {
    machine: IpAddr,
    /// A router on the segment, which passes on packets of 1,280 bytes at most to `beyond`.
    far: IpAddr,
    beyond: IpAddr,
    /// The network namespace of `far`.
    place: PathBuf,
}

impl Routers {
    fn within_far<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        namespace::inside(&[(Kind::Network, &self.place)], || Ok(work())).unwrap()
    }
}

fn with_routers(node: &Node, test: impl FnOnce(&Routers)) {
    let (bits, machine, far, beyond) = match node.family {
        Family::V4 => ([24, 24], "192.0.2.1", "192.0.2.2", "198.51.100.0"),
        Family::V6 => ([64, 64], "2001:db8::1", "2001:db8::2", "2001:db8:1::"),
    };
    let [machine, far, beyond]: [IpAddr; 3] =
        [machine, far, beyond].map(|text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let places = ["far", "beyond"].map(|name| folder.path().join(name));
    for place in &places {
        in_new(&[Kind::Network], || namespace::hold(Kind::Network, place)).unwrap();
    }
    let join = |near: &str, number: u8, place: &Path, mtu: u32| {
        let mut links = Links::open().unwrap();
        links
            .add_veth_pair(&VethPair {
                name: near,
                mac: [2, 0, 0, 0, number, 1],
                far_name: "eth0",
                far_mac: [2, 0, 0, 0, number, 2],
                far: File::open(place).unwrap().as_fd(),
                mtu,
            })
            .unwrap();
        let near = links.named(near).unwrap().unwrap().index;
        links.switch_on(near).unwrap();
        namespace::inside(&[(Kind::Network, place)], || {
            let mut links = Links::open()?;
            let eth0 = links.named("eth0")?.unwrap().index;
            links.switch_on(eth0)
        })
        .unwrap();
        near
    };
    let route = |gateway, link| Route {
        destination: beyond,
        prefix: bits[1],
        gateway,
        link,
    };
    let segment = join("segment", 1, &places[0], 1500);
    let mut links = Links::open().unwrap();
    links.add_address(segment, machine, bits[0]).unwrap();
    namespace::inside(&[(Kind::Network, &places[0])], || {
        let onward = join("onward", 2, &places[1], 1280);
        let mut links = Links::open()?;
        let eth0 = links.named("eth0")?.unwrap().index;
        links.add_address(eth0, far, bits[0])?;
        links.add_route(&route(None, onward))?;
        namespace::set(
            match node.family {
                Family::V4 => "net/ipv4/ip_forward",
                Family::V6 => "net/ipv6/conf/all/forwarding",
            },
            "1",
        )
    })
    .unwrap();
    links.add_route(&route(Some(far), segment)).unwrap();
    test(&Routers {
        machine,
        far,
        beyond,
        place: places[0].clone(),
    });
    for place in &places {
        namespace::release(place).unwrap();
    }
}

#[test]
fn routers_errors_come_to_the_pod_whose_packets_they_are_about() {
    Node::with(&["a"], |node| {
        // Its policies allow all egress and no ingress.
        let to_a = json!({"podSelector": {"matchLabels": {"app": "a"}}});
        node.say(&[to_a]);
        with_routers(node, |routers| {
            let (far, beyond) = (routers.far, routers.beyond);
            let any = node.any();
            let bind = || node.within("a", || UdpSocket::bind((any, 0)).unwrap());
            // A closed port.
            let client = bind();
            client.connect((far, 9)).unwrap();
            is_refused(&client);
            // Traceroute: the second router is the far one.
            let here = node.within("a", || icmp(node.family));
            let client = bind();
            let exceeded = match node.family {
                Family::V4 => {
                    setsockopt(&client, Ipv4Ttl, &2).unwrap();
                    (11, 0)
                }
                Family::V6 => {
                    setsockopt(&client, Ipv6Ttl, &2).unwrap();
                    (3, 0)
                }
            };
            until("the second router", || {
                client.send_to(QUOTED, (beyond, 9)).unwrap();
                let received = heard(&here, node.family, forged);
                received.contains(&exceeded)
            });
            // The largest packet of the path.
            let largest = || {
                let ask = || Links::open().unwrap().largest_packet_to(beyond).unwrap();
                node.within("a", ask)
            };
            assert_ne!(largest(), Some(1280));
            let client = bind();
            until("the path's size", || {
                client.send_to(&[0; 1400], (beyond, 9)).ok();
                largest() == Some(1280)
            });
        });
    });
}

/// Type and code of the error that says that a packet is too large.
fn too_large(family: Family) -> (u8, u8) {
    match family {
        Family::V4 => (3, 4),
        Family::V6 => (2, 0),
    }
}

/// Type and code of the error that says that a port is closed.
fn closed(family: Family) -> (u8, u8) {
    match family {
        Family::V4 => (3, 3),
        Family::V6 => (1, 4),
    }
}

#[test]
fn no_pod_makes_the_packets_to_its_machine_smaller_by_an_error_about_its_own_connection() {
    Node::with(&["c"], |node| {
        node.say(&[]);
        with_routers(node, |routers| {
            let any = node.any();
            let of_c = || node.within("c", || UdpSocket::bind((any, 0)).unwrap());
            let of_far = || routers.within_far(|| UdpSocket::bind((any, 0)).unwrap());
            let forge = node.within("c", || icmp(node.family));
            let largest = || {
                let ask = || Links::open().unwrap().largest_packet_to(routers.machine);
                routers.within_far(ask).unwrap()
            };
            // What `there` sent to `own`, which c has, was too large; then, that the port of c is
            // closed, which the program in far sees.
            let tell = |there: SocketAddr, own: SocketAddr, program: &UdpSocket| {
                let of = |kind| error(kind, there, own);
                program.set_read_timeout(Some(SECOND)).unwrap();
                send(&forge, &of(too_large(node.family)), there.ip());
                until("a refusal", || {
                    send(&forge, &of(closed(node.family)), there.ip());
                    let answer = program.recv(&mut [0; 8]);
                    answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
                });
            };
            assert_eq!(largest(), Some(1500));
            // The first datagrams over a new link may be lost.
            let first = of_c();
            first.connect((routers.far, 9)).unwrap();
            is_refused(&first);
            // It is the client, masqueraded as the machine.
            let (client, server) = (of_c(), of_far());
            let [from, to] = connect(&client, &server, routers.far);
            assert_eq!(from.ip(), routers.machine);
            server.connect(from).unwrap();
            let own = SocketAddr::new(node.at("c"), client.local_addr().unwrap().port());
            tell(to, own, &server);
            assert_eq!(largest(), Some(1500), "about a call of its own");
            // It is the server at a port of the machine, and sees the client's own address.
            let cluster_ip: IpAddr = match node.family {
                Family::V4 => "10.96.0.10",
                Family::V6 => "fd00:96::10",
            }
            .parse()
            .unwrap();
            node.publish(["UDP", "Local"], "c", cluster_ip, routers.machine);
            let server = node.within("c", || UdpSocket::bind((any, 80)).unwrap());
            let client = of_far();
            for socket in [&client, &server] {
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
            }
            client.connect((routers.machine, 30_080)).unwrap();
            client.send(b"who").unwrap();
            let (_, from) = server.recv_from(&mut [0; 8]).unwrap();
            assert_eq!(from.ip(), routers.far);
            server.send_to(b"me", from).unwrap();
            client.recv(&mut [0; 8]).unwrap();
            tell(from, SocketAddr::new(node.at("c"), 80), &client);
            assert_eq!(largest(), Some(1500), "about a call to it");
        });
    });
}
