//! What other rooms hang into the server: further paths, the deny list, the way to nodes.

use crate::error::ApiError;
use crate::peer::Peer;
use http::{Request, Response};
use master_client::{Body, BoxFuture, UserInfo};
use std::fmt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// Paths that are not Kubernetes API: `/attest/…`, `/bootstrap/…`. The handler authorizes by itself.
pub trait Extensions: fmt::Debug + Send + Sync {
    /// Whether a path is its own. Asked before authorization.
    fn claims(&self, path: &str) -> bool;

    /// What whoever writes an object of the project's own kinds is to be warned of; the object is taken all the same.
    fn warnings(
        &self,
        _kind: &str,
        _object: &serde_json::Map<String, serde_json::Value>,
    ) -> Vec<String> {
        Vec::new()
    }

    /// Whether a node may create its own Node object; else why not.
    fn may_register(&self, _node: &str) -> Result<(), String> {
        Err("the master makes the Node of a machine that it admitted".to_owned())
    }

    /// Waits until a write of an object of the project's own group is in force wherever the service decides by it; whether it
    /// is so in time. Asked after the write and before it is acknowledged; `name` is empty where several were written.
    fn in_force(&self, _plural: &str, _name: &str) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }

    /// Further figures for `/metrics`, in the text form (0.0.4).
    fn figures(&self) -> String {
        String::new()
    }

    /// The log of verdicts, for whoever may read `/verdicts`; none where none is kept.
    fn verdicts(&self) -> Option<BoxFuture<'static, Result<Body, ApiError>>> {
        None
    }

    /// Answers. The body is not yet read; reading is limited by the server ([`crate::Options::body_bytes`]).
    fn handle(
        &self,
        request: Request<Body>,
        peer: Peer,
        user: UserInfo,
    ) -> BoxFuture<'static, Response<Body>>;
}

/// Who is shut out although the certificate is still valid. Asked at every request, and for open watches
/// whenever it changes.
pub trait DenyList: fmt::Debug + Send + Sync {
    /// Why this caller is denied; none where it is not.
    fn denied(&self, user: &UserInfo, peer: &Peer) -> Option<String>;

    /// Why a node is shut out, whoever speaks for it: tokens that are bound to it or to its pods, and the server's own
    /// calls to it.
    fn node_denied(&self, _node: &str) -> Option<String> {
        None
    }

    /// Changes whenever the list does.
    fn changed(&self) -> watch::Receiver<u64>;
}

/// A node's kubelet API, as its Node object tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTarget {
    /// The node's name, which its serving certificate must carry.
    pub name: String,
    /// Its `InternalIP` (or what it has).
    pub address: String,
    /// `status.daemonEndpoints.kubeletEndpoint.Port`; 10250 where it says nothing.
    pub port: u16,
}

/// A byte stream to a node, already authenticated on both sides.
pub trait NodeStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> NodeStream for T {}

/// Why a node could not be reached.
#[derive(Debug, thiserror::Error)]
#[error("node {node} cannot be reached at {address}")]
pub struct DialError {
    /// The node.
    pub node: String,
    /// Where it was looked for.
    pub address: String,
    /// What went wrong.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Connects to the kubelet API of nodes.
pub trait NodeDialer: fmt::Debug + Send + Sync {
    /// Opens a stream; TLS is done when it is returned.
    fn dial(&self, target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>>;
}
