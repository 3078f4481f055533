//! Completion indexes, and the text in which a status holds them (`1,3-5,7`).

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::RangeInclusive;

/// Indexes, in order.
pub type Indexes = BTreeSet<i32>;

/// The intervals of a list; parts of it that are not an index below `completions` are left out. A
/// few characters may name all indexes of a Job, which are up to two billion.
pub(super) fn intervals(list: &str, completions: i32) -> impl Iterator<Item = RangeInclusive<i32>> {
    let interval = move |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<i32>().ok()?, to.parse::<i32>().ok()?);
        let (from, to) = (from.max(0), to.min(completions - 1));
        (from <= to).then_some(from..=to)
    };
    list.split(',').filter_map(interval)
}

/// Reads a list of indexes whose pods have ended, which bounds their number; as [`intervals`].
pub(super) fn parse(list: &str, completions: i32) -> Indexes {
    intervals(list, completions).flatten().collect()
}

/// Writes a list.
pub(super) fn text(indexes: &Indexes) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for index in indexes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            Some(_) | None => runs.push((*index, *index)),
        }
    }
    let mut text = String::new();
    for (first, last) in runs {
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

    #[test]
    fn lists_are_short_and_strangers_are_left_out() {
        assert_eq!(text(&[1, 3, 4, 5, 7, 8].into()), "1,3-5,7,8");
        assert_eq!(parse("1,3-5,x,9-", 5), [1, 3, 4].into());
        assert_eq!(parse("", 5), Indexes::new());
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_was_written(indexes in proptest::collection::btree_set(0_i32..40, 0..30)) {
            prop_assert_eq!(parse(&text(&indexes), 40), indexes);
        }
    }
}
