//! Answers to callers that may be shut out while they are answered.
//!
//! Guarantee: once the deny list has changed, no part of an answer leaves for a caller whom it denies, whatever was begun
//! before. What the deny list took before a write was acknowledged holds for everything after the acknowledgement.

use crate::peer::Peer;
use crate::server::ApiServer;
use bytes::Bytes;
use http::Response;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use master_client::{Body, UserInfo};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::watch;

/// Who was asked for, as the deny list knows it.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    user: UserInfo,
    peer: Peer,
}

impl Caller {
    /// A caller that the deny list may come to know; none where it is a part of this process, or nothing ties it to a node.
    pub(crate) fn of(user: &UserInfo, peer: &Peer) -> Option<Self> {
        let tied = user.node().is_some() || !user.extra.is_empty() || !peer.certificates.is_empty();
        (peer.remote.is_some() && tied).then(|| Self {
            user: user.clone(),
            peer: peer.clone(),
        })
    }

    /// Why it is shut out by now, if it is.
    pub(crate) fn denial(&self, api: &ApiServer) -> Option<String> {
        api.denial(&self.user, &self.peer)
    }

    /// The answer, which ends in the moment in which its caller is shut out.
    pub(crate) fn guard(self, api: &ApiServer, response: Response<Body>) -> Response<Body> {
        let Some(list) = api.deny_list() else {
            return response;
        };
        let changed = list.changed();
        let api = api.clone();
        response.map(|body| {
            Guarded {
                body,
                changed,
                caller: self,
                api,
                ended: false,
            }
            .boxed_unsync()
        })
    }
}

/// A body whose caller is looked at whenever the deny list changed.
struct Guarded {
    body: Body,
    changed: watch::Receiver<u64>,
    caller: Caller,
    api: ApiServer,
    /// The caller was shut out: nothing more comes, however often somebody asks.
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
            if this.caller.denial(&this.api).is_some() {
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
