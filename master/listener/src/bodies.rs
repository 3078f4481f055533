//! Reads request bodies completely before a request is handled: within limits of bytes and time,
//! and of a budget that users share.
//!
//! A slow sender holds a part of this budget and nothing else: only requests with a complete body
//! take a slot for work.

use bytes::{Bytes, BytesMut};
use config_limits::{Capacity, Share, Shares, Taker};
use http_body_util::BodyExt as _;
use master_client::{ApiError, Body, Reason};
use std::sync::Arc;
use std::time::Duration;

/// Limits of bodies.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Bytes of one body.
    pub each: usize,
    /// Time for the client to send it.
    pub time: Duration,
    /// Bytes of all bodies that are being read or worked on.
    pub budget: Capacity,
    /// Bytes of the budget that a body takes before its first one: a request has a header too, so
    /// this bounds the number of requests.
    pub begun: usize,
}

impl Default for BodyLimits {
    /// All users except nodes together may have 3,072 requests whose bodies have not arrived, those
    /// of one host 1,536, one user 512, and a node 128.
    fn default() -> Self {
        Self {
            each: 3 << 20,
            time: Duration::from_secs(60),
            budget: Capacity {
                total: 256 << 20,
                part: 32 << 20,
                kept: 64 << 20,
            },
            begun: 64 << 10,
        }
    }
}

/// The budget of bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    limits: BodyLimits,
    budget: Arc<Shares>,
}

/// A complete body; its part of the budget is freed when this is dropped.
#[derive(Debug)]
pub(crate) struct CompleteBody {
    /// The body.
    pub(crate) bytes: Bytes,
    _share: Option<Share>,
}

impl Bodies {
    /// A budget of which nothing is used.
    pub(crate) fn new(limits: BodyLimits) -> Self {
        Self {
            limits,
            budget: Shares::new(limits.budget),
        }
    }

    /// Reads a body. Without a `taker` (callers inside the process, and admins) it takes nothing of
    /// the budget.
    ///
    /// # Errors
    /// The body is too large, does not come in time or ends early; the budget is used up, by this
    /// user or by all.
    pub(crate) async fn read(
        &self,
        content: Body,
        taker: Option<Taker<'_>>,
    ) -> Result<CompleteBody, ApiError> {
        let share = match taker {
            Some(taker) => Some(
                self.budget
                    .take(taker, self.limits.begun)
                    .ok_or_else(full)?,
            ),
            None => None,
        };
        let collected = tokio::time::timeout(self.limits.time, self.collect(content, share)).await;
        collected.unwrap_or_else(|_elapsed| {
            Err(ApiError::new(
                Reason::Timeout,
                "the request's body did not arrive in time",
            ))
        })
    }

    async fn collect(
        &self,
        mut content: Body,
        share: Option<Share>,
    ) -> Result<CompleteBody, ApiError> {
        let (mut bytes, mut share, limit) = (BytesMut::new(), share, self.limits.each);
        while let Some(frame) = content.frame().await {
            let frame = frame.map_err(|error| {
                ApiError::new(
                    Reason::BadRequest,
                    format!("the request's body ended early: {error}"),
                )
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if bytes.len() + data.len() > limit {
                let text = format!("Request entity too large: limit is {limit}");
                return Err(ApiError::new(Reason::RequestEntityTooLarge, text));
            }
            if share.as_mut().is_some_and(|share| !share.grow(data.len())) {
                return Err(full());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(CompleteBody {
            bytes: bytes.freeze(),
            _share: share,
        })
    }
}

fn full() -> ApiError {
    ApiError::new(
        Reason::TooManyRequests,
        "too many bodies of requests are being read, please try again later",
    )
    .retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use master_client::{BodyError, body};
    use tokio::sync::mpsc;

    const LIMITS: BodyLimits = BodyLimits {
        each: 100,
        time: Duration::from_secs(3600),
        budget: Capacity {
            total: 1500,
            part: 150,
            kept: 1200,
        },
        begun: 50,
    };

    const fn user(user: &str) -> Taker<'_> {
        Taker {
            user,
            host: None,
            kept_for: false,
        }
    }

    const NODE: Taker<'static> = Taker {
        user: "system:node:n",
        host: None,
        kept_for: true,
    };

    /// A body whose pieces the test sends.
    fn slow() -> (mpsc::UnboundedSender<&'static str>, Body) {
        let (sender, mut pieces) = mpsc::unbounded_channel();
        let frames = futures_util::stream::poll_fn(move |context| {
            pieces.poll_recv(context).map(|piece| {
                piece.map(|piece: &'static str| Ok::<_, BodyError>(Frame::data(Bytes::from(piece))))
            })
        });
        (sender, StreamBody::new(frames).boxed_unsync())
    }

    fn code(read: Result<CompleteBody, ApiError>) -> u16 {
        read.err().map_or(200, |error| error.code)
    }

    #[tokio::test]
    async fn slow_senders_hold_their_own_part_and_nodes_are_served() {
        let bodies = Bodies::new(LIMITS);
        let mut held = Vec::new();
        for name in ["a", "a", "a", "b", "b", "b"] {
            let (sender, body) = slow();
            let mut reading = Box::pin(bodies.read(body, Some(user(name))));
            assert!(reading.as_mut().now_or_never().is_none(), "{name}");
            held.push((sender, reading));
        }
        assert_eq!(
            code(bodies.read(body("x"), Some(user("a"))).await),
            429,
            "its part"
        );
        assert_eq!(
            code(bodies.read(body("x"), Some(user("c"))).await),
            429,
            "of all"
        );
        assert_eq!(
            code(bodies.read(body("x".repeat(50)), Some(NODE)).await),
            200
        );
        assert_eq!(code(bodies.read(body("x"), None).await), 200, "an admin's");
        drop(held);
        assert_eq!(bodies.budget.taken(), 0);
    }

    #[tokio::test]
    async fn bytes_count_from_their_arrival_until_the_answer() {
        let bodies = Bodies::new(LIMITS);
        let first = bodies
            .read(body("x".repeat(60)), Some(user("a")))
            .await
            .unwrap();
        assert_eq!((first.bytes.len(), bodies.budget.taken()), (60, 110));
        assert_eq!(code(bodies.read(body(""), Some(user("a"))).await), 429);
        drop(first);
        let (sender, content) = slow();
        sender.send("0123456789").unwrap();
        let mut reading = Box::pin(bodies.read(content, Some(user("a"))));
        assert!(reading.as_mut().now_or_never().is_none());
        assert_eq!(bodies.budget.taken(), 60);
        drop(sender);
        assert_eq!(reading.await.unwrap().bytes, "0123456789");
        assert_eq!(bodies.budget.taken(), 0);
    }

    #[tokio::test]
    async fn a_body_is_limited_in_size_and_time() {
        let bodies = Bodies::new(BodyLimits {
            time: Duration::from_millis(20),
            ..LIMITS
        });
        assert_eq!(
            code(bodies.read(body("x".repeat(100)), Some(NODE)).await),
            200
        );
        assert_eq!(code(bodies.read(body("x".repeat(101)), None).await), 413);
        let (_sender, content) = slow();
        assert_eq!(code(bodies.read(content, Some(user("a"))).await), 504);
        assert_eq!(bodies.budget.taken(), 0);
    }
}
