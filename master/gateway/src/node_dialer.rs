//! How connections to nodes are opened: the interface of the dialer, which the server does not have
//! itself.

use crate::ConnectionCheck;
use master_client::BoxFuture;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// The address of a node's kubelet API, from its Node object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTarget {
    /// The node's name, which its serving certificate must contain.
    pub name: String,
    /// Its first `InternalIP`, else its first `ExternalIP`. No name: a node that is taken over
    /// would choose the name server that this server waits for.
    pub address: IpAddr,
    /// `status.daemonEndpoints.kubeletEndpoint.Port`; 10250 if it is not set.
    pub port: u16,
}

/// A byte stream to a node, authenticated on both sides.
pub trait NodeStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> NodeStream for T {}

/// A node could not be reached.
#[derive(Debug, thiserror::Error)]
#[error("node {node} cannot be reached at {address}")]
pub struct DialError {
    /// The node.
    pub node: String,
    /// The address that was tried.
    pub address: String,
    /// The cause.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// A stream to a node, and whether it may be used again.
pub type ReusableStream = (Box<dyn NodeStream>, Option<Arc<dyn ConnectionCheck>>);

/// Connects to the kubelet API of nodes.
pub trait NodeDialer: fmt::Debug + Send + Sync {
    /// Opens a stream; the TLS handshake is complete when this returns.
    fn dial(&self, target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>>;

    /// The same for a stream that is to be used for several requests. A dialer that can't check
    /// later whether it would accept the node again returns `None` beside it: its streams are used
    /// once.
    fn dial_reusable(&self, to: NodeTarget) -> BoxFuture<'_, Result<ReusableStream, DialError>> {
        Box::pin(async move { Ok((self.dial(to).await?, None)) })
    }
}
