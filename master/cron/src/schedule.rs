//! When a schedule is due: minute, hour, day, month and day of the week in a time zone, or a fixed
//! pace.
//!
//! As upstream's library does: where both day fields are limited, either is enough; a time that a
//! change of clocks skips is skipped, one that it repeats comes twice.

use crate::parse::{Fault, rule, time_zone};
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

/// Days that are looked through for the next time: as the 29th of February comes in eight years at
/// the latest.
const HORIZON: usize = 366 * 8 + 1;
/// Starts that are counted as missed, at most; [`Schedule::last`] says one more for all above.
pub const MOST_MISSED: usize = 100;

/// The numbers that a field allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Field {
    /// A bit for each number.
    pub(crate) allowed: u64,
    /// Whether it says nothing (`*`).
    pub(crate) free: bool,
}

impl Field {
    fn has(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| self.allowed & (1 << number) != 0)
    }

    fn numbers(self) -> impl Iterator<Item = i8> {
        (0..60).filter(move |number| self.has(*number))
    }
}

/// When a schedule is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rule {
    /// At a fixed pace.
    Every(SignedDuration),
    /// At each minute that all fields allow.
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

impl Schedule {
    /// Reads a schedule. Its own zone (`TZ=…`) comes before the one that is given; without any it
    /// is UTC.
    ///
    /// # Errors
    /// [`Fault::Zone`] for a given time zone that the database lacks; [`Fault::Unreadable`] for all
    /// else, in the words of `robfig/cron`.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Self, Fault> {
        let given = zone.map(time_zone).transpose()?;
        if text.is_empty() {
            return Err(Fault::Unreadable("empty spec string".to_owned()));
        }
        let mut prefixes = ["TZ=", "CRON_TZ="].into_iter();
        let Some(zoned) = prefixes.find_map(|prefix| text.strip_prefix(prefix)) else {
            let rule = rule(text).map_err(Fault::Unreadable)?;
            let zone = given.unwrap_or(TimeZone::UTC);
            return Ok(Self { rule, zone });
        };
        let (name, rest) = zoned.split_once(' ').unwrap_or((zoned, ""));
        let zone = time_zone(name)
            .map_err(|fault| Fault::Unreadable(format!("provided bad location {name}: {fault}")))?;
        let rule = rule(rest.trim()).map_err(Fault::Unreadable)?;
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

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
