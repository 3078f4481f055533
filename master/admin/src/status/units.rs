//! Amounts and times as a person reads them.

use config_kube::Amount;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;

/// How long ago, or until then: two digits and more of one unit, as kubectl's.
pub(super) fn span(seconds: i64) -> String {
    let seconds = seconds.abs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long ago a moment was.
pub(super) fn age(then: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(then).as_secs())
}

/// As [`age`], of an object's field.
pub(super) fn age_of(then: Option<&Time>, now: Timestamp) -> String {
    then.map_or_else(|| "-".to_owned(), |then| age(then.0, now))
}

/// As [`age`], of an RFC 3339 text; the text itself where it is none.
pub(super) fn age_of_text(then: &str, now: Timestamp) -> String {
    match then.parse() {
        Ok(then) => format!("{} ago", age(then, now)),
        Err(_no_time) => then.to_owned(),
    }
}

/// Bytes with a binary unit and one digit after the point.
pub(super) fn bytes(amount: Amount) -> String {
    let bytes = amount.ceil_units().max(0);
    let units = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >> shift > 0);
    let Some((name, shift)) = unit else {
        return bytes.to_string();
    };
    // Tenths, rounded down; below 2^63 / 10 as no machine has more.
    let tenths = bytes.saturating_mul(10) >> shift;
    match tenths % 10 {
        0 => format!("{}{name}", tenths / 10),
        tenth => format!("{}.{tenth}{name}", tenths / 10),
    }
}

/// Processors, in whole ones or in thousandths.
pub(super) fn processors(amount: Amount) -> String {
    match amount.ceil_milli() {
        whole if whole % 1000 == 0 => (whole / 1000).to_string(),
        milli => format!("{milli}m"),
    }
}

/// A part of a whole in per cent, rounded down.
pub(super) fn percent(part: Amount, whole: Amount) -> Option<i128> {
    (whole > Amount::ZERO).then(|| part.nanos() * 100 / whole.nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_times_are_short() {
        for (seconds, wanted) in [(0, "0s"), (119, "119s"), (-120, "2m"), (7200, "2h")] {
            assert_eq!(span(seconds), wanted);
        }
        assert_eq!(span(172_800), "2d");
        for (amount, wanted) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1Ki"),
            (1_610_612_736, "1.5Gi"),
            (i64::MAX, "838860.7Ti"),
        ] {
            assert_eq!(bytes(Amount::units(amount)), wanted, "{amount}");
        }
        assert_eq!(processors(Amount::milli(3800)), "3800m");
        assert_eq!(processors(Amount::units(4)), "4");
        assert_eq!(percent(Amount::milli(999), Amount::units(2)), Some(49));
        assert_eq!(percent(Amount::units(1), Amount::ZERO), None);
    }
}
