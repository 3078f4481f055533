//! Slots for requests in progress, and how users share them.

use crate::bodies::{Bodies, BodyLimits, Whole};
use crate::peer::Peer;
use config_kube::identity::MASTERS_GROUP;
use config_limits::{Room, Share, Shares, Taker};
use master_client::{ApiError, Body, Reason, UserInfo, body};
use std::sync::Arc;

/// The slots of a server. A user may have a quarter of them, and a quarter is reserved for nodes.
#[derive(Debug)]
pub struct Gate {
    reads: Arc<Shares>,
    writes: Arc<Shares>,
    bodies: Bodies,
}

/// A request's slot, and its part of the budget of bodies; freed when this is dropped.
#[derive(Debug)]
pub struct Entered {
    _whole: Option<Whole>,
    _place: Option<Share>,
}

impl Gate {
    /// This many slots for reads and for writes.
    pub fn new(reads: usize, writes: usize, bodies: BodyLimits) -> Self {
        Self {
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
        let entered = Entered {
            _whole: whole,
            _place: place.transpose()?,
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
