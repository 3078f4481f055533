//! Validation of a job's status and its changes.

use super::rules::status;
use jiff::Timestamp;
use master_schema::object::spec;
use master_schema::validate::forms::{has, not_negative, number, on};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, object, text};
use serde_json::Value;
use std::collections::BTreeSet;

fn holds(status: &Fields, kind: &str) -> bool {
    let conditions = items(status, "conditions")
        .iter()
        .filter_map(Value::as_object);
    conditions
        .into_iter()
        .any(|one| text(one, "type") == kind && text(one, "status") == "True")
}

/// Validates a change of the status.
pub(super) fn validate(new: &Fields, old: &Fields, faults: &mut Faults) {
    let job = spec(new);
    let at = FieldPath::root("status");
    let (after, before) = (status(new), status(old));
    for key in ["active", "succeeded", "failed", "ready", "terminating"] {
        not_negative(after, key, &at, faults);
    }
    uncounted(after, &at, faults);
    conditions(after, job, &at, faults);
    finished(after, &at, faults);
    indexes(after, job, &at, faults);
    let (ready, active) = (number(after, "ready"), number(after, "active"));
    if ready > active {
        faults.invalid(
            &at.field("ready"),
            &ready.into(),
            "cannot set more ready pods than active",
        );
    }
    transition(after, before, on(job, "suspend"), &at, faults);
}

fn uncounted(status: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(uncounted) = object(status, "uncountedTerminatedPods") else {
        return;
    };
    let place = at.field("uncountedTerminatedPods");
    let mut seen = BTreeSet::new();
    for list in ["succeeded", "failed"] {
        let place = place.field(list);
        for (index, id) in items(uncounted, list).iter().enumerate() {
            if id == "" {
                faults.invalid(&place.index(index), id, "must not be empty");
            } else if !seen.insert(id.as_str()) {
                faults.duplicate(&place.index(index), id);
            }
        }
    }
}

fn conditions(status: &Fields, job: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let place = at.field("conditions");
    let (complete, failed) = (holds(status, "Complete"), holds(status, "Failed"));
    let (target, criteria) = (
        holds(status, "FailureTarget"),
        holds(status, "SuccessCriteriaMet"),
    );
    for (wrong, words) in [
        (
            complete && failed,
            "cannot set Complete=True and Failed=true conditions",
        ),
        (
            complete && target,
            "cannot set Complete=True and FailureTarget=true conditions",
        ),
        (
            failed && !target,
            "cannot set Failed=True condition without the FailureTarget=true condition",
        ),
        (
            complete && !criteria,
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        ),
        (
            criteria && failed,
            "cannot set SuccessCriteriaMet=True and Failed=true conditions",
        ),
        (
            criteria && target,
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        ),
        (
            has(job, "successPolicy") && !criteria && complete,
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        ),
    ] {
        if wrong {
            faults.wrong(&place, words);
        }
    }
}

fn time(status: &Fields, key: &str) -> Option<Timestamp> {
    text(status, key).parse().ok()
}

/// A finished job has times, and no pods that run or wait to be counted.
fn finished(status: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let complete = holds(status, "Complete");
    let place = at.field("completionTime");
    let ended = get(status, "completionTime");
    if !ended.is_null() && !complete {
        faults.invalid(
            &place,
            ended,
            "cannot set completionTime when there is no Complete=True condition",
        );
    }
    if ended.is_null() && complete {
        faults.required(&place, "completionTime is required for Complete jobs");
    }
    if let (Some(start), Some(end)) = (time(status, "startTime"), time(status, "completionTime"))
        && end < start
    {
        faults.invalid(
            &place,
            ended,
            "completionTime cannot be set before startTime",
        );
    }
    if !complete && !holds(status, "Failed") {
        return;
    }
    for key in ["active", "terminating"] {
        if number(status, key) > 0 {
            faults.invalid(
                &at.field(key),
                get(status, key),
                format!("{key}>0 is invalid for finished job"),
            );
        }
    }
    if !has(status, "startTime") {
        faults.required(
            &at.field("startTime"),
            "startTime is required for finished job",
        );
    }
    let waiting = object(status, "uncountedTerminatedPods").is_some_and(|waiting| {
        ["succeeded", "failed"]
            .iter()
            .any(|list| !items(waiting, list).is_empty())
    });
    if waiting {
        let words = "uncountedTerminatedPods needs to be empty for finished job";
        let place = at.field("uncountedTerminatedPods");
        faults.invalid(&place, get(status, "uncountedTerminatedPods"), words);
    }
}

