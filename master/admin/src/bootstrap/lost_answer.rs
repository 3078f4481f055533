//! Tests of a takeover whose answer is lost, against a server that says what it is told.

use super::*;
use master_ca::{Authority, FileKeeper};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// One connection: the certificate that the server shows, and its answer to the first request. It
/// closes the connection after that, or where there is none.
struct Served {
    tls: Arc<ServerConfig>,
    answer: Option<String>,
}

/// A master's keys, with which a server shows that it is the master.
struct Keys {
    _folder: tempfile::TempDir,
    authority: Authority,
    tls: Arc<ServerConfig>,
}

impl Keys {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (keeper, now) = (Arc::new(FileKeeper), SystemTime::now());
        let authority = Authority::open(folder.path(), "lab", keeper, now).unwrap();
        let own = authority
            .make_serving(&["127.0.0.1".to_owned()], now)
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(own.issued.chain(), PrivateKeyDer::from(own.key))
            .unwrap();
        Self {
            _folder: folder,
            authority,
            tls: Arc::new(tls),
        }
    }

    /// A connection on which this server answers so, or not at all.
    fn serves(&self, answer: Option<String>) -> Served {
        let tls = self.tls.clone();
        Served { tls, answer }
    }

    fn admits(&self) -> Served {
        let admitted = BootstrapAdmitted {
            certificate: "the admin's certificate".to_owned(),
            roots: self.authority.roots_pem(),
            ca_pin: self.authority.pin(),
        };
        let text = serde_json::to_string(&admitted).unwrap();
        self.serves(Some(response(200, &text)))
    }

    fn refuses(&self, status: u16) -> Served {
        self.serves(Some(response(status, r#"{"code":"CODE","message":"no"}"#)))
    }
}

fn response(status: u16, json: &str) -> String {
    let length = json.len();
    format!("HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\n\r\n{json}")
}

/// The body of the one request on a connection.
async fn request(stream: &mut TlsStream<TcpStream>) -> Vec<u8> {
    let mut read: Vec<u8> = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let body = &read[end + 4..];
            if body.len() == length.unwrap().parse::<usize>().unwrap() {
                return body.to_vec();
            }
        }
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it ended");
    }
}

/// Serves these connections one after the other. Returns the bodies of their requests; there is
/// none from a client that refuses the server.
async fn serve(connections: Vec<Served>) -> (Endpoint, JoinHandle<Vec<Option<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut requests = Vec::new();
        for Served { tls, answer } in connections {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = TlsAcceptor::from(tls).accept(stream).await else {
                requests.push(None);
                continue;
            };
            requests.push(Some(request(&mut stream).await));
            if let Some(answer) = answer {
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        }
        requests
    });
    let endpoint = Endpoint::parse(&format!("https://{address}")).unwrap();
    (endpoint, task)
}

fn message() -> BootstrapAdmit {
    BootstrapAdmit {
        admin_csr: Der::new(*b"request").unwrap(),
        statement: Blob::new(*b"statement").unwrap(),
        signature: Blob::new(*b"signature").unwrap(),
    }
}

/// A takeover over these connections: its outcome, and the bodies of its requests.
async fn taken_over(
    keys: &Keys,
    wait: u64,
    connections: Vec<Served>,
) -> (Result<BootstrapAdmitted>, Vec<Option<Vec<u8>>>) {
    let (endpoint, server) = serve(connections).await;
    let first = Connection::open(&endpoint, tls::unproven().unwrap()).await;
    let (limit, root) = (Duration::from_secs(wait), keys.authority.root());
    let outcome = take_over(&endpoint, limit, first.unwrap(), &root, &message()).await;
    (outcome, server.await.unwrap())
}

#[tokio::test]
async fn the_same_takeover_is_sent_again_until_it_has_an_answer() {
    let keys = Keys::new();
    let connections = vec![keys.serves(None), keys.refuses(503), keys.admits()];
    let (outcome, requests) = taken_over(&keys, 60, connections).await;
    assert_eq!(outcome.unwrap().ca_pin, keys.authority.pin());
    let same = Some(serde_json::to_vec(&message()).unwrap());
    assert_eq!(requests, [same.clone(), same.clone(), same]);
}

#[tokio::test]
async fn another_server_neither_gets_the_takeover_nor_answers_it() {
    let (keys, other) = (Keys::new(), Keys::new());
    let connections = vec![keys.serves(None), other.admits()];
    let (outcome, requests) = taken_over(&keys, 0, connections).await;
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Unanswered { .. }), "{error}");
    assert!(error.to_string().contains("what to do"), "{error}");
    assert_eq!(requests.last(), Some(&None));
}

#[tokio::test]
async fn a_refusal_ends_the_takeover() {
    let keys = Keys::new();
    let (outcome, requests) = taken_over(&keys, 60, vec![keys.refuses(403)]).await;
    let error = outcome.unwrap_err();
    assert!(
        matches!(error, Error::Refused { status: 403, .. }),
        "{error}"
    );
    assert_eq!(requests.len(), 1);
    let connections = vec![keys.serves(None), keys.refuses(409)];
    let (outcome, requests) = taken_over(&keys, 60, connections).await;
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Unanswered { .. }), "{error}");
    assert_eq!(requests.len(), 2);
}
