//! One HTTPS connection that speaks just enough HTTP/1.1: requests one after another, and watches
//! line by line.

use crate::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use serde_json::Value;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Bytes of an answer's head at most.
const HEAD: usize = 64 << 10;

/// The address of a master and a user's credentials.
#[derive(Debug, Clone)]
pub struct Access {
    address: String,
    roots: Arc<RootCertStore>,
    tls: Arc<ClientConfig>,
    /// The header line of a user with a token; empty for one with a certificate.
    authorization: String,
}

/// TLS to a master that these roots certify; the client's own certificate is still missing.
fn tls(roots: &Arc<RootCertStore>) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| Error::Access(error.to_string()))?;
    Ok(versions.with_root_certificates(Arc::clone(roots)))
}

impl Access {
    /// Reads a kubeconfig as the master writes it: JSON, everything inside.
    pub fn read(path: &Path) -> Result<Self> {
        let bad = |what: &str| Error::Access(format!("{}: {what}", path.display()));
        let value: Value = serde_json::from_slice(&std::fs::read(path)?)
            .map_err(|error| bad(&error.to_string()))?;
        let text = |pointer: &str| {
            value
                .pointer(pointer)
                .and_then(Value::as_str)
                .ok_or_else(|| bad(pointer))
        };
        let pem = |pointer: &str| {
            STANDARD
                .decode(text(pointer)?)
                .map_err(|error| bad(&error.to_string()))
        };
        let server = text("/clusters/0/cluster/server")?;
        let address = server
            .strip_prefix("https://")
            .ok_or_else(|| bad("its server is not https"))?
            .to_owned();
        let certificates = |pem: Vec<u8>| -> Result<Vec<CertificateDer<'static>>> {
            CertificateDer::pem_slice_iter(&pem)
                .collect::<std::result::Result<_, _>>()
                .map_err(|e| bad(&e.to_string()))
        };
        let mut roots = RootCertStore::empty();
        for root in certificates(pem("/clusters/0/cluster/certificate-authority-data")?)? {
            roots.add(root).map_err(|error| bad(&error.to_string()))?;
        }
        let chain = certificates(pem("/users/0/user/client-certificate-data")?)?;
        let key = PrivateKeyDer::from_pem_slice(&pem("/users/0/user/client-key-data")?)
            .map_err(|error| bad(&error.to_string()))?;
        let roots = Arc::new(roots);
        let tls = tls(&roots)?
            .with_client_auth_cert(chain, key)
            .map_err(|error| bad(&error.to_string()))?;
        Ok(Self {
            address,
            roots,
            tls: Arc::new(tls),
            authorization: String::new(),
        })
    }

    /// The same master for the user of a token.
    pub fn with_token(&self, token: &str) -> Result<Self> {
        Ok(Self {
            address: self.address.clone(),
            roots: Arc::clone(&self.roots),
            tls: Arc::new(tls(&self.roots)?.with_no_client_auth()),
            authorization: format!("authorization: Bearer {token}\r\n"),
        })
    }

    /// Opens a connection.
    pub async fn connect(&self) -> Result<Connection> {
        let socket = TcpStream::connect(&self.address).await?;
        socket.set_nodelay(true)?;
        let host = self
            .address
            .rsplit_once(':')
            .map_or(self.address.as_str(), |(host, _)| host);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| Error::Access(error.to_string()))?;
        let stream = TlsConnector::from(self.tls.clone())
            .connect(name, socket)
            .await?;
        Ok(Connection {
            stream,
            authorization: self.authorization.clone(),
            buffer: Vec::new(),
            taken: 0,
            request: Vec::new(),
        })
    }
}

/// How an answer's body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    stream: TlsStream<TcpStream>,
    authorization: String,
    buffer: Vec<u8>,
    taken: usize,
    request: Vec<u8>,
}

fn ended() -> Error {
    Error::Connection(io::Error::from(io::ErrorKind::UnexpectedEof))
}

impl Connection {
    /// Sends a request and reads its answer. Errors are of the connection; the status is the
    /// caller's business.
    pub async fn send(&mut self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let (status, framing) = self.ask(method, path, body).await?;
        let mut answer = Vec::new();
        match framing {
            Framing::Length(length) => {
                answer.reserve_exact(length);
                while self.rest().len() + answer.len() < length {
                    answer.extend_from_slice(&self.buffer[self.taken..]);
                    self.taken = self.buffer.len();
                    self.fill().await?;
                }
                let left = length - answer.len();
                answer.extend_from_slice(&self.rest()[..left]);
                self.taken += left;
            }
            Framing::Chunked => while self.chunk(&mut answer).await? {},
        }
        Ok((status, answer))
    }

