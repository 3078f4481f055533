//! More than ten thousand addresses that do their worst at once: handshakes that are not begun,
//! connections on which nothing is asked, headers without an end, hellos of unknown machines; and
//! disconnected clients reconnect.

use crate::after_join::joined;
use crate::freshness::Open;
use crate::lab::{LIMIT, Lab, Outcome};
use crate::wire::{Connection, Identity, config, connect};
use config_protocol::Purpose;
use config_protocol::wire::{RENEWALS_PATH, SESSION_SECONDS, SESSIONS_PATH};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tests_machines::SoftMachine;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Addresses, each in a /24 of its own, so that no limit of a network meets them; more than the master ever held connections.
const ADDRESSES: usize = 12_000;
/// Of these, at work at the same time.
const AT_ONCE: usize = 128;
/// Of these, the ones that reconnect again and again while the others hold their connections.
const RESTLESS: usize = 16;
/// Longest wait with the answer to a session: a slow host's crowd must not make it expire.
const SESSION_PATIENCE: Duration = Duration::from_secs(SESSION_SECONDS / 3);
/// Resident memory that the master may gain, in KiB: 2,048 connections of strangers, 4,096 half-open exchanges. It gains 67 MiB
/// (tests/FIGURES.md).
const GAIN: u64 = 128 << 10;

/// What one of them holds.
enum Held {
    Nothing,
    Socket { _socket: TcpStream },
    Session { _stream: Box<TlsStream<TcpStream>> },
}

fn place(number: usize) -> IpAddr {
    let [.., high, low] = (number + 0x4000).to_be_bytes();
    [127, high, low, 1].into()
}

/// One attempt from one address.
async fn attack(number: usize, master: SocketAddr, tls: Arc<ClientConfig>, hello: &[u8]) -> Held {
    let Ok(socket) = connect(master, place(number)).await else {
        return Held::Nothing;
    };
    if number.is_multiple_of(8) {
        return Held::Socket { _socket: socket };
    }
    let Ok(mut stream) = TlsConnector::from(tls)
        .connect(ServerName::from(master.ip()), socket)
        .await
    else {
        return Held::Nothing;
    };
    let said: &[u8] = match number % 8 {
        1 => b"POST /attest/v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 32000\r\n\r\n{\"protocol\"",
        2 => b"GET /livez HTTP/1.1\r\nhost: x\r\nx: ",
        3 => hello,
        _ => b"",
    };
    // A client that was cut meanwhile holds nothing.
    match stream.write_all(said).await {
        Ok(()) => Held::Session {
            _stream: Box::new(stream),
        },
        Err(_) => Held::Nothing,
    }
}

struct Crowd {
    next: AtomicUsize,
    stop: AtomicBool,
    master: SocketAddr,
    tls: Arc<ClientConfig>,
    hello: Vec<u8>,
}

impl Crowd {
    /// Each address once; what they hold in the end.
    async fn all_once(self: &Arc<Self>) -> Vec<Held> {
        let worker = |crowd: Arc<Self>| async move {
            let mut held = Vec::new();
            loop {
                let number = crowd.next.fetch_add(1, Ordering::Relaxed);
                if number >= ADDRESSES {
                    return held;
                }
                held.push(attack(number, crowd.master, crowd.tls.clone(), &crowd.hello).await);
            }
        };
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| tokio::spawn(worker(self.clone())))
            .collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.await.unwrap());
        }
        all
    }

    /// Whether more of them have come than there are sessions for strangers.
    fn is_half_through(&self) -> bool {
        self.next.load(Ordering::Relaxed) > ADDRESSES / 2
    }

    /// Connects again and again until stopped; returns how often.
    async fn again(self: Arc<Self>) -> usize {
        let mut count = 0;
        while !self.stop.load(Ordering::Acquire) {
            let number = self.next.fetch_add(1, Ordering::Relaxed) % ADDRESSES;
            attack(number, self.master, self.tls.clone(), &self.hello).await;
            count += 1;
        }
        count
    }
}

