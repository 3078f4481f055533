//! Cells that several kinds' tables share.

use crate::object::{meta_text, metadata};
use crate::registry::{Column, column, date};
use crate::validate::{Fields, get, items, object, text};
use jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeSet;

/// The age column.
pub const AGE: Column = column("Age", age);

/// The creation time, for kinds without columns of their own.
pub const CREATED: Column = date("Created At", |fields, _| {
    meta_text(fields, "creationTimestamp").into()
});

/// The name, for kinds with their own column for it.
pub const NAME: Column = column("Name", |fields, _| meta_text(fields, "name").into());

/// The name, with `(default)` if an annotation marks the object as the default.
pub fn named_default(fields: &Fields, annotations: &[&str]) -> String {
    let name = meta_text(fields, "name");
    let notes = object(metadata(fields), "annotations");
    let default =
        notes.is_some_and(|notes| annotations.iter().any(|key| text(notes, key) == "true"));
    if default {
        format!("{name} (default)")
    } else {
        name.to_owned()
    }
}

/// A boolean; `<unset>` if absent.
pub fn flag(fields: &Fields, key: &str) -> Value {
    match get(fields, key).as_bool() {
        Some(flag) => flag.into(),
        None => "<unset>".into(),
    }
}

/// Addresses in the status of a load balancer, without duplicates.
pub fn load_balancer(fields: &Fields) -> String {
    let points = object(fields, "status").and_then(|status| object(status, "loadBalancer"));
    let points = points.map_or(&[][..], |balancer| items(balancer, "ingress"));
    let addresses =
        points
            .iter()
            .filter_map(Value::as_object)
            .map(|point| match text(point, "ip") {
                "" => text(point, "hostname"),
                address => address,
            });
    let unique: BTreeSet<&str> = addresses.filter(|address| !address.is_empty()).collect();
    unique.into_iter().collect::<Vec<_>>().join(",")
}

/// Pairs as `key=value,…`, `<none>` if there are none.
pub fn pairs(map: Option<&Fields>) -> String {
    let mut pairs: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    pairs.sort_unstable();
    if pairs.is_empty() {
        "<none>".to_owned()
    } else {
        pairs.join(",")
    }
}

/// A label selector as a string, `<none>` if it selects everything.
pub fn selector(selector: Option<&Fields>) -> String {
    let Some(selector) = selector else {
        return "<none>".to_owned();
    };
    let mut parts = match pairs(object(selector, "matchLabels")).as_str() {
        "<none>" => Vec::new(),
        pairs => vec![pairs.to_owned()],
    };
    for expression in items(selector, "matchExpressions")
        .iter()
        .filter_map(Value::as_object)
    {
        let key = text(expression, "key");
        let mut values: Vec<&str> = items(expression, "values")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        values.sort_unstable();
        parts.push(match text(expression, "operator") {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    if parts.is_empty() {
        "<none>".to_owned()
    } else {
        parts.join(",")
    }
}

/// The age of an object.
pub fn age(fields: &Fields, now: Timestamp) -> Value {
    since(meta_text(fields, "creationTimestamp"), now).into()
}

/// Time since an RFC 3339 time, as upstream prints it.
pub fn since(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => human(now.as_second() - time.as_second()),
        Err(_no_time) => "<unknown>".to_owned(),
    }
}

/// A duration in seconds, in one or two units (apimachinery `util/duration`).
pub fn human(seconds: i64) -> String {
    let two = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{big}{unit}")
        } else {
            format!("{big}{unit}{small}{small_unit}")
        }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        // Clocks differ a little: what is a second ahead has happened now (upstream).
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// A string at a JSON pointer below a top-level field, `<none>` if it is empty.
pub fn at<'a>(fields: &'a Fields, field: &str, pointer: &str) -> &'a str {
    let found = fields
        .get(field)
        .and_then(|value| value.pointer(pointer))
        .and_then(Value::as_str);
    found.filter(|text| !text.is_empty()).unwrap_or("<none>")
}

/// Number of entries of a top-level map.
pub fn entries(fields: &Fields, field: &str) -> usize {
    object(fields, field).map_or(0, serde_json::Map::len)
}

/// Labels of an object.
pub fn labels(fields: &Fields) -> impl Iterator<Item = (&String, &str)> {
    let labels = object(metadata(fields), "labels").into_iter().flatten();
    labels.map(|(key, value)| (key, value.as_str().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn durations_read_as_upstream_writes_them() {
        let expected = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (20_000, "5h33m"),
            (100_000, "27h"),
            (200_000, "2d7h"),
            (700_000, "8d"),
            (70_000_000, "2y80d"),
            (300_000_000, "9y"),
        ];
        for (seconds, text) in expected {
            assert_eq!(human(seconds), text);
        }
    }
}
