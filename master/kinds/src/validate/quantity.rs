//! Quantities (apimachinery `api/resource`): exact comparison and arithmetic, and the one way to write each.

use std::cmp::Ordering;
use std::fmt;

/// Parts of a unit that are kept; what is smaller is rounded away from zero, as upstream does.
const NANO: i128 = 1_000_000_000;
/// Units that a quantity has at most (upstream: 2^63 - 1).
const MOST: i128 = i64::MAX as i128 * NANO;

/// How a quantity was written, which is how it is written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `1500m`, `3k`.
    Decimal,
    /// `2Ki`.
    Binary,
    /// `2e3`.
    Exponent,
}

/// An amount, exact to a billionth.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nano: i128,
    form: Form,
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self { nano: 0, form: Form::Decimal };

    /// A whole number.
    pub fn whole(number: i64) -> Self {
        Self { nano: i128::from(number) * NANO, form: Form::Decimal }
    }

    /// Reads a quantity; none where the text is no quantity. Larger ones than upstream holds are cut to its largest.
    pub fn parse(text: &str) -> Option<Self> {
        let (sign, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return None;
        }
        let (base, power, form) = scale(suffix)?;
        let nano = amount(whole, fraction, base, power).min(MOST);
        Some(Self { nano: sign * nano, form })
    }

    /// Whether it is less than nothing.
    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    /// Whether it is nothing.
    pub fn is_zero(self) -> bool {
        self.nano == 0
    }

    /// Whether it is a whole number.
    pub fn is_whole(self) -> bool {
        self.nano % NANO == 0
    }

    /// Thousandths, rounded away from zero.
    pub fn milli(self) -> i128 {
        let (milli, rest) = (self.nano / (NANO / 1000), self.nano % (NANO / 1000));
        milli + rest.signum()
    }

    /// The sum, written as the larger part is.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let form = if self.is_zero() { other.form } else { self.form };
        Self { nano: (self.nano + other.nano).clamp(-MOST, MOST), form }
    }

    /// The difference.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let form = if self.is_zero() { other.form } else { self.form };
        Self { nano: (self.nano - other.nano).clamp(-MOST, MOST), form }
    }
}

/// Base, power and form that a suffix stands for.
fn scale(suffix: &str) -> Option<(u32, i32, Form)> {
    Some(match suffix {
        "n" => (10, -9, Form::Decimal),
        "u" => (10, -6, Form::Decimal),
        "m" => (10, -3, Form::Decimal),
        "" => (10, 0, Form::Decimal),
        "k" => (10, 3, Form::Decimal),
        "M" => (10, 6, Form::Decimal),
        "G" => (10, 9, Form::Decimal),
        "T" => (10, 12, Form::Decimal),
        "P" => (10, 15, Form::Decimal),
        "E" => (10, 18, Form::Decimal),
        "Ki" => (2, 10, Form::Binary),
        "Mi" => (2, 20, Form::Binary),
        "Gi" => (2, 30, Form::Binary),
        "Ti" => (2, 40, Form::Binary),
        "Pi" => (2, 50, Form::Binary),
        "Ei" => (2, 60, Form::Binary),
        exponent => (10, i32::from(exponent.strip_prefix(['e', 'E'])?.parse::<i16>().ok()?), Form::Exponent),
    })
}

/// Billionths, rounded up; the largest there is where it is more.
fn amount(whole: &str, fraction: &str, base: u32, power: i32) -> i128 {
    let mut digits: i128 = 0;
    let mut places: i32 = 0;
    let mut lost = false;
    for (digit, below) in whole.bytes().map(|d| (d, 0)).chain(fraction.bytes().map(|d| (d, 1))) {
        // Beyond this many digits nothing can matter but that they are there.
        if digits > MOST / 1000 {
            lost |= digit != b'0';
            places -= 1 - below;
            continue;
        }
        digits = digits * 10 + i128::from(digit - b'0');
        places += below;
    }
    if digits == 0 && !lost {
        return 0;
    }
    let (tens, twos) = if base == 10 { (power - places + 9, 0) } else { (9 - places, power.unsigned_abs()) };
    let mut nano = digits;
    for _ in 0..twos {
        nano = nano.saturating_mul(2);
    }
    shift(nano, tens, lost)
}

fn shift(mut nano: i128, tens: i32, mut lost: bool) -> i128 {
    for _ in 0..tens.max(0) {
        nano = nano.saturating_mul(10);
        if nano >= MOST {
            return MOST;
        }
    }
    for _ in tens.min(0)..0 {
        lost |= nano % 10 != 0;
        nano /= 10;
        if nano == 0 {
            break;
        }
    }
    nano + i128::from(lost)
}

impl fmt::Display for Quantity {
    /// As upstream writes it: no fractions, the largest suffix that keeps the number whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        if self.nano == 0 {
            return f.write_str("0");
        }
        if self.form == Form::Binary && self.is_whole() && self.nano.abs() >= 1024 * NANO {
            let (mut number, mut step) = (self.nano / NANO, 0);
            while number % 1024 == 0 && step + 1 < BINARY.len() {
                number /= 1024;
                step += 1;
            }
            return write!(f, "{number}{}", BINARY[step]);
        }
        let (mut number, mut step) = (self.nano, 0);
        while number % 1000 == 0 && step + 1 < DECIMAL.len() {
            number /= 1000;
            step += 1;
        }
        if self.form == Form::Exponent && step != 3 {
            let power = i32::try_from(step).unwrap_or_default() * 3 - 9;
            return write!(f, "{number}e{power}");
        }
        write!(f, "{number}{}", DECIMAL[step])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_written_as_upstream_writes_them() {
        let expected = [
            ("0", "0"),
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1023Ki", "1023Ki"),
            ("0.5Ki", "512"),
            ("1000", "1k"),
            ("1e3", "1e3"),
            ("12E0", "12"),
            ("100k", "100k"),
            ("-5", "-5"),
            ("0.0000000001", "1n"),
            ("1.0001Ki", "1024102400u"),
            ("9223372036854775807", "9223372036854775807"),
            ("99999999999999999999999999999999999999999999", "9223372036854775807"),
        ];
        for (text, canonical) in expected {
            assert_eq!(Quantity::parse(text).unwrap().to_string(), canonical, "{text}");
        }
        for bad in ["", ".", "1.2.3", "1x", "--1", "Ki", "1 k", "e3"] {
            assert!(Quantity::parse(bad).is_none(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(number in any::<i32>(), suffix in "(n|u|m|k|M|Ki|Mi|e2|)") {
            let read = Quantity::parse(&format!("{number}{suffix}")).unwrap();
            let again = Quantity::parse(&read.to_string()).unwrap();
            prop_assert_eq!(read, again);
            prop_assert_eq!(read.to_string(), again.to_string());
        }
    }
}
