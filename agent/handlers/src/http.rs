//! A request over HTTP, in the clear or over TLS, as a probe or a hook describes it.
//!
//! The server of a request over TLS is not verified (upstream's rule, see [`config_tls::unproven_probe_server`]); its name is
//! told to it where `host` is one (SNI). One exchange of HTTP/1.1, whose head alone is read.

use crate::{address, dial};
use bytes::Bytes;
use config_http::{Connection, HttpError, Limits};
use config_kube::k8s_openapi::api::core::v1::HTTPGetAction;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::InvalidMessage;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::fmt::Display;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Why there is no answer, in words for an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The server did not answer with TLS.
    InTheClear(String),
    /// Anything else.
    Other(String),
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::InTheClear(why) | Failure::Other(why) => why,
        }
    }
}

/// Asks, and returns the status of the answer; its body is not read. A redirect is an answer as others.
///
/// # Errors
/// No answer came, or the request can't be made.
pub(crate) async fn get(
    get: &HTTPGetAction,
    place: &str,
    port: u16,
    agent: &str,
) -> Result<u16, Failure> {
    let scheme = get.scheme.as_deref().unwrap_or("HTTP");
    let secure = scheme.eq_ignore_ascii_case("https");
    let (scheme, address) = (scheme.to_ascii_lowercase(), address(place, port));
    let say = |why: &dyn Display| format!("Get \"{scheme}://{address}{}\": {why}", path(get));
    let other = |why: &dyn Display| Failure::Other(say(why));
    if !secure && scheme != "http" {
        return Err(other(&"unsupported protocol scheme"));
    }
    let request = request(get, &address, agent).map_err(|error| other(&error))?;
    let stream = dial::connect(place, port)
        .await
        .map_err(|error| other(&error))?;
    if !secure {
        return status(stream, request).await.map_err(|why| other(&why));
    }
    match shake_hands(stream, place).await {
        Ok(stream) => status(stream, request).await.map_err(|why| other(&why)),
        Err(error) if is_in_the_clear(&error) => {
            // Upstream's words.
            let why = "http: server gave HTTP response to HTTPS client";
            Err(Failure::InTheClear(say(&why)))
        }
        Err(error) => Err(other(&error)),
    }
}

/// The same request over HTTP, without the credentials that were meant for TLS.
pub(crate) fn in_the_clear(get: &HTTPGetAction) -> HTTPGetAction {
    let mut get = get.clone();
    get.scheme = None;
    if let Some(headers) = &mut get.http_headers {
        headers.retain(|header| !header.name.eq_ignore_ascii_case("authorization"));
    }
    get
}

/// TLS with whatever server answers.
async fn shake_hands(stream: TcpStream, place: &str) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(place.to_owned()).map_err(io::Error::other)?;
    let tls = config_tls::unproven_probe_server().map_err(io::Error::other)?;
    TlsConnector::from(tls).connect(name, stream).await
}

/// Whether a handshake failed because the first byte from the server begins no message of TLS.
fn is_in_the_clear(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    let foreign = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
    cause == Some(&foreign)
}

/// Sends a request, and reads the head of its answer.
async fn status(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Bytes>,
) -> Result<u16, Box<dyn Error + Send + Sync>> {
    let (stream, limits) = (TokioIo::new(stream), Limits::default());
    let (executor, timer) = (TokioExecutor::new(), TokioTimer::new());
    let exchange = async {
        let mut connection = Connection::open(stream, &executor, timer, limits).await?;
        connection.send(request).await
    };
    match exchange.await {
        Ok(answer) => Ok(answer.status().as_u16()),
        // The words of the connection itself, as upstream shows them.
        Err(HttpError::Exchange(cause)) => Err(cause.into()),
        Err(error) => Err(error.into()),
    }
}

/// The path that is asked for.
fn path(get: &HTTPGetAction) -> String {
    let path = get.path.as_deref().unwrap_or_default();
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    }
}

