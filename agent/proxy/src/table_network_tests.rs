//! Tests Services with the kernel of this host, in network namespaces. Needs root.

use super::tests::at;
use super::*;
use crate::fronts::{Pick, add_host_ports};
use crate::view::{HostPort, Known};
use agent_sys::namespace::{self, Kind, hold, in_new, inside, release};
use agent_sys::netlink::filter::Filter;
use agent_sys::netlink::links::{LOOPBACK, Links, Route, VethPair};
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// The address of servers and callers: on a loopback network callers have no address of their own.
fn host(family: Family) -> IpAddr {
    at(family, 2, 9)
}

/// The address of the service.
fn service_at(family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(at(family, 96, 1), port)
}

/// A socket of a client.
fn client(family: Family) -> UdpSocket {
    match family {
        Family::V4 => UdpSocket::bind("0.0.0.0:0").unwrap(),
        Family::V6 => UdpSocket::bind("[::]:0").unwrap(),
    }
}

/// A server that sends its name to each caller, as long as the test runs.
fn serve(family: Family, name: &'static str) -> u16 {
    let listener = TcpListener::bind((host(family), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.write_all(name.as_bytes()).ok();
        }
    });
    port
}

fn ask(family: Family, port: u16) -> Result<String, std::io::ErrorKind> {
    let address = service_at(family, port);
    let called = TcpStream::connect_timeout(&address, Duration::from_secs(60));
    let mut stream = called.map_err(|error| error.kind())?;
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .map_err(|error| error.kind())?;
    Ok(text)
}

/// Runs a test for each family in a network namespace in which the services' range is routed.
fn in_a_network(test: impl Fn(Family, &mut Filter) + Send + Sync) {
    for family in Family::BOTH {
        in_new(&[Kind::Network], || {
            let mut links = Links::open()?;
            links.switch_on(LOOPBACK)?;
            links.add_address(LOOPBACK, host(family), family.bits())?;
            links.add_route(&Route {
                destination: at(family, 96, 0),
                prefix: family.bits() - 8,
                gateway: None,
                link: LOOPBACK,
            })?;
            test(family, &mut Filter::open(family)?);
            Ok(())
        })
        .unwrap();
    }
}

fn front(family: Family, port: u16, protocol: Protocol) -> Front {
    Front {
        address: at(family, 96, 1),
        protocol,
        port,
    }
}

fn pick(family: Family, ports: &[u16], affinity: Option<u32>) -> Pick {
    Pick {
        endpoints: ports.iter().map(|port| (host(family), *port)).collect(),
        affinity,
        ..Pick::default()
    }
}

#[test]
fn callers_reach_every_endpoint_and_stay_where_they_should() {
    in_a_network(|family, filter| {
        let (a, b) = (serve(family, "a"), serve(family, "b"));
        let front = |port, protocol| front(family, port, protocol);
        let pick = |ports: &[u16], affinity| pick(family, ports, affinity);
        let ask = |port| ask(family, port);
        let wanted: Fronts = [
            (front(80, Protocol::Tcp), pick(&[a, b], None)),
            (front(81, Protocol::Tcp), pick(&[a, b], Some(600))),
            (front(82, Protocol::Tcp), pick(&[], None)),
        ]
        .into();
        let held = entries(&wanted);
        filter.apply(&all(family, &held)).unwrap();
        // Each of the two is missed by all of these calls in one of 2^63 runs.
        let seen: HashSet<String> = (0..64).map(|_| ask(80).unwrap()).collect();
        assert_eq!(seen.len(), 2, "both are reached");
        let first = ask(81).unwrap();
        assert!((0..32).all(|_| ask(81).unwrap() == first), "a client stays");
        // A restarted agent writes the whole table again.
        filter.apply(&all(family, &held)).unwrap();
        assert!(
            (0..32).all(|_| ask(81).unwrap() == first),
            "over a restart, too"
        );
        // The endpoint with which the client stays is removed; the other one takes over.
        let rest = if first == "a" { b } else { a };
        let mut next = wanted;
        next.insert(front(81, Protocol::Tcp), pick(&[rest], Some(600)));
        next.insert(front(82, Protocol::Tcp), pick(&[a], None));
        next.remove(&front(80, Protocol::Tcp));
        let wanted = entries(&next);
        filter.apply(&difference(family, &held, &wanted)).unwrap();
        assert!((0..8).all(|_| ask(81).unwrap() != first));
        assert_eq!(ask(82).unwrap(), "a");
    });
}

