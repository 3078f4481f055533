//! When a schedule is due: minute, hour, day, month and day of the week in a time zone, or a fixed
//! pace.
//!
//! As upstream's library does: where both day fields are limited, either is enough; a time that a
//! change of clocks skips is skipped, one that it repeats comes twice.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use std::ops::RangeInclusive;

/// Days that are looked through for the next time: as the 29th of February comes in eight years at
/// the latest.
const HORIZON: usize = 366 * 8 + 1;
/// Starts that are counted as missed, at most; [`Schedule::last`] says one more for all above.
pub const MOST_MISSED: usize = 100;

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// The numbers that a field allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    allowed: u64,
    /// Whether it says nothing (`*`).
    free: bool,
}

impl Field {
    fn has(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| self.allowed & (1 << number) != 0)
    }

    fn numbers(self) -> impl Iterator<Item = i8> {
        (0..60).filter(move |number| self.has(*number))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Every(SignedDuration),
    Fields {
        minute: Field,
        hour: Field,
        day: Field,
        month: Field,
        weekday: Field,
    },
}

/// A schedule in its time zone.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    rule: Rule,
    zone: TimeZone,
}

/// Why a schedule can't be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is no schedule; the text says why in the words of upstream's library.
    Unreadable(String),
    /// Its time zone is not known on this machine.
    Zone(String),
}

impl Schedule {
    /// Reads a schedule. Its own zone (`TZ=…`) comes before the one that is given; without any it
    /// is UTC.
    ///
    /// # Errors
    /// [`Fault::Zone`] for a time zone that this machine's database lacks; [`Fault::Unreadable`]
    /// for all else, in the words of `robfig/cron`.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Self, Fault> {
        let mut zone = zone;
        let mut rest = text.trim();
        for prefix in ["TZ=", "CRON_TZ="] {
            if let Some(zoned) = rest.strip_prefix(prefix) {
                let (name, after) = zoned.split_once(' ').unwrap_or((zoned, ""));
                (zone, rest) = (Some(name), after.trim());
            }
        }
        let zone = match zone {
            None => TimeZone::UTC,
            Some(name) => TimeZone::get(name).map_err(|_unknown| Fault::Zone(name.to_owned()))?,
        };
        let rule = rule(rest).map_err(Fault::Unreadable)?;
        Ok(Self { rule, zone })
    }

    /// The first time after another; none where there is none within some years.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let Rule::Fields { minute, hour, .. } = &self.rule else {
            return self.paced(after);
        };
        let first = after.to_zoned(self.zone.clone()).date();
        // Times of a day that clocks repeat may belong to the day before by another offset.
        let days = std::iter::successors(first.yesterday().ok(), |day| day.tomorrow().ok());
        for day in days.take(HORIZON).filter(|day| self.is_due_on(*day)) {
            let times = hour.numbers().flat_map(|hour| {
                minute
                    .numbers()
                    .map(move |minute| Time::new(hour, minute, 0, 0))
            });
            let times = times
                .filter_map(Result::ok)
                .flat_map(|time| self.instants(day.to_datetime(time)));
            if let Some(next) = times.filter(|time| *time > after).min() {
                return Some(next);
            }
        }
        None
    }

    fn paced(&self, after: Timestamp) -> Option<Timestamp> {
        let Rule::Every(pace) = self.rule else {
            return None;
        };
        Timestamp::from_second(after.as_second())
            .ok()?
            .checked_add(pace)
            .ok()
    }

    fn is_due_on(&self, date: Date) -> bool {
        let Rule::Fields {
            day,
            month,
            weekday,
            ..
        } = &self.rule
        else {
            return false;
        };
        let of_month = day.has(date.day());
        let of_week = weekday.has(date.weekday().to_sunday_zero_offset());
        let days = if day.free || weekday.free {
            of_month && of_week
        } else {
            of_month || of_week
        };
        month.has(date.month()) && days
    }

    /// The times at which clocks show this: none, one or two.
    fn instants(&self, shown: DateTime) -> Vec<Timestamp> {
        let offsets = match self.zone.to_ambiguous_timestamp(shown).offset() {
            AmbiguousOffset::Unambiguous { offset } => vec![offset],
            AmbiguousOffset::Gap { .. } => Vec::new(),
            AmbiguousOffset::Fold { before, after } => vec![before, after],
        };
        let instants = offsets.into_iter();
        instants
            .filter_map(|offset| offset.to_timestamp(shown).ok())
            .collect()
    }

    /// The last time after one and not after another, and how many there are, as far as they are
    /// counted.
    pub fn last(&self, after: Timestamp, until: Timestamp) -> Option<(Timestamp, usize)> {
        let first = self.next(after).filter(|first| *first <= until)?;
        let mut last = first;
        let mut count = 1;
        while count <= MOST_MISSED {
            match self.next(last).filter(|next| *next <= until) {
                Some(next) => last = next,
                None => return Some((last, count)),
            }
            count += 1;
        }
        // Too many to count: looked for from the end, by ever longer times.
        let mut back = SignedDuration::from_mins(1);
        loop {
            let from = until.checked_sub(back).map_or(last, |from| from.max(last));
            if let Some(mut near) = self.next(from).filter(|near| *near <= until) {
                while let Some(next) = self.next(near).filter(|next| *next <= until) {
                    near = next;
                }
                return Some((near, count));
            }
            if from == last {
                return Some((last, count));
            }
            back *= 2;
        }
    }

    /// A time as its zone shows it.
    pub fn shown(&self, time: Timestamp) -> String {
        let zoned = time.to_zoned(self.zone.clone());
        if self.zone == TimeZone::UTC {
            zoned.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
        } else {
            zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
        }
    }
}

