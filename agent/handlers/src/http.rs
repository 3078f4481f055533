//! A request over HTTP, in the clear or over TLS, as a probe or a hook describes it.
//!
//! The server of a request over TLS is not verified (upstream's rule, see
//! [`config_tls::unproven_probe_server`]); if `host` is a name, it is sent as SNI. One exchange of
//! HTTP/1.1, of which only the head is read.

use crate::redirect::{self, Url};
use crate::{address, dial};
use bytes::Bytes;
use config_http::{Body, Connection, HttpError, Limits, percent};
use config_kube::k8s_openapi::api::core::v1::HTTPGetAction;
use http::{Request, StatusCode};
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

/// Requests that one action makes at most, the first and those that follow redirects: upstream
/// stops where ten were made, and calls that ten redirects.
const MAX_REQUESTS: usize = 10;
/// Bytes of a redirect's body that are read (upstream's).
const MAX_BODY: usize = 10 << 10;
/// The answers whose `location` is gone to.
const REDIRECTS: [StatusCode; 5] = [
    StatusCode::MOVED_PERMANENTLY,
    StatusCode::FOUND,
    StatusCode::SEE_OTHER,
    StatusCode::TEMPORARY_REDIRECT,
    StatusCode::PERMANENT_REDIRECT,
];

/// Why there is no answer, as text for an event.
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

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The `Location` of a redirect, if it has one.
    location: Option<String>,
    /// The beginning of a redirect's body; that of other answers is not read.
    pub(crate) body: String,
}

/// Sends the request and follows redirects within the same host; a redirect to another host is
/// returned as the answer.
///
/// # Errors
/// No answer came, the request can't be made, or redirects don't end.
pub(crate) async fn follow(
    action: &HTTPGetAction,
    mut place: Url,
    agent: &str,
) -> Result<Answer, Failure> {
    for _ in 0..MAX_REQUESTS {
        let answer = get(action, &place, agent).await?;
        let location = answer.location.as_deref();
        match location.and_then(|location| redirect::next(&place, location)) {
            Some(next) => place = next,
            None => return Ok(answer),
        }
    }
    let text = format!(
        "Get \"{}\": stopped after {MAX_REQUESTS} redirects",
        place.path
    );
    Err(Failure::Other(text))
}

