//! The spec of jobs, in jobs and in the templates of CronJobs.

use super::job_status::count_indexes;
use super::rules::{default_number, template};
use master_pods::podspec;
use master_schema::validate::forms::{choice, formed, has, not_negative, number, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, items, names, object, text,
};
use serde_json::Value;
use std::collections::BTreeSet;

/// Sets defaults of a job's spec.
pub(super) fn defaults(spec: &mut Fields) {
    // With a parallelism alone it is a work queue, which has no number of completions.
    if !has(spec, "completions") && !has(spec, "parallelism") {
        spec.insert("completions".to_owned(), 1.into());
    }
    default_number(spec, "parallelism", 1);
    // KEP-3850: the limit of each index counts instead.
    let retries = if has(spec, "backoffLimitPerIndex") {
        i64::from(i32::MAX)
    } else {
        6
    };
    default_number(spec, "backoffLimit", retries);
    default_to(spec, "completionMode", "NonIndexed");
    default_to(spec, "suspend", false);
    default_to(spec, "manualSelector", false);
    // KEP-3939: a failure policy needs to see how a pod ended.
    let replace = if has(spec, "podFailurePolicy") {
        "Failed"
    } else {
        "TerminatingOrFailed"
    };
    default_to(spec, "podReplacementPolicy", replace);
    template_defaults(spec);
}

/// Sets the defaults that job templates get too.
pub(super) fn template_defaults(spec: &mut Fields) {
    let rules = spec
        .get_mut("podFailurePolicy")
        .and_then(|policy| policy.get_mut("rules"))
        .and_then(Value::as_array_mut);
    for rule in rules.into_iter().flatten() {
        let patterns = rule
            .get_mut("onPodConditions")
            .and_then(Value::as_array_mut);
        for pattern in patterns
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            default_to(pattern, "status", "True");
        }
    }
    podspec::template_defaults(spec);
}

/// Indexed jobs: limits of parallelism and failed indexes, lower for very many indexes.
// The status lists indexes as text, which these bounds keep small (KEP-3850).
const PARALLEL: i64 = 100_000;
const FAILED: i64 = 100_000;
const MANY: i64 = 100_000;
const PARALLEL_OF_MANY: i64 = 10_000;
const FAILED_OF_MANY: i64 = 10_000;
/// Maximum length of `managedBy`.
const MANAGER: usize = 63;

/// Validates a job's spec.
pub(super) fn validate_spec(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    for key in counts {
        not_negative(spec, key, at, faults);
    }
    if has(spec, "maxFailedIndexes") && !has(spec, "backoffLimitPerIndex") {
        faults.required(
            &at.field("backoffLimitPerIndex"),
            "when maxFailedIndexes is specified",
        );
    }
    if has(spec, "managedBy") {
        manager(spec, at, faults);
    }
    if text(spec, "completionMode") == "Indexed" {
        indexed(spec, at, faults);
    } else {
        if has(spec, "completionMode") {
            faults.one_of(
                &at.field("completionMode"),
                get(spec, "completionMode"),
                &["NonIndexed", "Indexed"],
            );
        }
        for key in ["backoffLimitPerIndex", "maxFailedIndexes"]
            .into_iter()
            .filter(|key| has(spec, key))
        {
            faults.invalid(
                &at.field(key),
                get(spec, key),
                "requires indexed completion mode",
            );
        }
    }
    failure_policy(spec, &at.field("podFailurePolicy"), faults);
    success_policy(spec, &at.field("successPolicy"), faults);
    replacement(spec, &at.field("podReplacementPolicy"), faults);
    let place = at.field("template");
    podspec::template(template(spec), &place, faults);
    restart(spec, &place, faults);
}

fn manager(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    // KEP-4368: another controller than the master's own looks after the Job.
    let name = text(spec, "managedBy");
    let place = at.field("managedBy");
    match name.split_once('/') {
        _ if name.is_empty() => faults.required(&place, ""),
        Some((domain, path)) if !path.is_empty() => {
            if let Err(fault) = names::subdomain(domain) {
                faults.invalid(&place, &Value::from(domain), fault);
            }
        }
        Some(_) | None => {
            let words = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            faults.invalid(&place, get(spec, "managedBy"), words);
        }
    }
    if name.len() > MANAGER {
        faults.too_long(&place, MANAGER);
    }
}

