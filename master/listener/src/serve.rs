//! The listener: TLS 1.3, one task per connection, limits, graceful shutdown.

use crate::answers::{AnswerLimits, Answers};
use crate::connections::{ConnectionLimits, Connections, Slot};
use crate::idle::Requests;
use crate::peer::Peer;
use crate::request_limiter::{OpenRequest, RequestLimiter, refusal};
use crate::service::Service;
use crate::unauthenticated::{RequestCounts, UnauthenticatedLimits, UnauthenticatedRates};
use crate::write_timeout::WriteTimeout;
use config_errors::chain;
use futures_util::FutureExt as _;
use futures_util::future::Either;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use master_client::Body;
use rustls::server::ResolvesServerCert;
use rustls::server::danger::ClientCertVerifier;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// Label of the TLS exporter that binds evidence to a connection (RFC 9266).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// Time for which a connection stays open after its caller was denied, or it became idle: it
/// finishes open requests and sends GOAWAY.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Limits of the listener.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Limits of open connections.
    pub connections: ConnectionLimits,
    /// Limits of the memory of answers that are not read yet.
    pub answers: AnswerLimits,
    /// Limits of requests whose callers prove nothing.
    pub unauthenticated: UnauthenticatedLimits,
    /// Time limit of the TLS handshake.
    pub handshake: Duration,
    /// Time limit of a request's header, and so of an idle HTTP/1 connection (nginx's
    /// `client_header_timeout`).
    pub header: Duration,
    /// Time for which a connection may have no open request. Go's clients keep idle connections for
    /// 90 s, and so does upstream's server; a watch is an open request, so watches are not cut.
    pub idle: Duration,
    /// The same for connections that are not authenticated, also before the first request. It
    /// covers the time in which a machine must answer a challenge, part of which a slow TPM uses.
    pub idle_stranger: Duration,
    /// Time for which a write may make no progress because the client does not read.
    pub write: Duration,
    /// How long an HTTP/2 client may read nothing of an answer that has something to send.
    pub unread: Duration,
    /// The same while the client has not proved who it is: what it gets is small.
    pub unread_stranger: Duration,
    /// Bytes of a request's header.
    pub header_bytes: u32,
    /// Concurrent requests on one HTTP/2 connection (upstream: 250; lower here, as watches count
    /// too).
    pub streams: u32,
    /// Of these, how many of a client that has not proved who it is may be open at once: each holds
    /// its header and its answer until the client reads. Requests with a token count once the token
    /// is refused.
    pub streams_stranger: usize,
    /// Time for open requests to end after shutdown began.
    pub drain: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            connections: ConnectionLimits::default(),
            answers: AnswerLimits::default(),
            unauthenticated: UnauthenticatedLimits::default(),
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(60),
            idle: Duration::from_secs(90),
            idle_stranger: Duration::from_secs(60),
            write: Duration::from_secs(60),
            unread: Duration::from_secs(120),
            unread_stranger: Duration::from_secs(10),
            header_bytes: 64 << 10,
            streams: 250,
            streams_stranger: 8,
            drain: Duration::from_secs(10),
        }
    }
}

impl ServeOptions {
    /// Time for which a connection in this slot may have no open request.
    fn idle_time(&self, slot: &Slot) -> Duration {
        if slot.is_identified() {
            self.idle
        } else {
            self.idle_stranger
        }
    }

    /// Time for which the client of a connection in this slot may read nothing of an answer.
    fn unread_time(&self, slot: &Slot) -> Duration {
        if slot.is_proven() {
            self.unread
        } else {
            self.unread_stranger
        }
    }
}

/// A TLS configuration could not be built.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The crypto provider does not support TLS 1.3.
    #[error("TLS 1.3 is not available")]
    Protocol(#[source] rustls::Error),
}

/// The server's TLS configuration: version 1.3, HTTP/2 and HTTP/1.1. `own` chooses the server's
/// certificate and `clients` verifies the client's for each handshake, so both can change while the
/// server runs.
///
/// # Errors
/// The crypto provider does not support TLS 1.3.
pub fn tls_config(
    own: Arc<dyn ResolvesServerCert>,
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<rustls::ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Protocol)?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(own);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

struct Connection {
    service: Arc<dyn Service>,
    options: ServeOptions,
    acceptor: TlsAcceptor,
    builder: Builder<TokioExecutor>,
    slot: Arc<Slot>,
    answers: Arc<Answers>,
    rates: Arc<UnauthenticatedRates>,
}

/// Serves until `shutdown` is cancelled, then drains: no new connections, watches end, open
/// requests get `options.drain` to finish.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    service: Arc<dyn Service>,
    options: ServeOptions,
    shutdown: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let builder = http(&options);
    let connections = Connections::new(options.connections);
    let answers = Answers::new(options.answers);
    let rates = UnauthenticatedRates::new(options.unauthenticated);
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        // Cancel-safe: accept loses no connection, join_next only reaps tasks.
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = tasks.join_next() => continue,
            accepted = accept(&listener) => accepted,
        };
        let Some((stream, remote)) = accepted else {
            continue;
        };
        let slot = Arc::new(connections.enter(remote.ip()));
        let (service, options, acceptor, builder) = (
            service.clone(),
            options.clone(),
            acceptor.clone(),
            builder.clone(),
        );
        let connection = Connection {
            service,
            options,
            acceptor,
            builder,
            slot,
            answers: answers.clone(),
            rates: rates.clone(),
        };
        tasks.spawn(connect(connection, stream, remote));
    }
    drop(listener);
    service.drain();
    let drained = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(options.drain, drained).await.is_err() {
        tracing::warn!("closing connections that did not end in time");
    }
}

