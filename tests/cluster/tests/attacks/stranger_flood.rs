//! Thousands of addresses that do their worst at once: handshakes that are not begun, connections
//! on which nothing is asked, headers without an end, hellos of unknown machines; and disconnected
//! clients reconnect. They have networks of their own (IPv4), or one /48 of IPv6 that one attacker
//! owns.

use crate::after_join::joined;
use crate::freshness::Open;
use crate::lab::{LIMIT, Lab, Outcome};
use crate::wire::{Connection, Identity, V6, V6_MACHINES, config, connect};
use config_protocol::Purpose;
use config_protocol::wire::{RENEWALS_PATH, SESSION_SECONDS, SESSIONS_PATH};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use master_listener::ConnectionLimits;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tests_machines::SoftMachine;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Addresses of IPv4, each in a /24 of its own, so that no limit of a network meets them; more than
/// the master ever held connections.
const ADDRESSES: usize = 12_000;
/// Addresses of one /48, each in a /64 of its own, of all of its /56; more than the master holds
/// connections of strangers.
const ADDRESSES_OF_ONE: usize = 5_000;
/// Well before the master ends connections on which nothing is asked.
const CLOSING: Duration = Duration::from_secs(20);
/// Of these, at work at the same time.
const AT_ONCE: usize = 128;
/// Of these, the ones that reconnect again and again while the others hold their connections.
const RESTLESS: usize = 16;
/// Longest wait with the answer to a session: a slow host's crowd must not make it expire.
const SESSION_PATIENCE: Duration = Duration::from_secs(SESSION_SECONDS / 3);
/// Resident memory that the master may gain, in KiB: 2,048 connections of strangers, 4,096
/// half-open exchanges. It gains 67 MiB (tests/FIGURES.md).
const GAIN: u64 = 128 << 10;

/// What one of them holds.
enum Held {
    Nothing,
    Socket { _socket: TcpStream },
    Session { _stream: Box<TlsStream<TcpStream>> },
}

/// The address with this number.
type Place = fn(usize) -> IpAddr;

/// In a /24 of its own.
fn apart(number: usize) -> IpAddr {
    let [.., high, low] = (number + 0x4000).to_be_bytes();
    [127, high, low, 1].into()
}

/// In a /64 of its own of the attacker's /48, whose last /56 is the machines'.
fn owned(number: usize) -> IpAddr {
    let [a, b, c] = V6;
    let network = u16::try_from(number * 13).unwrap();
    assert!(network < V6_MACHINES, "an address of the machines");
    [a, b, c, network, 0, 0, 0, 1].into()
}

