//! Path elements of managed fields: a field, a list item by its keys, by its value, by its index.

use serde_json::{Map, Number, Value};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// One element of a path. The derived order (fields, keys, values, indexes) is upstream's, by which
/// encoded sets are sorted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element<'a> {
    /// A field of an object.
    Field(Cow<'a, str>),
    /// The list item with these key fields, sorted by name.
    Key(Vec<(Cow<'a, str>, Simple<'a>)>),
    /// The item of a set with this value.
    Value(Simple<'a>),
    /// The item at an index.
    Index(i64),
}

/// A JSON value with upstream's order: numbers, strings, booleans, lists, objects, null. Sets are
/// sorted by it, and so are the fields in a stored list.
#[derive(Debug, Clone)]
pub struct Simple<'a>(pub Cow<'a, Value>);

impl PartialEq for Simple<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Simple<'_> {}

impl PartialOrd for Simple<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Simple<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(&self.0, &other.0)
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => numbers(left, right),
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => {
            let pairs = left
                .iter()
                .zip(right)
                .map(|(left, right)| compare(left, right));
            pairs
                .fold(Ordering::Equal, Ordering::then)
                .then(left.len().cmp(&right.len()))
        }
        (Value::Object(left), Value::Object(right)) => {
            let pairs = left
                .iter()
                .zip(right)
                .map(|(left, right)| left.0.cmp(right.0).then(compare(left.1, right.1)));
            pairs
                .fold(Ordering::Equal, Ordering::then)
                .then(left.len().cmp(&right.len()))
        }
        _ => rank(left).cmp(&rank(right)),
    }
}

/// As upstream: integers exactly, all else as floating-point, so that `1` and `1.0` are one item of
/// a set. An integer that floating-point rounds differs from the number to which it is rounded:
/// equal to that, it would be equal to two that differ. Sorts end the program where they meet such
/// an order.
fn numbers(left: &Number, right: &Number) -> Ordering {
    let float = |number: &Number| number.as_f64().unwrap_or_default();
    float(left)
        .total_cmp(&float(right))
        .then_with(|| whole(left).cmp(&whole(right)))
}

/// The integer, or the integral part of another number.
#[expect(clippy::cast_possible_truncation, reason = "the conversion saturates")]
fn whole(number: &Number) -> i128 {
    let other = || number.as_f64().unwrap_or_default() as i128;
    number.as_i64().map_or_else(other, i128::from)
}

impl Element<'_> {
    /// The element, independent of the object.
    pub fn into_owned(self) -> Element<'static> {
        let own = |value: Simple<'_>| Simple(Cow::Owned(value.0.into_owned()));
        match self {
            Self::Field(name) => Element::Field(Cow::Owned(name.into_owned())),
            Self::Key(fields) => Element::Key(
                fields
                    .into_iter()
                    .map(|(name, value)| (Cow::Owned(name.into_owned()), own(value)))
                    .collect(),
            ),
            Self::Value(value) => Element::Value(own(value)),
            Self::Index(index) => Element::Index(index),
        }
    }

    /// Decodes an element of `FieldsV1`; `None` for forms that this version does not know.
    ///
    /// # Errors
    /// The text has no prefix of an element, or its JSON is malformed.
    pub fn decode(text: Cow<'_, str>) -> Result<Option<Element<'_>>, String> {
        let bytes = text.as_bytes();
        if bytes.len() < 2 || bytes[1] != b':' {
            return Err(format!(
                "a field of managedFields must begin with f:, k:, v: or i:, found {text:?}"
            ));
        }
        let unreadable = |error: &dyn fmt::Display| {
            format!("a field of managedFields cannot be read: {text:?}: {error}")
        };
        match bytes[0] {
            b'f' => Ok(Some(Element::Field(match text {
                Cow::Borrowed(text) => Cow::Borrowed(&text[2..]),
                Cow::Owned(mut text) => {
                    drop(text.drain(..2));
                    Cow::Owned(text)
                }
            }))),
            b'v' => {
                let value = serde_json::from_str(&text[2..]).map_err(|error| unreadable(&error))?;
                Ok(Some(Element::Value(Simple(Cow::Owned(value)))))
            }
            b'k' => {
                let fields: Map<String, Value> =
                    serde_json::from_str(&text[2..]).map_err(|error| unreadable(&error))?;
                let mut fields: Vec<_> = fields
                    .into_iter()
                    .map(|(name, value)| (Cow::Owned(name), Simple(Cow::Owned(value))))
                    .collect();
                fields.sort();
                Ok(Some(Element::Key(fields)))
            }
            b'i' => Ok(Some(Element::Index(
                text[2..].parse().map_err(|error| unreadable(&error))?,
            ))),
            // A form of a later version: its reader skips it.
            _ => Ok(None),
        }
    }

    /// Encodes an element for `FieldsV1`, as a quoted JSON string.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Field(name) => {
                quoted(out, "f:", name);
            }
            Self::Key(fields) => {
                let mut key = Vec::new();
                for (number, (name, value)) in fields.iter().enumerate() {
                    key.push(if number == 0 { b'{' } else { b',' });
                    quoted(&mut key, "", name);
                    key.push(b':');
                    json(&mut key, &value.0);
                }
                key.push(b'}');
                quoted(out, "k:", &String::from_utf8_lossy(&key));
            }
            Self::Value(value) => {
                let mut text = Vec::new();
                json(&mut text, &value.0);
                quoted(out, "v:", &String::from_utf8_lossy(&text));
            }
            Self::Index(index) => out.extend_from_slice(format!("\"i:{index}\"").as_bytes()),
        }
    }
}

