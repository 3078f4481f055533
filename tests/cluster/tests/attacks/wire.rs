//! One HTTP/1.1 connection over TLS 1.3 to the master, with what both ends know of it.

use bytes::Bytes;
use config_protocol::Channel;
use config_protocol::wire::EXPORTER_LABEL;
use config_tpm::Digest;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Longest answer, in bytes: a thousand Machines with all their checks.
const MOST: usize = 64 << 20;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// A client certificate chain (DER) and its key (PKCS#8 DER).
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) chain: Vec<Vec<u8>>,
    pub(crate) key: Vec<u8>,
}

/// TLS settings for a master with this root.
pub(crate) fn config(root: &[u8], identity: Option<&Identity>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(root.to_vec())).unwrap();
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
    Arc::new(match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { chain, key }) => {
            let chain = chain
                .iter()
                .map(|der| CertificateDer::from(der.clone()))
                .collect();
            builder
                .with_client_auth_cert(
                    chain,
                    PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.clone())),
                )
                .unwrap()
        }
    })
}

/// An answer's status and JSON (null where it is none).
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) json: Value,
}

impl Answer {
    /// Of a connection that was cut before an answer came: what a denied client gets.
    fn cut() -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            json: Value::Null,
        }
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED && self.json.is_null()
    }
}

/// The /48 in which machines are whose master listens on IPv6; in it the last /56.
pub(crate) const V6: [u16; 3] = [0xfd00, 7, 7];
pub(crate) const V6_MACHINES: u16 = 0xff00;

/// The next address from which a connection is made, so that the master, which limits each address
/// and each network, takes the machines of all tests for as many machines: of the loopback range,
/// or a /64 of [`V6`].
fn next(master: IpAddr) -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % 250 + 2;
    match master {
        IpAddr::V4(_) => [127, 0, number, 2].into(),
        IpAddr::V6(_) => {
            let [a, b, c] = V6;
            [a, b, c, V6_MACHINES | u16::from(number), 0, 0, 0, 2].into()
        }
    }
}

/// A TCP connection from an address of our own.
pub(crate) async fn connect(address: SocketAddr, from: IpAddr) -> std::io::Result<TcpStream> {
    let socket = match from {
        IpAddr::V4(_) => TcpSocket::new_v4()?,
        IpAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.bind(SocketAddr::new(from, 0))?;
    socket.connect(address).await
}

fn content_type(method: &Method) -> &'static str {
    if method == Method::PATCH {
        "application/merge-patch+json"
    } else {
        "application/json"
    }
}

/// A TLS connection, before any request.
struct Secured {
    stream: TlsStream<TcpStream>,
    channel: Channel,
    local: SocketAddr,
    resumed: bool,
}

async fn secure(
    from: IpAddr,
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> std::io::Result<Secured> {
    let socket = connect(address, from).await?;
    let local = socket.local_addr()?;
    let name = ServerName::from(address.ip());
    let stream = TlsConnector::from(config).connect(name, socket).await?;
    let tls = stream.get_ref().1;
    let exporter = tls
        .export_keying_material([0_u8; 32], EXPORTER_LABEL, Some(&[]))
        .unwrap();
    let leaf = tls.peer_certificates().unwrap().first().unwrap();
    let (_, parsed) = X509Certificate::from_der(leaf).unwrap();
    let resumed = tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    let channel = Channel {
        server_spki: Digest::of(parsed.public_key().raw),
        exporter: Digest(exporter),
    };
    Ok(Secured {
        stream,
        channel,
        local,
        resumed,
    })
}

/// A connection.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// The channel, as an honest node sees it.
    pub(crate) channel: Channel,
    /// Our end, which the master records.
    pub(crate) local: SocketAddr,
    /// Whether the TLS session is an earlier one, resumed.
    pub(crate) resumed: bool,
    token: Option<String>,
}

impl Connection {
    pub(crate) async fn open(
        address: SocketAddr,
        config: Arc<ClientConfig>,
    ) -> std::io::Result<Self> {
        Self::open_from(next(address.ip()), address, config).await
    }

    /// A connection from an address of our own.
    pub(crate) async fn open_from(
        from: IpAddr,
        address: SocketAddr,
        config: Arc<ClientConfig>,
    ) -> std::io::Result<Self> {
        let Secured {
            stream,
            channel,
            local,
            resumed,
        } = secure(from, address, config).await?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (sender, driver) = handshake.map_err(std::io::Error::other)?;
        drop(tokio::spawn(driver));
        Ok(Self {
            sender,
            channel,
            local,
            resumed,
            token: None,
        })
    }

    /// The same connection, whose requests carry a token from now on.
    pub(crate) fn with_token(mut self, token: &str) -> Self {
        self.token = Some(format!("Bearer {token}"));
        self
    }

