//! One HTTP/1.1 connection over TLS 1.3 to a master, with its exporter and the certificates that it
//! showed.

use crate::error::{Error, Result};
use bytes::Bytes;
use config_http::{Body, HttpError, Limits, first_to_answer};
use http::{Method, Request, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

/// Largest answer that is read.
const ANSWER_LIMIT: usize = 4 * 1024 * 1024;
/// Longest wait for a connection or an answer; a TPM behind emulation is slow.
const TIMEOUT: Duration = Duration::from_secs(120);
/// RFC 9266, "tls-exporter" channel binding.
const EXPORTER_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// A parsed `https://host:port` address.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// As it was given, without a slash at the end.
    pub(crate) url: String,
    host: String,
    port: u16,
}

impl Endpoint {
    /// Reads an address.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let refuse = |why: &str| Error::input(text, why, "write it as https://HOST:PORT");
        let url = text.trim_end_matches('/');
        let rest = url
            .strip_prefix("https://")
            .ok_or_else(|| refuse("not an https address"))?;
        let authority: http::uri::Authority = rest
            .parse()
            .map_err(|e: http::uri::InvalidUri| refuse(&e.to_string()))?;
        let port = authority
            .port_u16()
            .ok_or_else(|| refuse("it names no port"))?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() || authority.as_str().contains('@') {
            return Err(refuse("not a host and a port"));
        }
        Ok(Self {
            url: url.to_owned(),
            host,
            port,
        })
    }
}

/// A connection.
pub(crate) struct Connection {
    http: config_http::Connection,
    host: String,
    /// 32 octets that only the two ends of this connection know.
    pub(crate) exporter: [u8; 32],
    /// The certificates that the master showed, leaf first.
    pub(crate) chain: Vec<CertificateDer<'static>>,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(endpoint: &Endpoint, config: Arc<ClientConfig>) -> Result<Self> {
        let fail = |source| Error::Connect {
            endpoint: endpoint.url.clone(),
            source,
        };
        let name = ServerName::try_from(endpoint.host.clone()).map_err(|e| {
            Error::input(
                &endpoint.url,
                e.to_string(),
                "name the master by DNS name or IP address",
            )
        })?;
        let connect = async {
            let found = lookup_host((endpoint.host.as_str(), endpoint.port)).await?;
            let tcp = TcpStream::connect::<SocketAddr>;
            let socket = first_to_answer(found.collect(), sleep, tcp).await?;
            socket.set_nodelay(true)?;
            TlsConnector::from(config).connect(name, socket).await
        };
        let stream = tokio::time::timeout(TIMEOUT, connect)
            .await
            .map_err(|elapsed| fail(std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed)))?
            .map_err(fail)?;
        let (exporter, chain) = binding(stream.get_ref().1)?;
        let limits = Limits {
            time: TIMEOUT,
            body: ANSWER_LIMIT,
            ..Limits::default()
        };
        let (stream, executor) = (TokioIo::new(stream), TokioExecutor::new());
        let timer = TokioTimer::new();
        let http = config_http::Connection::open(stream, &executor, timer, limits).await;
        Ok(Self {
            http: http.map_err(|source| Error::Http {
                what: "starting HTTP",
                source,
            })?,
            host: format!("{}:{}", endpoint.host, endpoint.port),
            exporter,
            chain,
        })
    }

    /// One request with a JSON body (or none) and its answer.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes)> {
        let request = self.request(method, path, content_type, body)?;
        let answer = self.http.call(request).await;
        let answer = answer.map_err(|error| unanswered(path, error))?;
        Ok((answer.status(), answer.into_body()))
    }

    /// GET, whose answer is read piece by piece.
    pub(crate) async fn stream(&mut self, path: &str) -> Result<(StatusCode, Body)> {
        let request = self.request(Method::GET, path, "application/json", Vec::new())?;
        let answer = self.http.send(request).await;
        let answer = answer.map_err(|error| unanswered(path, error))?;
        Ok((answer.status(), answer.into_body()))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Request<Bytes>> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, content_type)
            .header(header::ACCEPT, "application/json")
            .body(Bytes::from(body));
        request.map_err(|e| Error::Answer {
            what: path.to_owned(),
            why: e.to_string(),
        })
    }
}

/// Why a request got no answer.
fn unanswered(path: &str, error: HttpError) -> Error {
    match error {
        HttpError::Silent(_) | HttpError::Exchange(_) => Error::Http {
            what: "waiting for an answer",
            source: error,
        },
        HttpError::TooLong(_) => Error::answer(path, &error.to_string()),
    }
}

fn binding(connection: &ClientConnection) -> Result<([u8; 32], Vec<CertificateDer<'static>>)> {
    let exporter = connection
        .export_keying_material([0_u8; 32], EXPORTER_LABEL, Some(&[]))
        .map_err(Error::Tls)?;
    let chain = connection
        .peer_certificates()
        .unwrap_or_default()
        .iter()
        .cloned()
        .map(CertificateDer::into_owned);
    Ok((exporter, chain.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_https_with_a_port() {
        let endpoint = Endpoint::parse("https://[::1]:6443/").unwrap();
        assert_eq!((endpoint.host.as_str(), endpoint.port), ("::1", 6443));
        for bad in [
            "http://a:1",
            "https://a",
            "a:1",
            "https://u@a:1",
            "https://:1",
        ] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
    }
}
