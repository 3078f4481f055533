//! Quantities that keep the notation in which they were written, their canonical form, and lists of
//! them by resource name.

use crate::validate::Fields;
use config_kube::Amount;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

/// Nano-units in a unit.
const UNIT: i128 = 1_000_000_000;

/// The notation of a quantity (apimachinery `resource.Format`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Form {
    /// `500m`, `2`, `3k`.
    #[default]
    Decimal,
    /// `64Mi`.
    Binary,
    /// `3e6`.
    Exponent,
}

/// An amount and its notation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    amount: Amount,
    form: Form,
}

/// The notation does not matter for equality.
impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.amount == other.amount
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.amount.cmp(&other.amount)
    }
}

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self {
        amount: Amount::ZERO,
        form: Form::Decimal,
    };

    /// An integer.
    pub const fn count(number: i64) -> Self {
        Self {
            amount: Amount::units(number),
            form: Form::Decimal,
        }
    }

    /// A number of bytes, in the notation of memory.
    pub const fn bytes(number: i64) -> Self {
        Self {
            amount: Amount::units(number),
            form: Form::Binary,
        }
    }

    /// Reads a value of the API: a string or a number.
    pub fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Self::parse(text),
            Value::Number(found) => Self::parse(&found.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// Parses a string.
    pub fn parse(text: &str) -> Option<Self> {
        let amount = text.parse().ok()?;
        let form = match text
            .trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))
        {
            suffix if suffix.ends_with('i') => Form::Binary,
            // `3E` is exa, `3e6` has an exponent.
            suffix if suffix.len() > 1 => Form::Exponent,
            _ => Form::Decimal,
        };
        Some(Self { amount, form })
    }

    /// The amount.
    pub fn amount(self) -> Amount {
        self.amount
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.amount == Amount::ZERO
    }

    /// Whether it is below zero.
    pub fn is_negative(self) -> bool {
        self.amount < Amount::ZERO
    }

    /// Whether it is an integer.
    pub fn is_whole(self) -> bool {
        self.amount.nanos() % UNIT == 0
    }

    /// The sum, in the notation of `self`, or of `other` if `self` is zero.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let form = if self.is_zero() {
            other.form
        } else {
            self.form
        };
        Self {
            amount: self.amount + other.amount,
            form,
        }
    }

    /// The difference, in the notation of `self`, or of `other` if `self` is zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let form = if self.is_zero() {
            other.form
        } else {
            self.form
        };
        Self {
            amount: self.amount - other.amount,
            form,
        }
    }
}

impl fmt::Display for Quantity {
    /// Upstream's canonical form: the largest suffix that leaves a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.amount.nanos();
        // Below 1024 upstream writes bytes as decimal numbers, too (`CanonicalizeBytes`), and what
        // is no whole number has no binary suffix.
        if self.form == Form::Binary && nanos % UNIT == 0 && nanos.abs() >= 1024 * UNIT {
            let units = nanos / UNIT;
            let binary = ["Ei", "Pi", "Ti", "Gi", "Mi", "Ki"]
                .into_iter()
                .zip([60_u32, 50, 40, 30, 20, 10]);
            for (name, shift) in binary {
                if units % (1_i128 << shift) == 0 {
                    return write!(f, "{}{name}", units >> shift);
                }
            }
            return write!(f, "{units}");
        }
        let names: [(&str, i32); 10] = [
            ("E", 18),
            ("P", 15),
            ("T", 12),
            ("G", 9),
            ("M", 6),
            ("k", 3),
            ("", 0),
            ("m", -3),
            ("u", -6),
            ("n", -9),
        ];
        for (name, tens) in names {
            let unit = 10_i128.pow(u32::try_from(tens + 9).unwrap_or_default());
            if nanos != 0 && nanos % unit == 0 {
                return match self.form {
                    Form::Exponent if tens != 0 => write!(f, "{}e{tens}", nanos / unit),
                    Form::Exponent | Form::Decimal | Form::Binary => {
                        write!(f, "{}{name}", nanos / unit)
                    }
                };
            }
        }
        f.write_str("0")
    }
}

