use super::*;
use crate::fronts::{add_host_ports, fronts};
use crate::view::{Endpoint, HostPort, Port, Protocol, Service, SlicePort};
use proptest::prelude::*;

fn key(name: &str) -> Arc<Key> {
    Arc::new(Key {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    })
}

/// Services with few addresses, so that they claim each other's, also by naming them, and slices
/// that may be of none.
fn any_known() -> impl Strategy<Value = Known> {
    let service = (
        0_u8..4,
        any::<bool>(),
        0_u8..=2,
        any::<bool>(),
        any::<bool>(),
    );
    let service = service.prop_map(|(own, foreign, outside, node_port, local)| Service {
        addresses: vec![format!("10.96.0.{own}").parse().unwrap()],
        external: (0..outside)
            .map(|at| {
                ["198.51.100.0", "10.96.0.1"][usize::from(at)]
                    .parse()
                    .unwrap()
            })
            .collect(),
        ports: vec![Port {
            name: "web".to_owned(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: node_port.then_some(8080),
        }],
        external_local: local,
        health_port: local.then_some(8080),
        foreign,
        ..Service::default()
    });
    let slice = (
        0_u8..5,
        proptest::collection::vec((0_u8..4, any::<bool>()), 0..3),
    );
    let slice = slice.prop_map(|(service, ends)| Slice {
        service: format!("s{service}"),
        ports: vec![SlicePort {
            name: "web".to_owned(),
            protocol: Protocol::Tcp,
            port: 8080,
        }],
        endpoints: ends
            .into_iter()
            .map(|(last, ready)| Endpoint {
                address: format!("10.1.0.{last}").parse().unwrap(),
                ready,
                serving: ready,
                terminating: false,
                hostname: None,
                node: Some(format!("n{}", last % 2)),
                hints: None,
            })
            .collect(),
    });
    let port = (0_u8..4, prop_oneof![Just(80_u16), Just(8080)]);
    let port = port.prop_map(|(last, port)| {
        let port = HostPort {
            address: None,
            protocol: Protocol::Tcp,
            port,
            pod: format!("10.1.0.{last}").parse().unwrap(),
            pod_port: 1,
        };
        (last.to_string(), vec![port])
    });
    (
        proptest::collection::btree_map(0_u8..5, service, 0..5),
        proptest::collection::btree_map(0_u8..5, slice, 0..5),
        proptest::collection::vec(port, 0..3),
    )
        .prop_map(|(services, slices, host_ports)| Known {
            services: Some(
                services
                    .into_iter()
                    .map(|(name, service)| (key(&format!("s{name}")), Arc::new(service)))
                    .collect(),
            ),
            slices: Some(
                slices
                    .into_iter()
                    .map(|(name, slice)| (key(&format!("l{name}")), Arc::new(slice)))
                    .collect(),
            ),
            host_ports,
            ..Known::default()
        })
}

/// Objects that stay are the same ones, as a watch leaves them.
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
    fn moves_lead_to_what_all_of_it_at_once_leads_to(
        states in proptest::collection::vec((any_known(), 0_u8..2), 1..6),
    ) {
        let (mut served, mut held) = (Served::default(), Fronts::new());
        let mut last = Known::default();
        for (known, address) in states {
            let mut known = known;
            keep(&mut known.services, last.services.as_ref());
            keep(&mut known.slices, last.slices.as_ref());
            last = known.clone();
            let known = Arc::new(known);
            let addresses = [format!("192.0.2.{address}").parse().unwrap()];
            let here = Here {
                node: "n1", zone: None, addresses: &addresses,
                name_servers: &known.name_servers,
            };
            let Moves { before, after } = served.take(&known, here);
            for (front, pick) in &before {
                let led = held.remove(front);
                prop_assert_eq!(led.as_ref(), Some(pick), "it led there");
            }
            for (front, pick) in after {
                prop_assert!(held.insert(front, pick).is_none());
            }
            let whole = known.whole().unwrap();
            let mut wanted = fronts(whole, here);
            add_host_ports(&mut wanted, &known, &addresses);
            prop_assert_eq!(&held, &wanted);
        }
        let known = Arc::new(last);
        let here = served.here();
        let (node, addresses) = (here.node.to_owned(), here.addresses.to_vec());
        let again = Here {
            node: &node, zone: None, addresses: &addresses,
            name_servers: &known.name_servers,
        };
        prop_assert_eq!(served.take(&known, again), Moves::default());
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
