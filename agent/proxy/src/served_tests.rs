use super::*;
use crate::fronts::{add_host_ports, fronts};
use crate::view::{
    Endpoint, Hints, HostPort, Node, Port, Protocol, Service, ServiceRange, SlicePort,
};
use config_model::format::Cidr;
use proptest::prelude::*;

/// The first service's name: it is served whatever its namespace takes.
const SPECIAL: &str = "kubernetes";

/// A node whose zone and addresses do not matter.
const HERE: Here<'static> = Here {
    node: "n1",
    zone: None,
    addresses: &[],
    name_servers: &[],
};

/// The name of a service with this number.
fn service_name(number: u8) -> String {
    if number == 0 {
        SPECIAL.to_owned()
    } else {
        format!("s{number}")
    }
}

fn key(name: &str) -> Arc<Key> {
    // Services and their slices by the number that their names end with.
    let is_even = name == SPECIAL || name.ends_with(['0', '2', '4']);
    Arc::new(Key {
        namespace: if is_even { "default" } else { "shop" }.to_owned(),
        name: name.to_owned(),
    })
}

/// An address of this family, in a net of its own.
fn at(six: bool, net: &str, last: u8) -> IpAddr {
    let text = if six {
        format!("fd00:{net}::{last}")
    } else {
        format!("10.{net}.0.{last}")
    };
    text.parse().unwrap()
}

/// Ports with few names and numbers, so that services claim the same ones.
fn any_ports() -> impl Strategy<Value = Vec<Port>> {
    let port = (
        prop_oneof![
            Just(("web", Protocol::Tcp, 80)),
            Just(("dns", Protocol::Udp, 53)),
            Just(("more", Protocol::Tcp, 81)),
        ],
        proptest::option::of(prop_oneof![Just(8080_u16), Just(10_250), Just(30_000)]),
    );
    let port = port.prop_map(|((name, protocol, port), node_port)| Port {
        name: name.to_owned(),
        protocol,
        port,
        node_port,
    });
    proptest::collection::vec(port, 0..3)
}

/// Ranges whose callers may come, of both families.
fn any_sources() -> impl Strategy<Value = Vec<Cidr>> {
    let range = (any::<bool>(), 0_u8..3, 0_u8..3).prop_map(|(six, last, shorter)| Cidr {
        address: at(six, "3", last),
        prefix: if six { 128 } else { 32 } - shorter,
    });
    proptest::collection::vec(range, 0..3)
}

/// Addresses of services in one or both families, some of which another one has or names.
fn any_addresses() -> impl Strategy<Value = [Vec<IpAddr>; 3]> {
    let some = || proptest::collection::vec((any::<bool>(), 0_u8..3), 0..3);
    (0_u8..4, 0_u8..4, some(), some()).prop_map(|(last, families, external, balancers)| {
        let own = [false, true].into_iter().zip([1, 2]);
        let own = own.filter(|(_, bit)| families & bit != 0);
        let named = |some: Vec<(bool, u8)>| {
            let all = some.into_iter();
            // The first of each net is a cluster IP.
            all.map(|(six, last)| at(six, ["96", "98", "2"][usize::from(last)], 1))
                .collect()
        };
        let own = own.map(|(six, _)| at(six, "96", last)).collect();
        [own, named(external), named(balancers)]
    })
}

fn any_service() -> impl Strategy<Value = Service> {
    let policies = (any::<bool>(), any::<bool>(), any::<bool>());
    let rare = || proptest::bool::weighted(0.1);
    (
        any_addresses(),
        any_ports(),
        any_sources(),
        policies,
        proptest::option::of(1_u32..3),
        (rare(), rare(), rare()),
    )
        .prop_map(
            |(addresses, ports, sources, policies, affinity, (foreign, name_server, alias))| {
                let [addresses, external, balancers] = addresses;
                let (internal_local, external_local, health) = policies;
                Service {
                    uid: String::new(),
                    addresses: if alias { Vec::new() } else { addresses },
                    external_name: alias.then(|| "example.org".to_owned()),
                    external,
                    balancers,
                    sources,
                    ports,
                    sctp_ports: Vec::new(),
                    affinity,
                    internal_local,
                    external_local,
                    health_port: (external_local && health).then_some(8080),
                    foreign,
                    name_server,
                    headless: false,
                    left_out: false,
                }
            },
        )
}