fn indexes(status: &Fields, job: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let indexed = text(job, "completionMode") == "Indexed";
    let (done, failed) = (
        text(status, "completedIndexes"),
        text(status, "failedIndexes"),
    );
    let (at_done, at_failed) = (at.field("completedIndexes"), at.field("failedIndexes"));
    if let Some(completions) = get(job, "completions").as_i64() {
        for (key, list) in [("completedIndexes", done), ("failedIndexes", failed)] {
            if let Err(fault) = count_indexes(list, completions) {
                faults.invalid(
                    &at.field(key),
                    get(status, key),
                    format!("error parsing {key}: {fault}"),
                );
            }
        }
        if let Some(index) = first_shared(done, failed) {
            let words = format!("failedIndexes and completedIndexes overlap at index: {index}");
            faults.invalid(&at_failed, get(status, "failedIndexes"), words);
        }
    }
    if !done.is_empty() && !indexed {
        let words = "cannot set non-empty completedIndexes when non-indexed completion mode";
        faults.invalid(&at_done, get(status, "completedIndexes"), words);
    }
    if has(status, "failedIndexes") && !has(job, "backoffLimitPerIndex") {
        let words = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        faults.invalid(&at_failed, get(status, "failedIndexes"), words);
    }
}

/// Final conditions and times are immutable, counts only grow.
fn transition(
    new: &Fields,
    old: &Fields,
    suspended: bool,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let place = at.field("conditions");
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if holds(old, kind) && !holds(new, kind) {
            faults.wrong(
                &place,
                format!("cannot disable the terminal {kind}=True condition"),
            );
        }
    }
    for key in ["failed", "succeeded"] {
        if number(new, key) < number(old, key) {
            faults.invalid(
                &at.field(key),
                get(new, key),
                format!("cannot decrease the {key} counter"),
            );
        }
    }
    let (after, before) = (get(new, "completionTime"), get(old, "completionTime"));
    if !after.is_null() && !before.is_null() && after != before {
        faults.invalid(
            &at.field("completionTime"),
            after,
            "completionTime cannot be mutated",
        );
    }
    // A resumed Job gets a new start time, though it had one before it was suspended.
    let resumed = holds(old, "Suspended") && !holds(new, "Suspended");
    let restarted = has(old, "startTime") && get(new, "startTime") != get(old, "startTime");
    if restarted && !suspended && !resumed {
        faults.required(
            &at.field("startTime"),
            "startTime cannot be removed for unsuspended job",
        );
    }
    let criteria = "SuccessCriteriaMet";
    if holds(old, criteria) && !holds(new, criteria) {
        faults.wrong(
            &place,
            "cannot disable the SuccessCriteriaMet=True condition",
        );
    }
    if holds(old, "Complete") && !holds(old, criteria) && holds(new, criteria) {
        let words =
            "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        faults.wrong(&place, words);
    }
}

