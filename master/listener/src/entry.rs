//! The way of a request into the server and of its answer out of it, by what its connection proved.
//!
//! An answer stays in memory until its client reads it, and an HTTP/2 client decides when. So a
//! client that proved nothing has few requests open at once on a connection. What is beyond is
//! answered without a body: a header waits for no window, so nothing of it stays.

use crate::connections::Slot;
use crate::idle::{Requests, UnderWay, counted};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use master_client::{Body, body};
use std::sync::Arc;

/// Whether a request may be worked on.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It may.
    Open(Open),
    /// The connection has too many open.
    Refused,
}

/// An open request.
#[derive(Debug)]
pub(crate) struct Open {
    under_way: UnderWay,
    slot: Arc<Slot>,
    /// How many requests of strangers its connection may have open.
    most: usize,
}

impl Entry {
    /// Decides about a request. One with a token is let in: its caller may be known once the token
    /// is looked at, and clients open many watches at once on a new connection.
    pub(crate) fn of<T>(
        requests: &Requests,
        slot: &Arc<Slot>,
        most: usize,
        request: &Request<T>,
    ) -> Self {
        let mut under_way = requests.begin();
        let stranger = !slot.is_proven() && !may_show_token(request.headers());
        if stranger && !under_way.is_strangers(most) {
            return Self::Refused;
        }
        Self::Open(Open {
            under_way,
            slot: Arc::clone(slot),
            most,
        })
    }
}

impl Open {
    /// Lets the answer out; the request is open until its body is dropped.
    pub(crate) fn finish(self, answer: Response<Body>) -> Response<Body> {
        let Self {
            mut under_way,
            slot,
            most,
        } = self;
        if slot.is_proven() || under_way.is_strangers(most) {
            counted(answer, under_way)
        } else {
            // Its token was refused, and others before it are not read yet.
            bare(answer.status())
        }
    }
}

/// Whether a request has a place for a token.
fn may_show_token(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION)
        || headers.contains_key(header::SEC_WEBSOCKET_PROTOCOL)
}

fn bare(status: StatusCode) -> Response<Body> {
    let mut answer = Response::new(body(""));
    *answer.status_mut() = status;
    answer
}

/// 429 without a body, with a retry after a second.
pub(crate) fn refusal() -> Response<Body> {
    let mut answer = bare(StatusCode::TOO_MANY_REQUESTS);
    let headers = answer.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}
