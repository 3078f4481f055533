//! Time servers that lie, on loopback: each is refused for its reason, and a good one is accepted
//! (the negative control).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "tests may stop at the first surprise"
)]

use agent_clock::{AskError, Fault, Server, ask};
use std::net::UdpSocket;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const UNIX: u64 = 2_208_988_800;

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// A server that answers each request with the packets that `answers` makes from a good answer,
/// which is an hour ahead.
fn server(answers: impl Fn(&mut [u8; 48]) -> Vec<Vec<u8>> + Send + 'static) -> Server {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut request = [0; 64];
        while let Ok((48, from)) = socket.recv_from(&mut request) {
            let mut packet = [0; 48];
            packet[0] = 0b00_100_100;
            packet[1] = 1;
            packet[24..32].copy_from_slice(&request[40..48]);
            let now = now();
            let fraction = (u64::from(now.subsec_nanos()) << 32) / 1_000_000_000;
            let time =
                ((((now.as_secs() + 3600 + UNIX) % (1 << 32)) << 32) | fraction).to_be_bytes();
            packet[32..40].copy_from_slice(&time);
            packet[40..48].copy_from_slice(&time);
            for answer in answers(&mut packet) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
    Server {
        host: "127.0.0.1".to_owned(),
        port,
    }
}

async fn fault(change: fn(&mut [u8; 48])) -> Fault {
    let lying = server(move |packet| {
        change(packet);
        vec![packet.to_vec()]
    });
    match ask(&lying, Duration::ZERO).await {
        Err(AskError::Fault(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_good_server_is_heard_also_behind_packets_of_others() {
    let good = server(|packet| {
        let mut forged = *packet;
        forged[24] ^= 1;
        vec![
            forged.to_vec(),
            vec![0b00_100_100; 48],
            vec![0; 48],
            packet.to_vec(),
        ]
    });
    let sample = ask(&good, Duration::ZERO).await.unwrap();
    assert!(
        (sample.offset / 1_000_000_000 - 3600).abs() <= 1,
        "{sample:?}"
    );
}

#[tokio::test]
async fn each_lie_is_refused_for_its_reason() {
    assert_eq!(
        fault(|packet| packet[0] = 0b11_100_100).await,
        Fault::Unsynchronised
    );
    assert_eq!(
        fault(|packet| packet[1] = 0).await,
        Fault::Kiss(String::new())
    );
    assert_eq!(fault(|packet| packet[0] = 0b00_100_101).await, Fault::Mode);
    assert_eq!(fault(|packet| packet[40..].fill(0)).await, Fault::Times);
    let short = server(|packet| vec![packet[..40].to_vec()]);
    assert!(matches!(
        ask(&short, Duration::ZERO).await,
        Err(AskError::Fault(Fault::Truncated(40)))
    ));
    let long = server(|packet| vec![[packet.as_slice(), &[0; 600]].concat()]);
    assert!(matches!(
        ask(&long, Duration::ZERO).await,
        Err(AskError::Fault(Fault::TooLong(_)))
    ));
}

/// An attacker who does not see the request can neither set a time nor keep the machine waiting
/// for ever.
#[tokio::test]
async fn a_flood_of_guesses_is_not_heard_and_ends() {
    let flood = server(|packet| {
        packet[24] ^= 1;
        vec![packet.to_vec(); 40]
    });
    assert!(matches!(
        ask(&flood, Duration::ZERO).await,
        Err(AskError::Silent)
    ));
    let mute = server(|_| Vec::new());
    assert!(matches!(
        ask(&mute, Duration::ZERO).await,
        Err(AskError::Silent)
    ));
}
