//! A node's answer, as far as it is taken: a node is trusted with its own pods, not with the server's memory and time.
//!
//! Whatever the path and the status, an answer is handed on piece by piece, so that the node can send no faster than the client
//! takes (back-pressure), and it ends with the client. One that is not followed has a bound in bytes and in time; only the time
//! counts for which the node is waited for, never that of a slow client.

use crate::error::{ApiError, Reason};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep};

/// Bounds of what nodes answer.
#[derive(Debug, Clone)]
pub struct NodeLimits {
    /// Time to reach the node, send the request and get the answer's header.
    pub header: Duration,
    /// Bytes of the answer's header, and of what is read ahead of its body.
    pub header_bytes: usize,
    /// Fields of the answer's header.
    pub header_fields: usize,
    /// Time between two pieces of an answer.
    pub idle: Duration,
    /// The same where a log is followed: a container may say nothing for hours (the kubelet's own limit for streams).
    pub follow_idle: Duration,
    /// Time for which a node is waited for in all, beside a second for each [`NodeLimits::slowest`] bytes.
    pub wait: Duration,
    /// Bytes a second below which an answer that is not followed is cut.
    pub slowest: u64,
    /// Bytes of an answer that is not followed: some times the logs that a node keeps of a container.
    pub bytes: u64,
    /// Answers at once of one node, so that one that holds all of them back leaves room for the others'.
    pub per_node: usize,
    /// Answers at once of all nodes.
    pub total: usize,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(15),
            header_bytes: 64 << 10,
            header_fields: 100,
            idle: Duration::from_secs(30),
            follow_idle: Duration::from_secs(4 * 3600),
            wait: Duration::from_secs(60),
            slowest: 16 << 10,
            bytes: 512 << 20,
            per_node: 128,
            total: 2048,
        }
    }
}

/// What a request to a node is for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wish {
    /// A log is followed: the answer goes on as long as client and container do.
    pub(super) follow: bool,
    /// Bytes after which the client wants no more.
    pub(super) at_most: Option<u64>,
}

/// The calls to nodes that are under way.
#[derive(Debug)]
pub(crate) struct NodeCalls {
    total: usize,
    per_node: usize,
    open: Mutex<HashMap<String, usize>>,
}

/// The place of one call; given back when dropped.
#[derive(Debug)]
pub(super) struct NodeCall {
    calls: Arc<NodeCalls>,
    node: String,
}

impl NodeCalls {
    pub(crate) fn new(limits: &NodeLimits) -> Arc<Self> {
        Arc::new(Self {
            total: limits.total,
            per_node: limits.per_node,
            open: Mutex::default(),
        })
    }

    /// A place for one more call to a node.
    ///
    /// # Errors
    /// 429: this node, or all nodes, have as many as they may.
    pub(super) fn begin(self: &Arc<Self>, node: &str) -> Result<NodeCall, ApiError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let own = open.get(node).copied().unwrap_or_default();
        if own >= self.per_node || all >= self.total {
            let text = format!(
                "too many answers of node {node} are still being read, please try again later"
            );
            return Err(ApiError::new(Reason::TooManyRequests, text).retry_after(1));
        }
        open.insert(node.to_owned(), own + 1);
        Ok(NodeCall {
            calls: Arc::clone(self),
            node: node.to_owned(),
        })
    }
}

impl Drop for NodeCall {
    fn drop(&mut self) {
        let mut open = self
            .calls
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let left = open.get_mut(&self.node).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            open.remove(&self.node);
        }
    }
}

/// The task that drives a connection to a node; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Driver(pub(super) AbortHandle);

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
    #[error("the node's answer broke off")]
    Broken(#[source] hyper::Error),
}

/// The body of a node's answer.
#[derive(Debug)]
pub(super) struct NodeBody {
    /// None once it ended or was cut; the connection ends with it.
    source: Option<(Incoming, Driver, NodeCall)>,
    limits: NodeLimits,
    wish: Wish,
    taken: u64,
    /// For how long the node was waited for until now.
    waited: Duration,
    /// Since when it is waited for, and for how long it will be.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl NodeBody {
    pub(super) fn new(
        source: (Incoming, Driver, NodeCall),
        limits: NodeLimits,
        wish: Wish,
    ) -> Self {
        Self {
            source: Some(source),
            limits,
            wish,
            taken: 0,
            waited: Duration::ZERO,
            waiting: None,
        }
    }

    /// How long the node may let us wait from now on.
    fn patience(&self) -> Duration {
        if self.wish.follow {
            return self.limits.follow_idle;
        }
        let earned = Duration::from_secs(self.taken / self.limits.slowest.max(1));
        self.limits
            .idle
            .min((self.limits.wait + earned).saturating_sub(self.waited))
    }

    /// Takes a piece; none of it is kept beyond what the client wants.
    fn take(&mut self, mut piece: Bytes) -> Result<Bytes, Cut> {
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        let before = self.taken;
        self.taken += piece.len() as u64;
        if let Some(most) = self.wish.at_most.filter(|most| self.taken >= *most) {
            piece.truncate(usize::try_from(most.saturating_sub(before)).unwrap_or(usize::MAX));
            self.source = None;
        } else if !self.wish.follow && self.taken > self.limits.bytes {
            return Err(Cut::TooLong(self.limits.bytes));
        }
        Ok(piece)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        loop {
            let Some((incoming, ..)) = self.source.as_mut() else {
                return Poll::Ready(None);
            };
            match Pin::new(incoming).poll_frame(context) {
                Poll::Ready(None) => {
                    self.source = None;
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(Cut::Broken(error)))),
                // Trailers are not handed on.
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(piece) if !piece.is_empty() => return Poll::Ready(Some(self.take(piece))),
                    Ok(_) | Err(_) => {}
                },
                Poll::Pending => {
                    let patience = self.patience();
                    let (_, end) = self.waiting.get_or_insert_with(|| {
                        (Instant::now(), Box::pin(tokio::time::sleep(patience)))
                    });
                    return end.as_mut().poll(context).map(|()| Some(Err(Cut::TooSlow)));
                }
            }
        }
    }

    /// What a refusal says: its first bytes, as far as they come within the time for an answer's header.
    pub(super) async fn beginning(mut self, most: usize) -> String {
        let (limit, mut text) = (self.limits.header, Vec::new());
        let read = async {
            while let Some(Ok(frame)) = self.frame().await {
                text.extend(frame.into_data().unwrap_or_default());
                if text.len() >= most {
                    break;
                }
            }
        };
        // What came in time is told.
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
                    tracing::debug!(error = %cut, "a node's answer is cut");
                    self.source = None;
                    Err(cut.into())
                }
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.source
            .as_ref()
            .is_none_or(|(incoming, ..)| incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            // What is cut short has not the length that the node announced.
            Some((incoming, ..)) if self.wish.at_most.is_none() => incoming.size_hint(),
            Some(_) | None => SizeHint::default(),
        }
    }
}