/// Asks once. A redirect is an answer as others.
///
/// # Errors
/// No answer came, or the request can't be made.
async fn get(action: &HTTPGetAction, place: &Url, agent: &str) -> Result<Answer, Failure> {
    let Url {
        scheme,
        host,
        port,
        path,
    } = place;
    let (secure, address) = (scheme == "https", address(host, *port));
    let say = |why: &dyn Display| format!("Get \"{scheme}://{address}{path}\": {why}");
    let other = |why: &dyn Display| Failure::Other(say(why));
    if !secure && scheme != "http" {
        return Err(other(&"unsupported protocol scheme"));
    }
    let request = request(action, path, &address, agent).map_err(|error| other(&error))?;
    let stream = dial::connect(host, *port)
        .await
        .map_err(|error| other(&error))?;
    if !secure {
        return exchange(stream, request).await.map_err(|why| other(&why));
    }
    match shake_hands(stream, host).await {
        Ok(stream) => exchange(stream, request).await.map_err(|why| other(&why)),
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

/// TLS with any server.
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

/// Sends a request, and reads the head of its answer, and what a redirect says beside it.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Bytes>,
) -> Result<Answer, Box<dyn Error + Send + Sync>> {
    let (stream, limits) = (TokioIo::new(stream), Limits::default());
    let (executor, timer) = (TokioExecutor::new(), TokioTimer::new());
    let exchange = async {
        let mut connection = Connection::open(stream, &executor, timer, limits).await?;
        connection.send(request).await
    };
    let answer = match exchange.await {
        Ok(answer) => answer,
        // The words of the connection itself, as upstream shows them.
        Err(HttpError::Exchange(cause)) => return Err(cause.into()),
        Err(error) => return Err(error.into()),
    };
    let (status, redirects) = (answer.status(), REDIRECTS.contains(&answer.status()));
    let location = answer.headers().get(http::header::LOCATION);
    let location = location.and_then(|location| location.to_str().ok());
    Ok(Answer {
        status: status.as_u16(),
        location: location.filter(|_| redirects).map(str::to_owned),
        body: if status.is_redirection() {
            beginning(answer.into_body()).await
        } else {
            String::new()
        },
    })
}

/// The first bytes of a body, as text.
async fn beginning(mut body: Body) -> String {
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = body.piece().await {
        bytes.extend_from_slice(&piece[..piece.len().min(MAX_BODY - bytes.len())]);
        if bytes.len() == MAX_BODY {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A path with its query, in which characters that a request can't have are encoded, as by
/// upstream's kubelet.
fn encoded(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for one in path.chars() {
        if one.is_ascii_graphic() && !"\"<>\\^`{|}".contains(one) {
            encoded.push(one);
        } else {
            encoded.push_str(&percent::encode(one.encode_utf8(&mut [0; 4])));
        }
    }
    encoded
}

fn request(
    get: &HTTPGetAction,
    path: &str,
    address: &str,
    agent: &str,
) -> Result<Request<Bytes>, http::Error> {
    let named = |name: &str| {
        let mut headers = get.http_headers.iter().flatten();
        headers.any(|header| header.name.eq_ignore_ascii_case(name))
    };
    let mut request = Request::get(encoded(path));
    for (name, value) in [
        ("user-agent", agent.to_owned()),
        ("accept", "*/*".to_owned()),
        ("host", address.to_owned()),
    ] {
        // A header that the pod sets takes precedence.
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

    /// What a server received: the name in the handshake, and the request.
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

    /// The status of the answer.
    async fn asked(get: &HTTPGetAction, host: &str, port: u16) -> Result<u16, Failure> {
        let answer = super::get(get, &Url::of(get, host, port), "probe/1").await;
        answer.map(|answer| answer.status)
    }

    async fn request_of(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(request).unwrap()
    }

    /// A server with a self-signed certificate for another name, which expired long ago.
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

    #[test]
    fn a_path_that_no_request_can_have_is_encoded() {
        let get = action("HTTP", None);
        let asked = |path: &str| {
            let request = request(&get, path, "192.0.2.1:80", "probe/1").unwrap();
            request.uri().to_string()
        };
        assert_eq!(asked("/a b/\u{fc}?x=<1>&y"), "/a%20b/%C3%BC?x=%3C1%3E&y");
        let plain = "/a%20b;c=(1)/~d?e=f&g#";
        assert_eq!(asked(plain), plain.trim_end_matches('#'));
    }

    #[tokio::test]
    async fn a_server_with_a_self_signed_certificate_is_asked_over_tls() {
        let (port, serving) = secure("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n").await;
        let status = asked(&action("HTTPS", None), "127.0.0.1", port).await;
        assert_eq!(status, Ok(503));
        let (name, request) = serving.await.unwrap().unwrap();
        assert_eq!(name, None, "an address is no name for a handshake");
        assert!(request.starts_with("GET /health?full HTTP/1.1\r\n"));
        assert!(request.contains("user-agent: probe/1\r\n"), "{request}");
        assert!(request.contains("host: service.example\r\n"), "{request}");
    }

    #[tokio::test]
    async fn a_host_name_is_sent_in_the_handshake_and_a_redirect_is_an_answer() {
        let answer =
            "HTTP/1.1 302 Found\r\nlocation: https://192.0.2.1/\r\ncontent-length: 0\r\n\r\n";
        let (port, serving) = secure(answer).await;
        let status = asked(&action("https", None), "localhost", port).await;
        assert_eq!(status, Ok(302));
        let (name, _) = serving.await.unwrap().unwrap();
        assert_eq!(name.as_deref(), Some("localhost"));
    }

    #[tokio::test]
    async fn a_server_without_tls_is_detected_and_asked_again_without_credentials() {
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
        let first = asked(&wanted, "127.0.0.1", port).await;
        let words = format!(
            "Get \"https://127.0.0.1:{port}/health?full\": http: server gave HTTP response to HTTPS client"
        );
        assert_eq!(first, Err(Failure::InTheClear(words)));
        let again = in_the_clear(&wanted);
        assert_eq!(asked(&again, "127.0.0.1", port).await, Ok(400));
        let request = serving.await.unwrap();
        assert!(request.contains("host: service.example\r\n"), "{request}");
        assert!(!request.contains("authorization"), "{request}");
    }

    #[tokio::test]
    async fn a_broken_handshake_names_the_address_and_an_unknown_scheme_is_refused() {
        let listener = TcpListener::bind("[::1]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let closing = tokio::spawn(async move { drop(listener.accept().await) });
        let broken = asked(&action("HTTPS", None), "::1", port).await;
        closing.await.unwrap();
        let Err(Failure::Other(why)) = broken else {
            panic!("a handshake that broke off: {broken:?}");
        };
        let words = format!("Get \"https://[::1]:{port}/health?full\": ");
        assert!(why.starts_with(&words), "{why}");
        let refused = asked(&action("ftp", None), "::1", port).await;
        let why = String::from(refused.unwrap_err());
        assert!(why.ends_with("unsupported protocol scheme"), "{why}");
    }

    /// A server that answers one request after the other with these, and then tells what was asked
    /// for.
    async fn answering(answers: Vec<&'static str>) -> (u16, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let request = request_of(&mut stream).await;
                asked.extend(request.lines().next().map(str::to_owned));
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            asked
        });
        (port, serving)
    }

    #[tokio::test]
    async fn redirects_are_followed_at_the_host_and_what_leads_elsewhere_is_the_answer() {
        let action = action("HTTP", None);
        let moved = "HTTP/1.1 302 Found\r\nlocation: /healthz\r\ncontent-length: 0\r\n\r\n";
        let bad = "HTTP/1.1 500 Error\r\ncontent-length: 0\r\n\r\n";
        let (port, serving) = answering(vec![moved, bad]).await;
        let place = Url::of(&action, "127.0.0.1", port);
        let answer = follow(&action, place, "probe/1").await.unwrap();
        assert_eq!(answer.status, 500);
        let asked = ["GET /health?full HTTP/1.1", "GET /healthz HTTP/1.1"];
        assert_eq!(serving.await.unwrap(), asked);

        let away =
            "HTTP/1.1 302 Found\r\nlocation: http://0.0.0.0/\r\ncontent-length: 5\r\n\r\nFound";
        let (port, serving) = answering(vec![away]).await;
        let place = Url::of(&action, "127.0.0.1", port);
        let answer = follow(&action, place, "probe/1").await.unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (302, "Found"));
        serving.await.unwrap();

        let (port, serving) = answering(vec![moved; MAX_REQUESTS]).await;
        let place = Url::of(&action, "127.0.0.1", port);
        let why = String::from(follow(&action, place, "probe/1").await.unwrap_err());
        assert_eq!(why, "Get \"/healthz\": stopped after 10 redirects");
        serving.await.unwrap();
    }
}
