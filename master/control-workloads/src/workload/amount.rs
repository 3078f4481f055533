//! Amounts that are given as a number or a percentage, and sums that cannot overflow.

use config_kube::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use jiff::{SignedDuration, Timestamp};

/// How a percentage of a whole is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// To the next greater number.
    Up,
    /// To the next smaller number.
    Down,
}

/// An amount as a number; validation has refused texts that are not a percentage.
pub fn amount(given: &IntOrString, whole: i32, round: Round) -> i32 {
    match given {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|text| text.parse().ok());
            let product = i64::from(whole).saturating_mul(percent.unwrap_or(0));
            let share = match round {
                Round::Up => product.saturating_add(99).div_euclid(100),
                Round::Down => product.div_euclid(100),
            };
            i32::try_from(share).unwrap_or(i32::MAX)
        }
    }
}

/// `maxSurge` and `maxUnavailable` of a rollout as numbers. If both are 0, one pod may be missing,
/// as nothing could change otherwise (upstream: `ResolveFenceposts`).
pub fn bounds(
    surge: Option<&IntOrString>,
    unavailable: Option<&IntOrString>,
    wanted: i32,
) -> (i32, i32) {
    let surge = surge.map_or(0, |given| amount(given, wanted, Round::Up));
    let missing = unavailable.map_or(0, |given| amount(given, wanted, Round::Down));
    if surge == 0 && missing == 0 {
        (0, 1)
    } else {
        (surge, missing)
    }
}

/// The saturating sum of numbers from objects, which may have any size.
pub fn sum(numbers: impl Iterator<Item = i32>) -> i32 {
    numbers.fold(0, i32::saturating_add)
}

/// A time after another, or the latest possible one: objects may have waits of any length.
pub fn later(time: Timestamp, wait: SignedDuration) -> Timestamp {
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(number: i32) -> IntOrString {
        IntOrString::String(format!("{number}%"))
    }

    #[test]
    fn shares_round_up_for_surge_and_down_for_what_may_be_missing() {
        // Replicas, surge, unavailable: pods beyond and missing (upstream's documented arithmetic).
        let table = [
            (10, 25, 25, (3, 2)),
            (4, 25, 25, (1, 1)),
            (1, 25, 25, (1, 0)),
            (3, 0, 25, (0, 1)),
            (0, 25, 25, (0, 1)),
            (100, 100, 0, (100, 0)),
        ];
        for (wanted, surge, missing, expected) in table {
            let found = bounds(Some(&percent(surge)), Some(&percent(missing)), wanted);
            assert_eq!(found, expected, "{wanted} {surge} {missing}");
        }
        assert_eq!(bounds(Some(&IntOrString::Int(7)), None, 3), (7, 0));
        assert_eq!(bounds(None, None, 3), (0, 1));
        let all = IntOrString::String(format!("{}%", i64::MAX));
        assert_eq!(bounds(Some(&all), None, 3), (i32::MAX, 0));
    }
}
