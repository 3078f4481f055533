//! Tests the proxy with the kernel of this host. Needs root.

use super::*;
use crate::served::tests::histories;
use crate::view::{Endpoint, Hints, HostPort, Key, Port, Protocol, Service, Slice, SlicePort};
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::dump::Held;
use agent_sys::netlink::filter::Values;
use agent_sys::netlink::links::{LOOPBACK, Links, Route};
use proptest::prelude::*;
use std::net::UdpSocket;

/// The address of servers and callers, of the service, and the unspecified one.
type Place = [&'static str; 3];
const PLACES: [Place; 2] = [
    ["192.0.2.9", "10.96.0.1", "0.0.0.0"],
    ["2001:db8::9", "fd00:96::1", "::"],
];

/// A UDP service with these ports of the host as endpoints.
fn known([host, own, _]: Place, ports: &[u16]) -> Arc<Known> {
    let service = Service {
        addresses: vec![own.parse().unwrap()],
        ports: vec![Port {
            name: String::new(),
            protocol: Protocol::Udp,
            port: 53,
            node_port: None,
        }],
        ..Service::default()
    };
    let slice = |port: &u16| {
        let slice = Slice {
            service: "names".to_owned(),
            ports: vec![SlicePort {
                name: String::new(),
                protocol: Protocol::Udp,
                port: *port,
            }],
            endpoints: vec![Endpoint {
                address: host.parse().unwrap(),
                ready: true,
                serving: true,
                terminating: false,
                hostname: None,
                node: None,
                hints: None,
            }],
            foreign: false,
        };
        (key(&port.to_string()), Arc::new(slice))
    };
    Arc::new(Known {
        services: Some([(key("names"), Arc::new(service))].into()),
        slices: Some(ports.iter().map(slice).collect::<BTreeMap<_, _>>()),
        ..Known::default()
    })
}

fn key(name: &str) -> Arc<Key> {
    Arc::new(Key {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    })
}

/// Gives the network these addresses, both at its loopback link.
fn lead_to_the_host(host: IpAddr, service: IpAddr) -> Result<(), agent_sys::Error> {
    let bits = Family::of(host).bits();
    let mut links = Links::open()?;
    links.switch_on(LOOPBACK)?;
    links.add_address(LOOPBACK, host, bits)?;
    links.add_route(&Route {
        destination: service,
        prefix: bits,
        gateway: None,
        link: LOOPBACK,
    })
}

/// A UDP server, and its port.
fn server(host: IpAddr) -> (UdpSocket, u16) {
    let socket = UdpSocket::bind((host, 0)).unwrap();
    let limit = Some(Duration::from_secs(60));
    socket.set_read_timeout(limit).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

#[test]
fn a_client_of_datagrams_stays_while_its_endpoint_serves() {
    PLACES.into_iter().for_each(stays_while_it_serves);
}

fn stays_while_it_serves(place: Place) {
    let [host, service, any] = place.map(|at| at.parse::<IpAddr>().unwrap());
    in_new(&[Kind::Network], || {
        lead_to_the_host(host, service)?;
        let ((first, of_first), (second, of_second)) = (server(host), server(host));
        // Both, and what the first one has become.
        let known = |change: &dyn Fn(&mut Endpoint, bool)| {
            let mut all = (*known(place, &[of_first, of_second])).clone();
            for slice in all.slices.get_or_insert_default().values_mut() {
                let slice = Arc::make_mut(slice);
                let is_first = slice.ports[0].port == of_first;
                change(&mut slice.endpoints[0], is_first);
            }
            Arc::new(all)
        };
        let ready = |endpoint: &mut Endpoint, is_first: bool| endpoint.ready = is_first;
        let going = |endpoint: &mut Endpoint, is_first: bool| {
            (endpoint.ready, endpoint.terminating) = (!is_first, is_first);
        };
        let elsewhere = |endpoint: &mut Endpoint, is_first: bool| {
            endpoint.hints = Some(Box::new(Hints {
                nodes: vec![if is_first { "n2" } else { "n1" }.to_owned()],
                zones: Vec::new(),
            }));
        };
        let ended = |endpoint: &mut Endpoint, is_first: bool| {
            going(endpoint, is_first);
            endpoint.serving = !is_first;
        };
        let mut rules = Rules::default();
        let mut buffer = [0; 8];
        let client = UdpSocket::bind((any, 0)).unwrap();
        client.connect((service, 53)).unwrap();
        let mut hear = |server: &UdpSocket, what: &str| {
            client.send(what.as_bytes()).unwrap();
            let got = server.recv(&mut buffer);
            assert_eq!(
                got.unwrap_or_else(|error| panic!("{what}: {error}")),
                what.len()
            );
        };
        rules.apply(&known(&ready), "n1", &[])?;
        hear(&first, "ready");
        rules.apply(&known(&elsewhere), "n1", &[])?;
        hear(&first, "hints");
        rules.apply(&known(&going), "n1", &[])?;
        hear(&first, "going");
        Rules::default().apply(&known(&going), "n1", &[])?;
        hear(&first, "anew");
        // A client that comes now gets the other one.
        let next = UdpSocket::bind((any, 0)).unwrap();
        next.connect((service, 53)).unwrap();
        next.send(b"new").unwrap();
        assert_eq!(second.recv(&mut [0; 8]).unwrap(), 3);
        rules.apply(&known(&ended), "n1", &[])?;
        hear(&second, "ended");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_client_that_goes_on_to_send_reaches_the_next_endpoint() {
    PLACES.into_iter().for_each(reaches_the_next_endpoint);
}

fn reaches_the_next_endpoint(place: Place) {
    let [host, service, any] = place.map(|at| at.parse::<IpAddr>().unwrap());
    let known = |ports: &[u16]| known(place, ports);
    in_new(&[Kind::Network], || {
        lead_to_the_host(host, service)?;
        let ((first, of_first), (second, of_second)) = (server(host), server(host));
        let client = UdpSocket::bind((any, 0)).unwrap();
        client.connect((service, 53)).unwrap();
        let other = UdpSocket::bind((any, 0)).unwrap();
        other.connect((host, of_first)).unwrap();
        let mut rules = Rules::default();
        rules.apply(&known(&[of_first]), "n1", &[])?;
        let mut buffer = [0; 8];
        for socket in [&client, &other] {
            socket.send(b"1").unwrap();
            first.recv(&mut buffer).unwrap();
        }
        rules.apply(&known(&[of_second]), "n1", &[])?;
        client.send(b"2").unwrap();
        assert_eq!(second.recv(&mut buffer).unwrap(), 1, "of the same client");
        let flows = Connections::open()?.datagrams(&|_| true)?;
        let direct = |flow: &Flow| flow.called == (host, of_first) && flow.called == flow.answers;
        assert!(flows.iter().any(direct), "another's is kept: {flows:?}");
        // A restarted agent does not know the kernel's table.
        Rules::default().apply(&known(&[of_first]), "n1", &[])?;
        client.send(b"3").unwrap();
        assert_eq!(first.recv(&mut buffer).unwrap(), 1, "after a restart");
        // Nor that a service was deleted while no agent ran; another one may get its address.
        let led = || {
            let mut connections = Connections::open().unwrap();
            let own = |flow: &Flow| flow.called == (service, 53);
            !connections.datagrams(&own).unwrap().is_empty()
        };
        assert!(led());
        let none = Known {
            services: Some(BTreeMap::new()),
            slices: Some(BTreeMap::new()),
            ..Known::default()
        };
        Rules::default().apply(&Arc::new(none), "n1", &[])?;
        assert!(!led(), "of a service that is gone");
        Ok(())
    })
    .unwrap();
}

#[test]
fn all_clients_of_a_removed_endpoint_are_led_on_however_many_they_are() {
    let [host, service, any] = PLACES[0].map(|at| at.parse::<IpAddr>().unwrap());
    in_new(&[Kind::Network], || {
        let mut links = Links::open()?;
        links.switch_on(LOOPBACK)?;
        links.add_address(LOOPBACK, host, 32)?;
        links.add_route(&Route {
            destination: service,
            prefix: 32,
            gateway: None,
            link: LOOPBACK,
        })?;
        let server = UdpSocket::bind((host, 53)).unwrap();
        let mut rules = Rules::default();
        rules.apply(&known(PLACES[0], &[53]), "n1", &[])?;
        // None is forgotten for its age, however long it takes to send.
        let age = "net/netfilter/nf_conntrack_udp_timeout";
        agent_sys::namespace::set(age, "3600")?;
        // Each from a port of its own; more than are listed at once.
        let clients = 1024_u16..1024 + 16_384 + 512;
        let number = clients.len();
        for port in clients {
            let client = UdpSocket::bind((any, port)).unwrap();
            client.send_to(b"1", (service, 53)).unwrap();
        }
        let led = || {
            let mut connections = Connections::open().unwrap();
            let mut led = 0;
            // A listing has a bound: both halves.
            for half in 0..2 {
                let own = |flow: &Flow| flow.answers == (host, 53) && flow.client.1 % 2 == half;
                led += connections.datagrams(&own).unwrap().len();
            }
            led
        };
        assert_eq!(led(), number);
        rules.apply(&known(PLACES[0], &[54]), "n1", &[])?;
        assert_eq!(led(), 0);
        drop(server);
        Ok(())
    })
    .unwrap();
}

#[test]
fn ports_of_pods_stay_open_while_an_agent_starts_anew() {
    in_new(&[Kind::Network], || {
        let view = View::default();
        let port = HostPort {
            address: None,
            protocol: Protocol::Tcp,
            port: 8080,
            pod: "10.1.0.2".parse().unwrap(),
            pod_port: 80,
        };
        let addresses: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap()];
        let before = Known {
            host_ports: vec![("a".to_owned(), vec![port.clone()])],
            ..(*known(PLACES[0], &[53])).clone()
        };
        Rules::default().apply(&Arc::new(before), "n1", &addresses)?;
        let fronts = || {
            let held = Filter::open(Family::V4).unwrap().held(table::TABLE);
            let sets = held.unwrap().sets;
            sets["fronts"].len() + sets["empty"].len()
        };
        // The service, and the port at the node's address and its loopback one.
        assert_eq!(fronts(), 3);
        // The next agent knows services and slices, and a new service, but no pods yet.
        let mut next = (*known(PLACES[0], &[53])).clone();
        let more = known(["192.0.2.9", "10.96.0.2", ""], &[53]);
        let more = more.services.as_ref().unwrap().values().next().unwrap();
        let services = next.services.get_or_insert_default();
        services.insert(key("more"), Arc::clone(more));
        view.change(|_| true, |known| *known = next);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let run = async |end: &mut dyn FnMut() -> bool| {
            let (_stays, addresses) = watch::channel(addresses.clone());
            let proxy = Proxy::new(view.clone(), "n1".to_owned(), addresses);
            let ends = async {
                while !end() {
                    assert!(fronts() >= 3, "a port was closed");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! {
                () = proxy.run() => {}
                () = ends => {}
            }
        };
        // Long enough for one to apply what it should not; only that is waited for.
        let until = Instant::now() + Duration::from_millis(300);
        runtime.block_on(run(&mut || Instant::now() >= until));
        assert_eq!(fronts(), 3);
        view.publish("a", &[port]);
        view.host_ports_are_listed();
        runtime.block_on(run(&mut || fronts() == 4));
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_table_that_is_not_the_proxys_is_made_anew() {
    in_new(&[Kind::Network], || {
        let other = Change::AddMap {
            table: table::TABLE,
            name: "fronts",
            length: 64,
            values: Values::Bytes(4),
        };
        let mut filter = Filter::open(Family::V4)?;
        filter.apply(&[Change::AddTable(table::TABLE), other])?;
        Rules::default().apply(&known(PLACES[0], &[53]), "n1", &[])
    })
    .unwrap();
}

#[test]
fn unused_chains_do_not_pile_up() {
    in_new(&[Kind::Network], || {
        let [host, called, any] = PLACES[0];
        let mut links = Links::open()?;
        links.switch_on(LOOPBACK)?;
        links.add_address(LOOPBACK, host.parse().unwrap(), 32)?;
        links.add_route(&Route {
            destination: called.parse().unwrap(),
            prefix: 32,
            gateway: None,
            link: LOOPBACK,
        })?;
        let server = UdpSocket::bind((host, 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        // One with affinity, and one of another user that changes all the time.
        let known = |seconds| {
            let mut all = (*known(PLACES[0], &[port])).clone();
            let services = all.services.get_or_insert_default();
            for service in services.values_mut() {
                Arc::make_mut(service).affinity = Some(10_800);
            }
            let mut other = (*services[&key("names")]).clone();
            other.addresses = vec!["10.96.0.2".parse().unwrap()];
            other.affinity = Some(seconds);
            services.insert(key("other"), Arc::new(other));
            let slices = all.slices.get_or_insert_default();
            let mut slice = (*slices[&key(&port.to_string())]).clone();
            slice.service = "other".to_owned();
            slices.insert(key("other"), Arc::new(slice));
            Arc::new(all)
        };
        let mut rules = Rules::default();
        rules.apply(&known(1), "n1", &[])?;
        let client = UdpSocket::bind((any, 0)).unwrap();
        client.connect((called, 53)).unwrap();
        client.send(b"1").unwrap();
        let limit = Some(Duration::from_secs(60));
        server.set_read_timeout(limit).unwrap();
        server.recv(&mut [0; 8]).unwrap();
        let mut most = 0;
        for seconds in 1..1300 {
            rules.apply(&known(seconds), "n1", &[])?;
            if seconds % 100 == 0 {
                let held = Filter::open(Family::V4)?.held(table::TABLE)?;
                most = most.max(held.chains.len());
                assert_eq!(held.sets["clients"].len(), 1, "it stays: {seconds}");
            }
        }
        assert!((100..1100).contains(&most), "{most}");
        let held = Filter::open(Family::V4)?.held(table::TABLE)?;
        assert!(held.chains.len() < 500, "{}", held.chains.len());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_namespace_with_too_many_ports_keeps_no_other_from_being_served() {
    let mut all = (*known(PLACES[0], &[53])).clone();
    let port = |number: u16| Port {
        name: number.to_string(),
        protocol: Protocol::Tcp,
        port: number,
        node_port: None,
    };
    for number in 0..10_u8 {
        let own = |name: String| {
            let namespace = "greedy".to_owned();
            Arc::new(Key { namespace, name })
        };
        let service = Service {
            addresses: vec![[10, 96, 1, number].into()],
            // As many as a slice takes.
            ports: (1..=20_000).map(port).collect(),
            ..Service::default()
        };
        let slice = Slice {
            service: number.to_string(),
            ports: (1..=20_000_u16)
                .map(|port| SlicePort {
                    name: port.to_string(),
                    protocol: Protocol::Tcp,
                    port,
                })
                .collect(),
            endpoints: all.slices.as_ref().unwrap()[&key("53")].endpoints.clone(),
            foreign: false,
        };
        let (services, slices) = (&mut all.services, &mut all.slices);
        let name = own(number.to_string());
        services
            .get_or_insert_default()
            .insert(Arc::clone(&name), Arc::new(service));
        slices.get_or_insert_default().insert(name, Arc::new(slice));
    }
    in_new(&[Kind::Network], || {
        // An agent that starts in such a cluster.
        let mut rules = Rules::default();
        rules.apply(&Arc::new(all), "n1", &[])?;
        let held = Filter::open(Family::V4)?.held(table::TABLE)?;
        assert_eq!(held.sets["fronts"].len(), 1, "the other namespace's alone");
        let greedy = |name: &str| Key {
            namespace: "greedy".to_owned(),
            name: name.to_owned(),
        };
        assert!(rules.left_out().has(&greedy("0")) && !rules.left_out().has(&key("names")));
        Ok(())
    })
    .unwrap();
}

/// A table without unused parts that are kept: unused chains, and sets of prefix lengths that no
/// range has; empty if nothing in it is used.
fn bare(mut held: Held) -> Held {
    if held.sets.values().all(BTreeMap::is_empty) {
        return Held::default();
    }
    let names = |bytes: &[u8], name: &str| {
        let name = [name.as_bytes(), &[0]].concat();
        bytes.windows(name.len()).any(|part| part == name)
    };
    let values = held.sets.values().flat_map(BTreeMap::values);
    let values: Vec<Vec<u8>> = values.cloned().collect();
    let led = |chain: &str| values.iter().any(|value| names(value, chain));
    held.chains
        .retain(|chain, _| !chain.starts_with("pick-") || led(chain));
    let unused = held.sets.iter();
    let unused = unused.filter(|(name, set)| name.starts_with("from-") && set.is_empty());
    let unused: Vec<String> = unused.map(|(name, _)| name.clone()).collect();
    held.sets.retain(|name, _| !unused.contains(name));
    let sources = held.chains.entry("sources".to_owned()).or_default();
    sources.retain(|rule| {
        let mut settings = rule.iter().map(|one| &one.settings);
        !settings.any(|bytes| unused.iter().any(|name| names(bytes, name)))
    });
    // Each of them lets callers pass, so that their order makes no difference.
    sources.sort();
    held
}

/// The kernel's tables of both families, in a network namespace of its own, after these states were
/// applied one after the other; and after another agent has started with the last state.
fn kernel(states: &[(Arc<Known>, Vec<IpAddr>)]) -> [Vec<Held>; 2] {
    in_new(&[Kind::Network], || {
        let read = || -> Vec<Held> {
            let both = Family::BOTH.into_iter();
            both.map(|family| bare(Filter::open(family).unwrap().held(table::TABLE).unwrap()))
                .collect()
        };
        let mut rules = Rules::default();
        for (known, addresses) in states {
            rules.apply(known, "n1", addresses)?;
        }
        let first = read();
        let (known, addresses) = states.last().unwrap();
        Rules::default().apply(known, "n1", addresses)?;
        Ok([first, read()])
    })
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_kernel_holds_after_any_changes_what_it_holds_after_a_fresh_start(states in histories()) {
        let [changed, restarted] = kernel(&states);
        let [fresh, again] = kernel(&states[states.len() - 1..]);
        prop_assert_eq!(&changed, &fresh);
        prop_assert_eq!(&restarted, &fresh);
        prop_assert_eq!(&again, &fresh);
    }
}
