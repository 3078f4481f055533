//! Limits on a node's answer: a node is trusted with its own pods, not with the server's memory and
//! time.
//!
//! Every answer, of any path and status, is forwarded piece by piece, so that the node sends no
//! faster than the client reads (back-pressure), and it ends with the client. An answer that is not
//! followed is limited in bytes and in time; only the time spent waiting for the node counts, not
//! that spent waiting for a slow client. Only a good answer (2xx) is followed: it has its slot
//! among those of its node, [`NodeLimits::follow_idle`] between two pieces, and lasts as long as
//! its client and its node are there and not denied.

use crate::idle_connections::{IdleConnections, NodeConnection};
use crate::node_calls::{NodeCall, NodeCalls};
use bytes::Bytes;
use config_errors::chain;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep};

/// Limits on answers of nodes.
#[derive(Debug, Clone)]
pub struct NodeLimits {
    /// Time to connect, send the request and receive the answer's header.
    pub header: Duration,
    /// Bytes of the answer's header, and of the read buffer for its body.
    pub header_bytes: usize,
    /// Header fields of the answer.
    pub header_fields: usize,
    /// Time without a byte of a proxied request's body or of its answer's header, once the program
    /// is connected.
    pub program: Duration,
    /// Time between two pieces of an answer.
    pub idle: Duration,
    /// The same for a followed log and for what a program in a pod answers: they may write nothing
    /// for hours (the kubelet's own limit for streams).
    pub follow_idle: Duration,
    /// Total time spent waiting for a node, plus a second for each [`NodeLimits::slowest`] bytes
    /// received.
    pub wait: Duration,
    /// Bytes per second below which an answer that is not followed is cut.
    pub slowest: u64,
    /// Bytes of an answer that is not followed: several times the logs that a node keeps of a
    /// container.
    pub bytes: u64,
    /// Concurrent answers of one node, so that a node that stalls all of its own leaves room for
    /// others. One caller has a quarter of them ([`NodeCalls`]).
    pub per_node: usize,
    /// Concurrent answers of all nodes.
    pub total: usize,
    /// Concurrent tunnels to one node. They have slots of their own: they last as long as their
    /// clients like, and logs and metrics are answered beside them. What one caller of
    /// one host gets of them is enough for the 25 processes of upstream's suite in a cluster of one
    /// node.
    pub tunnels_per_node: usize,
    /// Concurrent tunnels to all nodes.
    pub tunnels: usize,
    /// Bytes that a tunnel holds of each direction at most.
    pub tunnel_buffer: usize,
    /// Connections to nodes that are kept for the next request of this server's own; each takes
    /// some 20 KiB.
    pub kept: usize,
    /// Time after which one of these is dropped if it was not used.
    pub kept_idle: Duration,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(15),
            header_bytes: 64 << 10,
            header_fields: 100,
            program: Duration::from_secs(300),
            idle: Duration::from_secs(30),
            follow_idle: Duration::from_secs(4 * 3600),
            wait: Duration::from_secs(60),
            slowest: 16 << 10,
            bytes: 512 << 20,
            per_node: 128,
            total: 2048,
            tunnels_per_node: 160,
            tunnels: 1024,
            tunnel_buffer: 32 << 10,
            kept: 2048,
            kept_idle: Duration::from_secs(150),
        }
    }
}

/// What kind of answer a request to a node expects.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expected {
    /// A log is followed: the answer lasts as long as client and container do.
    pub follow: bool,
    /// Bytes after which the client wants no more.
    pub at_most: Option<u64>,
}

impl Expected {
    /// What comes with this status: a failure is not followed, whatever was asked for.
    #[must_use]
    pub fn with(self, status: StatusCode) -> Self {
        Self {
            follow: self.follow && status.is_success(),
            ..self
        }
    }
}

impl NodeLimits {
    /// The slots of answers that are read.
    pub fn answers(&self) -> Arc<NodeCalls> {
        NodeCalls::new("answers", self.per_node, self.total)
    }

    /// The slots of tunnels.
    pub fn tunnels(&self) -> Arc<NodeCalls> {
        NodeCalls::new("tunnels", self.tunnels_per_node, self.tunnels)
    }
}

/// The task that drives a connection to a node; aborted when this is dropped.
#[derive(Debug)]
pub struct Driver(pub AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why an answer was cut.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error("the node's answer has more than {0} bytes")]
    TooLong(u64),
    #[error("the node sends its answer too slowly")]
    TooSlow,
    #[error("the connection failed during the node's answer")]
    Broken(#[source] hyper::Error),
}

