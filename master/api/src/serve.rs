//! The listener: TLS 1.3, one task for each connection, limits on all of it, an orderly end.

use crate::patience::Patient;
use crate::peer::Peer;
use crate::server::ApiServer;
use crate::strangers::{Place, Strangers};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use master_client::Body;
use master_client::BoxFuture;
use rustls::RootCertStore;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// Label of the TLS exporter that binds evidence to a connection (RFC 9266).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// How long a connection outlives its caller's denial: time to answer what is under way with the refusal.
const FAREWELL: Duration = Duration::from_secs(1);

/// Limits of the listener.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Connections at once; more wait in the kernel's queue.
    pub connections: usize,
    /// Of these, connections without a client certificate from one network (an IPv4 address, a /64 of IPv6), and as many
    /// again that are in their handshake; one more is closed unheard.
    pub strangers: usize,
    /// Time for the TLS handshake.
    pub handshake: Duration,
    /// Time for a request's header, and for an idle HTTP/1 connection.
    pub header: Duration,
    /// Time that a write may stand still because the client takes nothing.
    pub write: Duration,
    /// Bytes of a request's header.
    pub header_bytes: u32,
    /// Requests at once on one HTTP/2 connection (upstream: 250; lower here, as watches count too).
    pub streams: u32,
    /// Time for open requests to end after shutdown was asked for.
    pub drain: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            connections: 10_000,
            strangers: 2_000,
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(60),
            write: Duration::from_secs(60),
            header_bytes: 64 << 10,
            streams: 250,
            drain: Duration::from_secs(10),
        }
    }
}

/// Why a TLS configuration could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The roots by which clients are verified can't be used.
    #[error("client certificate roots cannot be used")]
    Roots(#[source] rustls::server::VerifierBuilderError),
    /// The provider does not do TLS 1.3.
    #[error("TLS 1.3 is not available")]
    Protocol(#[source] rustls::Error),
}

/// Client certificates asked for and verified against `roots`, callers without one let in as anonymous.
pub fn clients_of(roots: RootCertStore) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    builder.allow_unauthenticated().build().map_err(TlsError::Roots)
}

/// TLS as the server wants it: version 1.3, HTTP/2 and HTTP/1.1. `own` chooses the server's certificate and `clients`
/// verifies the client's for each handshake, so that both can change while serving.
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
    api: ApiServer,
    options: ServeOptions,
    acceptor: TlsAcceptor,
    builder: Builder<TokioExecutor>,
    permit: OwnedSemaphorePermit,
    /// While the handshake lasts.
    place: Place,
    /// From then on, where no certificate was shown.
    strangers: Arc<Strangers>,
}

/// Serves until `shutdown` is cancelled, then drains: no new connections, watches end, open requests get
/// `options.drain` to finish.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    api: ApiServer,
    options: ServeOptions,
    shutdown: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let builder = http(&options);
    let room = Arc::new(Semaphore::new(options.connections));
    let (shaking, strangers) = (Strangers::new(options.strangers), Strangers::new(options.strangers));
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        // Cancel-safe: a permit not yet used goes back, accept loses no connection, join_next only reaps.
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = tasks.join_next() => continue,
            accepted = accept(&listener, room.clone()) => accepted,
        };
        let Some((stream, remote, permit)) = accepted else { continue };
        let Some(place) = shaking.admit(remote.ip()) else {
            tracing::debug!(%remote, "its network has all the handshakes that it may have at once");
            continue;
        };
        let (api, options, acceptor, builder) = (api.clone(), options.clone(), acceptor.clone(), builder.clone());
        let strangers = Arc::clone(&strangers);
        let connection = Connection { api, options, acceptor, builder, permit, place, strangers };
        tasks.spawn(connect(connection, stream, remote));
    }
    drop(listener);
    api.drain();
    let drained = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(options.drain, drained).await.is_err() {
        tracing::warn!("some connections did not end in time and are cut");
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
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_send_buf_size(256 << 10);
    builder
}

async fn accept(listener: &TcpListener, room: Arc<Semaphore>) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = room.acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, remote)) => Some((stream, remote, permit)),
        Err(error) => {
            // Out of descriptors or memory: let some go before the next try.
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

async fn connect(connection: Connection, stream: TcpStream, remote: SocketAddr) {
    let Connection { api, options, acceptor, builder, permit, place, strangers } = connection;
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, %remote, "a connection went away at once");
        return;
    }
    let stream =
        match tokio::time::timeout(options.handshake, acceptor.accept(Patient::new(stream, options.write))).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%error, %remote, "TLS handshake failed");
                return;
            }
            Err(_elapsed) => {
                tracing::debug!(%remote, "TLS handshake took too long");
                return;
            }
        };
    let peer = peer(&stream, remote);
    drop(place);
    let place = peer.certificates.is_empty().then(|| strangers.admit(remote.ip()));
    if matches!(place, Some(None)) {
        tracing::debug!(%remote, "its network has all the connections that it may have without a certificate");
        return;
    }
    let draining = api.draining();
    let (judge, shown) = (api.clone(), peer.clone());
    let service = service_fn(move |request| answer(api.clone(), peer.clone(), request));
    let mut served = std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    // Cancel-safe: the connection is polled on after the signal to drain; what is cut is dropped.
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = draining.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
        () = shut_out(&judge, &shown) => {
            tracing::info!(%remote, "a connection is cut: its caller was shut out");
            return;
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, %remote, "a connection broke off");
    }
    drop((permit, place));
}

/// Waits until whoever shows this certificate is shut out, and has had the time to be told so.
async fn shut_out(api: &ApiServer, peer: &Peer) {
    let Some(user) = peer.user() else { return std::future::pending().await };
    loop {
        api.until_denied(|list| list.denied(user, peer)).await;
        tokio::time::sleep(FAREWELL).await;
        if api.denial(user, peer).is_some() {
            return;
        }
    }
}

fn answer(
    api: ApiServer,
    peer: Peer,
    request: Request<Incoming>,
) -> BoxFuture<'static, Result<Response<Body>, Infallible>> {
    Box::pin(async move { Ok(api.handle(request.map(incoming), peer).await) })
}

fn incoming(body: Incoming) -> Body {
    body.map_err(Into::into).boxed_unsync()
}

fn peer(stream: &TlsStream<Patient<TcpStream>>, remote: SocketAddr) -> Peer {
    let (_, session) = stream.get_ref();
    let certificates = session.peer_certificates().unwrap_or_default();
    let certificates = certificates.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let exporter = session.export_keying_material([0; 32], EXPORTER_LABEL, Some(&[])).ok();
    Peer { remote: Some(remote), certificates, exporter, ..Peer::default() }
}
