//! The program `discovery` over real HTTP: what it stores and what it refuses.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "tests may stop at the first surprise"
)]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_discovery::{Document, Expected, MAX_BYTES, Trust, check, pin_of};
use config_model::discovery::DiscoveryUri;
use config_model::format::Pin;
use http::Method;
use master_bootstrap::{Answer, Client, Created};
use p256::ecdsa::{SigningKey, VerifyingKey};
use p256::pkcs8::EncodePublicKey as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The program, ended with the test.
struct Program {
    child: Child,
    url: String,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Program {
    fn start(data: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_discovery"));
        command
            .args(["--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .args(more)
            .stderr(Stdio::piped());
        let mut child = tests_harness::lifetime::bind(&mut command)
            .unwrap()
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut lines = String::new();
        let url = loop {
            assert!(log.read_line(&mut lines).unwrap() > 0, "it ended:\n{lines}");
            if let Some((_, rest)) = lines.split_once(" url=") {
                break rest.trim().to_owned();
            }
        };
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { child, url }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn client(&self) -> Client {
        Client::new(self.url.parse().unwrap())
    }

    fn address(&self) -> SocketAddr {
        self.url.rsplit('/').next().unwrap().parse().unwrap()
    }

    /// A cluster's URI at this start of the program, which has a new port.
    fn uri(&self, created: &Created) -> DiscoveryUri {
        format!("{}/v1/clusters/{}", self.url, created.cluster)
            .parse()
            .unwrap()
    }

    async fn create(&self, key: &SigningKey) -> Created {
        self.client().create(&spki(key), None).await.unwrap()
    }
}

fn key(seed: u8) -> SigningKey {
    SigningKey::from_slice(&[seed; 32]).unwrap()
}

fn spki(key: &SigningKey) -> Vec<u8> {
    VerifyingKey::from(key)
        .to_public_key_der()
        .unwrap()
        .into_vec()
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn document(created: &Created, generation: u64) -> Document {
    Document {
        cluster: created.cluster.parse().unwrap(),
        generation,
        issued: now(),
        expires: now() + 3600,
        endpoints: vec!["https://192.168.77.10:6443".parse().unwrap()],
        ca_pins: vec![Pin([3; 32])],
    }
}

async fn set(program: &Program, created: &Created, credential: &str, signed: Vec<u8>) -> String {
    match Client::set(&program.uri(created), credential, signed).await {
        Ok(()) => "set".to_owned(),
        Err(error) => error.code().to_owned(),
    }
}

/// The generation that the endpoint serves for a cluster, verified as a node would.
async fn generation(program: &Program, created: &Created, signer: &SigningKey) -> u64 {
    let bytes = Client::get(&program.uri(created)).await.unwrap();
    let (cluster, pins) = (created.cluster.parse().unwrap(), [pin_of(&spki(signer))]);
    let expected = Expected {
        cluster: &cluster,
        trust: Trust::Pins(&pins),
        min_generation: 0,
        now: now(),
    };
    check(&bytes, &expected).unwrap().document().generation
}

/// Requests to set the cluster `one`, each wrong in one part, and the code of its refusal.
fn wrong_parts(one: &Created, two: &Created) -> Vec<(String, Vec<u8>, &'static str)> {
    let signed = |generation| document(one, generation).sign(&key(1)).unwrap();
    let ended = Document {
        issued: now() - 100,
        expires: now() - 1,
        ..document(one, 8)
    };
    let own = || one.credential.clone();
    vec![
        (two.credential.clone(), signed(8), "CREDENTIAL"),
        (String::new(), signed(8), "CREDENTIAL"),
        (own(), signed(7), "GENERATION_BACK"),
        (own(), signed(6), "GENERATION_BACK"),
        (
            own(),
            document(one, 8).sign(&key(2)).unwrap(),
            "PIN_UNKNOWN",
        ),
        (
            own(),
            document(two, 8).sign(&key(1)).unwrap(),
            "OTHER_CLUSTER",
        ),
        (own(), ended.sign(&key(1)).unwrap(), "EXPIRED"),
        (own(), b"{}".to_vec(), "MALFORMED"),
        (own(), vec![b' '; MAX_BYTES + 1], "TOO_LARGE"),
    ]
}

async fn twice_backwards_is_counted(program: &Program) {
    let metrics = program
        .client()
        .send(Method::GET, "/metrics", None, "".into())
        .await
        .unwrap();
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(
        text.contains("discovery_refused_total{code=\"GENERATION_BACK\"} 2"),
        "{text}"
    );
}

#[tokio::test]
async fn a_set_document_is_served_after_kill_and_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let program = Program::start(dir.path(), &[]);
    let (one, two) = (program.create(&key(1)).await, program.create(&key(2)).await);
    assert_eq!(
        one.uri,
        format!("{}/v1/clusters/{}", program.url, one.cluster)
    );
    assert_eq!(
        Client::get(&program.uri(&one)).await.unwrap_err().code(),
        "UNKNOWN"
    );
    let signed = |generation| document(&one, generation).sign(&key(1)).unwrap();
    // The control: the right credential and the right key.
    assert_eq!(set(&program, &one, &one.credential, signed(7)).await, "set");
    assert_eq!(generation(&program, &one, &key(1)).await, 7);
    // Each wrong part alone causes a refusal.
    for (credential, signed, code) in wrong_parts(&one, &two) {
        assert_eq!(set(&program, &one, &credential, signed).await, code);
    }
    assert_eq!(
        generation(&program, &one, &key(1)).await,
        7,
        "nothing of it was kept"
    );
    program.kill();
    let program = Program::start(dir.path(), &[]);
    assert_eq!(
        generation(&program, &one, &key(1)).await,
        7,
        "kept over kill -9"
    );
    assert_eq!(
        set(&program, &one, &one.credential, signed(7)).await,
        "GENERATION_BACK"
    );
    assert_eq!(set(&program, &one, &one.credential, signed(8)).await, "set");
    // No generation follows the greatest one, itself included.
    assert_eq!(
        set(&program, &one, &one.credential, signed(u64::MAX)).await,
        "set"
    );
    assert_eq!(
        set(&program, &one, &one.credential, signed(u64::MAX)).await,
        "GENERATION_BACK"
    );
    twice_backwards_is_counted(&program).await;
    let kept = std::fs::read_dir(dir.path())
        .unwrap()
        .flatten()
        .map(|entry| std::fs::read(entry.path()).unwrap());
    let holds = |bytes: &[u8]| {
        bytes
            .windows(43)
            .any(|part| part == one.credential.as_bytes())
    };
    assert!(
        !kept.into_iter().any(|file| holds(&file)),
        "the credential lies on the disk"
    );
}

async fn code(
    program: &Program,
    method: Method,
    path: &str,
    bearer: Option<&str>,
    body: &str,
) -> (u16, String) {
    let Answer { status, body } = program
        .client()
        .send(method, path, bearer, body.to_owned().into())
        .await
        .unwrap();
    let value: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    (
        status.as_u16(),
        value["code"].as_str().unwrap_or_default().to_owned(),
    )
}

#[tokio::test]
async fn creation_is_bounded_by_token_form_room_and_rate() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    let token = token.display().to_string();
    let program = Program::start(
        &dir.path().join("one"),
        &["--token-file", &token, "--clusters", "1"],
    );
    let create = async |bearer| match program.client().create(&spki(&key(1)), bearer).await {
        Ok(_) => "created".to_owned(),
        Err(error) => error.code().to_owned(),
    };
    assert_eq!(create(None).await, "TOKEN");
    assert_eq!(create(Some("0123456789abcdee")).await, "TOKEN");
    assert_eq!(create(Some("0123456789abcdef")).await, "created");
    assert_eq!(create(Some("0123456789abcdef")).await, "FULL");
    let program = Program::start(&dir.path().join("two"), &[]);
    let clusters = "/v1/clusters";
    let list = serde_json::json!([STANDARD.encode(spki(&key(1)))]).to_string();
    for formless in ["{}", list.as_str()] {
        assert_eq!(
            code(&program, Method::POST, clusters, None, formless).await,
            (400, "MALFORMED".to_owned())
        );
    }
    assert_eq!(
        code(&program, Method::POST, clusters, None, &" ".repeat(1025)).await,
        (413, "TOO_LARGE".to_owned())
    );
    assert_eq!(
        code(&program, Method::GET, clusters, None, "").await,
        (405, "METHOD".to_owned())
    );
    assert_eq!(
        code(&program, Method::GET, "/v1/else", None, "").await,
        (404, "UNKNOWN".to_owned())
    );
    for _ in 0..17 {
        program.create(&key(1)).await;
    }
    assert_eq!(
        code(&program, Method::POST, clusters, None, "{}").await,
        (429, "RATE_LIMITED".to_owned())
    );
    assert_eq!(
        code(&program, Method::GET, "/livez", None, "").await.0,
        200,
        "reads have a rate of their own"
    );
}

/// A client that stops within its header, and one whose header never ends, are cut; others are
/// served meanwhile.
#[tokio::test]
async fn slow_and_endless_clients_are_cut_and_others_served() {
    let dir = tempfile::tempdir().unwrap();
    let program = Program::start(dir.path(), &[]);
    let mut slow = TcpStream::connect(program.address()).unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
        .unwrap();
    let mut endless = TcpStream::connect(program.address()).unwrap();
    let junk = [
        b"GET /livez HTTP/1.1\r\nX: ".as_slice(),
        &vec![b'a'; 64 << 10],
    ]
    .concat();
    endless.write_all(&junk).ok();
    assert_eq!(code(&program, Method::GET, "/livez", None, "").await.0, 200);
    let closed = tokio::task::spawn_blocking(move || {
        for stream in [&mut endless, &mut slow] {
            stream
                .set_read_timeout(Some(Duration::from_secs(45)))
                .unwrap();
            let mut bytes = Vec::new();
            let outcome = stream.read_to_end(&mut bytes).map_err(|error| error.kind());
            assert!(
                !matches!(outcome, Err(std::io::ErrorKind::WouldBlock)),
                "it is still open"
            );
            assert!(!bytes.starts_with(b"HTTP/1.1 200"), "{bytes:?}");
        }
    });
    closed.await.unwrap();
}

/// An address has its share of connections: a further one replaces the oldest of the same address.
#[tokio::test]
async fn one_address_cannot_take_every_connection() {
    let dir = tempfile::tempdir().unwrap();
    let program = Program::start(dir.path(), &[]);
    let connected = || {
        let mut stream = TcpStream::connect(program.address()).unwrap();
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut start = [0; 12];
        stream.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
        stream
    };
    let mut oldest = connected();
    let held: Vec<TcpStream> = (0..128).map(|_| connected()).collect();
    oldest
        .set_read_timeout(Some(Duration::from_secs(45)))
        .unwrap();
    let outcome = oldest
        .read_to_end(&mut Vec::new())
        .map_err(|error| error.kind());
    assert!(
        !matches!(outcome, Err(std::io::ErrorKind::WouldBlock)),
        "the oldest is still open"
    );
    drop(held);
    program
        .client()
        .send(Method::GET, "/livez", None, "".into())
        .await
        .unwrap();
}

#[tokio::test]
async fn tls_is_spoken_where_files_are_given() {
    let dir = tempfile::tempdir().unwrap();
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, secret) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    std::fs::write(&cert, own.cert.pem()).unwrap();
    std::fs::write(&secret, own.signing_key.serialize_pem()).unwrap();
    let files = [cert.display().to_string(), secret.display().to_string()];
    let program = Program::start(
        &dir.path().join("data"),
        &["--tls-cert", &files[0], "--tls-key", &files[1]],
    );
    assert!(program.url.starts_with("https://"), "{}", program.url);
    let created = program.create(&key(1)).await;
    let signed = document(&created, 1).sign(&key(1)).unwrap();
    assert_eq!(
        set(&program, &created, &created.credential, signed).await,
        "set"
    );
    assert_eq!(generation(&program, &created, &key(1)).await, 1);
}

#[tokio::test]
async fn an_endpoint_without_tls_is_not_taken_for_one_that_cannot_be_reached() {
    let dir = tempfile::tempdir().unwrap();
    let program = Program::start(dir.path(), &[]);
    let at = program.address();
    let client = Client::new(format!("https://{at}").parse().unwrap());
    let refused = client.send(Method::GET, "/livez", None, "".into()).await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        format!("the exchange with https://{at} failed")
    );
}