fn any_slice() -> impl Strategy<Value = Slice> {
    let hints = (0_u8..3, 0_u8..3).prop_map(|(node, zone)| {
        let named = |what: &str, number: u8| (number > 0).then(|| format!("{what}{number}"));
        Box::new(Hints {
            nodes: named("n", node).into_iter().collect(),
            zones: named("z", zone).into_iter().collect(),
        })
    });
    let endpoint = (
        (any::<bool>(), 0_u8..4),
        (any::<bool>(), any::<bool>(), any::<bool>()),
        0_u8..3,
        proptest::option::weighted(0.8, hints),
    )
        .prop_map(
            |((six, last), (ready, serving, terminating), node, hints)| Endpoint {
                address: at(six, "1", last),
                ready,
                serving,
                terminating,
                hostname: None,
                node: (node > 0).then(|| format!("n{node}")),
                hints,
            },
        );
    let ports = proptest::sample::subsequence(
        vec![
            ("web", Protocol::Tcp, 8080),
            ("dns", Protocol::Udp, 53),
            ("dns", Protocol::Tcp, 53),
            ("more", Protocol::Tcp, 8081),
        ],
        0..=4,
    );
    let endpoints = proptest::collection::vec(endpoint, 0..4);
    (0_u8..5, ports, endpoints).prop_map(|(service, ports, endpoints)| Slice {
        service: service_name(service),
        ports: ports
            .into_iter()
            .map(|(name, protocol, port)| SlicePort {
                name: name.to_owned(),
                protocol,
                port,
            })
            .collect(),
        endpoints,
        foreign: false,
    })
}

/// Services with few addresses, so that they claim the same ones; slices, some without a service;
/// host ports; and this node's zone and DNS servers.
fn any_known() -> impl Strategy<Value = Known> {
    let port = (
        (any::<bool>(), 0_u8..4),
        prop_oneof![Just(80_u16), Just(8080)],
        any::<bool>(),
    );
    let port = port.prop_map(|((six, last), port, udp)| {
        let port = HostPort {
            address: None,
            protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
            port,
            pod: at(six, "1", last),
            pod_port: 1,
        };
        (last.to_string(), vec![port])
    });
    let servers = proptest::collection::vec(any::<bool>(), 0..2);
    // Some have addresses of services, by mistake.
    let addresses = proptest::collection::vec((any::<bool>(), 0_u8..3), 0..3);
    let node = (0_u8..3, servers, addresses);
    let ranges = proptest::collection::vec((any::<bool>(), 0_u8..3, 0_u8..4), 0..3);
    (
        proptest::collection::btree_map(0_u8..5, any_service(), 0..5),
        proptest::collection::btree_map(0_u8..5, any_slice(), 0..5),
        proptest::collection::vec(port, 0..3),
        node,
        ranges,
    )
        .prop_map(|(services, slices, host_ports, node, ranges)| {
            let (zone, servers, addresses) = node;
            let services = services.into_iter();
            let services =
                services.map(|(name, service)| (key(&service_name(name)), Arc::new(service)));
            let slices = slices.into_iter();
            let slices = slices.map(|(name, slice)| (key(&format!("l{name}")), Arc::new(slice)));
            let node = Node {
                zone: (zone > 0).then(|| format!("z{zone}")),
                addresses: addresses
                    .into_iter()
                    .map(|(six, last)| at(six, "96", last))
                    .collect(),
                ..Node::default()
            };
            let range = |(six, last, shorter): (bool, u8, u8)| {
                let prefix = if six { 128 } else { 32 } - shorter;
                let address = at(six, "96", last);
                let range = ServiceRange(vec![Cidr { address, prefix }]);
                (format!("{address}/{prefix}"), Arc::new(range))
            };
            Known {
                services: Some(services.collect()),
                slices: Some(slices.collect()),
                service_ranges: Some(ranges.into_iter().map(range).collect()),
                nodes: Some([("n1".to_owned(), Arc::new(node))].into()),
                host_ports,
                name_servers: servers.into_iter().map(|six| at(six, "1", 1)).collect(),
                ..Known::default()
            }
        })
}

