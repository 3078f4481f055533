//! Slots for open watches, and memory for the objects that they send, shared so that no caller
//! takes all of either; half of the slots are reserved for nodes.

use crate::call_owner::CallOwner;
use config_limits::{Capacity, Share, Shares, Taker};
use master_schema::error::{ApiError, Reason};
use std::sync::Arc;

/// Watches of one node: the agent has up to 200 of single config maps and secrets, and one of each
/// kind that it follows.
const MAX_NODE_WATCHES: usize = 256;

/// The slot of a watch, or none for a caller with priority; freed when dropped.
#[derive(Debug)]
pub struct WatchSlot {
    _share: Option<Share>,
}

/// Bytes of the objects that watches send: as much as of other answers that their clients have not
/// read yet. A watch keeps the objects with which it begins as they were then, and a client may
/// open many.
const MEMORY: Capacity = Capacity {
    total: 256 << 20,
    part: 32 << 20,
    kept: 64 << 20,
};

/// The memory for objects that watches send, which clones share.
#[derive(Debug, Clone)]
pub struct WatchMemory(Arc<Shares>);

/// Room for objects that a watch sends, or none for a caller with priority; freed when dropped.
#[derive(Debug)]
pub struct HeldObjects {
    _share: Option<Share>,
}

impl WatchMemory {
    /// Room for objects of so many bytes, until the client has read them. A watch that holds more
    /// than its caller's part takes the whole part.
    ///
    /// # Errors
    /// 429: the caller has too many watches with objects that it has not read.
    pub fn hold(&self, owner: CallOwner<'_>, bytes: usize) -> Result<HeldObjects, ApiError> {
        if owner.has_priority {
            return Ok(HeldObjects { _share: None });
        }
        let host = owner.host();
        let taker = Taker {
            user: owner.name,
            host: host.as_deref(),
            kept_for: owner.is_node,
        };
        let share = self.0.take(taker, bytes.min(MEMORY.part_of(taker)));
        if share.is_none() {
            let text = "too many objects of watches are not read yet, please try again later";
            return Err(ApiError::new(Reason::TooManyRequests, text).retry_after(1));
        }
        Ok(HeldObjects { _share: share })
    }
}

/// The slots of open watches. Half of them are reserved for nodes, and all other callers of a host
/// may have half of the rest.
#[derive(Debug)]
pub struct Watches {
    total: usize,
    shares: Arc<Shares>,
    memory: WatchMemory,
}

impl Watches {
    /// This many slots.
    pub fn new(total: usize) -> Self {
        let room = Capacity {
            total,
            part: (total / 16).max(1),
            kept: total / 2,
        };
        Self {
            total,
            shares: Shares::new(room),
            memory: WatchMemory(Shares::new(MEMORY)),
        }
    }

    /// The memory for what watches send.
    pub fn memory(&self) -> WatchMemory {
        self.memory.clone()
    }

