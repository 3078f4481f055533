//! The syntax of schedules. Faults are those of upstream's library (`robfig/cron`), which names one
//! where there are several: the same one, in its words.

use crate::duration;
use crate::schedule::{Field, Rule};
use jiff::SignedDuration;
use jiff::tz::TimeZone;
use std::num::{IntErrorKind, ParseIntError};
use std::ops::RangeInclusive;

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Why a schedule can't be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is no schedule; the text says why in the words of upstream's library.
    #[error("{0}")]
    Unreadable(String),
    /// The time zone that was given with it is not in the database.
    #[error("unknown time zone {0}")]
    Zone(String),
}

/// The time zone of a name.
///
/// # Errors
/// [`Fault::Zone`]: it is not in the database.
pub fn time_zone(name: &str) -> Result<TimeZone, Fault> {
    // `Etc/Unknown` is the library's own name for none.
    let known = TimeZone::get(name).ok().filter(|zone| !zone.is_unknown());
    known.ok_or_else(|| Fault::Zone(name.to_owned()))
}

/// What a schedule says, after its time zone.
pub(crate) fn rule(text: &str) -> Result<Rule, String> {
    let text = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        other => other,
    };
    if let Some(pace) = text.strip_prefix("@every ") {
        let seconds = duration::whole_seconds(pace)
            .map_err(|fault| format!("failed to parse duration {text}: {fault}"))?;
        return Ok(Rule::Every(SignedDuration::from_secs(seconds.max(1))));
    }
    if text.starts_with('@') {
        return Err(format!("unrecognized descriptor: {text}"));
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields.as_slice() else {
        let (found, all) = (fields.len(), fields.join(" "));
        return Err(format!("expected exactly 5 fields, found {found}: [{all}]"));
    };
    // Upstream's library knows no 7 for Sunday.
    Ok(Rule::Fields {
        minute: field(minute, 0, 59, &[])?,
        hour: field(hour, 0, 23, &[])?,
        day: field(day, 1, 31, &[])?,
        month: field(month, 1, 12, &MONTHS)?,
        weekday: field(weekday, 0, 6, &DAYS)?,
    })
}

/// A list of ranges. `names` are words for numbers, from the least on.
fn field(text: &str, least: i64, most: i64, names: &[&str]) -> Result<Field, String> {
    let mut all = Field::default();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let part = range(part, least, most, names)?;
        all.allowed |= part.allowed;
        all.free |= part.free;
    }
    Ok(all)
}

/// A number, a range or `*`, with an optional step.
fn range(part: &str, least: i64, most: i64, names: &[&str]) -> Result<Field, String> {
    let number = |text: &str| {
        let place = names
            .iter()
            .position(|name| text.eq_ignore_ascii_case(name));
        let place = place.and_then(|at| i64::try_from(at).ok());
        place.map_or_else(|| integer(text), |at| Ok(at + least))
    };
    let mut around_slash = part.split('/');
    let mut ends = around_slash.next().unwrap_or_default().split('-');
    let first = ends.next().unwrap_or_default();
    let (second, third) = (ends.next(), ends.next());
    let is_any = matches!(first, "*" | "?");
    let (start, mut end) = if is_any {
        (least, most)
    } else {
        let start = number(first)?;
        match (second, third) {
            (None, _) => (start, start),
            (Some(second), None) => (start, number(second)?),
            (Some(_), Some(_)) => return Err(format!("too many hyphens: {part}")),
        }
    };
    let step = match (around_slash.next(), around_slash.next()) {
        (None, _) => 1,
        (Some(step), None) => {
            let step = integer(step)?;
            // `5/15` has no end but the field's.
            if second.is_none() {
                end = most;
            }
            step
        }
        (Some(_), Some(_)) => return Err(format!("too many slashes: {part}")),
    };
    within(part, &(start..=end), &(least..=most))?;
    let by = usize::try_from(step).ok().filter(|by| *by > 0);
    let by = by.ok_or_else(|| format!("step of range should be a positive number: {part}"))?;
    let numbers = (start..=end).step_by(by);
    Ok(Field {
        allowed: numbers.fold(0, |all, number| all | (1_u64 << number)),
        free: is_any && step == 1,
    })
}

/// Checks a range against what its field allows.
fn within(
    part: &str,
    found: &RangeInclusive<i64>,
    allowed: &RangeInclusive<i64>,
) -> Result<(), String> {
    let (from, to) = (found.start(), found.end());
    let (least, most) = (allowed.start(), allowed.end());
    let fault = if from < least {
        format!("beginning of range ({from}) below minimum ({least})")
    } else if to > most {
        format!("end of range ({to}) above maximum ({most})")
    } else if from > to {
        format!("beginning of range ({from}) beyond end of range ({to})")
    } else {
        return Ok(());
    };
    Err(format!("{fault}: {part}"))
}

fn integer(text: &str) -> Result<i64, String> {
    let number: i64 = text.parse().map_err(|error: ParseIntError| {
        let kind = error.kind();
        let cause = if matches!(kind, IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) {
            "value out of range"
        } else {
            "invalid syntax"
        };
        format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {cause}")
    })?;
    if number < 0 {
        return Err(format!("negative number ({number}) not allowed: {text}"));
    }
    Ok(number)
}
