//! Interfaces that other crates implement for the server: further paths, the deny list, connections
//! to nodes.

use http::{Request, Response};
use master_auth::Nodes;
use master_client::{Body, BoxFuture, UserInfo};
use master_listener::Peer;
use master_schema::error::ApiError;
use std::fmt;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// Paths outside the Kubernetes API: `/attest/…`, `/bootstrap/…`. The handler authorizes its
/// callers.
pub trait Extensions: fmt::Debug + Send + Sync {
    /// Whether this handler serves a path. Called before authorization.
    fn claims(&self, path: &str) -> bool;

    /// Warnings for the writer of an object of this project's kinds; the object is accepted all the
    /// same.
    fn warnings(
        &self,
        _kind: &str,
        _object: &serde_json::Map<String, serde_json::Value>,
    ) -> Vec<String> {
        Vec::new()
    }

    /// Whether a node may create its own Node object.
    ///
    /// # Errors
    /// It may not; the text says why.
    fn may_register(&self, _node: &str) -> Result<(), String> {
        Err("the master makes the Node of a machine that it admitted".to_owned())
    }

    /// Waits until a write of an object of the project's group has taken effect in the service;
    /// `false` if it did not in time. Called after the write and before it is acknowledged; `name`
    /// is empty if several objects were written. It has no default: an implementation that wraps
    /// another and forgot to pass it on would acknowledge what is not in effect yet.
    fn in_force(&self, plural: &str, name: &str) -> BoxFuture<'static, bool>;

    /// Further metrics for `/metrics`, in the Prometheus text format (0.0.4).
    fn figures(&self) -> String {
        String::new()
    }

    /// The verdict log for callers that may read `/verdicts`; `None` if none is kept.
    fn verdicts(&self) -> Option<BoxFuture<'static, Result<Body, ApiError>>> {
        None
    }

    /// Answers a request. The body has not been read; the server limits its size
    /// ([`crate::Options::body_bytes`]).
    fn handle(
        &self,
        request: Request<Body>,
        peer: Peer,
        user: UserInfo,
    ) -> BoxFuture<'static, Response<Body>>;
}

/// Callers that are denied although their certificate is still valid. Consulted for every request,
/// and for open watches whenever it changes.
pub trait DenyList: fmt::Debug + Send + Sync {
    /// The reason why this caller is denied; `None` if it is not.
    fn denied(&self, user: &UserInfo, peer: &Peer) -> Option<String>;

    /// The reason why a node is denied. It covers every caller that acts for the node: tokens bound
    /// to it or to its pods, and the server's own connections to it.
    fn node_denied(&self, _node: &str) -> Option<String> {
        None
    }

    /// Changes whenever the deny list does.
    fn changed(&self) -> watch::Receiver<u64>;
}

/// The address of a node's kubelet API, from its Node object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTarget {
    /// The node's name, which its serving certificate must contain.
    pub name: String,
    /// Its `InternalIP`, else another of its addresses.
    pub address: String,
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

/// Connects to the kubelet API of nodes.
pub trait NodeDialer: fmt::Debug + Send + Sync {
    /// Opens a stream; the TLS handshake is complete when this returns.
    fn dial(&self, target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>>;
}

/// What the program registers with the server after it is built.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    pub(crate) extensions: OnceLock<Arc<dyn Extensions>>,
    pub(crate) deny_list: OnceLock<Arc<dyn DenyList>>,
    pub(crate) node_dialer: OnceLock<Arc<dyn NodeDialer>>,
}

impl Nodes for Hooks {
    fn denied(&self, node: &str) -> Option<String> {
        self.deny_list.get()?.node_denied(node)
    }

    fn may_register(&self, node: &str) -> Result<(), String> {
        match self.extensions.get() {
            Some(extensions) => extensions.may_register(node),
            None => Err("this server does not register nodes".to_owned()),
        }
    }
}
