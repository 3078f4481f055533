//! Datagrams to a service.

use crate::api::PODS;
use crate::calls::{MOMENT, REPEATS, from, repeat};
use crate::cluster::{Cluster, Machine, eventually};
use http::Method;
use serde_json::{Value, json};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

/// A socket that sends to one place, again and again.
fn socket(place: &Path, to: SocketAddr) -> UdpSocket {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = from(place, || UdpSocket::bind(any).unwrap());
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(MOMENT)).unwrap();
    socket
}

/// Who answers the next datagram.
fn answered(socket: &UdpSocket) -> Option<String> {
    let mut answer = [0; 64];
    // Of an endpoint that has gone an ICMP message may be here.
    socket.send(b".").ok()?;
    let length = socket.recv(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}

fn are_led_to(sockets: &[UdpSocket], pod: &str) {
    for socket in sockets {
        let what = format!("{socket:?} to be answered by {pod}");
        eventually(&what, || (answered(socket)? == pod).then_some(()));
    }
}

pub(crate) fn datagrams_of_a_caller_follow_the_endpoints_of_a_service(cluster: &Cluster) {
    cluster.lose_third();
    let labels = json!({"part": "talk"});
    let ports = json!({"ports": [{"port": REPEATS, "protocol": "UDP"}]});
    let service = cluster.api.service("talk", &labels, &ports);
    let [first, machine, _] = &cluster.machines;
    let talks = |name: &str, machine: &Machine| {
        cluster.api.create_pod(name, machine, &labels);
        repeat(&cluster.api.ready(name, machine));
    };
    talks("talk-1", first);
    // A pod and the host outside call the machine that has no endpoint yet.
    let pod = &cluster.pods[1].network;
    let inside = service.inside().map(|to| (pod, to));
    let outside = service.at(machine).map(|to| (&cluster.outside, to));
    let places = [inside, outside].concat();
    let open = places.iter().map(|(place, to)| socket(place, *to));
    let sockets: Vec<UdpSocket> = open.collect();
    are_led_to(&sockets, "talk-1");
    // Another endpoint has its share of new callers, and none of those that are there.
    talks("talk-2", machine);
    for (place, to) in places {
        eventually(&format!("{to} to lead to another"), || {
            (answered(&socket(place, to))? == "talk-2").then_some(())
        });
    }
    are_led_to(&sockets, "talk-1");
    let one = format!("{PODS}/talk-1");
    cluster.api.ask(Method::DELETE, &one, &Value::Null).unwrap();
    are_led_to(&sockets, "talk-2");
}