/// The intervals in a list such as `1,3-5`; unreadable parts are skipped.
fn intervals(list: &str) -> impl Iterator<Item = (i64, i64)> {
    let read = |part: &str| -> Option<(i64, i64)> {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    list.split(',').filter_map(read)
}

/// The first index that two lists share, if each is in order, which [`count_indexes`] checks. Both
/// are read once: each may have as many intervals as fit into a request.
fn first_shared(done: &str, failed: &str) -> Option<i64> {
    let mut done = intervals(done).peekable();
    let mut failed = intervals(failed).peekable();
    loop {
        let ((from, to), (start, end)) = (*done.peek()?, *failed.peek()?);
        if from <= end && start <= to {
            return Some(from.max(start));
        }
        // The earlier one ends before the later one begins.
        if from < start {
            done.next();
        } else {
            failed.next();
        }
    }
}

/// The number of indexes in a list such as `1,3-5`, which must be in order and below `completions`.
pub(super) fn count_indexes(list: &str, completions: i64) -> Result<i64, String> {
    if list.is_empty() {
        return Ok(0);
    }
    let read = |text: &str| -> Result<i64, String> {
        let index: i64 = text.parse().map_err(|_no_number| {
            format!("cannot convert string to integer for index: {text:?}")
        })?;
        if index >= completions {
            return Err(format!("too large index: {text:?}"));
        }
        Ok(index)
    };
    let (mut before, mut total) = (None, 0);
    for part in list.split(',') {
        let ends: Vec<&str> = part.split('-').collect();
        let (from, to) = match ends.as_slice() {
            [one] => (read(one)?, read(one)?),
            [from, to] => (read(from)?, read(to)?),
            _ => {
                return Err(format!(
                    "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
                ));
            }
        };
        if ends.len() == 2 && from >= to {
            return Err(format!(
                "non-increasing order, previous: {from}, current: {to}"
            ));
        }
        if let Some(before) = before
            && before >= from
        {
            return Err(format!(
                "non-increasing order, previous: {before}, current: {from}"
            ));
        }
        total += to - from + 1;
        before = Some(to);
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::needless_pass_by_value, reason = "cases are written in place")]
    use super::*;
    use serde_json::json;

    fn faults_of(job: &Value, new: Value, old: Value) -> Vec<String> {
        let of = |status: Value| {
            json!({"spec": job, "status": status})
                .as_object()
                .cloned()
                .unwrap()
        };
        let mut faults = Faults::default();
        validate(&of(new), &of(old), &mut faults);
        faults
            .found()
            .map(|(field, reason, _)| {
                format!("{field} {}", reason.trim_start_matches("FieldValue"))
            })
            .collect()
    }

    #[test]
    fn indexes_are_counted() {
        assert_eq!(count_indexes("0,2-4,7", 8), Ok(5));
        for bad in ["a", "8", "3,2", "4-2", "1-2-3", "1,"] {
            assert!(count_indexes(bad, 8).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_first_index_that_two_lists_share_is_found() {
        for (done, failed, expected) in [
            ("", "", None),
            ("0-2", "", None),
            ("0-2", "2", Some(2)),
            ("0,4-6", "1-3,5,8", Some(5)),
            ("1,3-5", "0,2,6-7", None),
            ("a,3", "3", Some(3)),
        ] {
            assert_eq!(first_shared(done, failed), expected, "{done} {failed}");
        }
    }

    /// Comparing each interval with all others would take longer than any test may run.
    #[test]
    fn two_lists_of_very_many_indexes_are_compared_in_one_pass() {
        let list = |first: i64| {
            let indexes = (0..150_000).map(|number| (4 * number + first).to_string());
            indexes.collect::<Vec<String>>().join(",")
        };
        let (done, failed) = (list(0), list(2));
        assert_eq!(first_shared(&done, &failed), None);
        let [done, failed] = [done, failed].map(|indexes| format!("{indexes},600000"));
        assert_eq!(first_shared(&done, &failed), Some(600_000));
    }

    #[test]
    fn a_finished_job_has_its_reason_and_time() {
        let complete = json!([{"type": "Complete", "status": "True"}, {"type": "SuccessCriteriaMet", "status": "True"}]);
        let good = json!({"conditions": complete, "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:01Z"});
        assert!(faults_of(&json!({}), good.clone(), json!({})).is_empty());
        let bare = json!({"conditions": [{"type": "Complete", "status": "True"}], "active": 1});
        let expected = [
            "status.conditions Invalid",
            "status.completionTime Required",
            "status.active Invalid",
            "status.startTime Required",
        ];
        assert_eq!(faults_of(&json!({}), bare, json!({})), expected);
        let expected = [
            "status.conditions Invalid",
            "status.startTime Required",
            "status.conditions Invalid",
        ];
        assert_eq!(faults_of(&json!({}), json!({}), good), expected);
        let job = json!({"completionMode": "Indexed", "completions": 4});
        let overlap = json!({"completedIndexes": "0-2", "failedIndexes": "2"});
        assert_eq!(
            faults_of(&job, overlap, json!({})),
            [
                "status.failedIndexes Invalid",
                "status.failedIndexes Invalid"
            ]
        );
    }
}