#[test]
fn a_client_whose_endpoint_is_removed_stays_with_the_next_one() {
    in_a_network(|family, filter| {
        let names = ["a", "b", "c"];
        let ports = names.map(|name| serve(family, name));
        let front = front(family, 81, Protocol::Tcp);
        let of = |ports: &[u16]| entries(&[(front, pick(family, ports, Some(600)))].into());
        let all_but = |name: &str| {
            let others = names.iter().zip(ports).filter(|(other, _)| **other != name);
            others.map(|(_, port)| port).collect::<Vec<_>>()
        };
        let mut held = of(&ports);
        filter.apply(&all(family, &held)).unwrap();
        let mut own = ask(family, 81).unwrap();
        // Whichever it is led to by chance, a client that does not stay calls both of the others in
        // 16 calls, but for one run of 2^15.
        for round in 1..=3 {
            let before = own;
            let rest = of(&all_but(&before));
            filter.apply(&difference(family, &held, &rest)).unwrap();
            own = ask(family, 81).unwrap();
            assert_ne!(own, before, "it is gone");
            let stays = || (0..16).all(|_| ask(family, 81).unwrap() == own);
            assert!(stays(), "round {round}");
            held = of(&ports);
            filter.apply(&difference(family, &rest, &held)).unwrap();
            assert!(stays(), "round {round}, as the other is back");
        }
    });
}

#[test]
fn a_client_stays_with_its_endpoint_at_each_address_of_a_service() {
    in_a_network(|family, filter| {
        let (a, b) = (serve(family, "a"), serve(family, "b"));
        let own = front(family, 81, Protocol::Tcp);
        let other = front(family, 82, Protocol::Tcp);
        let of = |ports: &[u16]| Pick {
            own_front: Some(own),
            ..pick(family, ports, Some(600))
        };
        let mut wanted: Fronts = [(own, of(&[a, b])), (other, of(&[a, b]))].into();
        let held = entries(&wanted);
        filter.apply(&all(family, &held)).unwrap();
        let first = ask(family, 81).unwrap();
        // By chance alone all of these calls would come there in one of 2^32 runs.
        let stays = |port, name: &str| (0..32).all(|_| ask(family, port).unwrap() == name);
        assert!(stays(82, &first), "at the other address");
        // Its endpoint is none of those of the other address any more, as under a policy that keeps
        // calls on their node.
        let rest = if first == "a" { b } else { a };
        wanted.insert(other, of(&[rest]));
        let next = entries(&wanted);
        filter.apply(&difference(family, &held, &next)).unwrap();
        let second = ask(family, 82).unwrap();
        assert_ne!(second, first);
        assert!(stays(81, &second), "at its own address");
    });
}

#[test]
fn a_client_that_can_not_be_remembered_is_served_all_the_same() {
    with_a_pod(|family, filter, pod| {
        Links::open()
            .unwrap()
            .add_address(LOOPBACK, host(family), family.bits())
            .unwrap();
        let ports = ["a", "b"].map(|name| serve(family, name));
        let wanted = [(
            front(family, 81, Protocol::Tcp),
            pick(family, &ports, Some(600)),
        )];
        let mut changes = all(family, &entries(&wanted.into()));
        for change in &mut changes {
            if let Change::AddMemory { most, .. } = change {
                *most = 1;
            }
        }
        filter.apply(&changes).unwrap();
        let asked = || {
            let names = (0..64).map(|_| ask(family, 81).unwrap());
            names.collect::<HashSet<String>>().len()
        };
        let of_pod = || inside(&[(Kind::Network, pod)], || Ok(asked())).unwrap();
        assert_eq!(of_pod(), 1, "the pod is remembered");
        // Each of the two is missed by all of these calls in one of 2^63 runs.
        assert_eq!(asked(), 2, "there is no room for the machine itself");
        assert_eq!(of_pod(), 1, "the pod still is");
    });
}