fn indexed(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let value = |key: &str| get(spec, key).as_i64();
    let (parallel, failed) = (
        value("parallelism").unwrap_or_default(),
        value("maxFailedIndexes"),
    );
    let (at_parallel, at_failed) = (at.field("parallelism"), at.field("maxFailedIndexes"));
    if parallel > PARALLEL {
        let words =
            format!("must be less than or equal to {PARALLEL} when completion mode is Indexed");
        faults.invalid(&at_parallel, &parallel.into(), words);
    }
    let Some(completions) = value("completions") else {
        faults.required(&at.field("completions"), "when completion mode is Indexed");
        return;
    };
    if let Some(failed) = failed {
        if failed > completions {
            faults.invalid(
                &at_failed,
                &failed.into(),
                "must be less than or equal to completions",
            );
        }
        if failed > FAILED {
            faults.invalid(
                &at_failed,
                &failed.into(),
                format!("must be less than or equal to {FAILED}"),
            );
        }
    }
    if completions <= MANY || !has(spec, "backoffLimitPerIndex") {
        return;
    }
    let end = format!("when completions are above {MANY} and used with backoff limit per index");
    match failed {
        None => faults.required(
            &at_failed,
            &format!("must be specified when completions is above {MANY}"),
        ),
        Some(failed) if failed > FAILED_OF_MANY => {
            let words = format!("must be less than or equal to {FAILED_OF_MANY} {end}");
            faults.invalid(&at_failed, &failed.into(), words);
        }
        Some(_) => {}
    }
    if parallel > PARALLEL_OF_MANY {
        let words = format!("must be less than or equal to {PARALLEL_OF_MANY} {end}");
        faults.invalid(&at_parallel, &parallel.into(), words);
    }
}

/// Limits: rules of a policy, patterns of a rule, exit codes of a rule.
const MAX_RULES: usize = 20;
const PATTERNS: usize = 20;
const MAX_EXIT_CODES: usize = 255;

fn failure_policy(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(policy) = object(spec, "podFailurePolicy") else {
        return;
    };
    let list = at.field("rules");
    let rules = items(policy, "rules");
    if rules.len() > MAX_RULES {
        faults.too_many(&list, rules.len(), MAX_RULES);
    }
    let pod = object(template(spec), "spec").unwrap_or(podspec::no_fields());
    let containers = items(pod, "containers")
        .iter()
        .chain(items(pod, "initContainers"));
    let known: BTreeSet<&str> = containers
        .filter_map(|container| container.get("name")?.as_str())
        .collect();
    for (index, rule) in rules.iter().enumerate() {
        let Some(rule) = rule.as_object() else {
            continue;
        };
        let at = list.index(index);
        let place = at.field("action");
        match text(rule, "action") {
            "" => faults.required(
                &place,
                "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]",
            ),
            "FailIndex" if !has(spec, "backoffLimitPerIndex") => {
                faults.invalid(
                    &place,
                    get(rule, "action"),
                    "requires the backoffLimitPerIndex to be set",
                );
            }
            _ => faults.one_of(
                &place,
                get(rule, "action"),
                &["Count", "FailIndex", "FailJob", "Ignore"],
            ),
        }
        let codes = object(rule, "onExitCodes");
        if let Some(codes) = codes {
            exit_codes(codes, &known, &at.field("onExitCodes"), faults);
        }
        let patterns = items(rule, "onPodConditions");
        pod_conditions(patterns, &at.field("onPodConditions"), faults);
        match (codes.is_some(), patterns.is_empty()) {
            (true, false) => faults.wrong(
                &at,
                "specifying both OnExitCodes and OnPodConditions is not supported",
            ),
            (false, true) => faults.wrong(
                &at,
                "specifying one of OnExitCodes and OnPodConditions is required",
            ),
            (true, true) | (false, false) => {}
        }
    }
}

fn pod_conditions(patterns: &[Value], at: &FieldPath<'_>, faults: &mut Faults) {
    if patterns.len() > PATTERNS {
        faults.too_many(at, patterns.len(), PATTERNS);
    }
    for (index, pattern) in patterns.iter().enumerate() {
        let Some(pattern) = pattern.as_object() else {
            continue;
        };
        let at = at.index(index);
        formed(
            word(pattern, "type"),
            &at.field("type"),
            names::qualified,
            faults,
        );
        choice(
            pattern,
            "status",
            &at,
            &["False", "True", "Unknown"],
            faults,
        );
    }
}

