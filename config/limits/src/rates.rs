//! Rates: each name has a burst, then one more per interval, in a table of fixed size.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

/// A rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many at once, after a pause.
    pub burst: u32,
    /// Time until one more is allowed.
    pub every: Duration,
}

/// How much of its rate each name has used up (the generic cell rate algorithm, ITU-T I.371). `K`
/// is the name.
#[derive(Debug)]
pub struct Rates<K> {
    most: usize,
    /// When each name will have its whole burst again. A name that already has it is not kept.
    full_at: HashMap<K, Duration>,
    soonest: BTreeSet<(Duration, K)>,
}

impl<K: Copy + Hash + Ord> Rates<K> {
    /// A table of `most` names, at least one.
    ///
    /// If the table is full, the name that is next to have its whole burst again is forgotten
    /// first, so that it gets its burst early. Combine the rates per name with one rate for all
    /// names.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            full_at: HashMap::new(),
            soonest: BTreeSet::new(),
        }
    }

    /// Takes one from each of these names, or from none.
    ///
    /// `now` is the time of a clock that never goes back.
    ///
    /// # Errors
    /// How long it takes until each name has one.
    pub fn take(&mut self, names: &[(K, Rate)], now: Duration) -> Result<(), Duration> {
        let next = |name: &K, rate: &Rate| {
            let full_at = self.full_at.get(name).copied().unwrap_or_default().max(now);
            full_at.saturating_add(rate.every)
        };
        let wait = |(name, rate): &(K, Rate)| {
            let most = now.saturating_add(rate.every.saturating_mul(rate.burst));
            next(name, rate).saturating_sub(most)
        };
        let longest = names.iter().map(wait).max().unwrap_or_default();
        if !longest.is_zero() {
            return Err(longest);
        }
        for (name, rate) in names {
            let at = self
                .full_at
                .get(name)
                .copied()
                .unwrap_or_default()
                .max(now)
                .saturating_add(rate.every);
            self.set(*name, at, now);
        }
        Ok(())
    }

    /// Number of names in the table.
    pub fn len(&self) -> usize {
        self.full_at.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.full_at.is_empty()
    }

    fn set(&mut self, name: K, at: Duration, now: Duration) {
        if let Some(before) = self.full_at.insert(name, at) {
            self.soonest.remove(&(before, name));
        }
        self.soonest.insert((at, name));
        while let Some((at, name)) = self.soonest.first().copied()
            && (self.full_at.len() > self.most || at <= now)
        {
            self.soonest.pop_first();
            self.full_at.remove(&name);
        }
    }
}
