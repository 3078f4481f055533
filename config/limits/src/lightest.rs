//! Who goes without where all together take more than there is: the heaviest, until the others fit.
//!
//! An owner within an equal share never goes because of others: where the sum is too much, the
//! heaviest is above the mean.

use std::collections::BTreeSet;

/// A whole, and the owners that fit into it.
#[derive(Debug)]
pub struct Lightest<K> {
    whole: usize,
    taken: usize,
    /// Those that fit, by what they take.
    fitting: BTreeSet<(usize, K)>,
}

impl<K: Ord> Lightest<K> {
    /// A whole of which nothing is taken.
    pub fn of(whole: usize) -> Self {
        Self {
            whole,
            taken: 0,
            fitting: BTreeSet::new(),
        }
    }

    /// What all owners together can take.
    pub fn whole(&self) -> usize {
        self.whole
    }

    /// Counts an owner, each once. Returns those that go, with what they take: the heaviest, of
    /// equals the last by name, which may be the new one. The order in which owners are counted
    /// makes no difference to which have gone in the end.
    pub fn count(&mut self, owner: K, takes: usize) -> Vec<(K, usize)> {
        if takes > self.whole {
            return vec![(owner, takes)];
        }
        self.fitting.insert((takes, owner));
        self.taken = self.taken.saturating_add(takes);
        let mut gone = Vec::new();
        while self.taken > self.whole
            && let Some((takes, owner)) = self.fitting.pop_last()
        {
            self.taken -= takes;
            gone.push((owner, takes));
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: usize = 1000;

    /// The owners that go, with what they take.
    fn gone(owners: &[(usize, usize)]) -> BTreeSet<(usize, usize)> {
        let mut lightest = Lightest::of(WHOLE);
        let gone = owners.iter();
        let gone = gone.flat_map(|(owner, takes)| lightest.count(*owner, *takes));
        let gone = gone.collect();
        let fitting: usize = lightest.fitting.iter().map(|(takes, _)| takes).sum();
        assert_eq!(lightest.taken, fitting);
        gone
    }

    fn owners() -> impl Strategy<Value = Vec<(usize, usize)>> {
        let takes = prop_oneof![4 => 0..=WHOLE + 200, 1 => Just(usize::MAX)];
        let takes = proptest::collection::vec(takes, 1..24);
        takes.prop_map(|takes| takes.into_iter().enumerate().collect())
    }

    proptest! {
        #[test]
        fn the_others_fit_and_an_equal_share_never_goes(owners in owners()) {
            let gone = gone(&owners);
            let fits = |one: &&(usize, usize)| !gone.contains(*one);
            let taken: usize = owners.iter().filter(fits).map(|(_, takes)| takes).sum();
            prop_assert!(taken <= WHOLE);
            let share = WHOLE / owners.len();
            prop_assert!(gone.iter().all(|(_, takes)| *takes > share), "{gone:?}");
            // No more go than must: the lightest of them would not have fit.
            let lightest = gone.iter().map(|(_, takes)| *takes).min();
            prop_assert!(lightest.is_none_or(|takes| takes > WHOLE - taken), "{gone:?}");
        }

        #[test]
        fn the_order_of_owners_makes_no_difference(
            (owners, shuffled) in owners().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        ) {
            prop_assert_eq!(gone(&owners), gone(&shuffled));
        }
    }
}
