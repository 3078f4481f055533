//! What services beside the API implement so that one listener serves all: paths of their own, and
//! the deny list that every request is checked against.

use crate::Peer;
use http::{Method, Request, Response};
use master_client::{ApiError, Body, BoxFuture, UserInfo};
use std::fmt;
use tokio::sync::watch;

/// Paths outside the Kubernetes API: `/attest/…`, `/bootstrap/…`. The handler authorizes its
/// callers.
pub trait Extensions: fmt::Debug + Send + Sync {
    /// Whether this handler serves a path. Called before authorization.
    fn claims(&self, path: &str) -> bool;

    /// Whether this handler limits by itself how often strangers may ask for what is behind a
    /// method and path. By default the server limits them.
    fn limits_itself(&self, _method: &Method, _path: &str) -> bool {
        false
    }

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
    /// is empty if several objects were written. It has no default: a wrapper that forgot to
    /// forward it would acknowledge writes that are not in effect yet.
    fn in_force(&self, plural: &str, name: &str) -> BoxFuture<'static, bool>;

    /// Further metrics for `/metrics`, in the Prometheus text format (0.0.4).
    fn figures(&self) -> String {
        String::new()
    }

    /// The verdict log for callers that may read `/verdicts`; `None` if none is kept.
    fn verdicts(&self) -> Option<BoxFuture<'static, Result<Body, ApiError>>> {
        None
    }

    /// Writes into the log of verdicts that the user `by` orders the end of a node's machine or,
    /// with an `outcome`, how that order ended; `None` if no log is kept. The entry is on disk when
    /// this returns.
    fn order_given(
        &self,
        _node: &str,
        _by: &str,
        _order: &'static str,
        _outcome: &str,
    ) -> Option<BoxFuture<'static, Result<(), ApiError>>> {
        None
    }

    /// Answers a request. The body has not been read; the server limits its size
    /// (`master_api::Options::body_bytes`).
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
