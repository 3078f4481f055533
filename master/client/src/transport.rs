//! What carries a client's requests to the API.

use crate::body::Body;
use crate::resources::Resource;
use crate::user::UserInfo;
use http::{Request, Response};
use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An API that answers requests in a user's name. Whoever holds one may name any user: it is for parts of one process,
/// never for callers from outside.
pub trait Transport: fmt::Debug + Send + Sync {
    /// Answers a request of `user`, with authorization, admission and limits as for every other caller.
    fn call(&self, request: Request<Body>, user: UserInfo) -> BoxFuture<'_, Response<Body>>;

    /// The kinds that are served and stored, each once however many versions and groups show it.
    fn resources(&self) -> Vec<Resource>;
}
