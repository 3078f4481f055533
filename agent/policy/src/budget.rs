//! Divides the nftables table among the namespaces with pods on this node (pure).
//!
//! The table is one message to the kernel, of limited size ([`MAX_BATCH`]). A table that is larger
//! would keep everyone's policies, and every new pod, from coming into force. So no namespace takes
//! more than a third of it, and if all together take too much, those that take most are closed
//! until the others fit ([`Lightest`]). The work to compute the table is shared in the same way,
//! since a small policy may require each pod of the cluster to be compared with each of its peers.

use crate::table::{Rules, Set};
use agent_sys::netlink::filter::MAX_BATCH;
use agent_sys::netlink::links::octets;
use agent_sys::netlink::weight;
use config_limits::Lightest;

/// Bytes of the message that belong to no namespace: the fixed part, and the chain of closed pods.
const FRAME: usize = 8 << 10;
/// Bytes for a pod: its entries in the maps to its chains, and in the sets of known pods.
const POD: usize = 320;

/// More bytes than any namespace can take.
pub(crate) const MAX_BYTES: usize = MAX_BATCH / 3;

/// Most comparisons to compute a table anew: about a second.
const EFFORT: usize = 1 << 26;
/// Most comparisons that a namespace can take.
pub(crate) const MAX_EFFORT: usize = EFFORT / 3;

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

/// The bytes of the message, and the comparisons for it, that namespaces share.
#[derive(Debug)]
pub(crate) struct Budget {
    effort: Lightest<String>,
    /// Bytes of chains alone, before their sets are computed.
    chains: Lightest<String>,
    lightest: Lightest<String>,
}

impl Budget {
    /// The budget of a node with this number of pods.
    pub(crate) fn new(pods: usize) -> Self {
        let whole = MAX_BATCH.saturating_sub(FRAME + pods.saturating_mul(POD));
        Self {
            effort: Lightest::of(EFFORT),
            chains: Lightest::of(whole),
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

    /// Counts the comparisons that a namespace takes. Returns those whose pods are closed so that
    /// there are few enough: they may be the new one.
    pub(crate) fn strain(&mut self, namespace: &str, effort: usize) -> Vec<String> {
        count(&mut self.effort, namespace, effort, MAX_EFFORT)
    }

    /// Counts a namespace's chains, before their sets are made. Returns those whose pods are closed
    /// so that there is room for the others: they may be the new one.
    pub(crate) fn outline(&mut self, namespace: &str, bytes: usize) -> Vec<String> {
        let most = self.of_one();
        count(&mut self.chains, namespace, bytes, most)
    }

    /// Counts a namespace with all that it takes, as [`Self::outline`].
    pub(crate) fn take(&mut self, namespace: &str, bytes: usize) -> Vec<String> {
        let most = self.of_one();
        count(&mut self.lightest, namespace, bytes, most)
    }
}

fn count(
    lightest: &mut Lightest<String>,
    namespace: &str,
    takes: usize,
    most: usize,
) -> Vec<String> {
    let namespace = namespace.to_owned();
    if takes > most {
        return vec![namespace];
    }
    let gone = lightest.count(namespace, takes).into_iter();
    gone.map(|(namespace, _)| namespace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_namespace_takes_more_than_a_third_however_much_is_left() {
        let mut budget = Budget::new(0);
        let third = budget.of_one();
        assert_eq!(budget.take("b", third), [""; 0]);
        assert_eq!(budget.take("c", third + 1), ["c"]);
        assert_eq!(budget.take("a", third), [""; 0]);
        assert_eq!(budget.take("d", third), [""; 0]);
        assert_eq!(budget.take("e", 3), ["d"], "of equals the last");
    }

    #[test]
    fn no_namespace_takes_more_than_a_third_of_the_comparisons_and_the_heaviest_are_closed() {
        let mut budget = Budget::new(0);
        assert_eq!(budget.strain("c", MAX_EFFORT + 1), ["c"]);
        for open in ["a", "b", "d"] {
            assert_eq!(budget.strain(open, MAX_EFFORT), [""; 0], "{open}");
        }
        assert_eq!(budget.strain("e", 3), ["d"], "of equals the last");
    }
}
