//! A hostile discovery endpoint: each attack is refused with its own code, and the cluster's own
//! document is accepted from the same endpoint (the negative control).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "tests may stop at the first surprise"
)]

use agent_discover::{Finder, Progress, ProgressCallback};
use config_discovery::{Document, MAX_BYTES, pin_of};
use config_model::discovery::{Discovery, DiscoveryTrust, DiscoveryUri};
use config_model::format::Pin;
use p256::ecdsa::{SigningKey, VerifyingKey};
use p256::pkcs8::EncodePublicKey as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(120);
const ID: &str = "0123456789abcdef0123456789abcdef";

fn key(seed: u8) -> SigningKey {
    SigningKey::from_slice(&[seed; 32]).unwrap()
}

fn pin(key: &SigningKey) -> Pin {
    pin_of(
        VerifyingKey::from(key)
            .to_public_key_der()
            .unwrap()
            .as_bytes(),
    )
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn document(generation: u64) -> Document {
    Document {
        cluster: ID.parse().unwrap(),
        generation,
        issued: now() - 10,
        expires: now() + 3600,
        endpoints: vec![
            format!("https://192.168.77.10:{generation}")
                .parse()
                .unwrap(),
        ],
        ca_pins: vec![Pin([3; 32])],
    }
}

fn good(generation: u64) -> Vec<u8> {
    document(generation).sign(&key(1)).unwrap()
}

/// An endpoint that serves the bytes that a test sets.
struct Endpoint {
    uri: DiscoveryUri,
    serves: Arc<Mutex<(u16, Vec<u8>)>>,
}

impl Endpoint {
    fn start(body: Vec<u8>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let uri = format!("http://{}/v1/clusters/{ID}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let serves = Arc::new(Mutex::new((200, body)));
        let shared = Arc::clone(&serves);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut lines = BufReader::new(stream.try_clone().unwrap())
                    .lines()
                    .map_while(Result::ok);
                assert_eq!(
                    lines.next().unwrap(),
                    format!("GET /v1/clusters/{ID}/master HTTP/1.1")
                );
                lines.find(String::is_empty);
                let (status, body) = shared.lock().unwrap().clone();
                let head = format!(
                    "HTTP/1.1 {status} x\r\nLocation: /else\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(&[head.as_bytes(), &body].concat()).ok();
            }
        });
        Self { uri, serves }
    }

    fn serve(&self, body: Vec<u8>) {
        *self.serves.lock().unwrap() = (200, body);
    }
}

/// The reports, a line each: the code or the text of a failure.
fn line(news: &Progress<'_>) -> String {
    match news {
        Progress::Failed { failure, .. } => failure
            .code()
            .map_or_else(|| failure.to_string(), ToOwned::to_owned),
        Progress::Again { .. } => "again".to_owned(),
        Progress::FirstUse { key } => format!("first use {key}"),
        Progress::Forgotten { .. } => "forgotten".to_owned(),
        Progress::Found {
            document,
            remembered,
        } => format!("found {} {remembered}", document.generation),
    }
}

struct Machine {
    dir: tempfile::TempDir,
    terms: Discovery,
}

impl Machine {
    fn new(endpoints: &[&Endpoint], trust: DiscoveryTrust) -> Self {
        let uris = endpoints
            .iter()
            .map(|endpoint| endpoint.uri.clone())
            .collect();
        Self {
            dir: tempfile::tempdir().unwrap(),
            terms: Discovery {
                uris,
                trust,
                min_generation: 5,
            },
        }
    }

    fn pinned(endpoints: &[&Endpoint]) -> Self {
        Self::new(endpoints, DiscoveryTrust::Pins(vec![pin(&key(1))]))
    }

    fn memory(&self) -> PathBuf {
        self.dir.path().join("discovery.json")
    }

