//! Tests a pod that gets the address of one that is gone.

use crate::{Machine, NEIGHBOUR, PATIENCE, SILENCE, at, pod, within};
use std::net::{IpAddr, UdpSocket};

/// Ranges with room for one pod.
const SMALL: [&str; 2] = ["10.1.0.0/30", "fd00:1::/126"];

fn bound(address: IpAddr, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((address, port)).expect("a socket");
    socket.set_read_timeout(Some(SILENCE)).expect("a limit");
    socket
}

#[test]
fn a_pod_gets_no_answers_for_the_pod_that_had_its_address_before() {
    Machine::with(|machine| {
        let agent = machine.agent();
        let ranges = SMALL.map(|range| range.parse().expect("a range"));
        agent.give_ranges(&ranges).expect("rules");
        for place in 0..2 {
            let neighbour = at(NEIGHBOUR[place]);
            let there = machine.there(|| bound(neighbour, 9));
            let first = pod(&agent, "a");
            let own = first.addresses[place];
            let here = within(&first, || bound(own, 80));
            // The first datagram over a new link may be lost.
            let began = (0..PATIENCE.as_secs()).find_map(|_| {
                here.send_to(b"who", (neighbour, 9)).expect("it is sent");
                there.recv_from(&mut [0; 8]).ok()
            });
            let (_, from) = began.expect("a datagram of the pod's");
            there.send_to(b"me", from).expect("it is sent");
            here.set_read_timeout(Some(PATIENCE)).expect("a limit");
            here.recv(&mut [0; 8]).expect("an answer");
            drop(here);
            agent.remove("a").expect("it goes");
            let next = pod(&agent, "b");
            assert_eq!(next.addresses[place], own);
            let server = within(&next, || bound(own, 80));
            let node = bound(at(["0.0.0.0", "::"][place]), 0);
            let heard = (0..PATIENCE.as_secs()).find_map(|_| {
                there.send_to(b"theirs", from).ok();
                node.send_to(b"node", (own, 80)).ok();
                let mut text = [0; 8];
                let got = server.recv(&mut text).ok()?;
                Some(text[..got].to_vec())
            });
            assert_eq!(heard.as_deref(), Some(&b"node"[..]), "{own}");
            agent.remove("b").expect("it goes");
        }
    });
}