/// What is known one after the other, with the node's addresses.
pub(crate) fn histories() -> impl Strategy<Value = Vec<(Arc<Known>, Vec<IpAddr>)>> {
    let addresses = (0_u8..2, any::<bool>()).prop_map(|(last, both)| {
        let own = [at(false, "2", last), at(true, "2", 1)];
        own.into_iter().take(1 + usize::from(both)).collect()
    });
    proptest::collection::vec((any_known(), addresses), 1..6).prop_map(|states| {
        let mut last = Known::default();
        let states = states.into_iter().map(|(mut known, addresses)| {
            keep(&mut known.services, last.services.as_ref());
            keep(&mut known.slices, last.slices.as_ref());
            last = known.clone();
            (Arc::new(known), addresses)
        });
        states.collect()
    })
}

/// Keeps unchanged objects as the same `Arc`, as a watch does.
fn keep<T: PartialEq>(now: &mut Option<Objects<T>>, before: Option<&Objects<T>>) {
    for (key, object) in now.iter_mut().flatten() {
        let same = before.and_then(|before| before.get(key));
        if let Some(same) = same.filter(|same| *same == object) {
            *object = Arc::clone(same);
        }
    }
}

proptest! {
    #[test]
    fn moves_add_up_to_the_fronts_of_the_last_state(
        states in histories(),
        whole in prop_oneof![Just(budget::WHOLE), 0_usize..5000],
    ) {
        let (mut served, mut held) = (Served::within(whole), Fronts::new());
        for (known, addresses) in &states {
            let here = Here {
                node: "n1",
                zone: known.zone("n1"),
                addresses,
                name_servers: &known.name_servers,
            };
            let Moves { before, after } = served.take(known, here);
            for (front, pick) in &before {
                let led = held.remove(front);
                prop_assert_eq!(led.as_ref(), Some(pick), "it led there");
            }
            for (front, pick) in after {
                prop_assert!(held.insert(front, pick).is_none());
            }
            let (services, slices) = known.whole().unwrap();
            let mut taken = BTreeMap::<String, usize>::new();
            let (mut whole, mut everyones) = (whole, BTreeSet::new());
            for (name, service) in services.iter().filter(|(_, service)| !service.foreign) {
                let own = slices.iter();
                let own = own.filter(|(key, slice)| service_of(key, slice) == **name);
                let own: Vec<_> = own.map(|(_, slice)| slice).collect();
                let weight = budget::weigh(service, &own, here);
                if budget::is_everyones(name, weight) {
                    whole = whole.saturating_sub(weight);
                    everyones.insert(Arc::clone(name));
                } else {
                    *taken.entry(name.namespace.clone()).or_default() += weight;
                }
            }
            let closed = budget::closed(&taken, whole);
            let mut open = services.clone();
            open.retain(|name, _| !closed.contains(&name.namespace) || everyones.contains(name));
            let mut wanted = fronts(&open, slices, here);
            add_host_ports(&mut wanted, known, addresses);
            prop_assert_eq!(&held, &wanted);
            prop_assert_eq!(served.all(), wanted);
            prop_assert_eq!(served.take(known, here), Moves::default());
        }
    }
}

