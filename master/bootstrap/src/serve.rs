//! The listener: plain or TLS, one task for each connection, limits on all of it.

use crate::answer::Endpoint;
use crate::rate::network;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Limits of the listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once; more wait in the kernel's queue.
    pub connections: usize,
    /// Connections at once of one address; more are closed.
    pub per_address: usize,
    /// Time for a request's header.
    pub header: Duration,
    /// Bytes of a request's header.
    pub header_bytes: usize,
    /// A connection's whole life: whoever sends or takes too slowly is cut.
    pub life: Duration,
    /// Time for connections to end once the end was asked for.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            per_address: 128,
            header: Duration::from_secs(10),
            header_bytes: 8 << 10,
            life: Duration::from_secs(60),
            drain: Duration::from_secs(5),
        }
    }
}

/// How many connections each address has.
type Open = Arc<Mutex<HashMap<u128, usize>>>;

/// One connection's place in the counts, given back when it ends.
#[derive(Debug)]
struct Place(Open, u128);

impl Place {
    fn take(open: &Open, from: SocketAddr, most: usize) -> Option<Self> {
        let key = network(from.ip());
        let mut counts = open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key).or_default();
        (*count < most).then(|| {
            *count += 1;
            Self(Arc::clone(open), key)
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = counts.get_mut(&self.1).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            counts.remove(&self.1);
        }
    }
}

/// Serves until `end` is ready, then lets open requests finish for a while.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    endpoint: Arc<Endpoint>,
    limits: Limits,
    end: impl Future<Output = ()>,
) {
    let (room, open) = (Arc::new(Semaphore::new(limits.connections)), Open::default());
    let acceptor = tls.map(TlsAcceptor::from);
    let mut tasks = JoinSet::new();
    let mut end = std::pin::pin!(end);
    loop {
        let accept = async {
            let permit = Arc::clone(&room).acquire_owned().await.ok()?;
            Some((listener.accept().await, permit))
        };
        // Cancel-safe: a permit not yet used goes back, accept loses no connection, join_next only reaps.
        let accepted = tokio::select! {
            () = &mut end => break,
            Some(_) = tasks.join_next() => continue,
            accepted = accept => accepted,
        };
        let Some((accepted, permit)) = accepted else { break };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors: let some go before the next try.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(place) = Place::take(&open, from, limits.per_address) else {
            tracing::debug!(%from, "an address with too many connections");
            continue;
        };
        let (acceptor, endpoint) = (acceptor.clone(), Arc::clone(&endpoint));
        tasks.spawn(async move {
            if tokio::time::timeout(limits.life, connection(stream, from, acceptor, endpoint, limits)).await.is_err() {
                tracing::debug!(%from, "a connection lived for as long as it may");
            }
            drop((place, permit));
        });
    }
    drop(listener);
    if tokio::time::timeout(limits.drain, async { while tasks.join_next().await.is_some() {} }).await.is_err() {
        tracing::debug!("some connections did not end in time and are cut");
    }
}

async fn connection(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: Option<TlsAcceptor>,
    endpoint: Arc<Endpoint>,
    limits: Limits,
) {
    let service = service_fn(|request| {
        let endpoint = Arc::clone(&endpoint);
        async move { Ok::<_, Infallible>(endpoint.answer(from.ip(), request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.header).max_buf_size(limits.header_bytes.max(8192));
    let outcome = match acceptor {
        None => builder.serve_connection(TokioIo::new(stream), service).await,
        Some(acceptor) => match acceptor.accept(stream).await {
            Ok(stream) => builder.serve_connection(TokioIo::new(stream), service).await,
            Err(error) => {
                tracing::debug!(%error, %from, "TLS handshake failed");
                return;
            }
        },
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, %from, "a connection broke off");
    }
}
