//! How namespaces share what a node keeps of the cluster's objects of a kind.
//!
//! Watches show the node the Services, slices, policies, pods and namespaces of everybody, and it
//! keeps what it needs of each object in memory that no pod is charged for. So there is a bound for
//! each kind: where all would take more, the content of the namespaces that take most is left out,
//! until the others fit ([`Lightest`]). A namespace within an equal share never goes. What is left
//! out is still counted, so that it is known when there is room for it again; then the kind is
//! listed anew.

use crate::Lightest;
use std::collections::{BTreeMap, BTreeSet};

/// What the objects of one kind take, and the namespaces of which the content is left out.
#[derive(Debug)]
pub struct KeptBytes<K> {
    /// Most bytes that are kept.
    whole: usize,
    /// Bytes that each namespace takes, or would take.
    taken: BTreeMap<String, usize>,
    /// Bytes of those namespaces together that are kept.
    sum: usize,
    left_out: BTreeSet<String>,
    /// Bytes that the objects of the others would take.
    sizes: BTreeMap<K, usize>,
}

impl<K: Ord + Clone> KeptBytes<K> {
    /// One that keeps so many bytes at most.
    #[must_use]
    pub fn of(whole: usize) -> Self {
        Self {
            whole,
            taken: BTreeMap::new(),
            sum: 0,
            left_out: BTreeSet::new(),
            sizes: BTreeMap::new(),
        }
    }

    /// One that counts all objects anew, and leaves out what does not fit as they are now.
    #[must_use]
    pub fn anew(&self) -> Self {
        Self {
            left_out: self.heaviest(),
            ..Self::of(self.whole)
        }
    }

    /// The namespaces of which the content is left out.
    #[must_use]
    pub fn left_out(&self) -> &BTreeSet<String> {
        &self.left_out
    }

