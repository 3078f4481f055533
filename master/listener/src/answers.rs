//! The memory of answers until their clients have read them, and how callers share it.
//!
//! A client decides when it reads, and an answer may have megabytes. So each user (all accounts of
//! a namespace count as one) may hold a part of the memory, and three quarters of that part at one
//! host; all users of one host share a part, too. A part is reserved for nodes, and each node may
//! hold an eighth of it. All unauthenticated callers share a part of their own, which is divided
//! among their hosts. Beyond these limits a write is refused before it is carried out, and a read
//! after it.

use config_kube::identity::{MASTERS_GROUP, party};
use config_limits::{Capacity, Share, Shares, Taker};
use http::Response;
use http_body::Body as _;
use master_client::{Body, HeldBytes, UserInfo};
use std::sync::Arc;

/// What each answer takes beside its bytes: its header, its stream, the task that sends it.
const ANSWER_OVERHEAD: usize = 4 << 10;

/// Limits, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct AnswerLimits {
    /// Of callers whose certificate or token was verified; a part is kept for nodes.
    pub known: Capacity,
    /// Of unauthenticated callers; `part` is what one host may hold.
    pub strangers: Capacity,
}

impl Default for AnswerLimits {
    /// The memory of unauthenticated callers suffices for small answers on all of their
    /// connections, so that a client that reads nothing takes no answer from another one behind its
    /// address.
    fn default() -> Self {
        Self {
            known: Capacity {
                total: 256 << 20,
                part: 32 << 20,
                kept: 64 << 20,
            },
            strangers: Capacity {
                total: 128 << 20,
                part: 64 << 20,
                kept: 0,
            },
        }
    }
}

/// Who reads a connection's answers.
#[derive(Debug)]
pub(crate) enum Owner {
    /// An admin: acts on an overloaded server too.
    Admin,
    /// A node that showed its certificate.
    Node(String),
    /// Any other user, or the accounts of a namespace.
    User(String),
}

impl Owner {
    /// `node`: it showed its certificate.
    pub(crate) fn of(user: &UserInfo, node: bool) -> Self {
        if user.in_group(MASTERS_GROUP) {
            Self::Admin
        } else if node {
            Self::Node(user.name.clone())
        } else {
            Self::User(party(&user.name).to_owned())
        }
    }

    /// Who takes memory for what is read at a host; a node has its part wherever it is.
    fn taker<'a>(&'a self, host: &'a str) -> Option<Taker<'a>> {
        let (user, host, kept_for) = match self {
            Self::Admin => return None,
            Self::Node(name) => (name, None, true),
            Self::User(name) => (name, Some(host), false),
        };
        Some(Taker {
            user,
            host,
            kept_for,
        })
    }
}

/// The memory, and who holds how much of it.
#[derive(Debug)]
pub(crate) struct Answers {
    limits: AnswerLimits,
    known: Arc<Shares>,
    strangers: Arc<Shares>,
}

/// The result of charging an answer to its caller.
pub(crate) enum Charge {
    /// It holds no memory, or its caller is not limited.
    Free,
    /// It holds this share until it is read.
    Taken(Share),
    /// It would exceed a limit.
    OverLimit,
}

impl From<Option<Share>> for Charge {
    fn from(share: Option<Share>) -> Self {
        share.map_or(Self::OverLimit, Self::Taken)
    }
}

impl Answers {
    /// Memory of which nothing is used.
    pub(crate) fn new(limits: AnswerLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            known: Shares::new(limits.known),
            strangers: Shares::new(limits.strangers),
        })
    }

    /// Takes room for the answer to a write before it is carried out; what the answer then takes
    /// beyond is counted by [`Share::add`].
    pub(crate) fn before_write(&self, owner: &Owner, host: &str) -> Charge {
        match owner.taker(host) {
            Some(taker) => self.known.take(taker, ANSWER_OVERHEAD).into(),
            None => Charge::Free,
        }
    }

    /// Takes room for what was read, by who it is for or by the host of a stranger. One answer that
    /// has more than a part takes the whole part.
    pub(crate) fn take(&self, owner: Option<&Owner>, host: &str, held: usize) -> Charge {
        let (shares, room, taker) = match owner.map(|owner| owner.taker(host)) {
            Some(None) => return Charge::Free,
            Some(Some(taker)) => (&self.known, self.limits.known, taker),
            None => {
                let taker = Taker {
                    user: host,
                    host: None,
                    kept_for: false,
                };
                (&self.strangers, self.limits.strangers, taker)
            }
        };
        shares
            .take(
                taker,
                held.saturating_add(ANSWER_OVERHEAD)
                    .min(room.part_of(taker)),
            )
            .into()
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> [usize; 2] {
        [self.known.taken(), self.strangers.taken()]
    }
}

/// The bytes that an answer holds until it is read; `None` for a stream without a length, which has
/// limits of its own, and for an answer without a body.
pub(crate) fn held(answer: &Response<Body>) -> Option<usize> {
    if answer.body().is_end_stream() {
        return None;
    }
    match answer.extensions().get() {
        Some(HeldBytes(held)) => Some(*held),
        None => usize::try_from(answer.body().size_hint().exact()?).ok(),
    }
}
