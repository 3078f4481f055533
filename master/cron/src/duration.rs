//! Durations in Go's syntax (`1h30m`), read as its `time.ParseDuration` does, with its words for
//! what is none.

const SECOND: u128 = 1_000_000_000;
/// The units with their nanoseconds. Microseconds may have either of the two signs that look alike.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3_600 * SECOND),
];
/// Nanoseconds at most, some 292 years: Go's type has 64 bits with a sign.
const MOST: u128 = 1 << 63;
/// Digits of a fraction that are read: more are less than a nanosecond in any unit.
const PLACES: usize = 18;

/// The whole seconds of a duration; none of a negative one.
pub(crate) fn whole_seconds(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut sum = 0;
    while !rest.is_empty() {
        let (whole, after) = split_digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), split_digits);
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let whole = number(whole).filter(|whole| *whole <= MOST);
        let whole = whole.ok_or_else(invalid)?;
        let is_number = |c: char| c == '.' || c.is_ascii_digit();
        let (unit, after) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {text:?}"));
        }
        let known = UNITS.iter().find(|(known, _)| *known == unit);
        let (_, size) =
            known.ok_or_else(|| format!("time: unknown unit {unit:?} in duration {text:?}"))?;
        let fraction = &fraction[..fraction.len().min(PLACES)];
        let scale = std::iter::repeat_n(10, fraction.len()).product::<u128>();
        sum += whole * size + number(fraction).ok_or_else(invalid)? * size / scale;
        if sum > MOST {
            return Err(invalid());
        }
        rest = after;
    }
    if text.starts_with('-') {
        return Ok(0);
    }
    let nanoseconds = Some(sum).filter(|sum| *sum < MOST);
    let seconds = nanoseconds.and_then(|sum| i64::try_from(sum / SECOND).ok());
    seconds.ok_or_else(invalid)
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

/// A number of digits alone, zero without any; none if it is too large.
fn number(digits: &str) -> Option<u128> {
    if digits.is_empty() {
        return Some(0);
    }
    digits.parse().ok()
}