fn rule(text: &str) -> Result<Rule, String> {
    if text.is_empty() {
        return Err("empty spec string".to_owned());
    }
    let text = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        other => other,
    };
    if let Some(pace) = text.strip_prefix("@every ") {
        let words = || format!("failed to parse duration {text}: time: invalid duration {pace:?}");
        return pace_of(pace.trim()).map(Rule::Every).ok_or_else(words);
    }
    if text.starts_with('@') {
        return Err(format!("unrecognized descriptor: {text}"));
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields.as_slice() else {
        let (found, all) = (fields.len(), fields.join(" "));
        return Err(format!("expected exactly 5 fields, found {found}: [{all}]"));
    };
    Ok(Rule::Fields {
        minute: field(minute, 0, 59, &[])?,
        hour: field(hour, 0, 23, &[])?,
        day: field(day, 1, 31, &[])?,
        month: field(month, 1, 12, &MONTHS)?,
        weekday: field(weekday, 0, 6, &DAYS)?,
    })
}

fn field(text: &str, least: i64, most: i64, names: &[&str]) -> Result<Field, String> {
    let mut all = Field {
        allowed: 0,
        free: false,
    };
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (range, step) = match part.split_once('/') {
            Some((_, step)) if step.contains('/') => {
                return Err(format!("too many slashes: {part}"));
            }
            Some((range, step)) => (range, Some(integer(step)?)),
            None => (part, None),
        };
        let number = |text: &str| {
            let name = text.to_ascii_lowercase();
            let place = names.iter().position(|known| *known == name);
            let place = place.and_then(|at| i64::try_from(at).ok());
            place.map_or_else(|| integer(text), |at| Ok(at + least))
        };
        let mut ends = range.split('-');
        let first = ends.next().unwrap_or_default();
        let numbers = match (first, ends.next(), ends.next()) {
            ("*" | "?", ..) => {
                all.free |= step.is_none_or(|step| step <= 1);
                least..=most
            }
            (_, Some(second), None) => number(first)?..=number(second)?,
            (_, Some(_), Some(_)) => return Err(format!("too many hyphens: {part}")),
            (_, None, _) if step.is_some() => number(first)?..=most,
            (_, None, _) => number(first)?..=number(first)?,
        };
        within(part, &numbers, &(least..=most))?;
        let step = usize::try_from(step.unwrap_or(1)).ok();
        let step = step
            .filter(|step| *step > 0)
            .ok_or_else(|| format!("step of range should be a positive number: {part}"))?;
        for number in numbers.step_by(step) {
            all.allowed |= 1 << number;
        }
    }
    Ok(all)
}

