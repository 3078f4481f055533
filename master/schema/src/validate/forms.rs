//! Small rules that many kinds share: required strings, strings of a format or from a list, numbers
//! in a range.

use super::meta::NameRule;
use super::{Faults, FieldPath, Fields, get, names, text};
use crate::schema::{UNSET_MICRO_TIME, UNSET_TIME};
use serde_json::Value;
use std::sync::LazyLock;

/// Upstream's text for a negative number.
pub const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
/// Upstream's text for a number that is not positive.
pub const POSITIVE: &str = "must be greater than zero";
/// Upstream's text for bits that are not file permissions.
pub const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// A string field as a value; an absent one is the empty string, as upstream shows it.
pub fn word<'a>(fields: &'a Fields, key: &str) -> &'a Value {
    static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::String(String::new()));
    match get(fields, key) {
        found @ Value::String(_) => found,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            &EMPTY
        }
    }
}

/// A number field; zero if absent.
pub fn number(fields: &Fields, key: &str) -> i64 {
    get(fields, key).as_i64().unwrap_or_default()
}

/// Whether a boolean field is true.
pub fn on(fields: &Fields, key: &str) -> bool {
    get(fields, key).as_bool().unwrap_or_default()
}

/// Whether a field is present.
pub fn has(fields: &Fields, key: &str) -> bool {
    !get(fields, key).is_null()
}

/// Whether a time is set: upstream's zero time is none.
pub fn has_time(fields: &Fields, key: &str) -> bool {
    !matches!(text(fields, key), "" | UNSET_TIME | UNSET_MICRO_TIME)
}

/// A string must match a rule.
pub fn formed(value: &Value, at: &FieldPath<'_>, rule: NameRule, faults: &mut Faults) {
    if let Err(fault) = rule(value.as_str().unwrap_or_default()) {
        faults.invalid(at, value, fault);
    }
}

/// A string must not be empty.
pub fn needed(fields: &Fields, key: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    if text(fields, key).is_empty() {
        faults.required(&at.field(key), "");
    }
}

/// A string must not be empty and must match a rule.
pub fn needed_form(
    fields: &Fields,
    key: &str,
    at: &FieldPath<'_>,
    rule: NameRule,
    faults: &mut Faults,
) {
    if text(fields, key).is_empty() {
        faults.required(&at.field(key), "");
    } else {
        formed(get(fields, key), &at.field(key), rule, faults);
    }
}

/// A string must be empty or match a rule.
pub fn optional_form(
    fields: &Fields,
    key: &str,
    at: &FieldPath<'_>,
    rule: NameRule,
    faults: &mut Faults,
) {
    if !text(fields, key).is_empty() {
        formed(get(fields, key), &at.field(key), rule, faults);
    }
}

/// A string must be one of the supported values.
pub fn choice(
    fields: &Fields,
    key: &str,
    at: &FieldPath<'_>,
    supported: &[&str],
    faults: &mut Faults,
) {
    if text(fields, key).is_empty() {
        faults.required(&at.field(key), "");
    } else {
        faults.one_of(&at.field(key), get(fields, key), supported);
    }
}

/// A string, if present, must be one of the supported values.
pub fn optional_choice(
    fields: &Fields,
    key: &str,
    at: &FieldPath<'_>,
    supported: &[&str],
    faults: &mut Faults,
) {
    if has(fields, key) {
        faults.one_of(&at.field(key), get(fields, key), supported);
    }
}

/// A number, if present, must not be negative.
pub fn not_negative(fields: &Fields, key: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let value = get(fields, key);
    if value.as_i64().is_some_and(|value| value < 0) {
        faults.invalid(&at.field(key), value, NOT_NEGATIVE);
    }
}

/// A number, if present, must be in a range.
pub fn within(
    fields: &Fields,
    key: &str,
    at: &FieldPath<'_>,
    least: i64,
    most: i64,
    faults: &mut Faults,
) {
    let value = get(fields, key);
    if value
        .as_i64()
        .is_some_and(|value| !(least..=most).contains(&value))
    {
        faults.invalid(
            &at.field(key),
            value,
            format!("must be between {least} and {most}, inclusive"),
        );
    }
}

/// The permissions of a file.
pub fn file_mode(fields: &Fields, key: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let value = get(fields, key);
    if value
        .as_i64()
        .is_some_and(|mode| !(0..=0o777).contains(&mode))
    {
        faults.invalid(&at.field(key), value, FILE_MODE);
    }
}