    /// A boot: the memory is read anew.
    fn boot(&self) -> (Finder, UnboundedReceiver<String>) {
        let (sender, reports) = unbounded_channel();
        let report: ProgressCallback =
            Arc::new(move |news: &Progress<'_>| drop(sender.send(line(news))));
        (
            Finder::new(self.terms.clone(), &self.memory(), report).unwrap(),
            reports,
        )
    }

    /// The first report of a boot.
    async fn first(&self) -> String {
        let (mut finder, mut reports) = self.boot();
        let finding = tokio::spawn(async move { finder.find().await });
        let line = timeout(LIMIT, reports.recv()).await.unwrap().unwrap();
        finding.abort();
        line
    }
}

#[tokio::test]
async fn each_hostile_answer_is_refused_with_its_own_code() {
    let endpoint = Endpoint::start(good(7));
    let machine = Machine::pinned(&[&endpoint]);
    assert_eq!(machine.first().await, "found 7 false");
    let text = |bytes: &[u8]| -> serde_json::Value { serde_json::from_slice(bytes).unwrap() };
    let mut spliced = text(&good(9));
    spliced["signature"] = text(&good(8))["signature"].clone();
    let other = Document {
        cluster: "f".repeat(32).parse().unwrap(),
        ..document(9)
    };
    let ended = Document {
        issued: now() - 100,
        expires: now() - 1,
        ..document(9)
    };
    let early = Document {
        issued: now() + 1000,
        expires: now() + 2000,
        ..document(9)
    };
    let attacks = [
        ("GENERATION_BACK", good(6)),
        ("PIN_UNKNOWN", document(9).sign(&key(2)).unwrap()),
        ("SIGNATURE", spliced.to_string().into_bytes()),
        ("OTHER_CLUSTER", other.sign(&key(1)).unwrap()),
        ("EXPIRED", ended.sign(&key(1)).unwrap()),
        ("NOT_YET_VALID", early.sign(&key(1)).unwrap()),
        ("MALFORMED", b"<html>".to_vec()),
        ("TOO_LARGE", vec![b' '; MAX_BYTES + 1]),
    ];
    for (code, body) in attacks {
        endpoint.serve(body);
        assert_eq!(machine.first().await, code);
        endpoint.serve(good(7));
        assert_eq!(machine.first().await, "found 7 false", "after {code}");
    }
    for status in [302, 404, 500] {
        *endpoint.serves.lock().unwrap() = (status, good(7));
        assert!(
            machine
                .first()
                .await
                .starts_with(&format!("it answered {status}"))
        );
    }
}

#[tokio::test]
async fn a_generation_does_not_go_back_over_reboots_nor_below_the_configuration() {
    let endpoint = Endpoint::start(good(4));
    let machine = Machine::pinned(&[&endpoint]);
    assert_eq!(
        machine.first().await,
        "GENERATION_BACK",
        "below the configuration's least"
    );
    endpoint.serve(good(9));
    assert_eq!(machine.first().await, "found 9 false");
    endpoint.serve(good(8));
    assert_eq!(machine.first().await, "GENERATION_BACK", "a boot later");
    // If the memory cannot be written, the document is not used: the next boot would not know its
    // generation.
    let mut locked = Machine::pinned(&[&endpoint]);
    locked.dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(locked.memory().with_extension("new")).unwrap();
    assert_eq!(locked.first().await, "the document cannot be saved");
}

/// An attacker rolls back the memory on the disk, which needs only the sectors of that one file, or
/// removes it: an older document of the cluster's key is accepted again, down to the lowest
/// generation in the measured configuration and never below it.
#[tokio::test]
async fn a_rolled_back_memory_is_bounded_by_the_configuration() {
    let endpoint = Endpoint::start(good(6));
    let mut machine = Machine::pinned(&[&endpoint]);
    assert_eq!(machine.first().await, "found 6 false");
    let past = std::fs::read(machine.memory()).unwrap();
    endpoint.serve(good(9));
    assert_eq!(machine.first().await, "found 9 false");

    endpoint.serve(good(7));
    assert_eq!(machine.first().await, "GENERATION_BACK");
    std::fs::write(machine.memory(), &past).unwrap();
    assert_eq!(
        machine.first().await,
        "found 7 false",
        "what is not covered"
    );
    for memory in [Some(&past), None] {
        machine.terms.min_generation = 9;
        match memory {
            Some(past) => std::fs::write(machine.memory(), past).unwrap(),
            None => std::fs::remove_file(machine.memory()).unwrap(),
        }
        endpoint.serve(good(8));
        assert_eq!(machine.first().await, "GENERATION_BACK", "{memory:?}");
        // Nor is the older document that the memory itself holds used while no endpoint answers.
        *endpoint.serves.lock().unwrap() = (500, Vec::new());
        let (mut finder, mut reports) = machine.boot();
        let finding = tokio::spawn(async move { finder.find().await });
        let failed = timeout(LIMIT, reports.recv()).await.unwrap().unwrap();
        assert!(failed.contains("500"), "{failed}");
        let next = timeout(LIMIT, reports.recv()).await.unwrap().unwrap();
        assert_eq!(next, "again", "{memory:?}");
        finding.abort();
    }
}

#[tokio::test]
async fn the_saved_document_is_used_while_no_endpoint_has_one() {
    let endpoint = Endpoint::start(good(7));
    let machine = Machine::pinned(&[&endpoint]);
    assert_eq!(machine.first().await, "found 7 false");
    *endpoint.serves.lock().unwrap() = (500, Vec::new());
    let (mut finder, mut reports) = machine.boot();
    assert_eq!(timeout(LIMIT, finder.find()).await.unwrap().generation, 7);
    assert!(reports.recv().await.unwrap().contains("500"));
    assert_eq!(reports.recv().await.unwrap(), "found 7 true");
    // A changed memory holds no valid document.
    let forged = std::fs::read_to_string(machine.memory())
        .unwrap()
        .replace("signature", "signaturE");
    std::fs::write(machine.memory(), forged).unwrap();
    let (mut finder, mut reports) = machine.boot();
    tokio::spawn(async move { finder.find().await });
    assert!(reports.recv().await.unwrap().contains("500"));
    assert_eq!(reports.recv().await.unwrap(), "again");
}

#[tokio::test]
async fn a_dead_or_hostile_endpoint_does_not_keep_another_from_being_asked() {
    let mut gone = Endpoint::start(Vec::new());
    // Nothing listens on port 1.
    gone.uri = format!("http://127.0.0.1:1/v1/clusters/{ID}")
        .parse()
        .unwrap();
    let honest_word = good(7);
    let (hostile, honest) = (document(9).sign(&key(2)).unwrap(), honest_word.clone());
    let (hostile, honest) = (Endpoint::start(hostile), Endpoint::start(honest));
    let machine = Machine::pinned(&[&gone, &hostile, &honest]);
    let (mut finder, mut reports) = machine.boot();
    assert_eq!(
        timeout(LIMIT, finder.find()).await.unwrap(),
        document_as_signed(&honest_word)
    );
    assert_eq!(reports.recv().await.unwrap(), "it cannot be reached");
    assert_eq!(reports.recv().await.unwrap(), "PIN_UNKNOWN");
}

#[tokio::test]
async fn an_endpoint_without_tls_is_not_taken_for_one_that_cannot_be_reached() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut plain = Endpoint::start(Vec::new());
    plain.uri = format!(
        "https://{}/v1/clusters/{ID}",
        listener.local_addr().unwrap()
    )
    .parse()
    .unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
        }
    });
    let machine = Machine::pinned(&[&plain]);
    assert_eq!(machine.first().await, "the exchange with it failed");
}