/// Amounts by resource name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quantities(pub BTreeMap<String, Quantity>);

impl Quantities {
    /// Reads a list of the API; values that are not quantities are left out (validation has
    /// reported them).
    pub fn read(list: Option<&Fields>) -> Self {
        let read = |(name, value): (&String, &Value)| Some((name.clone(), Quantity::read(value)?));
        Self(list.into_iter().flatten().filter_map(read).collect())
    }

    /// The list as the API writes it.
    pub fn to_fields(&self) -> Fields {
        self.0
            .iter()
            .map(|(name, amount)| (name.clone(), Value::String(amount.to_string())))
            .collect::<Map<_, _>>()
    }

    /// The quantity of a resource, if present.
    pub fn get(&self, name: &str) -> Option<Quantity> {
        self.0.get(name).copied()
    }

    /// Sets the quantity of a resource.
    pub fn set(&mut self, name: impl Into<String>, amount: Quantity) {
        self.0.insert(name.into(), amount);
    }

    /// Adds each resource's quantity.
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let own = self.0.entry(name.clone()).or_default();
            *own = own.plus(*amount);
        }
    }

    /// Keeps the larger quantity of each resource.
    pub fn max(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let own = self.0.entry(name.clone()).or_insert(*amount);
            *own = (*own).max(*amount);
        }
    }

    /// Keeps the resources that a predicate selects.
    #[must_use]
    pub fn only(&self, keep: impl Fn(&str) -> bool) -> Self {
        let kept = self.0.iter().filter(|(name, _)| keep(name));
        Self(kept.map(|(name, amount)| (name.clone(), *amount)).collect())
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl fmt::Display for Quantities {
    /// `cpu=1,memory=2Gi`, as upstream's messages write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, amount)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={amount}", if number == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn read(text: &str) -> Quantity {
        Quantity::read(&json!(text)).unwrap()
    }

    #[test]
    fn quantities_are_shown_in_upstreams_canonical_form() {
        let cases = [
            ("1000", "1k"),
            ("1500", "1500"),
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("0", "0"),
            ("0Gi", "0"),
            ("1000Mi", "1000Mi"),
            ("1.5Gi", "1536Mi"),
            ("1e3", "1e3"),
            ("1e2", "100"),
            ("0.5Ki", "512"),
            ("1000m", "1"),
            ("100G", "100G"),
            ("1023Ki", "1023Ki"),
            ("12E0", "12"),
            ("12e-1", "1200e-3"),
            ("-5", "-5"),
            ("+5", "5"),
            ("0.0000000001", "1n"),
            ("1.0001Ki", "1024102400u"),
            ("-1024Ki", "-1Mi"),
            ("9223372036854775807", "9223372036854775807"),
            (
                "99999999999999999999999999999999999999999999",
                "9223372036854775807",
            ),
        ];
        for (text, shown) in cases {
            assert_eq!(read(text).to_string(), shown, "{text}");
        }
        for bad in ["", ".", "1.2.3", "1x", "--1", "Ki", "1 k", "e3"] {
            assert_eq!(Quantity::parse(bad), None, "{bad}");
        }
        assert_eq!(Quantity::read(&json!(0.5)).unwrap().to_string(), "500m");
    }

    proptest! {
        #[test]
        fn a_quantity_round_trips_in_its_canonical_form(number in any::<i32>(), suffix in "(n|u|m|k|M|Ki|Mi|e2|)") {
            let first = read(&format!("{number}{suffix}"));
            let again = read(&first.to_string());
            prop_assert_eq!(first, again);
            prop_assert_eq!(first.to_string(), again.to_string());
        }
    }

    #[test]
    fn a_sum_keeps_the_form_of_what_was_there() {
        assert_eq!(Quantity::ZERO.plus(read("64Mi")).to_string(), "64Mi");
        assert_eq!(read("1Gi").plus(read("512Mi")).to_string(), "1536Mi");
        assert_eq!(read("500m").plus(read("500m")).to_string(), "1");
        assert_eq!(Quantity::count(1).plus(Quantity::count(1)).to_string(), "2");
    }
}
