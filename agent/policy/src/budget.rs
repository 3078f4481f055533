//! How the namespaces with pods on this node share the packet filter (pure).
//!
//! The table is one message to the kernel, of limited size ([`MAX_BATCH`]). A table that is
//! larger would keep everyone's policies, and every new pod, from coming into force. So no
//! namespace takes more than a third of it, and where all together take too much, the heaviest are
//! closed until the others fit. A namespace within an equal share is never closed because of
//! others: where the sum is too much, the heaviest is above the mean.

use crate::table::{Rules, Set};
use agent_sys::netlink::filter::{MAX_BATCH, Step};
use agent_sys::netlink::links::octets;
use std::collections::BTreeSet;

/// Bytes of the message that are not of any namespace's policies: what never changes, and the chain
/// of closed pods.
const FRAME: usize = 8 << 10;
/// Bytes for a pod: what leads to its chains, and its place among those that are known.
const POD: usize = 320;
/// Bytes for a chain, for a rule, and for each step of a rule. A step takes up to 92, but those
/// that do are alone or beside shorter ones; a test holds this against the encoding.
const CHAIN: usize = 96;
const RULE: usize = 144;
const STEP: usize = 48;
/// Bytes for a set, for an element beside its key, and for a range beside its addresses.
const SET: usize = 256;
const ELEMENT: usize = 13;
const RANGE: usize = 34;

/// More bytes than any namespace can take.
pub(crate) const MAX_BYTES: usize = MAX_BATCH / 3;

/// Bytes of the message that a rule takes, at most.
pub(crate) fn of_rule(steps: &[Step]) -> usize {
    RULE + steps.len() * STEP
}

/// Bytes of the message that a chain takes, at most.
pub(crate) fn of_chain(rules: &Rules) -> usize {
    let rules = rules.iter().map(|steps| of_rule(steps));
    CHAIN + rules.sum::<usize>()
}

/// Bytes of the message that a set takes, at most.
pub(crate) fn of_set(set: &Set) -> usize {
    SET + match set {
        Set::Keys(_, keys) => {
            // All are of one length.
            let key = keys.first().map_or(0, |key| key.len().next_multiple_of(4));
            keys.len() * (ELEMENT + key)
        }
        Set::Ranges(ranges) => {
            let address = ranges.first().map_or(0, |(from, _)| octets(*from).len());
            ranges.len() * (RANGE + 2 * address)
        }
    }
}

/// A namespace whose pods are closed, as its policies take too much of the message.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) namespace: String,
    pub(crate) bytes: usize,
}

/// The bytes of the message that namespaces share.
#[derive(Debug)]
pub(crate) struct Budget {
    whole: usize,
    taken: usize,
    /// Namespaces that are not closed, by the bytes that they take.
    open: BTreeSet<(usize, String)>,
}

impl Budget {
    /// The budget of a node with this number of pods.
    pub(crate) fn new(pods: usize) -> Self {
        Self {
            whole: MAX_BATCH.saturating_sub(FRAME + pods.saturating_mul(POD)),
            taken: 0,
            open: BTreeSet::new(),
        }
    }

    /// What all namespaces together can take.
    pub(crate) fn whole(&self) -> usize {
        self.whole
    }

    /// What one namespace can take at most.
    pub(crate) fn of_one(&self) -> usize {
        self.whole / 3
    }

    /// Counts a namespace. Returns those that are closed so that the others fit: the heaviest,
    /// which may be the new one. The order in which namespaces are counted makes no difference to
    /// which are closed in the end.
    pub(crate) fn take(&mut self, namespace: &str, bytes: usize) -> Vec<Closed> {
        if bytes > self.of_one() {
            let namespace = namespace.to_owned();
            return vec![Closed { namespace, bytes }];
        }
        self.open.insert((bytes, namespace.to_owned()));
        self.taken += bytes;
        let mut closed = Vec::new();
        while self.taken > self.whole
            && let Some((bytes, namespace)) = self.open.pop_last()
        {
            self.taken -= bytes;
            closed.push(Closed { namespace, bytes });
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The namespaces that stay open.
    fn open(weights: &[usize]) -> (usize, BTreeSet<String>) {
        let mut budget = Budget::new(0);
        let names: BTreeSet<String> = (0..weights.len()).map(|at| at.to_string()).collect();
        let mut closed = BTreeSet::new();
        for (at, bytes) in weights.iter().enumerate() {
            let more = budget.take(&at.to_string(), *bytes);
            closed.extend(more.into_iter().map(|one| one.namespace));
        }
        (budget.taken, names.difference(&closed).cloned().collect())
    }

    proptest! {
        #[test]
        fn what_is_open_fits_and_an_equal_share_is_never_closed(
            weights in proptest::collection::vec(0..=MAX_BATCH / 2, 1..24),
        ) {
            let whole = Budget::new(0).whole();
            let (taken, open) = open(&weights);
            let of_open = open.iter().map(|name| weights[name.parse::<usize>().unwrap()]);
            prop_assert_eq!(taken, of_open.sum::<usize>());
            prop_assert!(taken <= whole);
            let share = (whole / weights.len()).min(whole / 3);
            for (at, bytes) in weights.iter().enumerate() {
                prop_assert!(*bytes > share || open.contains(&at.to_string()), "{at} takes {bytes} of {share}");
            }
        }

        #[test]
        fn the_order_of_namespaces_makes_no_difference(
            weights in proptest::collection::vec(0..=MAX_BATCH / 3, 1..24),
        ) {
            let mut lightest: Vec<usize> = weights.clone();
            lightest.sort_unstable();
            let weighed = |weights: &[usize], open: BTreeSet<String>| -> Vec<usize> {
                let mut all: Vec<usize> = open.iter().map(|name| weights[name.parse::<usize>().unwrap()]).collect();
                all.sort_unstable();
                all
            };
            let (_, as_they_come) = open(&weights);
            let (_, in_order) = open(&lightest);
            prop_assert_eq!(weighed(&weights, as_they_come), weighed(&lightest, in_order));
        }
    }
}
