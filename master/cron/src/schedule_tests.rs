//! Schedules with their times, or with the words by which they are refused.

use super::*;

/// What is expected of a schedule.
enum Expected {
    /// Its first times after one; none if it never comes.
    Next(&'static str, &'static [&'static str]),
    /// The text of its fault.
    Refused(&'static str),
}
use Expected::{Next, Refused};

/// What upstream's library answers, unless said otherwise.
const TABLE: &[(&str, Expected)] = &[
    // The library's published table, as far as it is of five fields.
    (
        "*/15 * * * *",
        Next(
            "2012-07-09T14:45:00Z",
            &[
                "2012-07-09T15:00:00Z",
                "2012-07-09T15:15:00Z",
                "2012-07-09T15:30:00Z",
            ],
        ),
    ),
    (
        "*/15 * * * *",
        Next("2012-07-09T14:59:59Z", &["2012-07-09T15:00:00Z"]),
    ),
    (
        "20-35/15 * * * *",
        Next(
            "2012-07-09T15:45:00Z",
            &[
                "2012-07-09T16:20:00Z",
                "2012-07-09T16:35:00Z",
                "2012-07-09T17:20:00Z",
            ],
        ),
    ),
    (
        "*/15 * * * *",
        Next("2012-12-31T23:59:45Z", &["2013-01-01T00:00:00Z"]),
    ),
    (
        "0 0 9 Apr-Oct ?",
        Next(
            "2012-07-09T14:45:00Z",
            &[
                "2012-08-09T00:00:00Z",
                "2012-09-09T00:00:00Z",
                "2012-10-09T00:00:00Z",
                "2013-04-09T00:00:00Z",
            ],
        ),
    ),
    (
        "0 0 */5 Apr,Aug,Oct Mon",
        Next(
            "2012-07-09T23:35:00Z",
            &[
                "2012-08-01T00:00:00Z",
                "2012-08-06T00:00:00Z",
                "2012-08-11T00:00:00Z",
            ],
        ),
    ),
    (
        "0 0 * Feb Mon",
        Next(
            "2012-07-09T23:35:00Z",
            &["2013-02-04T00:00:00Z", "2013-02-11T00:00:00Z"],
        ),
    ),
    (
        "0 0 * Feb Mon/2",
        Next(
            "2012-07-09T23:35:00Z",
            &[
                "2013-02-01T00:00:00Z",
                "2013-02-04T00:00:00Z",
                "2013-02-06T00:00:00Z",
            ],
        ),
    ),
    (
        "0 0 29 Feb ?",
        Next(
            "2012-07-09T23:35:00Z",
            &["2016-02-29T00:00:00Z", "2020-02-29T00:00:00Z"],
        ),
    ),
    // Lists, ranges, steps and names.
    (
        "*/5 0-6 1,15 jan-mar MON",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-04T00:00:00Z", "2024-03-04T00:05:00Z"],
        ),
    ),
    (
        "0 0 ? * 0",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-03T00:00:00Z", "2024-03-10T00:00:00Z"],
        ),
    ),
    (
        "5/15 * * * *",
        Next(
            "2024-03-01T08:30:00Z",
            &[
                "2024-03-01T08:35:00Z",
                "2024-03-01T08:50:00Z",
                "2024-03-01T09:05:00Z",
                "2024-03-01T09:20:00Z",
            ],
        ),
    ),
    (
        "5-6/1 * * * *",
        Next(
            "2024-03-01T08:30:00Z",
            &[
                "2024-03-01T09:05:00Z",
                "2024-03-01T09:06:00Z",
                "2024-03-01T10:05:00Z",
            ],
        ),
    ),
    // Either day is enough where both are limited. A star with a step limits one, and a star in a
    // list does not.
    (
        "30 8 15 * fri",
        Next(
            "2024-03-01T08:30:00Z",
            &[
                "2024-03-08T08:30:00Z",
                "2024-03-15T08:30:00Z",
                "2024-03-22T08:30:00Z",
            ],
        ),
    ),
    (
        "0 0 15 * */2",
        Next(
            "2024-03-01T08:30:00Z",
            &[
                "2024-03-02T00:00:00Z",
                "2024-03-03T00:00:00Z",
                "2024-03-05T00:00:00Z",
            ],
        ),
    ),
    (
        "0 0 15 * */1",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-15T00:00:00Z", "2024-04-15T00:00:00Z"],
        ),
    ),
    (
        "0 0 15,* * mon",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-04T00:00:00Z", "2024-03-11T00:00:00Z"],
        ),
    ),
    // Descriptors.
    (
        "@yearly",
        Next(
            "2024-03-01T08:30:00Z",
            &["2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"],
        ),
    ),
    (
        "@annually",
        Next("2024-03-01T08:30:00Z", &["2025-01-01T00:00:00Z"]),
    ),
    (
        "@monthly",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-04-01T00:00:00Z", "2024-05-01T00:00:00Z"],
        ),
    ),
    (
        "@weekly",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-03T00:00:00Z", "2024-03-10T00:00:00Z"],
        ),
    ),
    (
        "@daily",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-02T00:00:00Z", "2024-03-03T00:00:00Z"],
        ),
    ),
    (
        "@midnight",
        Next("2024-03-01T08:30:00Z", &["2024-03-02T00:00:00Z"]),
    ),
    (
        "@hourly",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-01T09:00:00Z", "2024-03-01T10:00:00Z"],
        ),
    ),
    (
        "@every 1h30m",
        Next(
            "2024-03-01T08:30:00.5Z",
            &["2024-03-01T10:00:00Z", "2024-03-01T11:30:00Z"],
        ),
    ),
    (
        "@every 1.5s",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-01T08:30:01Z", "2024-03-01T08:30:02Z"],
        ),
    ),
    // Never.
    ("0 0 31 Apr ?", Next("2012-07-09T23:35:00Z", &[])),
    (", * * * *", Next("2024-03-01T08:30:00Z", &[])),
    // What the library reads although nobody should write it.
    (
        "30,, *-5 * * *",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-01T09:30:00Z", "2024-03-01T10:30:00Z"],
        ),
    ),
    (
        "  0 0\t* * *  ",
        Next("2024-03-01T08:30:00Z", &["2024-03-02T00:00:00Z"]),
    ),
    (
        "+5 0 * * *",
        Next("2024-03-01T08:30:00Z", &["2024-03-02T00:05:00Z"]),
    ),
    (
        "@every -1h",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-01T08:30:01Z", "2024-03-01T08:30:02Z"],
        ),
    ),
    (
        "@every 0",
        Next("2024-03-01T08:30:00Z", &["2024-03-01T08:30:01Z"]),
    ),
    (
        "@every +.5m",
        Next("2024-03-01T08:30:00Z", &["2024-03-01T08:30:30Z"]),
    ),
    (
        "@every 2s500000us",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-01T08:30:02Z", "2024-03-01T08:30:04Z"],
        ),
    ),
    // The longest.
    (
        "@every 2562047h",
        Next("2024-03-01T08:30:00Z", &["2316-06-11T07:30:00Z"]),
    ),
    // No leap year between: the library gives up after five years, this one after eight.
    (
        "59 23 29 2 *",
        Next("2096-02-29T23:59:00Z", &["2104-02-29T23:59:00Z"]),
    ),
    // Zones of their own.
    (
        "TZ=Europe/Berlin 0 0 * * *",
        Next(
            "2024-03-01T08:30:00Z",
            &["2024-03-02T00:00:00+01:00", "2024-03-03T00:00:00+01:00"],
        ),
    ),
    (
        "CRON_TZ=Asia/Tokyo  @daily ",
        Next("2024-03-01T08:30:00Z", &["2024-03-02T00:00:00+09:00"]),
    ),
    (
        "TZ=UTC 0 12 * * *",
        Next("2024-03-01T08:30:00Z", &["2024-03-01T12:00:00Z"]),
    ),
    // 02:30 does not come on 2024-03-10, and 01:30 comes twice on 2024-11-03.
    (
        "TZ=America/New_York 30 2 * * *",
        Next("2024-03-09T12:00:00Z", &["2024-03-11T02:30:00-04:00"]),
    ),
    (
        "TZ=America/New_York 30 1 * * *",
        Next(
            "2024-11-03T04:00:00Z",
            &[
                "2024-11-03T01:30:00-04:00",
                "2024-11-03T01:30:00-05:00",
                "2024-11-04T01:30:00-05:00",
            ],
        ),
    ),
    ("", Refused("empty spec string")),
    ("   ", Refused("expected exactly 5 fields, found 0: []")),
    // Fields.
    (
        "* * * *",
        Refused("expected exactly 5 fields, found 4: [* * * *]"),
    ),
    (
        "* * * * * *",
        Refused("expected exactly 5 fields, found 6: [* * * * * *]"),
    ),
    // Limits.
    (
        "60 * * * *",
        Refused("end of range (60) above maximum (59): 60"),
    ),
    (
        "* 24 * * *",
        Refused("end of range (24) above maximum (23): 24"),
    ),
    (
        "* * 0 * *",
        Refused("beginning of range (0) below minimum (1): 0"),
    ),
    (
        "* * 32 * *",
        Refused("end of range (32) above maximum (31): 32"),
    ),
    (
        "* * * 0 *",
        Refused("beginning of range (0) below minimum (1): 0"),
    ),
    (
        "* * * 13 *",
        Refused("end of range (13) above maximum (12): 13"),
    ),
    (
        "* * * * 7",
        Refused("end of range (7) above maximum (6): 7"),
    ),
    (
        "5-1 * * * *",
        Refused("beginning of range (5) beyond end of range (1): 5-1"),
    ),
    // Ranges and steps; the first fault by the library's order.
    ("1-2-3 * * * *", Refused("too many hyphens: 1-2-3")),
    (
        "x-2-3 * * * *",
        Refused("failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
    ),
    ("1-x-3 * * * *", Refused("too many hyphens: 1-x-3")),
    ("*/2/3 * * * *", Refused("too many slashes: */2/3")),
    (
        "x/2/3 * * * *",
        Refused("failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
    ),
    ("1-2-3/4/5 * * * *", Refused("too many hyphens: 1-2-3/4/5")),
    (
        "*/0 * * * *",
        Refused("step of range should be a positive number: */0"),
    ),
    (
        "70-80/0 * * * *",
        Refused("end of range (80) above maximum (59): 70-80/0"),
    ),
    // Numbers and names.
    (
        "a * * * *",
        Refused("failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax"),
    ),
    (
        "jan * * * *",
        Refused("failed to parse int from jan: strconv.Atoi: parsing \"jan\": invalid syntax"),
    ),
    (
        "* * * january *",
        Refused(
            "failed to parse int from january: strconv.Atoi: parsing \"january\": invalid syntax",
        ),
    ),
    (
        "* * * * moonday",
        Refused(
            "failed to parse int from moonday: strconv.Atoi: parsing \"moonday\": invalid syntax",
        ),
    ),
    (
        "x/y * * * *",
        Refused("failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
    ),
    (
        "70/y * * * *",
        Refused("failed to parse int from y: strconv.Atoi: parsing \"y\": invalid syntax"),
    ),
    (
        "-1/2 * * * *",
        Refused("failed to parse int from : strconv.Atoi: parsing \"\": invalid syntax"),
    ),
    (
        "*/-1 * * * *",
        Refused("negative number (-1) not allowed: -1"),
    ),
    (
        "99999999999999999999 * * * *",
        Refused(
            "failed to parse int from 99999999999999999999: strconv.Atoi: parsing \"99999999999999999999\": value out of range",
        ),
    ),
    (
        "L * * * *",
        Refused("failed to parse int from L: strconv.Atoi: parsing \"L\": invalid syntax"),
    ),
    // Descriptors, with no blanks around them.
    ("@often", Refused("unrecognized descriptor: @often")),
    ("@every", Refused("unrecognized descriptor: @every")),
    ("@DAILY", Refused("unrecognized descriptor: @DAILY")),
    (
        " @daily",
        Refused("expected exactly 5 fields, found 1: [@daily]"),
    ),
    ("@daily ", Refused("unrecognized descriptor: @daily ")),
    // Durations, in the words of Go's library.
    (
        "@every x",
        Refused("failed to parse duration @every x: time: invalid duration \"x\""),
    ),
    (
        "@every ",
        Refused("failed to parse duration @every : time: invalid duration \"\""),
    ),
    (
        "@every 5",
        Refused("failed to parse duration @every 5: time: missing unit in duration \"5\""),
    ),
    (
        "@every 1d",
        Refused("failed to parse duration @every 1d: time: unknown unit \"d\" in duration \"1d\""),
    ),
    (
        "@every 1h30",
        Refused("failed to parse duration @every 1h30: time: missing unit in duration \"1h30\""),
    ),
    (
        "@every .s",
        Refused("failed to parse duration @every .s: time: invalid duration \".s\""),
    ),
    (
        "@every  1h",
        Refused("failed to parse duration @every  1h: time: invalid duration \" 1h\""),
    ),
    (
        "@every 1h ",
        Refused(
            "failed to parse duration @every 1h : time: unknown unit \"h \" in duration \"1h \"",
        ),
    ),
    (
        "@every 2562048h",
        Refused("failed to parse duration @every 2562048h: time: invalid duration \"2562048h\""),
    ),
    // Zones, of which there is one, at the beginning.
    (
        "TZ=Mars/Base * * * * *",
        Refused("provided bad location Mars/Base: unknown time zone Mars/Base"),
    ),
    (
        "CRON_TZ=Mars/Base @daily",
        Refused("provided bad location Mars/Base: unknown time zone Mars/Base"),
    ),
    (
        "TZ=UTC CRON_TZ=UTC * * * * *",
        Refused("expected exactly 5 fields, found 6: [CRON_TZ=UTC * * * * *]"),
    ),
    ("TZ=UTC ", Refused("expected exactly 5 fields, found 0: []")),
    (
        " TZ=UTC * * * * *",
        Refused("expected exactly 5 fields, found 6: [TZ=UTC * * * * *]"),
    ),
    (
        "TZ=UTC @every 1d",
        Refused("failed to parse duration @every 1d: time: unknown unit \"d\" in duration \"1d\""),
    ),
];

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn schedules_have_the_times_and_the_faults_of_upstreams_library() {
    for (text, expected) in TABLE {
        let parsed = Schedule::parse(text, None);
        match expected {
            Next(after, times) => {
                let schedule = parsed.unwrap_or_else(|fault| panic!("{text:?}: {fault}"));
                let first = schedule.next(at(after));
                let all = std::iter::successors(first, |time| schedule.next(*time));
                let found = all
                    .take(times.len().max(1))
                    .map(|time| schedule.shown(time));
                assert_eq!(found.collect::<Vec<_>>(), *times, "{text:?} after {after}");
            }
            Refused(words) => {
                let fault = Fault::Unreadable((*words).to_owned());
                assert_eq!(parsed, Err(fault), "{text:?}");
            }
        }
    }
}

#[test]
fn a_given_zone_counts_unless_the_schedule_has_its_own() {
    let next = |text: &str, zone| {
        let schedule = Schedule::parse(text, zone).unwrap();
        schedule.shown(schedule.next(at("2024-03-01T08:30:00Z")).unwrap())
    };
    let berlin = Some("Europe/Berlin");
    assert_eq!(next("0 0 * * *", None), "2024-03-02T00:00:00Z");
    assert_eq!(next("0 0 * * *", berlin), "2024-03-02T00:00:00+01:00");
    let own = next("TZ=Asia/Tokyo 0 0 * * *", berlin);
    assert_eq!(own, "2024-03-02T00:00:00+09:00");
    for unknown in ["Mars/Base", "Etc/Unknown", ""] {
        for text in ["* * * * *", "TZ=UTC * * * * *", "no schedule"] {
            let fault = Schedule::parse(text, Some(unknown)).unwrap_err();
            assert_eq!(fault, Fault::Zone(unknown.to_owned()));
            assert_eq!(fault.to_string(), format!("unknown time zone {unknown}"));
        }
    }
}

#[test]
fn the_last_missed_time_is_found_however_long_ago_the_first_was() {
    let schedule = Schedule::parse("* * * * *", None).unwrap();
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