#[test]
fn a_port_at_which_a_load_balancer_asks_is_the_nodes_from_then_on() {
    let addresses = ["192.0.2.1".parse().unwrap()];
    let here = Here {
        node: "n1",
        zone: None,
        addresses: &addresses,
        name_servers: &[],
    };
    let port = HostPort {
        address: None,
        protocol: Protocol::Tcp,
        port: 30_500,
        pod: "10.1.0.2".parse().unwrap(),
        pod_port: 80,
    };
    let known = |health_port| {
        let service = Service {
            external_local: true,
            health_port,
            ..Service::default()
        };
        Arc::new(Known {
            services: Some([(key("web"), Arc::new(service))].into()),
            slices: Some(Objects::new()),
            host_ports: vec![("z".to_owned(), vec![port.clone()])],
            ..Known::default()
        })
    };
    let mut served = Served::default();
    let mut moved = |health_port| {
        let Moves { before, after } = served.take(&known(health_port), here);
        let at_node = |fronts: Fronts| fronts.keys().any(|front| front.address == addresses[0]);
        (at_node(before), at_node(after))
    };
    assert_eq!(moved(None), (false, true));
    assert_eq!(moved(Some(30_500)), (true, false));
    assert_eq!(moved(Some(30_501)), (false, true));
}

#[test]
fn what_every_pod_needs_is_served_whatever_else_its_namespace_has() {
    let service = |last: u8, ports: u16| {
        let port = |port: u16| Port {
            name: port.to_string(),
            protocol: Protocol::Tcp,
            port,
            node_port: None,
        };
        let service = Service {
            addresses: vec![at(false, "96", last)],
            ports: (1..=ports).map(port).collect(),
            ..Service::default()
        };
        Arc::new(service)
    };
    let named = |namespace: &str, name: &str| {
        let [namespace, name] = [namespace, name].map(str::to_owned);
        Arc::new(Key { namespace, name })
    };
    let mut served = Served::within(100_000);
    let mut own = Objects::from([
        (named("default", "kubernetes"), service(1, 2)),
        (named("kube-system", "kube-dns"), service(2, 2)),
    ]);
    let mut all = |own: &Objects<Service>| {
        let known = Known {
            services: Some(own.clone()),
            slices: Some(Objects::new()),
            ..Known::default()
        };
        let known = Arc::new(known);
        served.take(&known, HERE);
        assert_eq!(served.take(&known, HERE), Moves::default());
        served.all().len()
    };
    assert_eq!(all(&own), 4);
    for namespace in ["default", "kube-system"] {
        own.insert(named(namespace, "greedy"), service(3, 1000));
    }
    assert_eq!(all(&own), 4, "both, and nothing else");
    // Who may edit one of them can't exceed the limit by it.
    own.insert(named("default", "kubernetes"), service(1, 5000));
    assert_eq!(all(&own), 2);
    own.insert(named("default", "kubernetes"), service(1, 3));
    assert_eq!(all(&own), 5);
    own.remove(&named("default", "greedy"));
    own.remove(&named("kube-system", "greedy"));
    assert_eq!(all(&own), 5);
}

#[test]
fn what_is_left_out_names_the_services_that_take_most() {
    let service = |ports: u16| {
        let port = |port: u16| Port {
            name: port.to_string(),
            protocol: Protocol::Tcp,
            port,
            node_port: None,
        };
        Arc::new(Service {
            addresses: vec![at(false, "96", 1)],
            ports: (1..=ports).map(port).collect(),
            ..Service::default()
        })
    };
    let named = |namespace: &str, name: &str| {
        let [namespace, name] = [namespace, name].map(str::to_owned);
        Arc::new(Key { namespace, name })
    };
    let mut own = Objects::from([
        (named("default", "kubernetes"), service(2)),
        (named("default", "small"), service(2)),
        (named("default", "large"), service(1000)),
        (named("shop", "web"), service(2)),
    ]);
    own.extend((3..30_u8).map(|n| (named("default", &n.to_string()), service(n.into()))));
    let mut served = Served::within(100_000);
    let mut left_out = |own: &Objects<Service>| {
        let known = Known {
            services: Some(own.clone()),
            slices: Some(Objects::new()),
            ..Known::default()
        };
        served.take(&Arc::new(known), HERE);
        served.left_out()
    };
    let first = left_out(&own);
    let blame = |left_out: &LeftOut, before: &LeftOut| -> Vec<String> {
        let all = left_out.new_since(before);
        all.map(|key| key.name.clone()).collect()
    };
    let blamed = ["large", "29", "28", "27", "26", "25", "24", "23"];
    assert_eq!(blame(&first, &LeftOut::default()), blamed);
    assert!(first.has(&named("default", "small")) && !first.has(&named("shop", "web")));
    // It is served all the same.
    assert!(!first.has(&named("default", "kubernetes")));
    own.insert(named("default", "more"), service(500));
    let second = left_out(&own);
    assert!(blame(&second, &first).is_empty() && second.has(&named("default", "more")));
    own.remove(&named("default", "large"));
    own.remove(&named("default", "more"));
    assert_eq!(left_out(&own), LeftOut::default());
}