fn document_as_signed(signed: &[u8]) -> Document {
    let (cluster, pins) = (ID.parse().unwrap(), [pin(&key(1))]);
    let trust = config_discovery::Trust::Pins(&pins);
    let expected = config_discovery::Expected {
        cluster: &cluster,
        trust,
        min_generation: 0,
        now: now(),
    };
    config_discovery::check(signed, &expected)
        .unwrap()
        .document()
        .clone()
}

#[tokio::test]
async fn first_use_trusts_one_key_for_good_and_reports_it() {
    let endpoint = Endpoint::start(document(7).sign(&key(2)).unwrap());
    let machine = Machine::new(&[&endpoint], DiscoveryTrust::FirstUse);
    assert_eq!(machine.first().await, format!("first use {}", pin(&key(2))));
    endpoint.serve(good(8));
    assert_eq!(machine.first().await, "PIN_UNKNOWN", "another key");
    endpoint.serve(document(8).sign(&key(2)).unwrap());
    assert_eq!(machine.first().await, "found 8 false");
    std::fs::write(machine.memory(), "{").unwrap();
    let report: ProgressCallback = Arc::new(|_| {});
    assert!(
        Finder::new(machine.terms.clone(), &machine.memory(), report).is_err(),
        "the key was forgotten"
    );
}

/// When no master is reachable all endpoints are asked and the newest document counts, even if the
/// first one serves an old one.
#[tokio::test]
async fn without_a_master_the_newest_document_counts() {
    let (stale, fresh) = (Endpoint::start(good(7)), Endpoint::start(good(8)));
    let machine = Machine::pinned(&[&stale, &fresh]);
    let (mut finder, _reports) = machine.boot();
    let first = finder.find().await;
    assert_eq!(first.generation, 7);
    let (sender, mut found) = unbounded_channel();
    let doubt = Arc::new(Notify::new());
    let asked = Arc::clone(&doubt);
    let follow = tokio::spawn(async move {
        finder
            .follow(first, asked, |document| {
                sender.send(document.generation).unwrap();
            })
            .await;
    });
    doubt.notify_one();
    assert_eq!(timeout(LIMIT, found.recv()).await.unwrap(), Some(8));
    follow.abort();
}
