//! The listener: plain HTTP or TLS, one task per connection, limits on all of it.

use crate::answer::Endpoint;
use config_errors::chain;
use config_limits::{Network, SlotId, SlotTable, Width, networks};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// Limits of the listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open connections. A further one replaces an older one.
    pub connections: usize,
    /// Open connections of one host (an IPv4 address, a /64 of IPv6).
    pub per_address: usize,
    /// Open connections of one site or block (a /56 or /48 of IPv6, a /24 of IPv4).
    pub per_block: usize,
    /// Time limit of the TLS handshake.
    pub handshake: Duration,
    /// Time limit of a request's header.
    pub header: Duration,
    /// Bytes of a request's header.
    pub header_bytes: usize,
    /// Time limit of a whole connection, however slow the client.
    pub life: Duration,
    /// Time for connections to end after shutdown began.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            per_address: 128,
            per_block: 512,
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            header_bytes: 8 << 10,
            life: Duration::from_secs(60),
            drain: Duration::from_secs(5),
        }
    }
}

/// The open connections: each has a slot within the limits, and a task that ends with it.
#[derive(Debug)]
struct OpenConnections {
    slots: SlotTable<Network>,
    tasks: HashMap<SlotId, AbortHandle>,
    next: SlotId,
}

/// The slot of one connection; freed when it ends.
#[derive(Debug)]
struct ConnectionGuard(Arc<Mutex<OpenConnections>>, SlotId);

impl ConnectionGuard {
    /// Gives a new connection a slot and a task. No connection is refused: it replaces an older one
    /// of the same network if that has used up its share, else of the network that has most
    /// ([`SlotTable`]).
    fn take<W: Future<Output = ()> + Send + 'static>(
        all: &Arc<Mutex<OpenConnections>>,
        from: SocketAddr,
        limits: Limits,
        tasks: &mut JoinSet<()>,
        work: W,
    ) {
        let most = |network: &Network| match network.width() {
            Width::Host => limits.per_address,
            Width::Site | Width::Block => limits.per_block,
        };
        let groups: Vec<_> = networks(from.ip())
            .into_iter()
            .map(|network| (network, most(&network)))
            .collect();
        let mut open = all.lock().unwrap_or_else(PoisonError::into_inner);
        let id = open.next;
        open.next += 1;
        if let Some(out) = open
            .slots
            .enter(id, &groups)
            .and_then(|out| open.tasks.remove(&out))
        {
            out.abort();
        }
        let slot = Self(Arc::clone(all), id);
        // Under the lock, so that a task that ends at once finds its handle to remove.
        let task = tasks.spawn(async move {
            work.await;
            drop(slot);
        });
        open.tasks.insert(id, task);
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.slots.leave(self.1);
        open.tasks.remove(&self.1);
    }
}

/// Serves until `end` is ready, then drains open requests.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    endpoint: Arc<Endpoint>,
    limits: Limits,
    end: impl Future<Output = ()>,
) {
    let open = OpenConnections {
        slots: SlotTable::new(limits.connections),
        tasks: HashMap::new(),
        next: 0,
    };
    let open = Arc::new(Mutex::new(open));
    let acceptor = tls.map(TlsAcceptor::from);
    let mut tasks = JoinSet::new();
    let mut end = std::pin::pin!(end);
    loop {
        // Cancel-safe: accept loses no connection, join_next only reaps tasks.
        let accepted = tokio::select! {
            () = &mut end => break,
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors: existing connections may end before the next try.
                tracing::warn!(error = chain(&error), "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (acceptor, endpoint) = (acceptor.clone(), Arc::clone(&endpoint));
        ConnectionGuard::take(&open, from, limits, &mut tasks, async move {
            if tokio::time::timeout(
                limits.life,
                connection(stream, from, acceptor, endpoint, limits),
            )
            .await
            .is_err()
            {
                tracing::debug!(remote = %from, "connection reached its time limit");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(limits.drain, async {
        while tasks.join_next().await.is_some() {}
    })
    .await
    .is_err()
    {
        tracing::debug!("closing connections that did not end in time");
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
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(limits.header_bytes.max(8192));
    let outcome = match acceptor {
        None => {
            builder
                .serve_connection(TokioIo::new(stream), service)
                .await
        }
        Some(acceptor) => {
            match tokio::time::timeout(limits.handshake, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    builder
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                }
                Ok(Err(error)) => {
                    tracing::debug!(error = chain(&error), remote = %from, "TLS handshake failed");
                    return;
                }
                Err(_elapsed) => {
                    tracing::debug!(remote = %from, "TLS handshake timed out");
                    return;
                }
            }
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(error = chain(&error), remote = %from, "connection failed");
    }
}
