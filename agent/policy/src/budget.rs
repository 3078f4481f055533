//! How the namespaces with pods on this node share the packet filter (pure).
//!
//! The table is one message to the kernel, of limited size ([`MAX_BATCH`]). A table that is
//! larger would keep everyone's policies, and every new pod, from coming into force. So no
//! namespace takes more than a third of it, and where all together take too much, the heaviest are
//! closed until the others fit ([`Lightest`]).

use crate::table::{Rules, Set};
use agent_sys::netlink::filter::MAX_BATCH;
use agent_sys::netlink::links::octets;
use agent_sys::netlink::weight;
use config_limits::Lightest;

/// Bytes of the message that are not of any namespace's policies: what never changes, and the chain
/// of closed pods.
const FRAME: usize = 8 << 10;
/// Bytes for a pod: what leads to its chains, and its place among those that are known.
const POD: usize = 320;

/// More bytes than any namespace can take.
pub(crate) const MAX_BYTES: usize = MAX_BATCH / 3;

/// Bytes of the message that a chain takes, at most.
pub(crate) fn of_chain(rules: &Rules) -> usize {
    weight::of_chain(rules.iter().map(Vec::as_slice))
}

/// Bytes of the message that a set takes, at most.
pub(crate) fn of_set(set: &Set) -> usize {
    match set {
        // All are of one length.
        Set::Keys(_, keys) => weight::of_keys(keys.len(), keys.first().map_or(0, Vec::len)),
        Set::Ranges(ranges) => {
            let address = ranges.first().map_or(0, |range| octets(range.first).len());
            weight::of_ranges(ranges.len(), address)
        }
    }
}

/// The bytes of the message that namespaces share.
#[derive(Debug)]
pub(crate) struct Budget {
    lightest: Lightest<String>,
}

impl Budget {
    /// The budget of a node with this number of pods.
    pub(crate) fn new(pods: usize) -> Self {
        let whole = MAX_BATCH.saturating_sub(FRAME + pods.saturating_mul(POD));
        Self {
            lightest: Lightest::of(whole),
        }
    }

    /// What all namespaces together can take.
    pub(crate) fn whole(&self) -> usize {
        self.lightest.whole()
    }

    /// What one namespace can take at most.
    pub(crate) fn of_one(&self) -> usize {
        self.whole() / 3
    }

    /// Counts a namespace. Returns those whose pods are closed so that the others fit, with what
    /// they take: they may be the new one.
    pub(crate) fn take(&mut self, namespace: &str, bytes: usize) -> Vec<(String, usize)> {
        let namespace = namespace.to_owned();
        if bytes > self.of_one() {
            return vec![(namespace, bytes)];
        }
        self.lightest.count(namespace, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_namespace_takes_more_than_a_third_however_much_is_left() {
        let mut budget = Budget::new(0);
        let third = budget.of_one();
        assert_eq!(budget.take("b", third), []);
        let more = ("c".to_owned(), third + 1);
        assert_eq!(budget.take("c", third + 1), [more]);
        assert_eq!(budget.take("a", third), []);
        assert_eq!(budget.take("d", third), []);
        let heaviest = ("d".to_owned(), third);
        assert_eq!(budget.take("e", 3), [heaviest], "of equals the last");
    }
}