/// Where an answer comes from, and what ends with it.
#[derive(Debug)]
struct Source {
    incoming: Incoming,
    driver: Driver,
    _slot: NodeCall,
}

/// The body of a node's answer.
#[derive(Debug)]
pub struct NodeBody {
    /// `None` once it ended or was cut; the connection ends with it.
    source: Option<Source>,
    /// Where the connection goes once the whole answer was read.
    connection: Option<(Arc<IdleConnections>, NodeConnection)>,
    limits: NodeLimits,
    expected: Expected,
    taken: u64,
    /// Total time spent waiting for the node.
    waited: Duration,
    /// When the current wait began, and its timer.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl NodeBody {
    /// The body of an answer whose connection ends, and whose slot is freed, with it.
    #[must_use]
    pub fn new(
        incoming: Incoming,
        driver: Driver,
        slot: NodeCall,
        limits: NodeLimits,
        expected: Expected,
    ) -> Self {
        Self {
            source: Some(Source {
                incoming,
                driver,
                _slot: slot,
            }),
            connection: None,
            limits,
            expected,
            taken: 0,
            waited: Duration::ZERO,
            waiting: None,
        }
    }

    /// The same body, whose connection is kept once the whole answer was read.
    #[must_use]
    pub fn keep_connection(self, idle: Arc<IdleConnections>, connection: NodeConnection) -> Self {
        Self {
            connection: Some((idle, connection)),
            ..self
        }
    }

    /// The whole answer was read.
    fn end(&mut self) {
        if let (Some(Source { driver, .. }), Some((idle, connection))) =
            (self.source.take(), self.connection.take())
        {
            idle.put(connection, driver);
        }
    }

    /// How long the current wait for the node may last.
    fn limit(&self) -> Duration {
        if self.expected.follow {
            return self.limits.follow_idle;
        }
        let earned = Duration::from_secs(self.taken / self.limits.slowest.max(1));
        self.limits
            .idle
            .min((self.limits.wait + earned).saturating_sub(self.waited))
    }

    /// Takes a piece, cut to what the client still wants.
    fn take(&mut self, mut piece: Bytes) -> Result<Bytes, Cut> {
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        let before = self.taken;
        self.taken += piece.len() as u64;
        if let Some(most) = self.expected.at_most.filter(|most| self.taken >= *most) {
            piece.truncate(usize::try_from(most.saturating_sub(before)).unwrap_or(usize::MAX));
            self.source = None;
        } else if !self.expected.follow && self.taken > self.limits.bytes {
            return Err(Cut::TooLong(self.limits.bytes));
        }
        Ok(piece)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        loop {
            let Some(source) = self.source.as_mut() else {
                return Poll::Ready(None);
            };
            match Pin::new(&mut source.incoming).poll_frame(context) {
                Poll::Ready(None) => {
                    self.end();
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(Cut::Broken(error)))),
                // Trailers are not forwarded.
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(piece) if !piece.is_empty() => return Poll::Ready(Some(self.take(piece))),
                    Ok(_) | Err(_) => {}
                },
                Poll::Pending => {
                    let limit = self.limit();
                    let (_, end) = self.waiting.get_or_insert_with(|| {
                        (Instant::now(), Box::pin(tokio::time::sleep(limit)))
                    });
                    return end.as_mut().poll(context).map(|()| Some(Err(Cut::TooSlow)));
                }
            }
        }
    }

    /// The first bytes of an error, as far as they arrive within the time limit of the header.
    pub async fn beginning(mut self, most: usize) -> String {
        let (limit, mut text) = (self.limits.header, Vec::new());
        let read = async {
            while let Some(Ok(frame)) = self.frame().await {
                text.extend(frame.into_data().unwrap_or_default());
                if text.len() >= most {
                    break;
                }
            }
        };
        // What arrived in time is used.
        tokio::time::timeout(limit, read).await.ok();
        text.truncate(most);
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Body for NodeBody {
    type Data = Bytes;
    type Error = master_client::BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = self.poll(context);
        polled.map(|piece| {
            piece.map(|piece| match piece {
                Ok(piece) => Ok(Frame::data(piece)),
                Err(cut) => {
                    tracing::debug!(error = chain(&cut), "truncated a node's response");
                    self.source = None;
                    Err(cut.into())
                }
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.source
            .as_ref()
            .is_none_or(|source| source.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            // An answer that is cut short has not the length that the node announced.
            Some(source) if self.expected.at_most.is_none() => source.incoming.size_hint(),
            Some(_) | None => SizeHint::default(),
        }
    }
}
