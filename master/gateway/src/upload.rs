//! A request's body on its way to a program: as long as it moves, its answer is waited for.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use master_client::{Body as Content, BodyError};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// When a piece of a body last moved.
#[derive(Debug, Clone)]
pub struct Progress(Arc<Mutex<Instant>>);

impl Progress {
    /// Waits until nothing has moved for `limit`.
    pub async fn stalls(self, limit: Duration) {
        loop {
            let end = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + limit;
            if Instant::now() >= end {
                return;
            }
            sleep_until(end).await;
        }
    }
}

/// A request's body that notes when it moves.
#[derive(Debug)]
pub struct Upload {
    content: Content,
    moved: Progress,
}

impl Upload {
    /// The body of a request, and how far it has been sent.
    pub fn new(content: Content) -> (Self, Progress) {
        let moved = Progress(Arc::new(Mutex::new(Instant::now())));
        let upload = Self {
            content,
            moved: moved.clone(),
        };
        (upload, moved)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { content, moved } = self.get_mut();
        let polled = Pin::new(content).poll_frame(context);
        if polled.is_ready() {
            *moved.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}