    /// The slot of one more watch; callers with priority need none. `is_modest` says that a node
    /// can do without it: it gets none when half of all are taken, nor the last of its node.
    ///
    /// # Errors
    /// 429: there is none for the caller.
    pub fn begin(&self, owner: CallOwner<'_>, is_modest: bool) -> Result<WatchSlot, ApiError> {
        if owner.has_priority {
            return Ok(WatchSlot { _share: None });
        }
        let part = if owner.is_node {
            (self.total / 4).clamp(1, MAX_NODE_WATCHES)
        } else if owner.is_account {
            (self.total / 8).max(1)
        } else {
            (self.total / 16).max(1)
        };
        let most = if is_modest {
            part - part.div_ceil(8)
        } else {
            part
        };
        let host = owner.host();
        let taker = Taker {
            user: owner.name,
            host: host.as_deref(),
            kept_for: owner.is_node,
        };
        let is_full = is_modest && self.shares.taken() >= self.total / 2;
        let share = (!is_full).then(|| self.shares.take_up_to(taker, 1, most));
        let Some(share) = share.flatten() else {
            let text = "too many watches are open, please try again later";
            return Err(ApiError::new(Reason::TooManyRequests, text).retry_after(1));
        };
        Ok(WatchSlot {
            _share: Some(share),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::identity::NODES_GROUP;
    use master_client::UserInfo;

    fn user(name: &str) -> UserInfo {
        UserInfo::authenticated(name, [""; 0])
    }

    fn node(name: &str) -> UserInfo {
        UserInfo::authenticated(&format!("system:node:{name}"), [NODES_GROUP])
    }

    /// The slots that a caller gets before it is refused.
    fn all<T>(take: impl Fn() -> Result<T, ApiError>) -> Vec<T> {
        std::iter::repeat_with(take).map_while(Result::ok).collect()
    }

    #[test]
    fn a_node_has_a_part_of_the_watches_and_users_leave_half_to_nodes() {
        let watches = Watches::new(20_000);
        let begin = |user: &UserInfo, modest| {
            let (watches, user) = (&watches, user.clone());
            move || watches.begin(CallOwner::new(&user, false), modest)
        };
        let lone = all(begin(&node("n"), true));
        let more = all(begin(&node("n"), false));
        assert_eq!((lone.len(), more.len()), (224, 32));
        let jane = all(begin(&user("jane"), false));
        let account = all(begin(&user("system:serviceaccount:a:one"), false));
        assert_eq!((jane.len(), account.len()), (1250, 2500));
        let users: Vec<_> = (0..9)
            .map(|n| all(begin(&user(&n.to_string()), false)))
            .collect();
        let users: usize = users.iter().map(Vec::len).sum();
        assert_eq!(users, 10_000 - 1250 - 2500);
        assert!(all(begin(&node("m"), true)).is_empty(), "half is taken");
    }

    #[test]
    fn objects_that_are_not_read_hold_their_callers_part_and_leave_others_theirs() {
        let memory = Watches::new(320).memory();
        let take = |user: &UserInfo, bytes: usize| {
            let held = memory.hold(CallOwner::new(user, false), bytes);
            held.map_err(|error| error.code)
        };
        let (jane, joe) = (user("jane"), user("joe"));
        let held: Vec<_> = (0..64).map_while(|_| take(&jane, 4 << 20).ok()).collect();
        assert_eq!(held.len(), 8);
        assert_eq!(take(&jane, 1).err(), Some(429));
        for other in [&joe, &node("n"), &UserInfo::admin("admin")] {
            assert!(take(other, 4 << 20).is_ok(), "{}", other.name);
        }
        drop(held);
        let whole = take(&jane, usize::MAX);
        assert!(whole.is_ok() && take(&jane, 1).is_err());
    }

    #[test]
    fn callers_of_one_host_leave_watches_to_others() {
        let watches = Watches::new(320);
        let begin = |user: &UserInfo, last: u8| {
            let from = Some(([192, 0, 2, last], 40_000).into());
            watches.begin(CallOwner::new(user, false).at(from), false)
        };
        let pod = |namespace: usize| user(&format!("system:serviceaccount:{}:a", namespace % 9));
        let held: Vec<_> = (0..320).flat_map(|n| begin(&pod(n), 1)).collect();
        assert_eq!(held.len(), 80);
        assert!(begin(&user("jane"), 2).is_ok() && begin(&node("n"), 1).is_ok());
    }

    #[test]
    fn the_watches_of_few_places_are_shared_too() {
        let watches = Watches::new(1);
        let place = watches.begin(CallOwner::new(&user("jane"), false), false);
        assert!(place.is_ok());
        let first = watches.begin(CallOwner::new(&UserInfo::admin("admin"), false), false);
        assert!(first.is_ok());
        assert!(
            watches
                .begin(CallOwner::new(&node("n"), false), false)
                .is_err()
        );
    }
}
