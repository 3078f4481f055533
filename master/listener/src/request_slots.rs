//! Slots for requests in progress, and how users share them.

use crate::bodies::{Bodies, BodyLimits, CompleteBody};
use crate::peer::Peer;
use bytes::Bytes;
use config_kube::identity::{MASTERS_GROUP, party};
use config_limits::{Capacity, Share, Shares, Taker, host as host_name};
use http::Response;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use master_client::{ApiError, Body, BodyError, HeldBytes, Reason, UserInfo, body};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Answers up to this size wait for their readers without a slot.
const SMALL_ANSWER: usize = 16 << 10;

/// The slots of a server. A user, or all accounts of a namespace, may have a quarter of them, and a
/// quarter is reserved for nodes.
///
/// A request has its slot only while the server works on it, so that a slow client keeps none; the
/// memory of its unread answer is limited by [`crate::AnswerLimits`]. Only a large answer to a read
/// keeps the slot until the client has read it ([`RequestSlot::hold`]), because the server makes it
/// piece by piece meanwhile. Such answers may take half of the slots; those of a user at one host
/// at most half of that user's slots, and those of all users of a host half of what is not reserved
/// for nodes.
#[derive(Debug)]
pub struct RequestSlots {
    unread: Slots,
    reads: Slots,
    writes: Slots,
    bodies: Bodies,
}

/// Slots, and how many of them a node may have.
#[derive(Debug, Clone)]
struct Slots {
    shares: Arc<Shares>,
    of_node: usize,
}

impl Slots {
    /// `of_node`: what a node may have, of what is kept for nodes.
    fn new(room: Capacity, of_node: impl Fn(usize) -> usize) -> Self {
        let of_node = match room.kept {
            0 => room.part,
            kept => of_node(kept),
        };
        Self {
            shares: Shares::new(room),
            of_node,
        }
    }

    fn take(&self, taker: Taker<'_>) -> Result<Share, ApiError> {
        let share = if taker.kept_for {
            self.shares.take_up_to(taker, 1, self.of_node)
        } else {
            self.shares.take(taker, 1)
        };
        share.ok_or_else(too_many)
    }
}

/// What a request does: reads and writes have slots of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes, and takes its slot once its body is complete.
    Write,
}

/// A request's slot, and its part of the budget of bodies; freed when this is dropped.
#[derive(Debug)]
pub struct RequestSlot {
    _complete: Option<CompleteBody>,
    slot: Option<Share>,
    /// Who reads the answer to a read.
    reader: Option<AnswerReader>,
}

/// The reader of an answer.
#[derive(Debug)]
struct AnswerReader {
    unread: Slots,
    key: ReaderKey,
    is_node: bool,
}

/// Whose unread answers are counted together: those of a user at one host.
#[derive(Debug)]
struct ReaderKey {
    user: String,
    /// None for nodes, which count wherever they are.
    host: Option<String>,
}

impl ReaderKey {
    /// The name by which [`Shares`] know the reader. No host's name has a line break.
    fn name(&self) -> String {
        match &self.host {
            Some(host) => format!("{}\n{host}", self.user),
            None => self.user.clone(),
        }
    }
}

impl RequestSlot {
    /// The answer. The slot is freed, or kept with a large answer until it was read or its reader
    /// is gone.
    ///
    /// # Errors
    /// 429: the host has too many answers to read. Never after a write.
    pub fn hold(self, answer: Response<Body>) -> Result<Response<Body>, ApiError> {
        let Some(reader) = self.reader else {
            return Ok(answer);
        };
        if is_small(&answer) {
            return Ok(answer);
        }
        let unread = reader.unread.take(Taker {
            user: &reader.key.name(),
            host: reader.key.host.as_deref(),
            kept_for: reader.is_node,
        })?;
        let slot = self.slot;
        Ok(answer.map(|body| {
            HeldBody {
                body,
                _slot: slot,
                _unread: unread,
            }
            .boxed_unsync()
        }))
    }
}

fn three_quarters(kept: usize) -> usize {
    kept - kept / 4
}

