//! Exact arithmetic on Kubernetes quantities (`100m`, `256Mi`, `1.5`, `2e3`).
//!
//! Upstream's rules (apimachinery `resource.Quantity`): a decimal number and a suffix, binary (`Ki`
//! … `Ei`), decimal (`n` `u` `m` `k` `M` `G` `T` `P` `E`) or an exponent; digits below a nano-unit
//! are rounded away from zero; magnitudes are capped at 2^63 - 1 units.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::borrow::Cow;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::str::FromStr;

/// Nano-units in a unit.
const UNIT: i128 = 1_000_000_000;
/// How often two divides [`UNIT`], and the bits that are zero in whole units for that reason.
const UNIT_TWOS: u32 = UNIT.trailing_zeros();
const UNIT_LOW_BITS: i128 = (1 << UNIT_TWOS) - 1;
/// The largest magnitude, in nano-units.
const CAP: i128 = i64::MAX as i128 * UNIT;
/// Bytes of a quantity; upstream's own stay below 30.
const MAX_BYTES: usize = 64;

/// A quantity of a resource, exact to a nano-unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i128);

/// A text that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a quantity such as `100m`, `1.5` or `256Mi`: `{0}`")]
pub struct NotAQuantity(pub String);

impl Amount {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// Whole units.
    pub const fn units(units: i64) -> Self {
        Self(units as i128 * UNIT)
    }

    /// Thousandths of a unit.
    pub const fn milli(milli: i64) -> Self {
        Self(milli as i128 * (UNIT / 1000))
    }

    /// Whole units, rounded up.
    pub fn ceil_units(self) -> i64 {
        saturate(div_ceil(self.0, UNIT))
    }

    /// Thousandths of a unit, rounded up.
    pub fn ceil_milli(self) -> i64 {
        saturate(div_ceil(self.0, UNIT / 1000))
    }

    /// Billionths of a unit.
    pub const fn nanos(self) -> i128 {
        self.0
    }

    /// The ratio to `whole`, for scores; 1 if `whole` is zero.
    pub fn share_of(self, whole: Self) -> f64 {
        if whole.0 <= 0 {
            return 1.0;
        }
        // Common powers of two do not change the ratio. Without those of whole units, nearly all
        // amounts of bytes fit 64 bits.
        if (self.0 | whole.0) & UNIT_LOW_BITS == 0 {
            ratio(self.0 >> UNIT_TWOS, whole.0 >> UNIT_TWOS)
        } else {
            ratio(self.0, whole.0)
        }
    }

    /// The quantity in the API's form.
    pub fn to_quantity(self) -> Quantity {
        Quantity(self.to_string())
    }
}

impl TryFrom<&Quantity> for Amount {
    type Error = NotAQuantity;

    fn try_from(quantity: &Quantity) -> Result<Self, NotAQuantity> {
        quantity.0.parse()
    }
}

impl FromStr for Amount {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        let refuse = || NotAQuantity(text.chars().take(MAX_BYTES).collect());
        if text.len() > MAX_BYTES {
            return Err(refuse());
        }
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            Some(_) | None => (false, text),
        };
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let scale = Scale::parse(suffix).ok_or_else(refuse)?;
        let magnitude = scaled(number, &scale).ok_or_else(refuse)?.min(CAP);
        Ok(Self(if negative { -magnitude } else { magnitude }))
    }
}

impl fmt::Display for Amount {
    /// The shortest exact form with a decimal suffix of one or less; multiples of a binary unit
    /// above 1 Ki keep that unit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, suffix) = [(UNIT, ""), (UNIT / 1000, "m"), (1000, "u"), (1, "n")]
            .into_iter()
            .find(|(unit, _)| self.0 % unit == 0)
            .map_or((self.0, "n"), |(unit, suffix)| (self.0 / unit, suffix));
        if suffix.is_empty() && value != 0 {
            let binary = ["Ei", "Pi", "Ti", "Gi", "Mi", "Ki"]
                .into_iter()
                .zip([60_u32, 50, 40, 30, 20, 10]);
            for (name, shift) in binary {
                let unit = 1_i128 << shift;
                if value % unit == 0 {
                    return write!(f, "{}{name}", value / unit);
                }
            }
        }
        write!(f, "{value}{suffix}")
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        // No overflow: amounts have 94 bits at most.
        Self((self.0 + other.0).clamp(-CAP, CAP))
    }
}

