//! Completion indexes, and the text in which a status holds them (`1,3-5,7`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::RangeInclusive;

/// Indexes as intervals that neither overlap nor touch: a few characters of a status may name all
/// indexes of a Job, which are up to two billion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Indexes {
    /// The last index of each interval, by its first.
    ends: BTreeMap<i32, i32>,
}

impl Indexes {
    /// No index.
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Adds an index.
    pub(super) fn insert(&mut self, index: i32) {
        self.add(&(index..=index));
    }

    /// Adds an interval; those that it overlaps or touches become one with it.
    fn add(&mut self, interval: &RangeInclusive<i32>) {
        let (mut first, mut last) = (*interval.start(), *interval.end());
        while let Some((from, to)) = self.last_until(last.saturating_add(1))
            && to.saturating_add(1) >= first
        {
            self.ends.remove(&from);
            (first, last) = (first.min(from), last.max(to));
        }
        self.ends.insert(first, last);
    }

    /// The last interval that begins at `index` or before.
    fn last_until(&self, index: i32) -> Option<(i32, i32)> {
        let (from, to) = self.ends.range(..=index).next_back()?;
        Some((*from, *to))
    }

    /// The end of the interval that has `index`; `None` if none has it.
    pub(super) fn end_of(&self, index: i32) -> Option<i32> {
        let (_, to) = self.last_until(index)?;
        (to >= index).then_some(to)
    }

    /// Whether `index` is among them.
    pub(super) fn contains(&self, index: i32) -> bool {
        self.end_of(index).is_some()
    }

    /// Their number.
    pub(super) fn len(&self) -> usize {
        self.ends.iter().map(|(from, to)| span(*from, *to)).sum()
    }

    /// The number of those in an interval.
    pub(super) fn count_in(&self, interval: &RangeInclusive<i32>) -> usize {
        let (first, last) = (*interval.start(), *interval.end());
        let before_end = self.ends.range(..=last).rev();
        let shared = before_end.take_while(|(_, to)| **to >= first);
        shared
            .map(|(from, to)| span(first.max(*from), last.min(*to)))
            .sum()
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<I: IntoIterator<Item = i32>>(indexes: I) -> Self {
        let mut all = Self::new();
        for index in indexes {
            all.insert(index);
        }
        all
    }
}

/// The number of indexes from `first` to `last`, both included.
pub(super) fn span(first: i32, last: i32) -> usize {
    let steps = i64::from(last) - i64::from(first) + 1;
    usize::try_from(steps).unwrap_or_default()
}

/// The intervals of a list; parts of it that are not an index below `completions` are left out.
pub(super) fn intervals(list: &str, completions: i32) -> impl Iterator<Item = RangeInclusive<i32>> {
    let interval = move |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<i32>().ok()?, to.parse::<i32>().ok()?);
        let (from, to) = (from.max(0), to.min(completions - 1));
        (from <= to).then_some(from..=to)
    };
    list.split(',').filter_map(interval)
}

/// Reads a list of indexes whose pods have ended; as [`intervals`].
pub(super) fn parse(list: &str, completions: i32) -> Indexes {
    let mut indexes = Indexes::new();
    for interval in intervals(list, completions) {
        indexes.add(&interval);
    }
    indexes
}

/// Writes a list.
pub(super) fn text(indexes: &Indexes) -> String {
    let mut text = String::new();
    for (first, last) in &indexes.ends {
        if !text.is_empty() {
            text.push(',');
        }
        // Writing to a String cannot fail.
        let _written = match last - first {
            0 => write!(text, "{first}"),
            1 => write!(text, "{first},{last}"),
            _ => write!(text, "{first}-{last}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn of(indexes: &[i32]) -> Indexes {
        indexes.iter().copied().collect()
    }

    #[test]
    fn lists_are_short_and_strangers_are_left_out() {
        assert_eq!(text(&of(&[1, 3, 4, 5, 7, 8])), "1,3-5,7,8");
        assert_eq!(parse("1,3-5,x,9-", 5), of(&[1, 3, 4]));
        assert_eq!(parse("", 5), Indexes::new());
    }

    #[test]
    fn a_list_of_two_billion_indexes_takes_no_more_memory_than_its_text() {
        let all = parse("0-1000,1002-2147483646", i32::MAX);
        assert_eq!(all.ends.len(), 2);
        assert_eq!(all.len(), 2_147_483_646);
        assert_eq!(all.count_in(&(1000..=1003)), 3);
        assert!(all.contains(1000) && !all.contains(1001) && all.contains(2_147_483_646));
        assert_eq!(text(&all), "0-1000,1002-2147483646");
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_was_written(indexes in proptest::collection::btree_set(0_i32..40, 0..30)) {
            let indexes: Indexes = indexes.into_iter().collect();
            prop_assert_eq!(parse(&text(&indexes), 40), indexes);
        }

        #[test]
        fn intervals_are_the_set_of_the_same_indexes(
            added in proptest::collection::vec((0_i32..40, 0_i32..8), 0..20), first in 0_i32..40, more in 0_i32..40,
        ) {
            let (mut indexes, mut set) = (Indexes::new(), BTreeSet::new());
            for (from, steps) in added {
                indexes.add(&(from..=from + steps));
                set.extend(from..=from + steps);
            }
            prop_assert_eq!(indexes.len(), set.len());
            prop_assert_eq!(&indexes, &set.iter().copied().collect::<Indexes>());
            let interval = first..=first + more;
            prop_assert_eq!(indexes.count_in(&interval), set.range(interval.clone()).count());
            for index in interval {
                prop_assert_eq!(indexes.contains(index), set.contains(&index));
            }
        }
    }
}