fn is_small(answer: &Response<Body>) -> bool {
    let content = answer.body();
    let weight = || {
        answer
            .extensions()
            .get()
            .map(|HeldBytes(held)| *held as u64)
    };
    let size = content.size_hint().exact().or_else(weight);
    content.is_end_stream() || size.is_some_and(|size| size <= SMALL_ANSWER as u64)
}

/// A large answer's body, and the slots that it holds until it was read.
struct HeldBody {
    body: Body,
    /// The request's own.
    _slot: Option<Share>,
    /// The reader's, among those of unread answers.
    _unread: Share,
}

impl http_body::Body for HeldBody {
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

impl RequestSlots {
    /// This many slots for reads and for writes.
    pub fn new(reads: usize, writes: usize, bodies: BodyLimits) -> Self {
        let unread = Capacity {
            // One more, so that few slots can be shared, too.
            total: reads / 2 + usize::from(reads > 0),
            part: Capacity::of_quarters(reads).part.div_ceil(2),
            kept: reads / 8,
        };
        Self {
            // A node lists all that it follows when it starts.
            unread: Slots::new(unread, |kept| kept.div_ceil(4)),
            // Nobody can keep a slot of these, and a node starts many pods at once.
            reads: Slots::new(Capacity::of_quarters(reads), three_quarters),
            writes: Slots::new(Capacity::of_quarters(writes), three_quarters),
            bodies: Bodies::new(bodies),
        }
    }

    /// Reads and writes in progress.
    pub fn running(&self) -> [usize; 2] {
        [self.reads.shares.taken(), self.writes.shares.taken()]
    }

