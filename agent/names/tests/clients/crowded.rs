//! One pod's questions beside those of others.

use crate::node::while_answering;
use agent_names::Settings;
use agent_proxy::View;
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::links::{LOOPBACK, Links};
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use std::net::UdpSocket;
use std::sync::mpsc;
use std::time::Duration;

const SERVER: &str = "127.0.0.1:53";
/// The machine's own server, which never answers.
const SILENT: &str = "127.0.0.2:53";
const PATIENCE: Duration = Duration::from_secs(60);

fn question(name: &str, id: u16) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    let name = Name::from_ascii(name).unwrap();
    message.add_query(Query::query(name, RecordType::A));
    message.to_vec().unwrap()
}

/// A pod at this address.
fn client(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.connect(SERVER).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Waits for the answer with this number; others are passed over.
fn hears(socket: &UdpSocket, id: u16) {
    let mut buffer = [0; 1500];
    loop {
        let length = socket.recv(&mut buffer).expect("the server answers");
        if Message::from_vec(&buffer[..length]).unwrap().metadata.id == id {
            return;
        }
    }
}

/// Asks until the server is there.
fn until_it_answers() {
    let socket = client("127.0.0.9");
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let own = question("dns-version.cluster.local.", 1);
    // A refusal is the answer of a port that nobody has yet.
    while socket.send(&own).is_err() || socket.recv(&mut [0; 512]).is_err() {}
}

#[test]
fn a_pod_whose_questions_nobody_answers_keeps_no_other_from_names() {
    in_new(&[Kind::Network], || {
        Links::open()?.switch_on(LOOPBACK)?;
        let dir = tempfile::tempdir().unwrap();
        let resolv_conf = dir.path().join("resolv.conf");
        std::fs::write(&resolv_conf, "nameserver 127.0.0.2\n").unwrap();
        let silent = UdpSocket::bind(SILENT).unwrap();
        silent.set_read_timeout(Some(PATIENCE)).unwrap();
        let settings = Settings {
            addresses: vec!["127.0.0.1".parse().unwrap()],
            own: tokio::sync::watch::channel(Vec::new()).1,
            clients: vec!["127.0.0.0/8".parse().unwrap()],
            resolv_conf,
            stub_domains: Vec::new(),
        };
        let (said, asked) = mpsc::channel::<String>();
        let clients = || {
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let mut buffer = [0; 1500];
                    while let Ok(length) = silent.recv(&mut buffer) {
                        let message = Message::from_vec(&buffer[..length]).unwrap();
                        if said.send(message.queries[0].name().to_string()).is_err() {
                            return;
                        }
                    }
                });
                until_it_answers();
                let greedy = client("127.0.0.3");
                let own = "dns-version.cluster.local.";
                // More than the server has places for, as fast as it takes them.
                for round in 0..15_u16 {
                    for number in 0..100 {
                        let name = format!("{round}-{number}.greedy.example.");
                        greedy.send(&question(&name, number)).unwrap();
                    }
                    greedy.send(&question(own, 1000 + round)).unwrap();
                    hears(&greedy, 1000 + round);
                }
                let other = client("127.0.0.4");
                other.send(&question(own, 7)).unwrap();
                hears(&other, 7);
                other.send(&question("other.example.", 8)).unwrap();
                let is_forwarded =
                    || asked.recv_timeout(PATIENCE).expect("it is asked") == "other.example.";
                while !is_forwarded() {}
                // The silent server's thread ends.
                drop(asked);
                UdpSocket::bind("127.0.0.5:0")
                    .unwrap()
                    .send_to(&question(own, 9), SILENT)
                    .unwrap();
            });
        };
        while_answering(settings, View::default(), clients);
        Ok(())
    })
    .unwrap();
}