    /// Whether there are no objects, not even ones that are left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.sizes.is_empty()
    }

    /// Whether another list would bring namespaces back, and leave a quarter free or bring back one
    /// within three quarters of an equal share: so that an object that comes and goes causes no
    /// lists.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        let heaviest = self.heaviest();
        let back = self.left_out.difference(&heaviest);
        let back = back.map(|namespace| self.taken.get(namespace).copied().unwrap_or_default());
        let back: Vec<usize> = back.collect();
        let most = self.whole / 4 * 3;
        let share = most / self.taken.len().max(1);
        let sum = back
            .iter()
            .fold(self.sum, |sum, bytes| sum.saturating_add(*bytes));
        !back.is_empty() && (sum <= most || back.iter().any(|bytes| *bytes <= share))
    }

    /// The namespaces without which the others fit.
    fn heaviest(&self) -> BTreeSet<String> {
        let mut lightest = Lightest::of(self.whole);
        let gone = self.taken.iter();
        let gone = gone.flat_map(|(namespace, bytes)| lightest.count(namespace.clone(), *bytes));
        gone.map(|(namespace, _)| namespace).collect()
    }

    /// Counts an object that comes, changes or goes. True where its content is left out. `before`:
    /// bytes of what is kept of it; `after`: bytes that it takes now. Either is 0 where there is
    /// nothing.
    pub fn count(&mut self, namespace: &str, key: &K, before: usize, after: usize) -> bool {
        let before = self.sizes.remove(key).unwrap_or(before);
        let taken = self.taken.entry(namespace.to_owned()).or_default();
        *taken = taken.saturating_sub(before).saturating_add(after);
        if *taken == 0 {
            self.taken.remove(namespace);
        }
        let is_left_out = self.left_out.contains(namespace);
        if !is_left_out {
            self.sum = self.sum.saturating_sub(before).saturating_add(after);
        } else if after > 0 {
            self.sizes.insert(key.clone(), after);
        }
        is_left_out
    }

    /// Leaves out one more namespace, if those that are kept take too much: the one that takes
    /// most. The caller takes its objects away, with [`Self::leave_out`] for each.
    pub fn shrink(&mut self) -> Option<String> {
        if self.sum <= self.whole {
            return None;
        }
        let kept = self.taken.iter();
        let kept = kept.filter(|(namespace, _)| !self.left_out.contains(*namespace));
        let (namespace, bytes) = kept.max_by_key(|(namespace, bytes)| (**bytes, *namespace))?;
        let (namespace, bytes) = (namespace.clone(), *bytes);
        self.sum = self.sum.saturating_sub(bytes);
        self.left_out.insert(namespace.clone());
        Some(namespace)
    }

    /// Takes note of an object whose content is left out from now on.
    pub fn leave_out(&mut self, key: &K, bytes: usize) {
        self.sizes.insert(key.clone(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: usize = 100;

    /// Objects by namespace and number, with the bytes that they take; 0: it goes.
    type Change = (u8, u8, usize);

    /// A node that keeps bytes of objects, or nothing of them.
    struct Node {
        bytes: KeptBytes<(String, u8)>,
        all: BTreeMap<(String, u8), usize>,
    }

    impl Node {
        fn new() -> Self {
            Self {
                bytes: KeptBytes::of(WHOLE),
                all: BTreeMap::new(),
            }
        }

        fn take(&mut self, (namespace, number, size): Change) {
            let namespace = format!("n{namespace}");
            let key = (namespace.clone(), number);
            let before = self.all.remove(&key).unwrap_or_default();
            let is_left_out = self.bytes.count(&namespace, &key, before, size);
            if size > 0 {
                self.all.insert(key, if is_left_out { 0 } else { size });
            }
            while let Some(gone) = self.bytes.shrink() {
                for (key, size) in &mut self.all {
                    if key.0 == gone {
                        self.bytes.leave_out(key, *size);
                        *size = 0;
                    }
                }
            }
        }

        fn kept(&self) -> usize {
            self.all.values().sum()
        }
    }

    proptest! {
        #[test]
        fn what_is_kept_fits_and_an_equal_share_is_kept(
            changes in proptest::collection::vec((0_u8..4, 0_u8..3, 0_usize..60), 0..40),
        ) {
            let (mut node, mut all) = (Node::new(), BTreeMap::new());
            for change in changes {
                node.take(change);
                all.insert((change.0, change.1), change.2);
                prop_assert!(node.kept() <= WHOLE);
                prop_assert_eq!(node.kept(), node.bytes.sum);
            }
            let of = |namespace: u8| {
                let own = all.iter().filter(|((of, _), _)| *of == namespace);
                own.map(|(_, size)| *size).sum::<usize>()
            };
            // A list of what there is leaves out what must go, and no equal share.
            let mut listed = Node { bytes: node.bytes.anew(), all: BTreeMap::new() };
            for ((namespace, number), size) in &all {
                listed.take((*namespace, *number, *size));
            }
            prop_assert!(listed.kept() <= WHOLE);
            prop_assert!(!listed.bytes.is_outdated());
            let there = (0..4).filter(|namespace| of(*namespace) > 0).count();
            for namespace in 0..4 {
                let name = format!("n{namespace}");
                if of(namespace) <= WHOLE / there.max(1) {
                    prop_assert!(!listed.bytes.left_out().contains(&name), "{}", name);
                }
            }
        }
    }

    #[test]
    fn the_heaviest_goes_and_another_list_brings_it_back_once_there_is_room() {
        let mut node = Node::new();
        node.take((1, 0, 30));
        node.take((2, 0, 40));
        node.take((2, 1, 20));
        assert_eq!((node.kept(), node.bytes.left_out().len()), (90, 0));
        node.take((1, 1, 15));
        assert!(node.bytes.left_out().contains("n2"));
        assert_eq!(node.kept(), 45);
        node.take((2, 1, 80));
        assert_eq!(node.kept(), 45, "its changes are counted, and not kept");
        assert!(!node.bytes.is_outdated());
        node.take((2, 1, 0));
        assert!(!node.bytes.is_outdated(), "the rest of it fits, but barely");
        node.take((2, 0, 30));
        assert!(node.bytes.is_outdated(), "there is a margin");
        assert!(node.bytes.anew().left_out().is_empty());
    }

    #[test]
    fn one_within_most_of_an_equal_share_comes_back_however_much_others_take() {
        let mut node = Node::new();
        node.take((1, 0, 40));
        node.take((2, 0, 61));
        assert!(node.bytes.left_out().contains("n2"));
        node.take((1, 1, 25));
        node.take((2, 0, 35));
        assert_eq!(node.kept(), 65);
        assert!(node.bytes.is_outdated());
    }
}