/// One attempt from one address.
async fn attack(
    number: usize,
    from: IpAddr,
    master: SocketAddr,
    tls: Arc<ClientConfig>,
    hello: &[u8],
) -> Held {
    let Ok(socket) = connect(master, from).await else {
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
    addresses: usize,
    place: Place,
    next: AtomicUsize,
    stop: AtomicBool,
    master: SocketAddr,
    tls: Arc<ClientConfig>,
    hello: Vec<u8>,
}

impl Crowd {
    fn new(lab: &Lab, addresses: usize, place: Place) -> Arc<Self> {
        let hello = serde_json::to_vec(&lab.stranger().hello().0).unwrap();
        let heading = format!(
            "POST {SESSIONS_PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            hello.len()
        );
        Arc::new(Self {
            addresses,
            place,
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            master: lab.site.address,
            tls: lab.site.anonymous.clone(),
            hello: [heading.into_bytes(), hello].concat(),
        })
    }

    async fn attempt(&self, number: usize) -> Held {
        let from = (self.place)(number);
        attack(number, from, self.master, self.tls.clone(), &self.hello).await
    }

    /// Each address once; what they hold in the end.
    async fn all_once(self: &Arc<Self>) -> Vec<Held> {
        let worker = |crowd: Arc<Self>| async move {
            let mut held = Vec::new();
            loop {
                let number = crowd.next.fetch_add(1, Ordering::Relaxed);
                if number >= crowd.addresses {
                    return held;
                }
                held.push(crowd.attempt(number).await);
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
        self.next.load(Ordering::Relaxed) > self.addresses / 2
    }

    /// Connects again and again until stopped; returns how often.
    async fn again(self: Arc<Self>) -> usize {
        let mut count = 0;
        while !self.stop.load(Ordering::Acquire) {
            let number = self.next.fetch_add(1, Ordering::Relaxed) % self.addresses;
            self.attempt(number).await;
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

/// Lets this process and the master that it starts hold the connections of all addresses.
fn allow_open_files() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most.min(65_536), most).unwrap();
    assert!(
        most >= 16_384,
        "these stories need 16,384 open files; the limit is {most}"
    );
}

/// Connections that one /48 may hold at most: a quarter of the strangers' stays for others. The
/// master scales it to half of the open files that it may have.
fn share_of_one() -> usize {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let connections = usize::try_from(most / 2).unwrap_or(usize::MAX);
    ConnectionLimits::default().within(connections).per_block
}

/// From networks of their own.
pub(crate) async fn ten_thousand_hostile_addresses_stop_no_renewal_and_no_join() {
    allow_open_files();
    let lab = Lab::start().await;
    drop(flood(&lab, ADDRESSES, apart).await);
    lab.site.stop();
}

/// The owner of a /48, in which the machines are, too, does no more harm with thousands of
/// addresses than with a few: a part of the strangers' connections is for other networks. No /56
/// has more than 20 of the addresses, so only the share of the whole /48 bounds them.
pub(crate) async fn an_owner_of_thousands_of_ipv6_addresses_stops_no_renewal_and_no_join() {
    allow_open_files();
    let [a, b, c] = V6;
    let range = Ipv6Addr::from([a, b, c, 0, 0, 0, 0, 0]);
    tests_support::network::with_addresses((range, 48), move || async move {
        let lab = Lab::start_at(Ipv6Addr::LOCALHOST.into()).await;
        let held = flood(&lab, ADDRESSES_OF_ONE, owned).await;
        // Later than all of theirs: what came before it has been taken from the kernel.
        drop(connected(&lab, &lab.site.admin).await);
        let begun = Instant::now();
        let share = share_of_one();
        let most = established(lab.site.address);
        let mut count = most;
        while count > share {
            assert!(
                begun.elapsed() < CLOSING,
                "one /48 holds {count} connections, and {share} are its share\n{}",
                lab.site.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
            count = established(lab.site.address);
        }
        println!("one /48 held {most} connections, then {count} of {share}");
        drop(held);
        lab.site.stop();
    });
}

/// Connections of the attacker's /48 that the master's side has not ended, by the kernel's table of
/// this thread's namespace.
fn established(master: SocketAddr) -> usize {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp6").unwrap();
    let own = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let [own, other, state] = [words.next(), words.next(), words.next()].map(Option::unwrap);
        let machines = |address: Ipv6Addr| address.segments()[3] >= V6_MACHINES;
        endpoint(own) == master && state == ESTABLISHED && {
            let IpAddr::V6(from) = endpoint(other).ip() else {
                return false;
            };
            from.segments()[..3] == V6 && !machines(from)
        }
    };
    table.lines().skip(1).filter(own).count()
}

/// An address and a port as the kernel's table shows them: four numbers of the machine's byte
/// order, and one.
fn endpoint(text: &str) -> SocketAddr {
    let (address, port) = text.split_once(':').unwrap();
    let mut octets = [0; 16];
    for (index, part) in octets.chunks_exact_mut(4).enumerate() {
        let word = &address[index * 8..][..8];
        part.copy_from_slice(&u32::from_str_radix(word, 16).unwrap().to_ne_bytes());
    }
    SocketAddr::new(octets.into(), u16::from_str_radix(port, 16).unwrap())
}

/// All addresses do their worst while an exchange goes on, a node renews, another machine joins,
/// and admin and node are served. What the addresses still hold then.
async fn flood(lab: &Lab, addresses: usize, place: Place) -> Vec<Held> {
    let (mut machine, who) = joined(lab).await;
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
    let mut open = Open::new(lab, &early).await;
    let crowd = Crowd::new(lab, addresses, place);
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
        through > addresses / 2,
        "{through} of {addresses} got as far as to hold something"
    );
    let restless: Vec<_> = (0..RESTLESS)
        .map(|_| tokio::spawn(crowd.clone().again()))
        .collect();

    for _ in 0..3 {
        renew(lab, &machine, &who).await.accepted();
        machine.clock.clock += 1000;
    }
    // Another machine of the inventory begins.
    lab.until_accepted(&late).await;
    // The admin is served, and the node gets changes of its Node on its existing watch.
    let mut admin = connected(lab, &lab.site.admin).await;
    let labels = br#"{"metadata":{"labels":{"seen":"true"}}}"#.to_vec();
    let node_path = format!("/api/v1/nodes/{}", machine.node);
    assert_eq!(
        admin.send(Method::PATCH, &node_path, labels).await.status,
        StatusCode::OK
    );
    let event = tokio::time::timeout(LIMIT, watch.frame())
        .await
        .expect("the node's watch goes on");
    assert!(
        event.is_some_and(|frame| frame.is_ok()),
        "the node's watch was cut"
    );

    let gained = lab.site.resident().saturating_sub(before);
    crowd.stop.store(true, Ordering::Release);
    let mut again = 0;
    for one in restless {
        again += one.await.unwrap();
    }
    println!(
        "{addresses} addresses came once and {again} times again; the master's memory {:+} MiB, {} MiB in all",
        gained >> 10,
        (before + gained) >> 10
    );
    assert!(gained < GAIN, "the master gained {gained} KiB");
    held
}