#[test]
fn a_client_whose_time_is_over_is_led_to_any_endpoint() {
    in_a_network(|family, filter| {
        let (a, b) = (serve(family, "a"), serve(family, "b"));
        let front = front(family, 81, Protocol::Tcp);
        let wanted = [(front, pick(family, &[a, b], Some(1)))].into();
        filter.apply(&all(family, &entries(&wanted))).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let mut seen = HashSet::new();
        while seen.len() < 2 {
            seen.insert(ask(family, 81).unwrap());
            // The kernel forgets it after a second.
            while !filter.held(TABLE).unwrap().sets[CLIENTS].is_empty() {
                assert!(Instant::now() < until, "{seen:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
}

#[test]
fn datagrams_go_to_an_endpoint_and_answers_come_back() {
    in_a_network(|family, filter| {
        let server = UdpSocket::bind((host(family), 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        let picked = pick(family, &[port], None);
        let wanted = [(front(family, 53, Protocol::Udp), picked)].into();
        filter.apply(&all(family, &entries(&wanted))).unwrap();
        let client = client(family);
        client.connect(service_at(family, 53)).unwrap();
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

/// Runs `test` for each family, on a machine with one pod behind a veth pair; it gets the file of
/// the pod's network namespace.
fn with_a_pod(test: impl Fn(Family, &mut Filter, &Path) + Send + Sync) {
    for family in Family::BOTH {
        with_a_pod_of(family, |filter, place| test(family, filter, place));
    }
}

fn with_a_pod_of(family: Family, test: impl FnOnce(&mut Filter, &Path) + Send) {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("pod");
    in_new(&[Kind::Network], || hold(Kind::Network, &place)).unwrap();
    let (near, far) = (at(family, 1, 1), at(family, 1, 2));
    let join = |name: &str, own: IpAddr, other: IpAddr| {
        let mut links = Links::open().unwrap();
        links.switch_on(LOOPBACK).unwrap();
        let link = links.named(name).unwrap().unwrap().index;
        links.switch_on(link).unwrap();
        links.add_address(link, own, family.bits()).unwrap();
        let to = |destination: IpAddr, prefix, gateway: Option<IpAddr>| Route {
            destination,
            prefix,
            gateway,
            link,
        };
        links.add_route(&to(other, family.bits(), None)).unwrap();
        let everywhere = match family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let rest = to(everywhere, 0, Some(other));
        links.add_route(&rest).unwrap();
    };
    in_new(&[Kind::Network], || {
        let network = File::open(&place).unwrap();
        Links::open()?.add_veth_pair(&VethPair {
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
        test(&mut Filter::open(family)?, &place);
        Ok(())
    })
    .unwrap();
    release(&place).unwrap();
}

/// The errors that a caller gets by TCP and by UDP.
fn heard(family: Family) -> [std::io::ErrorKind; 2] {
    let tcp = TcpStream::connect(service_at(family, 80)).unwrap_err();
    let client = client(family);
    client.connect(service_at(family, 53)).unwrap();
    let limit = Some(Duration::from_secs(60));
    client.set_read_timeout(limit).unwrap();
    // The machine's own callers get nftables' error already as they send.
    client.send(b"who").ok();
    let udp = client.recv(&mut [0; 8]).unwrap_err();
    [tcp.kind(), udp.kind()]
}

#[test]
fn callers_of_a_service_without_endpoints_are_refused() {
    with_a_pod(|family, filter, pod| {
        let none = [
            (front(family, 80, Protocol::Tcp), pick(family, &[], None)),
            (front(family, 53, Protocol::Udp), pick(family, &[], None)),
        ];
        filter.apply(&all(family, &entries(&none.into()))).unwrap();
        let refused = [std::io::ErrorKind::ConnectionRefused; 2];
        let of_pod = inside(&[(Kind::Network, pod)], || Ok(heard(family))).unwrap();
        assert_eq!(of_pod, refused, "a pod");
        assert_eq!(heard(family), refused, "the machine itself");
    });
}

#[test]
fn callers_of_what_no_service_has_are_refused() {
    with_a_pod(|family, filter, pod| {
        Links::open()
            .unwrap()
            .add_address(LOOPBACK, host(family), family.bits())
            .unwrap();
        let server = serve(family, "a");
        let wanted = [(
            front(family, 81, Protocol::Tcp),
            pick(family, &[server], None),
        )];
        filter
            .apply(&all(family, &entries(&wanted.into())))
            .unwrap();
        let of_pod = |work: &(dyn Fn() + Sync)| {
            let work = || {
                work();
                Ok(())
            };
            inside(&[(Kind::Network, pod)], work).unwrap();
        };
        let passes = |address: SocketAddr| {
            let called = TcpStream::connect_timeout(&address, Duration::from_millis(100));
            // Nobody answers, as there is no machine behind this one.
            assert_eq!(called.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        };
        let refused = || {
            let refused = [std::io::ErrorKind::ConnectionRefused; 2];
            assert_eq!(heard(family), refused);
            assert_eq!(ask(family, 81).unwrap(), "a", "what a service has");
            passes(SocketAddr::new(at(family, 97, 1), 80));
        };
        let range = |net| AddressRange {
            first: at(family, net, 0),
            last: at(family, net, 9),
        };
        for ranges in [vec![range(96)], vec![range(95), range(96)]] {
            filter.apply(&service_ranges(&ranges)).unwrap();
            refused();
            of_pod(&refused);
        }
        filter.apply(&service_ranges(&[range(95)])).unwrap();
        passes(service_at(family, 80));
        of_pod(&|| passes(service_at(family, 80)));
    });
}

#[test]
fn callers_from_elsewhere_do_not_come_to_a_restricted_front() {
    with_a_pod(|family, filter, pod| {
        Links::open()
            .unwrap()
            .add_address(LOOPBACK, host(family), family.bits())
            .unwrap();
        let server = serve(family, "a");
        let open_to = |prefix: u8, ranges: &[IpAddr]| -> Fronts {
            let sources = ranges.iter().map(|address| Cidr {
                address: *address,
                prefix,
            });
            let pick = Pick {
                sources: sources.collect(),
                ..pick(family, &[server], None)
            };
            [(front(family, 80, Protocol::Tcp), pick)].into()
        };
        // A packet that is dropped has no answer to wait for: a slow machine can only hide that it
        // was not.
        let call = |expected: bool| {
            let limit = Duration::from_millis(if expected { 60_000 } else { 100 });
            let called = TcpStream::connect_timeout(&service_at(family, 80), limit);
            assert_eq!(called.is_ok(), expected, "{called:?}");
        };
        let from_pod = |expected| {
            let called = || {
                call(expected);
                Ok(())
            };
            inside(&[(Kind::Network, pod)], called).unwrap();
        };
        let (of_pod, bits) = (at(family, 1, 2), family.bits());
        let mut held = Fronts::new();
        let mut chains = Chains::of(family, &Entries::default());
        filter.apply(&all(family, &entries(&held))).unwrap();
        let mut lead = |next: Fronts| {
            filter.apply(&chains.lead(&held, &next)).unwrap();
            held = next;
        };
        let others = at(family, 7, 0);
        for (prefix, ranges, pod_may, node_may) in [
            (bits, vec![], true, true),
            (bits - 8, vec![others], false, false),
            (bits, vec![others, of_pod], true, false),
            (bits - 8, vec![of_pod], true, true),
            (0, vec![of_pod], true, true),
        ] {
            lead(open_to(prefix, &ranges));
            from_pod(pod_may);
            call(node_may);
        }
    });
}

#[test]
fn callers_inside_reach_endpoints_elsewhere_that_others_do_not() {
    with_a_pod(|family, filter, pod| {
        Links::open()
            .unwrap()
            .add_address(LOOPBACK, host(family), family.bits())
            .unwrap();
        let elsewhere = serve(family, "elsewhere");
        let end = (host(family), elsewhere);
        let local = Pick {
            silent: true,
            inside: vec![end],
            ..Pick::default()
        };
        let staying = Pick {
            affinity: Some(600),
            ..local.clone()
        };
        let fronts = [
            (front(family, 80, Protocol::Tcp), local),
            (front(family, 81, Protocol::Tcp), staying),
        ];
        filter
            .apply(&all(family, &entries(&fronts.into())))
            .unwrap();
        let asked = || [80, 81, 81].map(|port| ask(family, port).unwrap());
        let of_pod = inside(&[(Kind::Network, pod)], || Ok(asked())).unwrap();
        assert_eq!(of_pod, ["elsewhere"; 3], "a pod");
        assert_eq!(asked(), ["elsewhere"; 3], "the machine itself");
    });
}

#[test]
fn a_port_of_the_node_leads_to_its_pod() {
    with_a_pod(|family, filter, pod| {
        let own = host(family);
        Links::open()
            .unwrap()
            .add_address(LOOPBACK, own, family.bits())
            .unwrap();
        let port = HostPort {
            address: None,
            protocol: Protocol::Tcp,
            port: 8080,
            pod: at(family, 1, 2),
            pod_port: 80,
        };
        let mut fronts = Fronts::new();
        let known = Known {
            host_ports: vec![("u".to_owned(), vec![port])],
            ..Known::default()
        };
        add_host_ports(&mut fronts, &known, &[own]);
        filter.apply(&all(family, &entries(&fronts))).unwrap();
        let bind = || Ok(TcpListener::bind((at(family, 1, 2), 80)).unwrap());
        let listener = inside(&[(Kind::Network, pod)], bind).unwrap();
        // As the sandbox's cable is set.
        namespace::set("net/ipv4/conf/pod-1/route_localnet", "1").unwrap();
        let limit = Duration::from_secs(60);
        let loopback = Some(IpAddr::from(Ipv4Addr::LOCALHOST));
        // There is no such way from that of IPv6.
        let loopback = loopback.filter(|_| family == Family::V4);
        for at in [Some(own), loopback].into_iter().flatten() {
            let called = TcpStream::connect_timeout(&(at, 8080).into(), limit);
            assert!(called.is_ok(), "{at}: {called:?}");
            listener.accept().unwrap();
        }
    });
}
