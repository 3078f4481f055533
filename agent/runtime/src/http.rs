//! Just enough of an HTTP client for registries: GET, TLS or plain, redirects followed, bodies streamed.

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST, LOCATION, USER_AGENT};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// To a connection, and from a request to the head of its answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most redirects of one request.
const MAX_REDIRECTS: usize = 5;

/// Why no usable answer came.
#[derive(Debug, Error)]
pub(crate) enum HttpError {
    #[error("{0:?} is no http or https address")]
    Address(String),
    #[error("connect to {host}")]
    Connect { host: String, source: io::Error },
    #[error("{host} gave no answer within {} s", PATIENCE.as_secs())]
    Silent { host: String },
    #[error("HTTP with {host}")]
    Protocol { host: String, source: hyper::Error },
    #[error("{url} answered {status}")]
    Refused { url: String, status: StatusCode },
    #[error("{url} redirects more than {MAX_REDIRECTS} times, or to nowhere")]
    Redirects { url: String },
    #[error("the answer of {url} is longer than {limit} bytes")]
    TooLong { url: String, limit: usize },
}

/// The client; its roots are those of the configuration or of the machine.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    tls: Arc<ClientConfig>,
}

impl Http {
    pub(crate) fn new(roots: RootCertStore) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(rustls::DEFAULT_VERSIONS);
        // ring knows every version of the default list, so that this arm isn't taken.
        let builder = builder.unwrap_or_else(|_| ClientConfig::builder());
        Self { tls: Arc::new(builder.with_root_certificates(roots).with_no_client_auth()) }
    }

    /// Sends GET and follows redirects; the token goes only to the host that it was made for.
    pub(crate) async fn get(
        &self,
        url: &str,
        accept: &str,
        token: Option<&str>,
    ) -> Result<Response<Incoming>, HttpError> {
        let mut at = address(url)?;
        let first = at.authority().cloned();
        for _ in 0..=MAX_REDIRECTS {
            let token = token.filter(|_| at.authority() == first.as_ref());
            let answer = self.once(&at, accept, token).await?;
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            let to = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            at = to.and_then(|to| joined(&at, to)).ok_or_else(|| HttpError::Redirects { url: url.to_owned() })?;
        }
        Err(HttpError::Redirects { url: url.to_owned() })
    }

    async fn once(&self, url: &Uri, accept: &str, token: Option<&str>) -> Result<Response<Incoming>, HttpError> {
        let host = url.authority().map_or_else(String::new, ToString::to_string);
        let silent = |_| HttpError::Silent { host: host.clone() };
        let connect = |source| HttpError::Connect { host: host.clone(), source };
        let name = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let secure = url.scheme_str() == Some("https");
        let port = url.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let tcp = timeout(PATIENCE, TcpStream::connect((name, port))).await.map_err(silent)?.map_err(connect)?;
        let path = url.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let mut request = Request::get(path).header(HOST, &host).header(ACCEPT, accept).header(USER_AGENT, "pratique");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|_invalid| HttpError::Address(url.to_string()))?;
        if secure {
            let server =
                ServerName::try_from(name.to_owned()).map_err(|_invalid| HttpError::Address(url.to_string()))?;
            let tls = TlsConnector::from(self.tls.clone()).connect(server, tcp);
            let tls = timeout(PATIENCE, tls).await.map_err(silent)?.map_err(connect)?;
            exchange(tls, request, &host).await
        } else {
            exchange(tcp, request, &host).await
        }
    }
}

/// One request on a connection of its own; the connection lives as long as the answer's body.
async fn exchange(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
    host: &str,
) -> Result<Response<Incoming>, HttpError> {
    let protocol = |source| HttpError::Protocol { host: host.to_owned(), source };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(protocol)?;
    tokio::spawn(connection);
    let answer = timeout(PATIENCE, sender.send_request(request)).await;
    answer.map_err(|_elapsed| HttpError::Silent { host: host.to_owned() })?.map_err(protocol)
}

/// The body, if it is not longer than `limit`.
pub(crate) async fn collect(answer: Response<Incoming>, url: &str, limit: usize) -> Result<Bytes, HttpError> {
    let body = http_body_util::Limited::new(answer.into_body(), limit);
    let collected = timeout(PATIENCE, body.collect()).await;
    let collected = collected.map_err(|_elapsed| HttpError::Silent { host: url.to_owned() })?;
    collected
        .map(http_body_util::Collected::to_bytes)
        .map_err(|_broken| HttpError::TooLong { url: url.to_owned(), limit })
}

fn address(text: &str) -> Result<Uri, HttpError> {
    let uri: Uri = text.parse().map_err(|_invalid| HttpError::Address(text.to_owned()))?;
    let known = matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some();
    if known { Ok(uri) } else { Err(HttpError::Address(text.to_owned())) }
}

/// Where a Location header leads, seen from `base`; never from https down to http.
fn joined(base: &Uri, to: &str) -> Option<Uri> {
    let uri = if to.starts_with('/') {
        let mut parts = base.clone().into_parts();
        parts.path_and_query = Some(to.parse().ok()?);
        Uri::from_parts(parts).ok()?
    } else {
        address(to).ok()?
    };
    let weaker = base.scheme_str() == Some("https") && uri.scheme_str() != Some("https");
    (!weaker).then_some(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_go_on_and_never_down() {
        let base: Uri = "https://registry.example/v2/a".parse().unwrap();
        assert_eq!(joined(&base, "/v3/b?c").unwrap(), "https://registry.example/v3/b?c");
        assert_eq!(joined(&base, "https://blobs.example/x").unwrap(), "https://blobs.example/x");
        assert_eq!(joined(&base, "http://blobs.example/x"), None);
    }

    #[test]
    fn only_http_addresses_are_asked() {
        assert!(address("ftp://registry.example").is_err());
        assert!(address("registry.example").is_err());
        assert!(address("http://10.0.2.2:5000").is_ok());
    }
}
