//! Ends answers to callers that are denied while the answer is sent.
//!
//! Guarantee: once the deny list has changed, no further part of an answer is sent to a denied
//! caller, also of answers begun before. A change of the deny list that precedes the
//! acknowledgement of a write is in force for everything after that acknowledgement.

use crate::{Denials, DenyList, Peer};
use bytes::Bytes;
use http::Response;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use master_client::{Body, UserInfo};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::watch;

/// The caller, as the deny list identifies it. Clones share it.
#[derive(Debug, Clone)]
pub struct Caller(Arc<(UserInfo, Peer)>);

impl Caller {
    /// The caller if the deny list could ever deny it; `None` for callers inside the process and
    /// those not tied to a node.
    pub fn of(user: &UserInfo, peer: &Peer) -> Option<Self> {
        let tied = user.node().is_some() || !user.extra.is_empty() || !peer.certificates.is_empty();
        (peer.remote.is_some() && tied).then(|| Self(Arc::new((user.clone(), peer.clone()))))
    }

    /// Whether it is a node, or a pod of one: a caller that is denied with its machine.
    pub fn is_of_a_node(&self) -> bool {
        let (user, _) = &*self.0;
        user.node().is_some() || !user.extra.is_empty()
    }

    /// The reason why the caller is denied, if it is.
    pub fn denied(&self, list: &dyn DenyList) -> Option<String> {
        let (user, peer) = &*self.0;
        list.denied(user, peer)
    }

    /// The answer with a body that ends as soon as its caller is denied.
    pub fn guard(self, denials: &Denials, response: Response<Body>) -> Response<Body> {
        let Some(changed) = denials.changed() else {
            return response;
        };
        let denials = denials.clone();
        response.map(|body| {
            Guarded {
                body,
                changed,
                caller: self,
                denials,
                ended: false,
            }
            .boxed_unsync()
        })
    }
}

/// A body that checks its caller whenever the deny list changed.
struct Guarded {
    body: Body,
    changed: watch::Receiver<u64>,
    caller: Caller,
    denials: Denials,
    /// The caller was denied: the body ends, and polling it again yields nothing.
    ended: bool,
}

impl http_body::Body for Guarded {
    type Data = Bytes;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let frame = Pin::new(&mut this.body).poll_frame(context);
        if frame.is_ready() && this.changed.has_changed().unwrap_or(false) {
            this.changed.mark_unchanged();
            let denial = this.denials.reason(|list| this.caller.denied(list));
            if denial.is_some() {
                this.ended = true;
                return Poll::Ready(None);
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
