//! Slots for open calls to nodes (answers that are read, tunnels), shared so that no caller takes
//! all of them.

use crate::call_owner::CallOwner;
use config_limits::{Capacity, Share, Shares, Taker};
use master_schema::error::{ApiError, Reason};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The open calls to nodes. A caller may have a quarter of the slots of a node and of all nodes,
/// all callers of a host half of what is not reserved; a quarter is reserved for callers with
/// priority.
#[derive(Debug)]
pub struct NodeCalls {
    /// What is counted, for the error.
    what: &'static str,
    per_node: usize,
    all: Arc<Shares>,
    /// Of the nodes that have calls.
    nodes: Mutex<HashMap<String, Arc<Shares>>>,
}

/// The slot of one call; freed when dropped.
#[derive(Debug)]
pub struct NodeCall {
    calls: Arc<NodeCalls>,
    node: String,
    /// Its share of the slots of all nodes, and of those of its node.
    slots: Option<[Share; 2]>,
}

impl NodeCalls {
    /// For one kind of calls: how many each node takes, and all nodes together.
    pub(crate) fn new(what: &'static str, per_node: usize, total: usize) -> Arc<Self> {
        Arc::new(Self {
            what,
            per_node,
            all: Shares::new(Capacity::of_quarters(total)),
            nodes: Mutex::default(),
        })
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<String, Arc<Shares>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more call to a node.
    ///
    /// # Errors
    /// 429: this caller, or all together, have their part of the slots of this node or of all
    /// nodes.
    pub fn begin(self: &Arc<Self>, node: &str, owner: CallOwner<'_>) -> Result<NodeCall, ApiError> {
        let mut nodes = self.nodes();
        let known = nodes.get(node).cloned();
        let own = known.unwrap_or_else(|| Shares::new(Capacity::of_quarters(self.per_node)));
        let host = owner.host();
        let take = |shares: &Arc<Shares>| {
            let taker = Taker {
                user: owner.name,
                host: host.as_deref(),
                kept_for: owner.has_priority,
            };
            if owner.has_priority {
                shares.take_up_to(taker, 1, usize::MAX)
            } else {
                shares.take(taker, 1)
            }
        };
        let (Some(of_all), Some(of_node)) = (take(&self.all), take(&own)) else {
            let what = self.what;
            let text = format!("too many {what} of node {node} are open, please try again later");
            return Err(ApiError::new(Reason::TooManyRequests, text).retry_after(1));
        };
        nodes.insert(node.to_owned(), own);
        Ok(NodeCall {
            calls: Arc::clone(self),
            node: node.to_owned(),
            slots: Some([of_all, of_node]),
        })
    }
}

impl Drop for NodeCall {
    fn drop(&mut self) {
        let mut nodes = self.calls.nodes();
        drop(self.slots.take());
        if nodes.get(&self.node).is_some_and(|own| own.taken() == 0) {
            nodes.remove(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::NodeLimits;
    use master_client::UserInfo;

    fn user(name: &str) -> UserInfo {
        UserInfo::authenticated(name, [""; 0])
    }

    /// The slots that a caller gets before it is refused.
    fn all<T>(take: impl Fn() -> Result<T, ApiError>) -> Vec<T> {
        std::iter::repeat_with(take).map_while(Result::ok).collect()
    }

    #[test]
    fn nobody_takes_the_last_place_of_a_node_but_who_comes_first() {
        let calls = NodeCalls::new("answers", 8, 1000);
        let begin = |node: &str, user: &UserInfo, inside| {
            let calls = calls.clone();
            let (node, user) = (node.to_owned(), user.clone());
            move || calls.begin(&node, CallOwner::new(&user, inside))
        };
        let jane = all(begin("n", &user("jane"), false));
        assert_eq!(jane.len(), 2, "a quarter");
        // Accounts of a namespace are one caller.
        let one = all(begin("n", &user("system:serviceaccount:a:one"), false));
        let two = all(begin("n", &user("system:serviceaccount:a:two"), false));
        assert_eq!((one.len(), two.len()), (2, 0));
        let other = all(begin("n", &user("system:serviceaccount:b:one"), false));
        let last = all(begin("n", &user("last"), false));
        assert_eq!((other.len(), last.len()), (2, 0), "a quarter is kept");
        assert_eq!(all(begin("m", &user("jane"), false)).len(), 2);
        // Who orders a machine's end may have read its logs before.
        let order = calls.begin("n", CallOwner::new(&user("jane"), false).with_priority());
        let inside = all(begin("n", &user("jane"), true));
        assert!(order.is_ok() && inside.len() == 1);
        drop((jane, one, two, other, last, order, inside));
        assert!(calls.nodes().is_empty());
        assert_eq!(calls.all.taken(), 0);
        let admin = all(begin("n", &UserInfo::admin("admin"), false));
        assert_eq!(admin.len(), 8);
    }

    #[test]
    fn callers_of_one_host_leave_places_to_others() {
        let calls = NodeCalls::new("answers", 16, 1000);
        let pod = |namespace: usize| user(&format!("system:serviceaccount:{namespace}:a"));
        let begin = |user: &UserInfo, last: u8| {
            let from = Some(([192, 0, 2, last], 40_000).into());
            calls.begin("n", CallOwner::new(user, false).at(from))
        };
        let held: Vec<_> = (0..9).flat_map(|n| begin(&pod(n), 1)).collect();
        assert_eq!(held.len(), 6);
        assert!(begin(&user("jane"), 2).is_ok());
    }

    #[test]
    fn a_suite_of_25_processes_has_a_tunnel_for_each_to_one_node() {
        let calls = NodeLimits::default().tunnels();
        let suite = user("system:serviceaccount:conformance:suite");
        let from = Some(([192, 0, 2, 1], 40_000).into());
        let held = all(|| calls.begin("n", CallOwner::new(&suite, false).at(from)));
        assert!(held.len() >= 25, "{}", held.len());
    }

    #[test]
    fn a_caller_leaves_others_places_on_all_nodes_together() {
        let calls = NodeCalls::new("tunnels", 64, 8);
        let jane = user("jane");
        let held: Vec<_> = (0..9)
            .map_while(|n| {
                calls
                    .begin(&format!("n{n}"), CallOwner::new(&jane, false))
                    .ok()
            })
            .collect();
        assert_eq!(held.len(), 2);
        assert!(
            calls
                .begin("n", CallOwner::new(&user("joe"), false))
                .is_ok()
        );
        assert_eq!(calls.nodes().len(), 2, "a refusal keeps no node");
    }
}