fn exit_codes(codes: &Fields, known: &BTreeSet<&str>, at: &FieldPath<'_>, faults: &mut Faults) {
    if text(codes, "operator").is_empty() {
        faults.required(&at.field("operator"), "valid values: [\"In\" \"NotIn\"]");
    } else {
        faults.one_of(
            &at.field("operator"),
            get(codes, "operator"),
            &["In", "NotIn"],
        );
    }
    if has(codes, "containerName") && !known.contains(text(codes, "containerName")) {
        let words = "must be one of the container or initContainer names in the pod template";
        faults.invalid(
            &at.field("containerName"),
            get(codes, "containerName"),
            words,
        );
    }
    let list = at.field("values");
    let values = items(codes, "values");
    if values.is_empty() {
        faults.invalid(
            &list,
            &Value::Array(Vec::new()),
            "at least one value is required",
        );
    } else if values.len() > MAX_EXIT_CODES {
        faults.too_many(&list, values.len(), MAX_EXIT_CODES);
    }
    let numbers: Vec<i64> = values
        .iter()
        .map(|value| value.as_i64().unwrap_or_default())
        .collect();
    let mut seen = BTreeSet::new();
    for (index, (value, number)) in values.iter().zip(&numbers).enumerate() {
        if text(codes, "operator") == "In" && *number == 0 {
            faults.invalid(
                &list.index(index),
                value,
                "must not be 0 for the In operator",
            );
        }
        if !seen.insert(number) {
            faults.duplicate(&list.index(index), value);
        }
    }
    if !numbers.is_sorted() {
        faults.invalid(&list, get(codes, "values"), "must be ordered");
    }
}

/// Bytes of a list of indexes.
const INDEXES: usize = 64 << 10;

fn success_policy(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(policy) = object(spec, "successPolicy") else {
        return;
    };
    if text(spec, "completionMode") != "Indexed" {
        faults.invalid(
            at,
            get(spec, "successPolicy"),
            "requires indexed completion mode",
        );
        return;
    }
    let list = at.field("rules");
    let rules = items(policy, "rules");
    if rules.is_empty() {
        faults.required(
            &list,
            "at least one rules must be specified when the successPolicy is specified",
        );
    }
    if rules.len() > MAX_RULES {
        faults.too_many(&list, rules.len(), MAX_RULES);
    }
    let completions = number(spec, "completions");
    for (index, rule) in rules.iter().enumerate() {
        if let Some(rule) = rule.as_object() {
            success_rule(rule, completions, &list.index(index), faults);
        }
    }
}

fn success_rule(rule: &Fields, completions: i64, at: &FieldPath<'_>, faults: &mut Faults) {
    let (indexes, count) = (get(rule, "succeededIndexes"), get(rule, "succeededCount"));
    if indexes.is_null() && count.is_null() {
        faults.required(
            at,
            "at least one of succeededCount or succeededIndexes must be specified",
        );
    }
    let mut named = 0;
    if let Some(list) = indexes.as_str() {
        let place = at.field("succeededIndexes");
        if list.len() > INDEXES {
            faults.too_long(&place, INDEXES);
        }
        match count_indexes(list, completions) {
            Ok(total) => named = total,
            Err(fault) => faults.invalid(
                &place,
                indexes,
                format!("error parsing succeededIndexes: {fault}"),
            ),
        }
    }
    let Some(wanted) = count.as_i64() else { return };
    let place = at.field("succeededCount");
    not_negative(rule, "succeededCount", at, faults);
    if wanted > completions {
        let words = format!(
            "must be less than or equal to {completions} (the number of specified completions)"
        );
        faults.invalid(&place, count, words);
    }
    if !indexes.is_null() && wanted > named {
        let words = format!(
            "must be less than or equal to {named} (the number of indexes in the specified succeededIndexes field)"
        );
        faults.invalid(&place, count, words);
    }
}

fn replacement(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if has(spec, "podReplacementPolicy") {
        let all = ["Failed", "TerminatingOrFailed"];
        let supported = if has(spec, "podFailurePolicy") {
            &all[..1]
        } else {
            &all[..]
        };
        faults.one_of(at, get(spec, "podReplacementPolicy"), supported);
    }
}

/// Pods of a job must end, so `Always` is not allowed as restart policy.
fn restart(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let pod = object(template(spec), "spec").unwrap_or(podspec::no_fields());
    let place = at.field("spec");
    let place = place.field("restartPolicy");
    let policy = get(pod, "restartPolicy");
    match text(pod, "restartPolicy") {
        "" | "Always" => faults.required(&place, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if has(spec, "podFailurePolicy") => {
            let words = "only \"Never\" is supported when podFailurePolicy is specified";
            faults.invalid(&place, policy, words);
        }
        _ => faults.one_of(&place, policy, &["OnFailure", "Never"]),
    }
}
