//! Tests with the neighbour as the machine's DHCP server, which answers at one port of the machine.

use crate::{Machine, NEIGHBOUR, NODE, PATIENCE, SILENCE, at, known, pod, service, within};
use agent_proxy::Rules;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;

fn bound(address: IpAddr, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((address, port)).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    socket
}

/// Applies a service whose endpoint is a DHCP server at this address of a node.
fn serve(node: &str, address: &str) {
    let mut leases = service("leases", 30_086, "Cluster", &[(node, address)]);
    for slice in leases.slices.iter_mut().flat_map(|all| all.values_mut()) {
        for port in &mut Arc::make_mut(slice).ports {
            port.port = SERVER_PORT;
        }
    }
    let known = known(vec![leases], Vec::new());
    Rules::default()
        .apply(&known, "n1", &NODE.map(at))
        .expect("rules");
}

#[test]
fn no_pod_and_no_service_gets_a_dhcp_servers_answers_to_the_machine() {
    Machine::with(|machine| {
        let agent = machine.agent();
        let a = pod(&agent, "a");
        let (node, neighbour) = (at(NODE[0]), at(NEIGHBOUR[0]));
        serve("n2", NEIGHBOUR[0]);
        let server = machine.there(|| bound(neighbour, SERVER_PORT));
        let client = bound(node, CLIENT_PORT);
        let own = within(&a, || bound(a.addresses[0], CLIENT_PORT));
        let stranger = machine.there(|| bound(neighbour, CLIENT_PORT));
        // The first datagram over a new link may be lost.
        server.set_read_timeout(Some(SILENCE)).expect("a limit");
        let carries = (0..PATIENCE.as_secs()).any(|_| {
            client.send_to(b"first", (neighbour, SERVER_PORT)).ok();
            server.recv(&mut [0; 8]).is_ok()
        });
        assert!(carries, "the segment");
        server.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let tries = [
            (&own, (neighbour, SERVER_PORT), "a pod's own datagram"),
            (&own, (at("10.96.0.186"), 80), "by the service"),
            (
                &stranger,
                (node, 30_086),
                "by the service's port of the node",
            ),
        ];
        for (from, to, what) in tries {
            from.send_to(b"theirs", to).expect("it is sent");
            client
                .send_to(b"renew", (neighbour, SERVER_PORT))
                .expect("it is sent");
            let mut text = [0; 8];
            let asker = loop {
                let (got, asker) = server.recv_from(&mut text).expect("a question");
                if &text[..got] != b"first" {
                    assert_eq!(&text[..got], b"renew", "{what}");
                    break asker;
                }
            };
            assert_eq!(asker.ip(), node, "{what}");
            // Whichever port the question came from.
            server
                .send_to(b"lease", (node, CLIENT_PORT))
                .expect("it is sent");
            let got = client.recv(&mut text).expect(what);
            assert_eq!(&text[..got], b"lease", "{what}");
        }
        agent.remove("a").expect("it goes");
    });
}

#[test]
fn a_service_leads_the_machines_programs_to_a_dhcp_server_on_the_machines_network() {
    Machine::with(|machine| {
        let _agent = machine.agent();
        let node = at(NODE[0]);
        serve("n1", NODE[0]);
        let (server, relay) = (bound(node, SERVER_PORT), bound(node, 0));
        relay.send_to(b"who", (node, 30_086)).expect("it is sent");
        let mut text = [0; 8];
        let (got, from) = server.recv_from(&mut text).expect("a question");
        assert_eq!(&text[..got], b"who");
        server.send_to(b"lease", from).expect("it is sent");
        let got = relay.recv(&mut text).expect("an answer");
        assert_eq!(&text[..got], b"lease");
    });
}