fn request(get: &HTTPGetAction, address: &str, agent: &str) -> Result<Request<Bytes>, http::Error> {
    let named = |name: &str| {
        let mut headers = get.http_headers.iter().flatten();
        headers.any(|header| header.name.eq_ignore_ascii_case(name))
    };
    let mut request = Request::get(path(get));
    for (name, value) in [
        ("user-agent", agent.to_owned()),
        ("accept", "*/*".to_owned()),
        ("host", address.to_owned()),
    ] {
        // What the pod says of a header stands.
        if !named(name) {
            request = request.header(name, value);
        }
    }
    for header in get.http_headers.iter().flatten() {
        request = request.header(&header.name, &header.value);
    }
    request.body(Bytes::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::api::core::v1::HTTPHeader;
    use config_kube::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    use rcgen::{CertificateParams, KeyPair};
    use rustls::ServerConfig;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;
    use tokio_rustls::TlsAcceptor;

    /// What a server saw: the name that it was told in the handshake, and the request.
    type Seen = (Option<String>, String);

    fn action(scheme: &str, host: Option<&str>) -> HTTPGetAction {
        let header = |name: &str, value: &str| HTTPHeader {
            name: name.into(),
            value: value.into(),
        };
        HTTPGetAction {
            scheme: Some(scheme.into()),
            host: host.map(str::to_owned),
            path: Some("/health?full".into()),
            port: IntOrString::Int(0),
            http_headers: Some(vec![
                header("authorization", "Bearer x"),
                header("Host", "service.example"),
            ]),
        }
    }

    async fn request_of(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(request).unwrap()
    }

    /// A server with a certificate that nobody issued, for a name that nobody asks for, which ended long ago.
    async fn secure(answer: &'static str) -> (u16, JoinHandle<io::Result<Seen>>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["other.example".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key.into())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await?;
            let mut stream = TlsAcceptor::from(Arc::new(tls)).accept(stream).await?;
            let name = stream.get_ref().1.server_name().map(str::to_owned);
            let request = request_of(&mut stream).await;
            stream.write_all(answer.as_bytes()).await?;
            stream.flush().await?;
            // The client has what it wants.
            let mut rest = Vec::new();
            drop(stream.read_to_end(&mut rest).await);
            Ok((name, request))
        });
        (port, serving)
    }

    #[tokio::test]
    async fn a_server_with_a_certificate_of_its_own_making_is_asked_over_tls() {
        let (port, serving) = secure("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n").await;
        let asked = get(&action("HTTPS", None), "127.0.0.1", port, "probe/1").await;
        assert_eq!(asked, Ok(503));
        let (name, request) = serving.await.unwrap().unwrap();
        assert_eq!(name, None, "an address is no name for a handshake");
        assert!(request.starts_with("GET /health?full HTTP/1.1\r\n"));
        assert!(request.contains("user-agent: probe/1\r\n"), "{request}");
        assert!(request.contains("host: service.example\r\n"), "{request}");
    }

    #[tokio::test]
    async fn a_host_that_is_a_name_is_told_in_the_handshake_and_a_redirect_is_an_answer() {
        let answer = "HTTP/1.1 302 Found\r\nlocation: https://192.0.2.1/\r\n\r\n";
        let (port, serving) = secure(answer).await;
        let asked = get(&action("https", None), "localhost", port, "probe/1").await;
        assert_eq!(asked, Ok(302));
        let (name, _) = serving.await.unwrap().unwrap();
        assert_eq!(name.as_deref(), Some("localhost"));
    }

    #[tokio::test]
    async fn a_server_without_tls_is_told_apart_and_asked_again_without_credentials() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move {
            let bad = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            let (mut first, _) = listener.accept().await.unwrap();
            first.write_all(bad).await.unwrap();
            let (mut second, _) = listener.accept().await.unwrap();
            let request = request_of(&mut second).await;
            second.write_all(bad).await.unwrap();
            drop(first);
            request
        });
        let wanted = action("HTTPS", None);
        let asked = get(&wanted, "127.0.0.1", port, "probe/1").await;
        let words = format!(
            "Get \"https://127.0.0.1:{port}/health?full\": http: server gave HTTP response to HTTPS client"
        );
        assert_eq!(asked, Err(Failure::InTheClear(words)));
        let again = in_the_clear(&wanted);
        assert_eq!(get(&again, "127.0.0.1", port, "probe/1").await, Ok(400));
        let request = serving.await.unwrap();
        assert!(request.contains("host: service.example\r\n"), "{request}");
        assert!(!request.contains("authorization"), "{request}");
    }

    #[tokio::test]
    async fn what_breaks_off_or_is_no_scheme_is_a_failure_that_names_the_address() {
        let listener = TcpListener::bind("[::1]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let closing = tokio::spawn(async move { drop(listener.accept().await) });
        let asked = get(&action("HTTPS", None), "::1", port, "probe/1").await;
        closing.await.unwrap();
        let Err(Failure::Other(why)) = asked else {
            panic!("a handshake that broke off: {asked:?}");
        };
        let words = format!("Get \"https://[::1]:{port}/health?full\": ");
        assert!(why.starts_with(&words), "{why}");
        let asked = get(&action("ftp", None), "::1", port, "probe/1").await;
        let why = String::from(asked.unwrap_err());
        assert!(why.ends_with("unsupported protocol scheme"), "{why}");
    }
}