fn integer(text: &str) -> Result<i64, String> {
    let number: i64 = text.parse().map_err(|_no_number| {
        format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")
    })?;
    if number < 0 {
        return Err(format!("negative number ({number}) not allowed: {text}"));
    }
    Ok(number)
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

/// A duration as Go writes it (`1h30m`) and can hold (292 years), of whole seconds and at least
/// one.
fn pace_of(text: &str) -> Option<SignedDuration> {
    let mut seconds = 0.0_f64;
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    let least = SignedDuration::from_secs(1);
    if rest.is_empty() || rest == "0" {
        return (rest == "0").then_some(least);
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let units = [
            ("ns", 1e-9),
            ("us", 1e-6),
            ("µs", 1e-6),
            ("ms", 0.001),
            ("h", 3600.0),
            ("m", 60.0),
            ("s", 1.0),
        ];
        let (unit, worth) = units.iter().find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        seconds += number * worth;
    }
    let whole = SignedDuration::try_from_secs_f64(seconds.floor()).ok()?;
    let held = whole <= SignedDuration::from_nanos(i64::MAX);
    let whole = if text.starts_with('-') { least } else { whole };
    held.then(|| whole.max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str) -> String {
        let schedule = Schedule::parse(schedule, None).unwrap();
        let next = schedule.next(after.parse().unwrap());
        next.map_or_else(|| "never".to_owned(), |next| schedule.shown(next))
    }

    #[test]
    fn the_next_time_is_as_upstreams_library_says() {
        // Its published table, as far as it is of five fields.
        let table = [
            (
                "*/15 * * * *",
                "2012-07-09T14:45:00Z",
                "2012-07-09T15:00:00Z",
            ),
            (
                "*/15 * * * *",
                "2012-07-09T14:59:59Z",
                "2012-07-09T15:00:00Z",
            ),
            (
                "20-35/15 * * * *",
                "2012-07-09T15:45:00Z",
                "2012-07-09T16:20:00Z",
            ),
            (
                "*/15 * * * *",
                "2012-12-31T23:59:45Z",
                "2013-01-01T00:00:00Z",
            ),
            (
                "0 0 9 Apr-Oct ?",
                "2012-07-09T14:45:00Z",
                "2012-08-09T00:00:00Z",
            ),
            (
                "0 0 */5 Apr,Aug,Oct Mon",
                "2012-07-09T23:35:00Z",
                "2012-08-01T00:00:00Z",
            ),
            (
                "0 0 * Feb Mon",
                "2012-07-09T23:35:00Z",
                "2013-02-04T00:00:00Z",
            ),
            (
                "0 0 * Feb Mon/2",
                "2012-07-09T23:35:00Z",
                "2013-02-01T00:00:00Z",
            ),
            (
                "0 0 29 Feb ?",
                "2012-07-09T23:35:00Z",
                "2016-02-29T00:00:00Z",
            ),
            (
                "30 8 15 * fri",
                "2024-03-01T08:30:00Z",
                "2024-03-08T08:30:00Z",
            ),
            ("@hourly", "2024-03-01T08:30:00Z", "2024-03-01T09:00:00Z"),
            ("@weekly", "2024-03-01T08:30:00Z", "2024-03-03T00:00:00Z"),
            (
                "@every 1h30m",
                "2024-03-01T08:30:00.5Z",
                "2024-03-01T10:00:00Z",
            ),
            ("0 0 31 Apr ?", "2012-07-09T23:35:00Z", "never"),
            // What it reads although nobody should write it.
            (
                "30,, *-5 * * *",
                "2024-03-01T08:30:00Z",
                "2024-03-01T09:30:00Z",
            ),
            ("@every -1h", "2024-03-01T08:30:00Z", "2024-03-01T08:30:01Z"),
            (
                "@every 2s500000us",
                "2024-03-01T08:30:00Z",
                "2024-03-01T08:30:02Z",
            ),
            // No leap year between: upstream's library gives up after five.
            (
                "59 23 29 2 *",
                "2096-02-29T23:59:00Z",
                "2104-02-29T23:59:00Z",
            ),
        ];
        for (schedule, after, expected) in table {
            assert_eq!(next(schedule, after), expected, "{schedule} after {after}");
        }
    }

    #[test]
    fn the_last_missed_time_is_found_however_long_ago_the_first_was() {
        let schedule = Schedule::parse("* * * * *", None).unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2024-03-01T08:30:30Z");
        let last = |after: &str| schedule.last(at(after), now);
        assert_eq!(last("2024-03-01T08:30:10Z"), None);
        let expected = at("2024-03-01T08:30:00Z");
        assert_eq!(last("2024-03-01T08:27:59Z"), Some((expected, 3)));
        assert_eq!(
            last("2014-03-01T00:00:00Z"),
            Some((expected, MOST_MISSED + 1))
        );
        let yearly = Schedule::parse("@yearly", None).unwrap();
        let expected = at("2024-01-01T00:00:00Z");
        assert_eq!(
            yearly.last(at("1800-01-01T00:00:00Z"), now),
            Some((expected, MOST_MISSED + 1))
        );
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for (bad, words) in [
            ("", "empty spec string"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            (
                "a * * * *",
                "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax",
            ),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("*/2/3 * * * *", "too many slashes: */2/3"),
            (
                "-1/2 * * * *",
                "failed to parse int from : strconv.Atoi: parsing \"\": invalid syntax",
            ),
            (
                "5-1 * * * *",
                "beginning of range (5) beyond end of range (1): 5-1",
            ),
            (
                "*/0 * * * *",
                "step of range should be a positive number: */0",
            ),
            ("*/-1 * * * *", "negative number (-1) not allowed: -1"),
            ("@often", "unrecognized descriptor: @often"),
            (
                "@every x",
                "failed to parse duration @every x: time: invalid duration \"x\"",
            ),
            (
                "@every 2562048h",
                "failed to parse duration @every 2562048h: time: invalid duration \"2562048h\"",
            ),
        ] {
            let fault = Fault::Unreadable(words.to_owned());
            assert_eq!(Schedule::parse(bad, None), Err(fault), "{bad}");
        }
        assert_eq!(
            Schedule::parse("* * * * *", Some("Mars/Base")),
            Err(Fault::Zone("Mars/Base".to_owned()))
        );
        assert_eq!(
            Schedule::parse("TZ=Mars/Base * * * * *", None),
            Err(Fault::Zone("Mars/Base".to_owned()))
        );
    }

    #[test]
    fn times_that_a_change_of_clocks_skips_or_repeats() {
        let zone = TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").unwrap();
        let schedule = |text: &str| Schedule {
            rule: rule(text).unwrap(),
            zone: zone.clone(),
        };
        let next = |text: &str, after: &str| {
            let schedule = schedule(text);
            schedule.shown(schedule.next(after.parse().unwrap()).unwrap())
        };
        // 02:30 does not come on 2024-03-10, and 01:30 comes twice on 2024-11-03.
        assert_eq!(
            next("30 2 * * *", "2024-03-09T12:00:00Z"),
            "2024-03-11T02:30:00-04:00"
        );
        assert_eq!(
            next("30 1 * * *", "2024-11-03T04:00:00Z"),
            "2024-11-03T01:30:00-04:00"
        );
        assert_eq!(
            next("30 1 * * *", "2024-11-03T05:30:00Z"),
            "2024-11-03T01:30:00-05:00"
        );
    }
}
