//! Slots for requests in progress, and how users share them.

use crate::answers::host;
use crate::bodies::{Bodies, BodyLimits, Whole};
use crate::peer::Peer;
use bytes::Bytes;
use config_kube::identity::MASTERS_GROUP;
use config_limits::{Room, Share, Shares, Taker};
use http::Response;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use master_client::{ApiError, Body, BodyError, Reason, UserInfo, body};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The slots of a server. A user may have a quarter of them, and a quarter is reserved for nodes.
///
/// A slot is held until the client has read the answer ([`Entered::hold`]). Many callers may be one
/// user, as all pods of a namespace's default account are: so the answers to reads that one host has
/// not read take at most half of the slots of their user.
#[derive(Debug)]
pub struct Gate {
    unread: Arc<Shares>,
    reads: Arc<Shares>,
    writes: Arc<Shares>,
    bodies: Bodies,
}

/// A request's slot, and its part of the budget of bodies; freed when this is dropped.
#[derive(Debug)]
pub struct Entered {
    _whole: Option<Whole>,
    place: Option<Share>,
    /// User and host, where the answer counts among those that the host has not read.
    reader: Option<(Arc<Shares>, String)>,
    unread: Option<Share>,
}

impl Entered {
    /// The answer; what was taken for its request is freed once it was read, or its reader is gone.
    ///
    /// # Errors
    /// 429: the host has too many answers to read.
    pub fn hold(mut self, answer: Response<Body>) -> Result<Response<Body>, ApiError> {
        if self.place.is_none() {
            return Ok(answer);
        }
        if let Some((unread, user)) = self.reader.take() {
            let taker = Taker {
                user: &user,
                kept_for: false,
            };
            self.unread = Some(unread.take(taker, 1).ok_or_else(too_many)?);
        }
        Ok(answer.map(|body| {
            Held {
                body,
                _entered: self,
            }
            .boxed_unsync()
        }))
    }
}

/// An answer's body, and what was taken for its request.
struct Held {
    body: Body,
    _entered: Entered,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        http_body::Body::poll_frame(Pin::new(&mut self.body), context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Gate {
    /// This many slots for reads and for writes.
    pub fn new(reads: usize, writes: usize, bodies: BodyLimits) -> Self {
        let unread = Room {
            total: reads,
            part: Room::of_quarters(reads).part.div_ceil(2),
            kept: 0,
        };
        Self {
            unread: Shares::new(unread),
            reads: Shares::new(Room::of_quarters(reads)),
            writes: Shares::new(Room::of_quarters(writes)),
            bodies: Bodies::new(bodies),
        }
    }

    /// Reads and writes in progress.
    pub fn running(&self) -> [usize; 2] {
        [self.reads.taken(), self.writes.taken()]
    }

    /// Takes a slot for a read, or for a write after its body is complete: a slow sender holds no
    /// slot. Callers inside the process and members of `system:masters` take none, so that an admin
    /// can act on an overloaded server (upstream exempts them too).
    ///
    /// # Errors
    /// 429: there is no slot for the user; otherwise the fault of the body.
    pub async fn enter(
        &self,
        write: bool,
        content: Body,
        user: &UserInfo,
        peer: &Peer,
    ) -> Result<(Body, Entered), ApiError> {
        let counted = peer.remote.is_some() && !user.in_group(MASTERS_GROUP);
        let taker = counted.then(|| Taker {
            user: &user.name,
            kept_for: user.node().is_some(),
        });
        let (content, whole, room) = if write {
            let whole = self.bodies.read(content, taker).await?;
            (body(whole.bytes.clone()), Some(whole), &self.writes)
        } else {
            (content, None, &self.reads)
        };
        let place = taker.map(|taker| room.take(taker, 1).ok_or_else(too_many));
        let reader = taker.filter(|taker| !write && !taker.kept_for);
        let reader = reader.zip(peer.remote).map(|(taker, remote)| {
            let name = format!("{}\n{}", taker.user, host(remote.ip()));
            (Arc::clone(&self.unread), name)
        });
        let entered = Entered {
            _whole: whole,
            place: place.transpose()?,
            reader,
            unread: None,
        };
        Ok((content, entered))
    }
}

/// 429, with a retry after a second.
pub fn too_many() -> ApiError {
    ApiError::new(
        Reason::TooManyRequests,
        "too many requests, please try again later",
    )
    .retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn peer(last: u8) -> Peer {
        Peer {
            remote: Some(SocketAddr::from(([192, 0, 2, last], 40_000))),
            ..Peer::default()
        }
    }

    #[tokio::test]
    async fn a_host_that_reads_nothing_leaves_half_of_its_users_slots_and_all_of_others() {
        let gate = Gate::new(16, 16, BodyLimits::default());
        let pod = UserInfo::authenticated("system:serviceaccount:a:default", [""; 0]);
        let ask = async |user: &UserInfo, host: u8| {
            let (_, entered) = gate.enter(false, body(""), user, &peer(host)).await?;
            entered.hold(Response::new(body("answer")))
        };
        let mut held = Vec::new();
        for _ in 0..8 {
            held.extend(ask(&pod, 1).await);
        }
        assert_eq!((held.len(), gate.running()), (2, [2, 0]));
        for _ in 0..8 {
            held.extend(ask(&pod, 2).await);
        }
        assert_eq!(held.len(), 4, "another pod of the same account");
        assert!(ask(&pod, 3).await.is_err(), "the user's quarter");
        assert!(
            ask(&UserInfo::authenticated("jane", [""; 0]), 1)
                .await
                .is_ok()
        );
        // What is worked on has no such bound.
        drop(held);
        let work = async |_| gate.enter(false, body(""), &pod, &peer(1)).await;
        for number in 0..4 {
            let (_, entered) = work(number).await.unwrap();
            let read = entered.hold(Response::new(body("answer"))).unwrap();
            assert_eq!(gate.running(), [1, 0], "a slot is held until it is read");
            assert_eq!(
                read.into_body().collect().await.unwrap().to_bytes(),
                "answer"
            );
            assert_eq!(gate.running(), [0, 0]);
        }
    }
}