    /// Sends a request that must be answered with success, and parses the answer.
    pub async fn must(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Vec<u8>> {
        let (status, answer) = self.send(method, path, body).await?;
        if (200..300).contains(&status) {
            return Ok(answer);
        }
        let body = String::from_utf8_lossy(&answer[..answer.len().min(600)]).into_owned();
        Err(Error::Refused {
            method: method.to_owned(),
            path: path.to_owned(),
            status,
            body,
        })
    }

    /// Reads and forgets an answer of known length; how long it was. For answers that are too large
    /// to be kept.
    pub async fn skim(&mut self, path: &str) -> Result<usize> {
        let (200, Framing::Length(length)) = self.ask("GET", path, b"").await? else {
            return Err(Error::Protocol(format!(
                "GET {path} was not answered with a length"
            )));
        };
        let mut left = length;
        while left > 0 {
            if self.rest().is_empty() {
                self.fill().await?;
            }
            let now = left.min(self.rest().len());
            self.taken += now;
            left -= now;
        }
        Ok(length)
    }

    /// As [`Connection::must`], with the answer as a value.
    pub async fn json(&mut self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let answer = self.must(method, path, &bytes).await?;
        serde_json::from_slice(&answer).map_err(|error| Error::Protocol(error.to_string()))
    }

    /// Opens a watch; its events come as lines.
    pub async fn watch(mut self, path: &str) -> Result<Lines> {
        match self.ask("GET", path, b"").await? {
            (200, Framing::Chunked) => Ok(Lines {
                connection: self,
                pending: Vec::new(),
                searched: 0,
            }),
            (status, _) => Err(Error::Protocol(format!(
                "GET {path} was answered {status} and is no watch"
            ))),
        }
    }

    async fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Framing)> {
        self.request.clear();
        let kind = if method == "PATCH" {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let (length, authorization) = (body.len(), &self.authorization);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: master\r\n{authorization}accept: application/json\r\ncontent-type: {kind}\r\n\
             content-length: {length}\r\n\r\n"
        );
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body);
        self.stream.write_all(&self.request).await?;
        self.stream.flush().await?;
        self.head().await
    }

    fn rest(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    async fn fill(&mut self) -> Result<()> {
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            self.taken = 0;
        }
        self.buffer.reserve(16 << 10);
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(ended()),
            _ => Ok(()),
        }
    }

    /// Waits for a line and takes it, without its end.
    async fn line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.rest().windows(2).position(|bytes| bytes == b"\r\n") {
                let line = String::from_utf8_lossy(&self.rest()[..end]).into_owned();
                self.taken += end + 2;
                return Ok(line);
            }
            if self.rest().len() > HEAD {
                return Err(Error::Protocol("a line without an end".to_owned()));
            }
            self.fill().await?;
        }
    }

    async fn head(&mut self) -> Result<(u16, Framing)> {
        let first = self.line().await?;
        let status = first.split(' ').nth(1).and_then(|text| text.parse().ok());
        let status = status.ok_or_else(|| Error::Protocol(first.clone()))?;
        let mut framing = Framing::Length(0);
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(':') else {
                return Ok((status, framing));
            };
            if name.eq_ignore_ascii_case("content-length") {
                framing = Framing::Length(
                    value
                        .trim()
                        .parse()
                        .map_err(|_bad| Error::Protocol(line.clone()))?,
                );
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                framing = Framing::Chunked;
            }
        }
    }

    /// Appends the next chunk; whether there was one.
    async fn chunk(&mut self, to: &mut Vec<u8>) -> Result<bool> {
        let line = self.line().await?;
        let size = usize::from_str_radix(line.trim(), 16).map_err(|_bad| Error::Protocol(line))?;
        let mut left = size;
        while left > 0 {
            if self.rest().is_empty() {
                self.fill().await?;
            }
            let now = left.min(self.rest().len());
            to.extend_from_slice(&self.buffer[self.taken..self.taken + now]);
            self.taken += now;
            left -= now;
        }
        self.line().await?;
        Ok(size > 0)
    }
}

/// An open watch.
#[derive(Debug)]
pub struct Lines {
    connection: Connection,
    pending: Vec<u8>,
    searched: usize,
}

impl Lines {
    /// The next event's line; none where the watch was ended.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(at) = self.pending[self.searched..]
                .iter()
                .position(|byte| *byte == b'\n')
            {
                let rest = self.pending.split_off(self.searched + at + 1);
                self.searched = 0;
                return Ok(Some(std::mem::replace(&mut self.pending, rest)));
            }
            self.searched = self.pending.len();
            if !self.connection.chunk(&mut self.pending).await? {
                return Ok(None);
            }
        }
    }
}
