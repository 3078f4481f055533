//! The proxy against the kernel of this host. Needs root.

use super::*;
use crate::view::{Endpoint, Key, Port, Protocol, Service, Slice, SlicePort};
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::filter::{Change, Values};
use agent_sys::netlink::links::{LOOPBACK, Links, Route};
use std::net::UdpSocket;

/// The address of the host on which servers and callers are, of the service, and of all of a
/// socket.
type Place = [&'static str; 3];
const PLACES: [Place; 2] = [
    ["192.0.2.9", "10.96.0.1", "0.0.0.0"],
    ["2001:db8::9", "fd00:96::1", "::"],
];

/// A service of datagrams with these ports of the host as endpoints.
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

#[test]
fn a_client_that_goes_on_to_send_reaches_the_next_endpoint() {
    PLACES.into_iter().for_each(reaches_the_next_endpoint);
}

fn reaches_the_next_endpoint(place: Place) {
    let [host, service, any] = place.map(|at| at.parse::<IpAddr>().unwrap());
    let family = Family::of(host);
    let known = |ports: &[u16]| known(place, ports);
    in_new(&[Kind::Network], || {
        let mut links = Links::open()?;
        links.switch_on(LOOPBACK)?;
        links.add_address(LOOPBACK, host, family.bits())?;
        links.add_route(&Route {
            destination: service,
            prefix: family.bits(),
            gateway: None,
            link: LOOPBACK,
        })?;
        let server = || {
            let socket = UdpSocket::bind((host, 0)).unwrap();
            let limit = Some(Duration::from_secs(60));
            socket.set_read_timeout(limit).unwrap();
            let port = socket.local_addr().unwrap().port();
            (socket, port)
        };
        let ((first, of_first), (second, of_second)) = (server(), server());
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
        // After a restart of the agent it is not known what the kernel held.
        Rules::default().apply(&known(&[of_first]), "n1", &[])?;
        client.send(b"3").unwrap();
        assert_eq!(first.recv(&mut buffer).unwrap(), 1, "after a restart");
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