impl Sub for Amount {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        // No overflow, as in a sum.
        Self((self.0 - other.0).clamp(-CAP, CAP))
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

/// The factor of a suffix: `factor` × 10^`tens`.
struct Scale {
    factor: i128,
    tens: i32,
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        let binary = |shift: u32| {
            Some(Self {
                factor: 1 << shift,
                tens: 0,
            })
        };
        let decimal = |tens: i32| Some(Self { factor: 1, tens });
        match suffix {
            "" => decimal(0),
            "Ki" => binary(10),
            "Mi" => binary(20),
            "Gi" => binary(30),
            "Ti" => binary(40),
            "Pi" => binary(50),
            "Ei" => binary(60),
            "n" => decimal(-9),
            "u" => decimal(-6),
            "m" => decimal(-3),
            "k" => decimal(3),
            "M" => decimal(6),
            "G" => decimal(9),
            "T" => decimal(12),
            "P" => decimal(15),
            "E" => decimal(18),
            other => {
                let exponent = other.strip_prefix(['e', 'E'])?;
                let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
                let plain = !digits.is_empty()
                    && digits.len() <= 2
                    && digits.bytes().all(|b| b.is_ascii_digit());
                decimal(plain.then(|| exponent.parse().ok()).flatten()?)
            }
        }
    }
}

/// A decimal number times a scale, in nano-units, rounded up; saturates.
fn scaled(number: &str, scale: &Scale) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let digits = match fraction {
        "" => Cow::Borrowed(whole),
        fraction => Cow::Owned(format!("{whole}{fraction}")),
    };
    let tens = 9 + scale.tens - i32::try_from(fraction.len()).ok()?;
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    // 10^38 exceeds an i128, and everything from 10^29 nano-units on is above the cap anyway.
    let magnitude = i32::try_from(digits.len()).ok()? + tens;
    if magnitude > 29 {
        return Some(CAP);
    }
    if magnitude < -20 {
        return Some(1);
    }
    let kept = digits.get(..30).unwrap_or(digits);
    let lost = i32::try_from(digits.len() - kept.len()).ok()?;
    let rest = u32::from(digits[kept.len()..].bytes().any(|b| b != b'0'));
    let value = kept.parse::<i128>().ok()?;
    let tens = tens + lost;
    if let Ok(up) = u32::try_from(tens) {
        let nano = value
            .checked_mul(10_i128.checked_pow(up)?)
            .and_then(|n| n.checked_mul(scale.factor));
        return Some(nano.map_or(CAP, |nano| nano + i128::from(rest)));
    }
    // More digits than an i128 holds before a binary suffix: refused.
    let value = value.checked_mul(scale.factor)?;
    match 10_i128.checked_pow(tens.unsigned_abs()) {
        Some(down) => Some(div_ceil(value, down).max(i128::from(rest))),
        None => Some(1),
    }
}

/// The ratio of two amounts in nano-units. Processors convert 64 bits; 128 take a function.
#[allow(
    clippy::cast_precision_loss,
    reason = "a score needs no more than 52 bits"
)]
fn ratio(part: i128, whole: i128) -> f64 {
    match (i64::try_from(part), i64::try_from(whole)) {
        (Ok(part), Ok(whole)) => part as f64 / whole as f64,
        _ => part as f64 / whole as f64,
    }
}