/// A client that is disconnected before it authenticated reconnects, as the agent does.
async fn connected(lab: &Lab, tls: &Arc<ClientConfig>) -> Connection {
    let start = Instant::now();
    loop {
        match Connection::open(lab.site.address, tls.clone()).await {
            Ok(connection) => return connection,
            Err(error) => assert!(
                start.elapsed() < LIMIT,
                "no connection: {error}\n{}",
                lab.site.log()
            ),
        }
    }
}

async fn renew(lab: &Lab, machine: &SoftMachine, who: &Identity) -> Outcome {
    let connection = connected(lab, &config(&lab.site.root, Some(who))).await;
    lab.exchange(
        machine,
        connection,
        RENEWALS_PATH,
        Purpose::Renew,
        |_| {},
        |_| {},
    )
    .await
}

/// The story.
pub(crate) async fn ten_thousand_hostile_addresses_stop_no_renewal_and_no_join() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most.min(65_536), most).unwrap();
    assert!(
        most >= 16_384,
        "this story needs 16,384 open files; the limit is {most}"
    );
    let lab = Lab::start().await;
    let (mut machine, who) = joined(&lab).await;
    let (early, late) = (lab.machine().await, lab.machine().await);
    let mut node = lab.connect_as(&who).await.unwrap();
    let watch = format!(
        "/api/v1/nodes?watch=1&fieldSelector=metadata.name%3D{}",
        machine.node
    );
    let watch = node
        .request(Method::GET, &watch, "", Vec::new())
        .await
        .unwrap();
    assert_eq!(watch.status(), StatusCode::OK);
    let mut watch = watch.into_body();
    watch.frame().await.unwrap().unwrap();
    let mut open = Open::new(&lab, &early).await;
    let hello = serde_json::to_vec(&lab.stranger().hello().0).unwrap();
    let heading = format!(
        "POST {SESSIONS_PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        hello.len()
    );
    let crowd = Arc::new(Crowd {
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        master: lab.site.address,
        tls: lab.site.anonymous.clone(),
        hello: [heading.into_bytes(), hello].concat(),
    });
    let before = lab.site.resident();
    // An exchange that a machine of the inventory began before the flood continues.
    let goes_on = async {
        let begun = Instant::now();
        while !crowd.is_half_through() && begun.elapsed() < SESSION_PATIENCE {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let evidence = open.evidence(&early, Purpose::Join);
        open.answer(&evidence).await.accepted();
    };
    let (held, ()) = tokio::join!(crowd.all_once(), goes_on);
    let through = held
        .iter()
        .filter(|held| !matches!(held, Held::Nothing))
        .count();
    assert!(
        through > ADDRESSES / 2,
        "{through} of {ADDRESSES} got as far as to hold something"
    );
    let restless: Vec<_> = (0..RESTLESS)
        .map(|_| tokio::spawn(crowd.clone().again()))
        .collect();

    for _ in 0..3 {
        renew(&lab, &machine, &who).await.accepted();
        machine.clock.clock += 1000;
    }
    // Another machine of the inventory begins.
    lab.until_accepted(&late).await;
    // The admin is served, and the node gets changes of its Node on its existing watch.
    let mut admin = connected(&lab, &lab.site.admin).await;
    let labels = br#"{"metadata":{"labels":{"seen":"true"}}}"#.to_vec();
    let node_path = format!("/api/v1/nodes/{}", machine.node);
    assert_eq!(
        admin.send(Method::PATCH, &node_path, labels).await.status,
        StatusCode::OK
    );
    let told = tokio::time::timeout(LIMIT, watch.frame())
        .await
        .expect("the node's watch goes on");
    assert!(
        told.is_some_and(|frame| frame.is_ok()),
        "the node's watch was cut"
    );

    let gained = lab.site.resident().saturating_sub(before);
    crowd.stop.store(true, Ordering::Release);
    let mut again = 0;
    for one in restless {
        again += one.await.unwrap();
    }
    println!(
        "{ADDRESSES} addresses came once and {again} times again; the master's memory {:+} MiB, {} MiB in all",
        gained >> 10,
        (before + gained) >> 10
    );
    assert!(gained < GAIN, "the master gained {gained} KiB");
    drop(held);
    lab.site.stop();
}