/// A path without `..`.
pub fn no_backsteps(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    if value
        .as_str()
        .unwrap_or_default()
        .split('/')
        .any(|part| part == "..")
    {
        faults.invalid(at, value, "must not contain '..'");
    }
}

/// A relative path without `..`.
pub fn descending_path(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    if value.as_str().unwrap_or_default().starts_with('/') {
        faults.invalid(at, value, "must be a relative path");
    }
    no_backsteps(value, at, faults);
}

/// A relative path without `..` that does not begin with the reserved `..`-prefixed names.
pub fn plain_path(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    descending_path(value, at, faults);
    let path = value.as_str().unwrap_or_default();
    // Kubelets keep versions of a volume's files in `..data` and the like.
    if path.starts_with("..") && path != ".." && !path.starts_with("../") {
        faults.invalid(at, value, "must not start with '..'");
    }
}

/// An integer or a percentage.
pub fn count_or_share(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    match value {
        Value::String(text) => {
            if share(text).is_none() {
                let words = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or \
                             '93%', regex used for validation is '[0-9]+%')";
                faults.invalid(at, value, words);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            if value.as_i64().is_some_and(|number| number < 0) {
                faults.invalid(at, value, NOT_NEGATIVE);
            }
        }
    }
}

/// The number of a percentage.
pub fn share(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%')?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    // More digits than a number has are more than any limit.
    plain.then(|| digits.parse().unwrap_or(i64::MAX))
}

/// A percentage must be at most 100 %.
pub fn at_most_all(value: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    if value
        .as_str()
        .and_then(share)
        .is_some_and(|share| share > 100)
    {
        faults.invalid(at, value, "must not be greater than 100%");
    }
}

/// The integer, or the number of the percentage.
pub fn number_or_share(value: &Value) -> i64 {
    match value {
        Value::String(text) => share(text)
            .or_else(|| text.parse().ok())
            .unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.as_i64().unwrap_or_default()
        }
    }
}

/// Validates a taint of a node or device with these effects.
pub fn taint(taint: &Fields, effects: &[&str], at: &FieldPath<'_>, faults: &mut Faults) {
    formed(
        word(taint, "key"),
        &at.field("key"),
        names::qualified,
        faults,
    );
    formed(
        word(taint, "value"),
        &at.field("value"),
        names::label_value,
        faults,
    );
    if text(taint, "effect").is_empty() {
        faults.required(&at.field("effect"), "");
    } else {
        faults.one_of(&at.field("effect"), get(taint, "effect"), effects);
    }
}

/// Bytes of a driver's name.
const DRIVER: usize = 63;

/// Validates the name of a storage or device driver.
pub fn driver_name(name: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let own = name.as_str().unwrap_or_default();
    if own.is_empty() {
        return faults.required(at, "");
    }
    if own.len() > DRIVER {
        faults.too_long(at, DRIVER);
    }
    // Its case does not matter (upstream's `ValidateCSIDriverName`).
    if let Err(fault) = names::subdomain(&own.to_lowercase()) {
        faults.invalid(at, name, fault);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words(check: impl Fn(&mut Faults)) -> Vec<String> {
        let mut faults = Faults::default();
        check(&mut faults);
        faults
            .found()
            .map(|(_, _, message)| message.to_owned())
            .collect()
    }

    #[test]
    fn paths_are_judged_as_upstream_does() {
        let at = FieldPath::root("path");
        for good in ["a", "a/b", "a..b", "", "..."] {
            assert!(
                words(|faults| descending_path(&json!(good), &at, faults)).is_empty(),
                "{good}"
            );
        }
        assert_eq!(
            words(|faults| plain_path(&json!("../a"), &at, faults)).len(),
            1
        );
        assert_eq!(
            words(|faults| plain_path(&json!("..a"), &at, faults)).len(),
            1
        );
        assert_eq!(
            words(|faults| plain_path(&json!("/.."), &at, faults)).len(),
            2
        );
    }

    #[test]
    fn shares_are_whole_numbers_with_a_sign() {
        assert_eq!(share("25%"), Some(25));
        for bad in ["", "%", "-1%", "1.5%", "25"] {
            assert_eq!(share(bad), None, "{bad}");
        }
        let at = FieldPath::root("max");
        assert!(words(|faults| count_or_share(&json!(3), &at, faults)).is_empty());
        assert_eq!(
            words(|faults| count_or_share(&json!(-3), &at, faults)),
            ["Invalid value: -3: must be greater than or equal to 0"]
        );
        assert_eq!(
            words(|faults| at_most_all(&json!("101%"), &at, faults)).len(),
            1
        );
        assert_eq!(number_or_share(&json!("0%")), 0);
    }
}
