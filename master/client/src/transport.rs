//! The connection of a client to the API.

use crate::body::Body;
use crate::resources::Resource;
use crate::user::UserInfo;
use http::{Request, Response};
use jiff::Timestamp;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An API that answers requests on behalf of a user. The holder may name any user, so a transport
/// is for components of the same process, never for external callers.
pub trait Transport: fmt::Debug + Send + Sync {
    /// Answers a request of `user`, with authorization, admission and limits as for every other
    /// caller.
    fn call(&self, request: Request<Body>, user: UserInfo) -> BoxFuture<'_, Response<Body>>;

    /// The time by the clock that gives objects their times.
    fn now(&self) -> Timestamp;

    /// The kinds that are served and stored, each once however many versions and groups serve it.
    fn resources(&self) -> Vec<Resource>;
}
