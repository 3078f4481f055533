//! Cells that several kinds' tables share.

use crate::object::{meta_text, metadata};
use crate::registry::{Column, column};
use crate::validate::{Fields, object};
use jiff::Timestamp;
use serde_json::Value;

/// The age column.
pub(super) const AGE: Column = column("Age", age);

/// How old an object is.
pub(super) fn age(fields: &Fields, now: Timestamp) -> Value {
    since(meta_text(fields, "creationTimestamp"), now).into()
}

/// Time since an RFC 3339 time, as upstream writes it.
pub(super) fn since(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => human(now.as_second() - time.as_second()),
        Err(_no_time) => "<unknown>".to_owned(),
    }
}

/// A duration in seconds, in one or two units (apimachinery `util/duration`).
pub(super) fn human(seconds: i64) -> String {
    let two = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        ..-1 => "<invalid>".to_owned(),
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

/// A text at a JSON pointer below a top-level field, `<none>` where it is empty.
pub(super) fn at<'a>(fields: &'a Fields, field: &str, pointer: &str) -> &'a str {
    let found = fields.get(field).and_then(|value| value.pointer(pointer)).and_then(Value::as_str);
    found.filter(|text| !text.is_empty()).unwrap_or("<none>")
}

/// Number of entries of a map field at the top.
pub(super) fn entries(fields: &Fields, field: &str) -> usize {
    object(fields, field).map_or(0, serde_json::Map::len)
}

/// Labels of an object.
pub(super) fn labels(fields: &Fields) -> impl Iterator<Item = (&String, &str)> {
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
