//! Connections at the port: TLS, a slot, then requests one after another, until the connection ends
//! or becomes a tunnel.

use crate::{Caller, Limits, StrangerSlot, StrangerSlots};
use bytes::Bytes;
use config_errors::chain;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Wait after a connection that could not be accepted: the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(200);

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// The work of a tunnel, after the answer to its client.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How a request is answered.
pub enum Reply {
    /// With a whole answer.
    Whole(Response<Body>),
    /// With a head; the connection is then the tunnel's, which `Work` runs. Where the head ends the
    /// connection, the work is done once it was sent.
    Tunnel(Response<()>, Work),
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(response) => f.debug_tuple("Whole").field(&response.status()).finish(),
            Self::Tunnel(head, _) => f.debug_tuple("Tunnel").field(&head.status()).finish(),
        }
    }
}

/// What answers requests.
pub trait RequestHandler: Clone + Send + 'static {
    /// Answers one request. It must authorize the caller ([`crate::Access`]): TLS has only
    /// authenticated it.
    fn answer(
        &self,
        caller: Caller,
        request: Request<Incoming>,
    ) -> impl Future<Output = Reply> + Send;
}

/// Serves until `shutdown` is true or its sender is gone.
///
/// `tls` must verify client certificates against the cluster's root; callers without one may be
/// allowed, and are anonymous.
pub async fn serve(
    limits: Limits,
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    service: impl RequestHandler,
    mut shutdown: watch::Receiver<bool>,
) {
    let port = Port {
        acceptor: TlsAcceptor::from(tls),
        masters: Arc::new(Semaphore::new(limits.master)),
        patience: limits.patience,
        kept: limits.kept,
        service,
    };
    let (slots, mut connections) = (StrangerSlots::new(limits), JoinSet::new());
    loop {
        tokio::select! {
            // Accepting loses no connection when it is dropped; the channel keeps its value.
            () = asked_to_end(&mut shutdown) => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => slots.admit(from.ip(), &mut connections, |slot| {
                    port.clone().connection(stream, slot)
                }),
                Err(error) => {
                    tracing::warn!(error = chain(&error), "connection not accepted");
                    sleep(PAUSE).await;
                }
            },
        }
        while connections.try_join_next().is_some() {}
    }
    connections.shutdown().await;
}

/// What a connection needs.
#[derive(Clone)]
struct Port<S> {
    acceptor: TlsAcceptor,
    /// The master's own connections.
    masters: Arc<Semaphore>,
    patience: Duration,
    kept: Duration,
    service: S,
}

impl<S: RequestHandler> Port<S> {
    /// One connection, in a stranger's slot until it shows the master's certificate.
    async fn connection(self, stream: TcpStream, stranger_slot: StrangerSlot) {
        if let Err(error) = agent_sys::socket::keep_alive(&stream) {
            tracing::debug!(error = chain(&error), "no keep-alive");
        }
        let Ok(Ok(tls)) = timeout(self.patience, self.acceptor.accept(stream)).await else {
            tracing::debug!("TLS handshake at the kubelet's port failed");
            return;
        };
        let caller = Caller::of(tls.get_ref().1.peer_certificates());
        let (master_slot, stranger_slot) = if caller == Caller::Master {
            drop(stranger_slot);
            (self.masters.try_acquire_owned().ok(), None)
        } else {
            (None, Some(stranger_slot))
        };
        let busy = caller == Caller::Master && master_slot.is_none();
        let server = self.service;
        // The work after HTTP on this connection has ended: a tunnel, or what begins once the
        // answer was sent.
        let granted = Arc::new(Mutex::new(None));
        let grant = granted.clone();
        let service = service_fn(move |request| {
            let (server, grant, caller) = (server.clone(), grant.clone(), caller.clone());
            async move {
                Ok::<_, Infallible>(if busy {
                    text(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "the kubelet is at its limit of concurrent requests: try again\n",
                    )
                } else {
                    match server.answer(caller, request).await {
                        Reply::Whole(response) => response,
                        Reply::Tunnel(head, work) => {
                            *grant.lock().unwrap_or_else(PoisonError::into_inner) = Some(work);
                            head.map(|()| full(Bytes::new()))
                        }
                    }
                })
            }
        });
        let http = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            // The time between two requests counts, too.
            .header_read_timeout(if master_slot.is_some() {
                self.kept
            } else {
                self.patience
            })
            // A connection without the right to anything is closed after its refusal.
            .keep_alive(master_slot.is_some())
            .serve_connection(TokioIo::new(tls), service)
            .with_upgrades();
        if let Err(error) = http.await {
            tracing::debug!(
                error = chain(&error),
                "connection at the kubelet's port ended"
            );
        }
        let work = granted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(work) = work {
            work.await;
        }
        drop((master_slot, stranger_slot));
    }
}

/// Waits until the value is true or its sender is gone.
async fn asked_to_end(shutdown: &mut watch::Receiver<bool>) {
    drop(shutdown.wait_for(|ended| *ended).await);
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

/// An answer in plain text.
pub fn text(status: StatusCode, message: &str) -> Response<Body> {
    answer(
        status,
        "text/plain",
        Bytes::copy_from_slice(message.as_bytes()),
    )
}

/// An answer of a media type.
pub fn answer(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