    /// Sends a request; the body is read by the caller.
    pub(crate) async fn request(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<http::Response<Incoming>, hyper::Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "master")
            .header(header::CONTENT_TYPE, content_type);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        self.sender.ready().await?;
        tokio::time::timeout(PATIENCE, self.sender.send_request(request))
            .await
            .expect("an answer in time")
    }

    /// Sends a request and reads all of the answer.
    pub(crate) async fn send(&mut self, method: Method, path: &str, body: Vec<u8>) -> Answer {
        self.sent(method, path, body).await.unwrap()
    }

    async fn sent(
        &mut self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Answer, hyper::Error> {
        let answer = self
            .request(method.clone(), path, content_type(&method), body)
            .await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MOST).collect();
        let bytes = tokio::time::timeout(PATIENCE, body)
            .await
            .expect("a body in time")
            .unwrap()
            .to_bytes();
        Ok(Answer {
            status,
            json: serde_json::from_slice(&bytes).unwrap_or_default(),
        })
    }

    /// Sends evidence and reads the answer, [`Answer::cut`] if the connection is cut before one:
    /// evidence may have its own sender denied, and what the master then takes more than a second
    /// for is not sent to a denied client.
    pub(crate) async fn post_or_cut(
        &mut self,
        path: &str,
        message: &impl serde::Serialize,
    ) -> Answer {
        let body = serde_json::to_vec(message).unwrap();
        match self.sent(Method::POST, path, body).await {
            Ok(answer) => answer,
            Err(error) => {
                assert!(!error.is_parse(), "{error}");
                Answer::cut()
            }
        }
    }

    /// The status of an answer, `UNAUTHORIZED` if the connection is cut before one: the master
    /// gives a denied client a second to read the error.
    pub(crate) async fn status(&mut self, method: Method, path: &str, body: Vec<u8>) -> StatusCode {
        match self
            .request(method.clone(), path, content_type(&method), body)
            .await
        {
            Ok(answer) => {
                let status = answer.status();
                let body = Limited::new(answer.into_body(), MOST).collect();
                // For the next request on this connection; what was said stands, though it be cut
                // now.
                drop(
                    tokio::time::timeout(PATIENCE, body)
                        .await
                        .expect("a body in time"),
                );
                status
            }
            Err(error) => {
                assert!(!error.is_parse(), "{error}");
                StatusCode::UNAUTHORIZED
            }
        }
    }

    pub(crate) async fn post(&mut self, path: &str, message: &impl serde::Serialize) -> Answer {
        self.send(Method::POST, path, serde_json::to_vec(message).unwrap())
            .await
    }
}

/// A connection whose requests the test writes by hand, so that the master has one of them in part.
pub(crate) struct Halved {
    stream: TlsStream<TcpStream>,
    pub(crate) channel: Channel,
}

impl Halved {
    pub(crate) async fn open(
        address: SocketAddr,
        config: Arc<ClientConfig>,
    ) -> std::io::Result<Self> {
        let Secured {
            stream, channel, ..
        } = secure(next(address.ip()), address, config).await?;
        Ok(Self { stream, channel })
    }

    /// Sends a POST up to the half of its body, once the master reads that: who calls is decided
    /// before. The other half is returned.
    pub(crate) async fn begin<'a>(&mut self, path: &str, body: &'a [u8]) -> &'a [u8] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: master\r\ncontent-type: application/json\r\n\
             expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(self.head().await.unwrap().0, StatusCode::CONTINUE);
        let (first, rest) = body.split_at(body.len() / 2);
        self.stream.write_all(first).await.unwrap();
        self.stream.flush().await.unwrap();
        rest
    }

    /// Sends the rest of a request, and reads the answer; [`Answer::cut`] without one.
    pub(crate) async fn finish(&mut self, rest: &[u8]) -> Answer {
        let answer = async {
            self.stream.write_all(rest).await?;
            self.stream.flush().await?;
            let (status, length) = self.head().await?;
            let mut content = vec![0; length.min(MOST)];
            self.stream.read_exact(&mut content).await?;
            let json = serde_json::from_slice(&content).unwrap_or_default();
            Ok::<_, std::io::Error>(Answer { status, json })
        };
        let answer = tokio::time::timeout(PATIENCE, answer);
        answer
            .await
            .expect("an answer in time")
            .unwrap_or_else(|_| Answer::cut())
    }

    /// Status and content-length of the next head.
    async fn head(&mut self) -> std::io::Result<(StatusCode, usize)> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let wrong = || std::io::Error::other(format!("no head: {head}"));
        Ok((status.ok_or_else(wrong)?, length.unwrap_or(0)))
    }
}