fn http(options: &ServeOptions) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let header_bytes = usize::try_from(options.header_bytes).unwrap_or(usize::MAX);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header)
        .max_buf_size(header_bytes.max(8192))
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(options.header_bytes)
        .max_concurrent_streams(options.streams)
        // What a client may send before it is read, per stream and per connection.
        .initial_stream_window_size(128 << 10)
        .initial_connection_window_size(256 << 10)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_send_buf_size(256 << 10);
    builder
}

async fn accept(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            // Out of descriptors or memory: existing connections may end before the next try.
            tracing::warn!(error = chain(&error), "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

async fn connect(connection: Connection, stream: TcpStream, remote: SocketAddr) {
    let ended = connection.slot.ended();
    // Cancel-safe: a cut connection is dropped.
    tokio::select! {
        () = serve_connection(connection, stream, remote) => {}
        () = ended.cancelled() => tracing::debug!(%remote, "connection closed: another one took its slot"),
    }
}

/// The TLS stream of a new connection; a failed handshake is logged and answered by its end.
async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    options: &ServeOptions,
    remote: SocketAddr,
) -> Option<TlsStream<WriteTimeout<TcpStream>>> {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(error = chain(&error), %remote, "connection closed before the handshake");
        return None;
    }
    let stream = WriteTimeout::new(stream, options.write);
    match tokio::time::timeout(options.handshake, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(error = chain(&error), %remote, "TLS handshake failed");
            None
        }
        Err(_elapsed) => {
            tracing::debug!(%remote, "TLS handshake timed out");
            None
        }
    }
}

async fn serve_connection(connection: Connection, stream: TcpStream, remote: SocketAddr) {
    let Connection {
        service,
        options,
        acceptor,
        builder,
        slot,
        answers,
        rates,
    } = connection;
    let Some(stream) = handshake(&acceptor, stream, &options, remote).await else {
        return;
    };
    let peer = identified_peer(&stream, remote, &slot, &*service);
    let draining = service.draining();
    let (deny_list, shown, requests) = (service.clone(), peer.clone(), Requests::new());
    let limiter = Arc::new(RequestLimiter {
        requests: requests.clone(),
        slot: slot.clone(),
        answers,
        streams_stranger: options.streams_stranger,
        counts: RequestCounts::new(&rates, slot.from()),
    });
    let over = limiter.counts.over();
    let answers = service_fn(move |request| {
        let open = limiter.begin(&request, |method, path| service.limits_itself(method, path));
        answer(&*service, peer.clone(), request, open)
    });
    let idle = requests.idle(|| options.idle_time(&slot));
    let mut served =
        std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), answers));
    // Cancel-safe: the connection is polled again after the signal to drain or to close; a cut one
    // is dropped.
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = draining.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
        () = over.cancelled() => {
            tracing::debug!(%remote, "connection closed: its client sent too many unauthenticated requests");
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(CLOSE_GRACE, served).await.unwrap_or(Ok(()))
        }
        () = idle => {
            // Sends GOAWAY, so that an HTTP/2 client sends no request on a connection that ends.
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(CLOSE_GRACE, served).await.unwrap_or(Ok(()))
        }
        () = requests.unread(|| options.unread_time(&slot)) => {
            tracing::debug!(%remote, "connection closed: its client does not read an answer");
            return;
        }
        () = until_denied(&*deny_list, &shown) => {
            tracing::info!(%remote, "connection closed: its caller is denied");
            return;
        }
    };
    if let Err(error) = result {
        tracing::debug!(error = chain(&*error), %remote, "connection failed");
    }
}

/// Waits until the caller with this certificate is denied, and has had time to receive the error.
async fn until_denied(service: &dyn Service, peer: &Peer) {
    let Some(user) = peer.user() else {
        return std::future::pending().await;
    };
    loop {
        service.until_denied(user, peer).await;
        tokio::time::sleep(CLOSE_GRACE).await;
        if service.is_denied(user, peer) {
            return;
        }
    }
}

fn answer(
    service: &dyn Service,
    peer: Peer,
    request: Request<Incoming>,
    open: Option<OpenRequest>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send + use<> {
    let answer = match open {
        Some(open) => {
            let answer = service.handle(request.map(incoming), peer);
            Either::Left(answer.map(|answer| open.finish(answer)))
        }
        None => Either::Right(std::future::ready(refusal())),
    };
    answer.map(Ok)
}

fn incoming(body: Incoming) -> Body {
    body.map_err(Into::into).boxed_unsync()
}

/// The peer of a new connection. If its certificate names a user who is not denied, the connection
/// counts as that user's; else it is the newest among those of strangers.
fn identified_peer(
    stream: &TlsStream<WriteTimeout<TcpStream>>,
    remote: SocketAddr,
    slot: &Arc<Slot>,
    service: &dyn Service,
) -> Peer {
    let peer = peer(stream, remote, slot.clone());
    match peer.user() {
        Some(user) if !service.is_denied(user, &peer) => peer.identify(user),
        Some(_) | None => slot.touch(),
    }
    peer
}

/// The peer as the handshake verified it.
fn peer(stream: &TlsStream<WriteTimeout<TcpStream>>, remote: SocketAddr, slot: Arc<Slot>) -> Peer {
    let (_, session) = stream.get_ref();
    let certificates = session.peer_certificates().unwrap_or_default();
    let certificates = certificates
        .iter()
        .map(|certificate| certificate.clone().into_owned())
        .collect();
    let exporter = session
        .export_keying_material([0; 32], EXPORTER_LABEL, Some(&[]))
        .ok();
    Peer {
        remote: Some(remote),
        certificates,
        exporter,
        slot: Some(slot),
        ..Peer::default()
    }
}
