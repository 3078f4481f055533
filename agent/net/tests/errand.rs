//! An errand to one host over a virtual cable: what can be reached meanwhile, and that nothing
//! stays. Needs root.
#![allow(clippy::unwrap_used, reason = "in tests a panic is the verdict")]

use agent_net::errand::{Errand, run};
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tests_support::network::{SERVER, dhcp, runtime, with_peer};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, UdpSocket};

const HOST: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const LIMIT: Duration = Duration::from_secs(120);

/// Says a word to every client that connects, at both of its addresses, and leases an address.
async fn everything() {
    let leases = UdpSocket::from_std(
        agent_sys::socket::udp_on_interface("outside", 67)
            .unwrap()
            .into(),
    )
    .unwrap();
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80))
        .await
        .unwrap();
    let greet = async {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"hello").await.unwrap();
        }
    };
    tokio::select! {
        () = dhcp(leases, SERVER) => {}
        () = greet => {}
    }
}

fn errand(dhcp: bool) -> Errand {
    Errand {
        host: HOST,
        dhcp,
        interface: Some("inside".to_owned()),
        limit: LIMIT,
    }
}

/// Time limit if a server answers, long enough for a busy machine.
const PATIENT: Duration = Duration::from_secs(120);
/// Time limit where no server answers.
const SHORT: Duration = Duration::from_secs(2);

/// What the host says, if it can be reached; it may not listen yet.
fn word(host: Ipv4Addr, limit: Duration) -> Option<String> {
    let begin = Instant::now();
    let mut stream = loop {
        match TcpStream::connect_timeout(&SocketAddr::from((host, 80)), limit) {
            Ok(stream) => break stream,
            Err(_) if begin.elapsed() < limit => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => return None,
        }
    };
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Addresses of the card `inside`, as the kernel lists local ones.
fn local_addresses() -> String {
    std::fs::read_to_string("/proc/thread-self/net/fib_trie").unwrap()
}

fn reaches_the_host_alone(dhcp: bool) {
    let outcome = runtime()
        .block_on(run(&errand(dhcp), || async {
            (word(HOST, PATIENT), word(SERVER, SHORT))
        }))
        .unwrap();
    assert_eq!(
        outcome,
        (Some("hello".to_owned()), None),
        "the host, and nobody else"
    );
    assert_eq!(word(HOST, SHORT), None, "the way is closed afterwards");
    assert!(
        !local_addresses().contains("host LOCAL"),
        "no address stays:\n{}",
        local_addresses()
    );
}

#[test]
fn a_lease_leads_to_the_host_alone_and_nothing_stays() {
    with_peer(&[(SERVER, 24), (HOST, 32)], everything, || {
        reaches_the_host_alone(true);
    });
}

#[test]
fn a_link_local_address_leads_to_the_host_alone_and_nothing_stays() {
    with_peer(&[(SERVER, 24), (HOST, 16)], everything, || {
        reaches_the_host_alone(false);
    });
}

#[test]
fn without_a_server_or_a_card_it_ends_in_time_and_nothing_stays() {
    with_peer(&[(SERVER, 24)], std::future::pending::<()>, || {
        let short = Errand {
            limit: Duration::from_secs(1),
            ..errand(true)
        };
        let text = |errand: Errand| {
            runtime()
                .block_on(run(&errand, || async {}))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(text(short.clone()), "no address came by DHCP in 1 s");
        assert_eq!(
            text(Errand {
                interface: Some("absent".to_owned()),
                ..short
            }),
            "no network card was found in 1 s"
        );
        assert!(!local_addresses().contains("host LOCAL"));
    });
}
