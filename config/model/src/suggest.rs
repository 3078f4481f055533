//! Finds the known word nearest to an unknown one.

/// The candidate nearest to `word`, if at most a third of its letters differ.
pub(crate) fn nearest<'c>(word: &str, candidates: &[&'c str]) -> Option<&'c str> {
    const MAX_WORD: usize = 64;
    if word.chars().count() > MAX_WORD {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let wanted = plain(word);
    candidates
        .iter()
        .map(|candidate| (distance(&wanted, &plain(candidate)), *candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .map(|(_, candidate)| candidate)
}

/// Edit distance with transpositions of adjacent letters (optimal string alignment).
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=right.len()).collect();
    let mut last = None;
    for (row, from) in left.chars().enumerate() {
        let mut current = vec![row + 1];
        for (column, to) in right.iter().enumerate() {
            let replaced = previous[column] + usize::from(from != *to);
            let mut best = replaced
                .min(previous[column + 1] + 1)
                .min(current[column] + 1);
            let swapped = column > 0 && last == Some(*to) && right[column - 1] == from;
            if swapped && let Some(cost) = before.get(column - 1) {
                best = best.min(cost + 1);
            }
            current.push(best);
        }
        before = std::mem::replace(&mut previous, current);
        last = Some(from);
    }
    previous.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_finds_the_nearest_known_one() {
        let keys = ["endpoints", "ca_pins"];
        assert_eq!(nearest("endponts", &keys), Some("endpoints"));
        assert_eq!(nearest("ca-pins", &keys), Some("ca_pins"));
        assert_eq!(nearest("CA_PINS", &keys), Some("ca_pins"));
        assert_eq!(nearest("edits", &keys), None);
        assert_eq!(nearest("", &[]), None);
    }

    #[test]
    fn swapped_letters_count_as_one_edit() {
        assert_eq!(distance("nmae", "name"), 1);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("", "ab"), 2);
    }
}