#[test]
fn a_namespace_of_which_the_node_keeps_no_more_than_keys_is_not_served_and_says_so() {
    let named = |namespace: &str, name: &str| {
        let [namespace, name] = [namespace, name].map(str::to_owned);
        Arc::new(Key { namespace, name })
    };
    let service = |last: u8| Service {
        uid: format!("uid-{last}"),
        addresses: vec![at(false, "96", last)],
        ports: vec![Port {
            name: String::new(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        }],
        ..Service::default()
    };
    let whole = Objects::from([
        (named("default", "kubernetes"), Arc::new(service(1))),
        (named("default", "web"), Arc::new(service(2))),
        (named("shop", "web"), Arc::new(service(3))),
    ]);
    let known = |services: &Objects<Service>, slices_left_out: &[&str]| {
        let slices_left_out = slices_left_out.iter().map(|name| (*name).to_owned());
        Arc::new(Known {
            services: Some(services.clone()),
            slices: Some(Objects::new()),
            slices_left_out: slices_left_out.collect(),
            ..Known::default()
        })
    };
    let mut served = Served::default();
    served.take(&known(&whole, &[]), HERE);
    assert_eq!(served.all().len(), 3);
    let Moves { before, after } = served.take(&known(&whole, &["default"]), HERE);
    assert_eq!((before.len(), after.len(), served.all().len()), (1, 0, 2));
    assert!(served.left_out().has(&named("default", "web")));
    assert!(!served.left_out().has(&named("default", "kubernetes")));
    served.take(&known(&whole, &[]), HERE);
    assert_eq!(served.left_out(), LeftOut::default());
    let mut less = whole.clone();
    let without = service(2).without_content();
    assert_eq!((&*without.uid, without.ports.len()), ("uid-2", 0));
    less.insert(named("default", "web"), Arc::new(without));
    served.take(&known(&less, &[]), HERE);
    assert_eq!(served.all().len(), 2);
    let left_out = served.left_out();
    let blamed: Vec<_> = left_out.new_since(&LeftOut::default()).cloned().collect();
    assert_eq!(blamed[0], named("default", "web"));
    served.take(&known(&whole, &[]), HERE);
    assert_eq!(served.all().len(), 3);
}

#[test]
fn services_share_their_keys_with_their_slices_and_claims() {
    let (service, slice) = (key("web"), key("web-1"));
    let web = Arc::new(Service {
        addresses: vec![at(false, "96", 1)],
        ports: vec![Port {
            name: "web".to_owned(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        }],
        ..Service::default()
    });
    let known = |foreign| {
        let of_web = Slice {
            service: "web".to_owned(),
            ports: Vec::new(),
            endpoints: Vec::new(),
            foreign,
        };
        Arc::new(Known {
            services: Some([(Arc::clone(&service), Arc::clone(&web))].into()),
            slices: Some([(Arc::clone(&slice), Arc::new(of_web))].into()),
            ..Known::default()
        })
    };
    let mut served = Served::default();
    let is_own = |key: &Arc<Key>| Arc::ptr_eq(key, &service);
    // The service is new, then only its slice has changed.
    for foreign in [false, true] {
        served.take(&known(foreign), HERE);
        assert_eq!((served.slices.len(), served.claims.len()), (1, 1));
        assert!(served.slices.iter().all(|(of, _)| is_own(of)));
        let is_its = |claim: &Claim| matches!(claim, Claim::Service(own) if is_own(own));
        assert!(served.claims.iter().all(|(_, claim)| is_its(claim)));
    }
}