/// Division rounded towards positive infinity; `divisor` is positive.
fn div_ceil(value: i128, divisor: i128) -> i128 {
    value.div_euclid(divisor) + i128::from(value.rem_euclid(divisor) != 0)
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn amount(text: &str) -> Amount {
        text.parse().unwrap()
    }

    #[test]
    fn suffixes_mean_what_upstream_says() {
        assert_eq!(amount("1Ki"), Amount::units(1024));
        assert_eq!(amount("1.5Gi"), Amount::units(3 << 29));
        assert_eq!(amount("100m"), Amount::milli(100));
        assert_eq!(amount("0.1"), Amount::milli(100));
        assert_eq!(amount("1k"), Amount::units(1000));
        assert_eq!(amount("2E"), Amount::units(2_000_000_000_000_000_000));
        assert_eq!(amount("2E3"), Amount::units(2000));
        assert_eq!(amount("12e-1"), Amount::milli(1200));
        assert_eq!(amount("-5"), Amount::units(-5));
        assert_eq!(amount(".5"), Amount::milli(500));
        assert_eq!(amount("5."), Amount::units(5));
    }

    #[test]
    fn below_a_nano_rounds_up_and_above_the_cap_saturates() {
        assert_eq!(amount("0.0000000001"), amount("1n"));
        assert_eq!(amount("1e-50"), amount("1n"));
        assert_eq!(amount("9999E"), Amount::units(i64::MAX));
        assert_eq!(amount("1e99"), Amount::units(i64::MAX));
        assert_eq!(amount("0e99"), Amount::ZERO);
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "", "m", "1KB", "1 Gi", "1.2.3", "--1", "1e", "1e+", "0x10", "1e999", ".", "１",
        ] {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
    }

    #[test]
    fn rounding_is_up() {
        assert_eq!(amount("1500m").ceil_units(), 2);
        assert_eq!(amount("-1500m").ceil_units(), -1);
        assert_eq!(amount("100u").ceil_milli(), 1);
    }

    #[test]
    fn display_keeps_binary_units() {
        assert_eq!(amount("256Mi").to_string(), "256Mi");
        assert_eq!(amount("0.5").to_string(), "500m");
        assert_eq!(amount("110").to_string(), "110");
        assert_eq!(Amount::ZERO.to_string(), "0");
    }

    proptest! {
        #[test]
        fn parsing_is_total(text in any::<String>()) {
            let parsed = text.parse::<Amount>();
            prop_assert!(parsed.is_ok() || parsed.is_err());
        }

        #[test]
        fn parsing_is_total_near_quantities(text in "[-+]?[0-9]{0,45}\\.?[0-9]{0,25}([eE][-+]?[0-9]{0,3}|[numkMGTPE]i?)?") {
            if let Ok(amount) = text.parse::<Amount>() {
                prop_assert!(amount.0.abs() <= CAP);
            }
        }

        #[test]
        fn display_round_trips(milli in any::<i64>()) {
            let amount = Amount::milli(milli);
            prop_assert_eq!(amount.to_string().parse::<Amount>().unwrap(), amount);
        }

        #[test]
        fn sums_do_not_depend_on_order(a in any::<i32>(), b in any::<i32>(), c in any::<i32>()) {
            let [a, b, c] = [a, b, c].map(|n| Amount::milli(i64::from(n)));
            prop_assert_eq!((a + b) + c, a + (b + c));
            prop_assert_eq!(a + b, b + a);
            prop_assert_eq!(a + b - b, a);
        }

        /// Also where common powers of two are left out, and beyond 64 bits.
        #[test]
        fn a_share_is_the_ratio_of_the_nano_units(
            part in 0..=CAP, whole in 1..=CAP, shift in 0..90_u32, unit in prop_oneof![Just(1), Just(UNIT / 1000), Just(UNIT), Just(UNIT << 20)],
        ) {
            let amount = |nanos: i128| Amount((nanos >> shift) / unit * unit);
            let (part, whole) = (amount(part), amount(whole));
            prop_assume!(whole > Amount::ZERO);
            #[allow(clippy::cast_precision_loss, reason = "it is what a share is")]
            let ratio = part.0 as f64 / whole.0 as f64;
            prop_assert_eq!(part.share_of(whole).to_bits(), ratio.to_bits());
        }

        #[test]
        fn order_follows_numbers(a in 0_u32.., b in 0_u32..) {
            let [left, right] = [a, b].map(|n| format!("{n}m").parse::<Amount>().unwrap());
            prop_assert_eq!(left.cmp(&right), a.cmp(&b));
        }
    }
}
