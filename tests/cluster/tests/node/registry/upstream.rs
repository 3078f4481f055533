//! A registry of a test's own: plain or with TLS, with answers that the test makes, and a record of
//! what it was asked.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tests_harness::oci::Image;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Longest head of a request.
const MAX_HEAD: usize = 64 * 1024;

/// One request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: String,
}

/// What follows the head of an answer.
pub(crate) enum Body {
    Whole(Vec<u8>),
    /// Bytes without end, under a length that is never reached.
    Endless,
    /// Half of the bytes; the rest once the gate is open.
    Held(Vec<u8>, watch::Receiver<bool>),
    /// Neither head nor body: the connection stays open.
    Silence,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Body,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Body::Whole(Vec::new()),
        }
    }

    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: Body::Whole(body.into()),
            ..Self::status(200)
        }
    }

    pub(crate) fn redirect(to: String) -> Self {
        Self::status(307).with("location", to)
    }

    /// 401 with a Bearer challenge that names this token service.
    pub(crate) fn bearer(realm: &str) -> Self {
        let challenge =
            format!("Bearer realm=\"{realm}\",service=\"test\",scope=\"repository:busybox:pull\"");
        Self::status(401).with("www-authenticate", challenge)
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// How many authorities there were.
static AUTHORITIES: AtomicUsize = AtomicUsize::new(0);

/// A certificate authority of a test.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Each authority has a name of its own, as in life: two of one name would differ by their
        // signatures alone.
        let number = AUTHORITIES.fetch_add(1, Ordering::Relaxed);
        params
            .distinguished_name
            .push(DnType::CommonName, format!("authority {number}"));
        let certificate = params.self_signed(&key).unwrap();
        Self {
            pem: certificate.pem(),
            issuer: Issuer::from_ca_cert_der(certificate.der(), key).unwrap(),
        }
    }

    fn acceptor(&self) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params
            .subject_alt_names
            .push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], key)
                .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

type Answering = Arc<dyn Fn(&Seen) -> Reply + Send + Sync>;

/// A server on loopback; it ends with the test.
pub(crate) struct Upstream {
    pub(crate) port: u16,
    tls: bool,
    seen: Arc<Mutex<Vec<Seen>>>,
    serving: JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Upstream {
    pub(crate) async fn plain(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(None, Arc::new(answer)).await
    }

    pub(crate) async fn tls(
        by: &Authority,
        answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start(Some(by.acceptor()), Arc::new(answer)).await
    }

    async fn start(tls: Option<TlsAcceptor>, answer: Answering) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (record, secure) = (seen.clone(), tls.is_some());
        let serving = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (tls, answer, record) = (tls.clone(), answer.clone(), record.clone());
                tokio::spawn(async move {
                    match tls {
                        // A client that trusts other roots ends here.
                        Some(tls) => match tls.accept(tcp).await {
                            Ok(stream) => serve(stream, &answer, &record).await,
                            Err(_) => None,
                        },
                        None => serve(tcp, &answer, &record).await,
                    }
                });
            }
        });
        Self {
            port,
            tls: secure,
            seen,
            serving,
        }
    }

    /// `127.0.0.1:PORT`.
    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Scheme and host.
    pub(crate) fn url(&self) -> String {
        format!("http{}://{}", if self.tls { "s" } else { "" }, self.host())
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// What came in `Authorization`, in order.
    pub(crate) fn authorizations(&self) -> Vec<String> {
        self.seen()
            .into_iter()
            .filter_map(|seen| seen.authorization)
            .collect()
    }
}

/// One request, one answer; `None` where the client went away.
async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: &Answering,
    record: &Mutex<Vec<Seen>>,
) -> Option<()> {
    let seen = read(&mut stream).await?;
    record.lock().unwrap().push(seen.clone());
    let reply = answer(&seen);
    let mut head = format!("HTTP/1.1 {} Test\r\nconnection: close\r\n", reply.status);
    let length = match &reply.body {
        Body::Whole(body) | Body::Held(body, _) => body.len(),
        Body::Endless => usize::MAX >> 1,
        Body::Silence => {
            std::future::pending::<()>().await;
            return None;
        }
    };
    write!(head, "content-length: {length}\r\n").ok()?;
    for (name, value) in &reply.headers {
        write!(head, "{name}: {value}\r\n").ok()?;
    }
    stream
        .write_all(format!("{head}\r\n").as_bytes())
        .await
        .ok()?;
    match reply.body {
        Body::Whole(body) => stream.write_all(&body).await.ok()?,
        Body::Held(body, mut gate) => {
            let (first, rest) = body.split_at(body.len() / 2);
            stream.write_all(first).await.ok()?;
            stream.flush().await.ok()?;
            gate.wait_for(|open| *open).await.ok()?;
            stream.write_all(rest).await.ok()?;
        }
        Body::Endless => loop {
            stream.write_all(&[b' '; 16 * 1024]).await.ok()?;
        },
        Body::Silence => {}
    }
    stream.shutdown().await.ok()
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Seen> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        let mut piece = [0; 4096];
        let count = stream
            .read(&mut piece)
            .await
            .ok()
            .filter(|count| *count > 0)?;
        bytes.extend_from_slice(&piece[..count]);
        assert!(bytes.len() < MAX_HEAD, "a head without end");
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let header = |wanted: &str| {
        let mut lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.trim().to_owned())
    };
    let length: usize = header("content-length")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    while bytes.len() < end + 4 + length {
        let mut piece = [0; 4096];
        let count = stream
            .read(&mut piece)
            .await
            .ok()
            .filter(|count| *count > 0)?;
        bytes.extend_from_slice(&piece[..count]);
    }
    let mut words = head.split_whitespace();
    Some(Seen {
        method: words.next()?.to_owned(),
        target: words.next()?.to_owned(),
        authorization: header("authorization"),
        body: String::from_utf8_lossy(&bytes[end + 4..]).into_owned(),
    })
}

/// Serves an image under every name, by tag and by digest.
pub(crate) fn serves(image: &Image, seen: &Seen) -> Reply {
    let path = seen.target.split('?').next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let [manifest, ..] = image.blobs();
    let kind = "application/vnd.oci.image.manifest.v1+json";
    if path.contains("/manifests/") && (name == manifest.0 || !name.starts_with("sha256:")) {
        return Reply::ok(manifest.1).with("content-type", kind);
    }
    let blob = image.blobs().into_iter().find(|(digest, _)| digest == name);
    blob.map_or_else(|| Reply::status(404), |(_, bytes)| Reply::ok(bytes))
}
