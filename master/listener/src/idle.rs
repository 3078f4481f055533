//! Idle connections: which requests count as open, and when a connection is idle, or its client
//! stops reading.
//!
//! Requests only write down times. The task that waits for either reads them when the limit could
//! have passed at the earliest, so a request sets no timer and wakes no task.

use bytes::Bytes;
use config_limits::Share;
use http::Response;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use master_client::{Body, BodyError};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Bytes that are passed to the connection at once, so that progress in reading a large answer can
/// be measured.
const PIECE: usize = 64 << 10;

/// The open requests of one connection: from the header until the last byte of the answer is sent.
#[derive(Debug, Clone)]
pub(crate) struct Requests(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    open: usize,
    /// When the last request ended, or the connection began.
    ended: Instant,
    /// The number of the next request.
    next: u64,
    /// How many of them count as a stranger's.
    strangers: usize,
    /// Answers that have something to send, by their requests' numbers, and since when.
    offered: Vec<(u64, Instant)>,
}

impl State {
    /// Since when no request has been open; `None` while one is.
    fn idle(&self) -> Option<Instant> {
        (self.open == 0).then_some(self.ended)
    }

    /// Since when the client has read nothing of an answer; `None` if it has read all that there
    /// is.
    fn unread(&self) -> Option<Instant> {
        self.offered.iter().map(|(_, since)| *since).min()
    }
}

/// One open request.
#[derive(Debug)]
pub(crate) struct InFlight {
    requests: Requests,
    id: u64,
    /// Whether it counts as a stranger's.
    stranger: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.requests.state();
        state.offered.retain(|(id, _)| *id != self.id);
        state.open -= 1;
        state.strangers -= usize::from(self.stranger);
        state.ended = Instant::now();
    }
}

impl InFlight {
    /// Counts the request as one of a caller that proved nothing, until it ends; returns whether
    /// its connection has at most `most` of them.
    pub(crate) fn is_strangers(&mut self, most: usize) -> bool {
        let mut state = self.requests.state();
        if !self.stranger && state.strangers < most {
            state.strangers += 1;
            self.stranger = true;
        }
        self.stranger
    }

    /// The client has to read from now on.
    fn offered(&self) {
        let mut state = self.requests.state();
        state.offered.retain(|(id, _)| *id != self.id);
        state.offered.push((self.id, Instant::now()));
    }

    /// The client has nothing to read.
    fn taken(&self) {
        let mut state = self.requests.state();
        state.offered.retain(|(id, _)| *id != self.id);
    }
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            open: 0,
            ended: Instant::now(),
            next: 0,
            strangers: 0,
            offered: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self) -> InFlight {
        let mut state = self.state();
        state.open += 1;
        state.next += 1;
        InFlight {
            requests: self.clone(),
            id: state.next,
            stranger: false,
        }
    }

    /// Waits until no request has been open for `limit`. A watch counts as an open request.
    pub(crate) async fn idle(&self, limit: impl Fn() -> Duration) {
        self.outlasts(State::idle, limit).await;
    }

    /// Waits until the client has read nothing for `limit` of an answer that has something to send:
    /// with HTTP/2 a client controls the flow of each answer, and may stop one while it uses
    /// others. A watch without events has nothing to send.
    pub(crate) async fn unread(&self, limit: impl Fn() -> Duration) {
        self.outlasts(State::unread, limit).await;
    }

    /// Waits until something has been so for `limit`; `since` returns since when it is so, if it
    /// is.
    async fn outlasts(
        &self,
        since: impl Fn(&State) -> Option<Instant>,
        limit: impl Fn() -> Duration,
    ) {
        loop {
            let since = since(&self.state());
            let end = since.unwrap_or_else(Instant::now) + limit();
            if since.is_some() && end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// An answer's body; its request is open until this is dropped.
struct Counted {
    body: Body,
    /// Data that the body has returned and the connection has not taken yet.
    rest: Bytes,
    in_flight: InFlight,
    _share: Option<Share>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = BodyError;

    /// The connection asks for more after the client has read the previous data.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            match http_body::Body::poll_frame(Pin::new(&mut this.body), context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => {
                        this.in_flight.offered();
                        return Poll::Ready(Some(Ok(trailers)));
                    }
                },
                other @ (Poll::Ready(_) | Poll::Pending) => {
                    this.in_flight.taken();
                    return other;
                }
            }
        }
        this.in_flight.offered();
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && http_body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

/// Keeps a request open, and its share of the memory of answers taken, until its answer has been
/// sent.
pub(crate) fn counted(
    answer: Response<Body>,
    in_flight: InFlight,
    share: Option<Share>,
) -> Response<Body> {
    in_flight.offered();
    answer.map(|body| {
        Counted {
            body,
            rest: Bytes::new(),
            in_flight,
            _share: share,
        }
        .boxed_unsync()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;

    #[tokio::test]
    async fn an_open_request_keeps_its_connection_and_an_ended_one_does_not() {
        let (requests, limit) = (Requests::new(), Duration::from_millis(20));
        let watch = counted(
            Response::new(master_client::body("x")),
            requests.begin(),
            None,
        );
        let second = requests.begin();
        let idle = requests.idle(|| limit);
        let mut idle = std::pin::pin!(idle);
        assert!(
            tokio::time::timeout(limit * 5, idle.as_mut())
                .await
                .is_err(),
            "two are open"
        );
        drop(second);
        assert!(
            tokio::time::timeout(limit * 5, idle.as_mut())
                .await
                .is_err(),
            "one is open"
        );
        drop(watch);
        tokio::time::timeout(Duration::from_secs(30), idle)
            .await
            .expect("none is");
    }
    #[tokio::test]
    async fn an_unread_answer_times_out_and_a_watch_without_events_does_not() {
        let (requests, limit) = (Requests::new(), Duration::from_millis(50));
        let ended =
            |patience: u32| tokio::time::timeout(limit * patience, requests.unread(|| limit));
        let _worked_on = requests.begin();
        assert!(ended(4).await.is_err(), "no answer yet");
        let (sender, mut events) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
        let frames = futures_util::stream::poll_fn(move |context| {
            let event = events.poll_recv(context);
            event.map(|event| event.map(|event| Ok::<_, BodyError>(Frame::data(event))))
        });
        let watch = http_body_util::StreamBody::new(frames).boxed_unsync();
        let mut watch = counted(Response::new(watch), requests.begin(), None).into_body();
        assert!(futures_util::poll!(watch.frame()).is_pending());
        assert!(ended(4).await.is_err(), "it has nothing to send");
        // Larger than a piece: taken in parts, and each part is progress.
        sender.send(vec![7; PIECE + 1].into()).unwrap();
        let first = watch.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), PIECE);
        assert!(!watch.is_end_stream() && watch.size_hint().lower() == 1);
        ended(600).await.expect("the rest is not taken");
        let second = watch.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(second.len(), 1);
        assert!(futures_util::poll!(watch.frame()).is_pending());
        assert!(ended(4).await.is_err(), "everything was taken");
        drop(watch);
        let untouched = counted(
            Response::new(master_client::body("x")),
            requests.begin(),
            None,
        );
        assert_eq!(untouched.body().size_hint().exact(), Some(1));
        ended(600).await.expect("nothing was taken of it");
        drop(untouched);
        assert!(ended(4).await.is_err());
    }
}