fn json(out: &mut Vec<u8>, value: &Value) {
    // Writing a value to a Vec does not fail.
    let _infallible = serde_json::to_writer(out, value);
}

/// A JSON string with a prefix that needs no escapes.
fn quoted(out: &mut Vec<u8>, prefix: &str, text: &str) {
    out.push(b'"');
    out.extend_from_slice(prefix.as_bytes());
    if text
        .bytes()
        .all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\')
    {
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
        return;
    }
    let start = out.len();
    // Writing to a Vec does not fail; the opening quote is already written.
    let _infallible = serde_json::to_writer(&mut *out, text);
    out.remove(start);
}

impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (number, (name, value)) in fields.iter().enumerate() {
                    let comma = if number == 0 { "" } else { "," };
                    write!(f, "{comma}{name}={}", value.0)?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={}]", value.0),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A path, as errors show it.
#[derive(Debug)]
pub(crate) struct Path<'p, 'e>(pub(crate) &'p [&'p Element<'e>]);

impl fmt::Display for Path<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| element.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// Numbers around the least that floating-point rounds, and others.
    fn number() -> impl Strategy<Value = Value> {
        const ROUNDED: i64 = 1 << 53;
        let whole = prop_oneof![ROUNDED - 2..ROUNDED + 6, -3..3_i64];
        (whole, prop::bool::ANY, prop::bool::ANY).prop_map(|(number, float, half)| {
            let text = match (float, half) {
                (false, _) => number.to_string(),
                (true, false) => format!("{number}.0"),
                (true, true) => format!("{number}.5"),
            };
            serde_json::from_str(&text).unwrap()
        })
    }

    proptest! {
        #[test]
        fn numbers_have_one_order(one in number(), two in number(), three in number()) {
            let ordered = |left: &Value, right: &Value| compare(left, right);
            prop_assert_eq!(ordered(&one, &two), ordered(&two, &one).reverse());
            if ordered(&one, &two).is_le() && ordered(&two, &three).is_le() {
                let both = ordered(&one, &two).is_eq() && ordered(&two, &three).is_eq();
                prop_assert_eq!(ordered(&one, &three).is_eq(), both);
                prop_assert!(ordered(&one, &three).is_le());
            }
        }
    }

    #[test]
    fn a_number_in_two_spellings_is_one_item() {
        let order = |left: Value, right: Value| compare(&left, &right);
        assert_eq!(order(json!(1), json!(1.0)), Ordering::Equal);
        assert_eq!(order(json!(1), json!(1.5)), Ordering::Less);
        assert_eq!(order(json!(2), json!(1.5)), Ordering::Greater);
        let rounded = json!(9_007_199_254_740_992_f64);
        assert_eq!(
            order(json!(9_007_199_254_740_992_i64), rounded.clone()),
            Ordering::Equal
        );
        assert_eq!(
            order(json!(9_007_199_254_740_993_i64), rounded),
            Ordering::Greater
        );
        // Beyond integers of 64 bits all are floating-point.
        assert_eq!(order(json!(u64::MAX), json!(u64::MAX - 1)), Ordering::Equal);
    }
}