    /// Takes a slot for a read, or for a write after its body is complete: a slow sender holds no
    /// slot. Callers inside the process and members of `system:masters` take none, so that an admin
    /// can act on an overloaded server (upstream exempts them too).
    ///
    /// # Errors
    /// 429: there is no slot for the user; otherwise the fault of the body.
    pub async fn acquire(
        &self,
        access: Access,
        content: Body,
        user: &UserInfo,
        peer: &Peer,
    ) -> Result<(Body, RequestSlot), ApiError> {
        let is_node = user.node().is_some();
        let remote = peer.remote.filter(|_| !user.in_group(MASTERS_GROUP));
        // A node has its own part, wherever it is.
        let host = remote.filter(|_| !is_node);
        let host = host.map(|remote| host_name(remote.ip()));
        let taker = remote.map(|_| Taker {
            user: party(&user.name),
            host: host.as_deref(),
            kept_for: is_node,
        });
        if access == Access::Write {
            let complete = self.bodies.read(content, taker).await?;
            let slot = taker.map(|taker| self.writes.take(taker)).transpose()?;
            let content = body(complete.bytes.clone());
            let held = RequestSlot {
                _complete: Some(complete),
                slot,
                reader: None,
            };
            return Ok((content, held));
        }
        let Some(taker) = taker else {
            let held = RequestSlot {
                _complete: None,
                slot: None,
                reader: None,
            };
            return Ok((content, held));
        };
        let slot = self.reads.take(taker)?;
        let user = taker.user.to_owned();
        let reader = AnswerReader {
            unread: self.unread.clone(),
            key: ReaderKey { user, host },
            is_node,
        };
        let held = RequestSlot {
            _complete: None,
            slot: Some(slot),
            reader: Some(reader),
        };
        Ok((content, held))
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
    use config_kube::identity::NODES_GROUP;
    use std::net::SocketAddr;

    const LARGE: usize = SMALL_ANSWER + 1;

    fn peer(last: u8) -> Peer {
        Peer {
            remote: Some(SocketAddr::from(([192, 0, 2, last], 40_000))),
            ..Peer::default()
        }
    }

    fn account(name: &str) -> UserInfo {
        UserInfo::authenticated(&format!("system:serviceaccount:{name}"), [""; 0])
    }

    async fn ask(
        slots: &RequestSlots,
        access: Access,
        user: &UserInfo,
        host: u8,
        size: usize,
    ) -> Result<Response<Body>, ApiError> {
        let (_, slot) = slots.acquire(access, body(""), user, &peer(host)).await?;
        slot.hold(Response::new(body(vec![7; size])))
    }

    #[tokio::test]
    async fn a_host_that_reads_nothing_leaves_half_of_its_users_slots_and_all_of_others() {
        let slots = RequestSlots::new(16, 16, BodyLimits::default());
        let pods = [account("a:default"), account("a:other")];
        let ask =
            async |user: &UserInfo, host: u8| ask(&slots, Access::Read, user, host, LARGE).await;
        let mut held = Vec::new();
        for pod in pods.iter().cycle().take(8) {
            held.extend(ask(pod, 1).await);
        }
        assert_eq!((held.len(), slots.running()), (2, [2, 0]));
        for pod in pods.iter().cycle().take(8) {
            held.extend(ask(pod, 2).await);
        }
        assert_eq!(held.len(), 4, "other pods of the same namespace");
        assert!(ask(&pods[0], 3).await.is_err(), "the namespace's quarter");
        assert!(
            ask(&UserInfo::authenticated("jane", [""; 0]), 1)
                .await
                .is_ok()
        );
        // What is worked on has no such bound.
        drop(held);
        let work = async |_| {
            slots
                .acquire(Access::Read, body(""), &pods[0], &peer(1))
                .await
        };
        for number in 0..4 {
            let (_, slot) = work(number).await.unwrap();
            let read = slot.hold(Response::new(body(vec![7; LARGE]))).unwrap();
            assert_eq!(slots.running(), [1, 0], "a slot is held until it is read");
            let read = read.into_body().collect().await.unwrap().to_bytes();
            assert_eq!((read.len(), slots.running()), (LARGE, [0, 0]));
        }
    }

    #[tokio::test]
    async fn what_is_small_or_written_waits_for_its_reader_without_a_slot() {
        let slots = RequestSlots::new(4, 4, BodyLimits::default());
        let node = UserInfo::authenticated("system:node:n", [NODES_GROUP]);
        let mut held = Vec::new();
        for user in [&account("a:b"), &node] {
            for _ in 0..8 {
                held.push(
                    ask(&slots, Access::Read, user, 1, SMALL_ANSWER)
                        .await
                        .unwrap(),
                );
                held.push(ask(&slots, Access::Write, user, 1, LARGE).await.unwrap());
                let mut made = Response::new(body(vec![7; 1]).map_frame(|one| one).boxed_unsync());
                made.extensions_mut().insert(HeldBytes(SMALL_ANSWER));
                let (_, slot) = slots
                    .acquire(Access::Read, body(""), user, &peer(1))
                    .await
                    .unwrap();
                held.push(slot.hold(made).unwrap());
            }
        }
        assert_eq!(slots.running(), [0, 0]);
    }

    #[tokio::test]
    async fn unread_answers_of_a_host_and_of_a_node_leave_places_to_others() {
        let slots = RequestSlots::new(16, 16, BodyLimits::default());
        let mut held = Vec::new();
        for namespace in 0..8 {
            let pod = account(&format!("{namespace}:b"));
            held.extend(ask(&slots, Access::Read, &pod, 1, LARGE).await);
        }
        assert_eq!(held.len(), 4, "of all namespaces");
        let node =
            |name: u8| UserInfo::authenticated(&format!("system:node:{name}"), [NODES_GROUP]);
        for _ in 0..8 {
            held.extend(ask(&slots, Access::Read, &node(1), 1, LARGE).await);
        }
        assert_eq!(held.len(), 5, "of the node");
        for (user, host) in [(account("c:b"), 2), (node(2), 1)] {
            held.push(ask(&slots, Access::Read, &user, host, LARGE).await.unwrap());
        }
    }

    #[tokio::test]
    async fn what_one_node_has_worked_on_leaves_a_quarter_of_what_is_kept_for_nodes() {
        let slots = RequestSlots::new(16, 16, BodyLimits::default());
        let node =
            |name: u8| UserInfo::authenticated(&format!("system:node:{name}"), [NODES_GROUP]);
        for access in [Access::Read, Access::Write] {
            let mut held = Vec::new();
            for user in [1, 1, 1, 1, 2].map(node) {
                held.extend(slots.acquire(access, body(""), &user, &peer(1)).await);
            }
            assert_eq!(held.len(), 4, "{access:?}");
        }
    }
}
