//! Idle connections: which requests count as open, and when a connection is idle.

use bytes::Bytes;
use http::Response;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use master_client::{Body, BodyError};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;

/// The open requests of one connection: from the header until the last byte of the answer is sent.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    open: watch::Sender<usize>,
}

/// One open request.
#[derive(Debug)]
pub(crate) struct UnderWay(watch::Sender<usize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            open: watch::Sender::new(0),
        }
    }

    pub(crate) fn begin(&self) -> UnderWay {
        self.open.send_modify(|open| *open += 1);
        UnderWay(self.open.clone())
    }

    /// Waits until no request has been open for `limit`. A watch counts as an open request.
    pub(crate) async fn idle(&self, limit: impl Fn() -> Duration) {
        let mut open = self.open.subscribe();
        loop {
            // The sender lives as long as `self`.
            drop(open.wait_for(|open| *open == 0).await);
            if tokio::time::timeout(limit(), open.changed()).await.is_err() {
                return;
            }
        }
    }
}

/// An answer's body; its request is open until this is dropped.
struct Counted {
    body: Body,
    _under_way: UnderWay,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        http_body::Body::poll_frame(Pin::new(&mut self.body), context)
    }

    fn is_end_stream(&self) -> bool {
        http_body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}

/// Keeps a request open until its answer has been sent.
pub(crate) fn counted(answer: Response<Body>, under_way: UnderWay) -> Response<Body> {
    answer.map(|body| {
        Counted {
            body,
            _under_way: under_way,
        }
        .boxed_unsync()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_under_way_keeps_its_connection_and_an_ended_one_does_not() {
        let (requests, limit) = (Requests::new(), Duration::from_millis(20));
        let watch = counted(Response::new(master_client::body("x")), requests.begin());
        let second = requests.begin();
        let idle = requests.idle(|| limit);
        let mut idle = std::pin::pin!(idle);
        assert!(
            tokio::time::timeout(limit * 5, idle.as_mut())
                .await
                .is_err(),
            "two are under way"
        );
        drop(second);
        assert!(
            tokio::time::timeout(limit * 5, idle.as_mut())
                .await
                .is_err(),
            "one is under way"
        );
        drop(watch);
        tokio::time::timeout(Duration::from_secs(30), idle)
            .await
            .expect("none is");
    }
}
