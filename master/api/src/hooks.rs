//! Registered with the server after it is built: further paths, the deny list, and connections to
//! nodes, whose interface is here.

use crate::denials::Denials;
use master_auth::Nodes;
use master_client::BoxFuture;
use master_gateway::ConnectionCheck;
use master_listener::Extensions;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
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

/// Registered with the server after it is built.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    pub(crate) extensions: OnceLock<Arc<dyn Extensions>>,
    pub(crate) denials: Denials,
    pub(crate) node_dialer: OnceLock<Arc<dyn NodeDialer>>,
}

impl Nodes for Hooks {
    fn denied(&self, node: &str) -> Option<String> {
        self.denials.reason(|list| list.node_denied(node))
    }

    fn may_register(&self, node: &str) -> Result<(), String> {
        match self.extensions.get() {
            Some(extensions) => extensions.may_register(node),
            None => Err("this server does not register nodes".to_owned()),
        }
    }
}
