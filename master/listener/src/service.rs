//! The server's interface for the listener.

use crate::peer::Peer;
use http::{Method, Request, Response};
use master_client::{Body, BoxFuture, UserInfo};
use std::fmt::Debug;
use tokio_util::sync::CancellationToken;

/// The server behind the listener.
pub trait Service: Debug + Send + Sync {
    /// Answers a request that came over a connection.
    fn handle(&self, request: Request<Body>, peer: Peer) -> BoxFuture<'static, Response<Body>>;

    /// Whether what is behind a method and path limits how often strangers may ask, and says so in
    /// its own way. They are not limited a second time then, unless they show a token.
    fn limits_itself(&self, method: &Method, path: &str) -> bool;

    /// Whether the caller with this certificate is denied.
    fn is_denied(&self, user: &UserInfo, peer: &Peer) -> bool;

    /// Waits until the caller with this certificate is denied.
    fn until_denied<'a>(&'a self, user: &'a UserInfo, peer: &'a Peer) -> BoxFuture<'a, ()>;

    /// Cancelled once the server drains: connections finish open requests and end.
    fn draining(&self) -> CancellationToken;

    /// Begins to drain: open watches end.
    fn drain(&self);
}
