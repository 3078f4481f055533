//! Cron schedules: minute, hour, day, month and day of the week, or a macro such as `@daily`.

/// Names of months and of days of the week, from the first.
const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// The range and names of a field.
struct Field {
    least: i64,
    most: i64,
    names: &'static [&'static str],
}

// Upstream's library knows no 7 for Sunday.
const FIELDS: [Field; 5] = [
    Field {
        least: 0,
        most: 59,
        names: &[],
    },
    Field {
        least: 0,
        most: 23,
        names: &[],
    },
    Field {
        least: 1,
        most: 31,
        names: &[],
    },
    Field {
        least: 1,
        most: 12,
        names: &MONTHS,
    },
    Field {
        least: 0,
        most: 6,
        names: &DAYS,
    },
];

/// Validates a schedule.
///
/// # Errors
/// The text says what is wrong, in the words of upstream's cron library.
pub(super) fn check(schedule: &str) -> Result<(), String> {
    if schedule.is_empty() {
        return Err("empty spec string".to_owned());
    }
    let mut rest = schedule;
    for prefix in ["TZ=", "CRON_TZ="] {
        if let Some(zoned) = schedule.strip_prefix(prefix) {
            let (zone, after) = zoned.split_once(' ').unwrap_or((zoned, ""));
            if jiff::tz::TimeZone::get(zone).is_err() {
                return Err(format!(
                    "provided bad location {zone}: unknown time zone {zone}"
                ));
            }
            rest = after.trim();
        }
    }
    if rest.starts_with('@') {
        return word(rest);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!(
            "expected exactly {} fields, found {}: [{}]",
            FIELDS.len(),
            fields.len(),
            fields.join(" ")
        ));
    }
    for (text, field) in fields.iter().zip(&FIELDS) {
        for part in text.split(',').filter(|part| !part.is_empty()) {
            range(part, field)?;
        }
    }
    Ok(())
}

fn word(schedule: &str) -> Result<(), String> {
    let known = [
        "@yearly",
        "@annually",
        "@monthly",
        "@weekly",
        "@daily",
        "@midnight",
        "@hourly",
    ];
    if known.contains(&schedule) {
        return Ok(());
    }
    match schedule.strip_prefix("@every ") {
        Some(period) if is_duration(period) => Ok(()),
        Some(period) => Err(format!(
            "failed to parse duration {schedule}: time: invalid duration {period:?}"
        )),
        None => Err(format!("unrecognized descriptor: {schedule}")),
    }
}

/// A duration in Go's format: `1h30m`, `1.5s`.
fn is_duration(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    if text == "0" {
        return true;
    }
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        if number.parse::<f64>().is_err() {
            return false;
        }
        let Some(unit) = ["ns", "us", "µs", "ms", "h", "m", "s"]
            .into_iter()
            .find(|unit| after.starts_with(unit))
        else {
            return false;
        };
        rest = &after[unit.len()..];
    }
    !text.is_empty()
}

/// A number, a range or `*`, with an optional step.
fn range(text: &str, field: &Field) -> Result<(), String> {
    let (span, step) = match text.split_once('/') {
        Some((span, step)) => (span, Some(step)),
        None => (text, None),
    };
    let mut ends = span.split('-');
    let first = ends.next().unwrap_or_default();
    let (mut start, mut end) = (field.least, field.most);
    let second = ends.next();
    if !matches!(first, "*" | "?") {
        start = number(first, field)?;
        end = match second {
            Some(second) => number(second, field)?,
            None => start,
        };
        if ends.next().is_some() {
            return Err(format!("too many hyphens: {text}"));
        }
    }
    if let Some(step) = step {
        if step.contains('/') {
            return Err(format!("too many slashes: {text}"));
        }
        if plain(step)? == 0 {
            return Err(format!("step of range should be a positive number: {text}"));
        }
        if second.is_none() {
            end = field.most;
        }
    }
    if start < field.least {
        return Err(format!(
            "beginning of range ({start}) below minimum ({}): {text}",
            field.least
        ));
    }
    if end > field.most {
        return Err(format!(
            "end of range ({end}) above maximum ({}): {text}",
            field.most
        ));
    }
    if start > end {
        return Err(format!(
            "beginning of range ({start}) beyond end of range ({end}): {text}"
        ));
    }
    Ok(())
}

fn number(text: &str, field: &Field) -> Result<i64, String> {
    let lower = text.to_lowercase();
    match field
        .names
        .iter()
        .zip(field.least..)
        .find(|(name, _)| **name == lower)
    {
        Some((_, number)) => Ok(number),
        None => plain(text),
    }
}

fn plain(text: &str) -> Result<i64, String> {
    let number: i64 = text.parse().map_err(|_no_number| {
        format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")
    })?;
    if number < 0 {
        return Err(format!("negative number ({number}) not allowed: {text}"));
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn schedules_are_judged_as_cron_does() {
        for good in [
            "* * * * *",
            "*/5 0-6 1,15 jan-mar MON",
            "0 0 ? * 0",
            "@hourly",
            "@every 1h30m",
            "5/15 * * * *",
            "TZ=Europe/Berlin 0 0 * * *",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, words) in [
            ("", "empty spec string"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            (
                "5-1 * * * *",
                "beginning of range (5) beyond end of range (1): 5-1",
            ),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("*/2/3 * * * *", "too many slashes: */2/3"),
            (
                "*/0 * * * *",
                "step of range should be a positive number: */0",
            ),
            (
                "x * * * *",
                "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax",
            ),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("@often", "unrecognized descriptor: @often"),
            (
                "@every x",
                "failed to parse duration @every x: time: invalid duration \"x\"",
            ),
            (
                "TZ=Nowhere 0 0 * * *",
                "provided bad location Nowhere: unknown time zone Nowhere",
            ),
        ] {
            assert_eq!(check(bad), Err(words.to_owned()), "{bad}");
        }
    }
}
