//! The pod failure policy and the success policy of a Job.

use super::indexes::{Indexes, intervals, span};
use crate::workload::pod::OwnedPod;
use config_kube::k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
};
use master_client::Key;

/// The effect of a failed pod on its Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It counts as a failure.
    Count,
    /// It does not count.
    Ignore,
    /// Its index has failed.
    FailIndex,
    /// The Job has failed, for this reason.
    FailJob(String),
}

/// The first rule that matches a failed pod decides; without any, it counts.
pub fn judge(spec: &JobSpec, key: &Key, pod: &OwnedPod) -> Verdict {
    let rules = spec
        .pod_failure_policy
        .iter()
        .flat_map(|policy| &policy.rules);
    if &*pod.phase != "Failed" {
        return Verdict::Count;
    }
    for (index, rule) in rules.enumerate() {
        let Some(why) = matched(rule, key, pod) else {
            continue;
        };
        return match rule.action.as_str() {
            "Ignore" => Verdict::Ignore,
            "FailIndex" if spec.backoff_limit_per_index.is_some() => Verdict::FailIndex,
            "FailJob" => Verdict::FailJob(format!("{why} matching FailJob rule at index {index}")),
            _ => Verdict::Count,
        };
    }
    Verdict::Count
}

/// Whether a rule matches a pod: the matching part, as text.
fn matched(rule: &PodFailurePolicyRule, key: &Key, pod: &OwnedPod) -> Option<String> {
    let part = pod.job.as_deref()?;
    if let Some(codes) = &rule.on_exit_codes {
        let ended = part.exits.iter().find(|(name, code)| {
            let named = codes.container_name.as_ref();
            named.is_none_or(|wanted| wanted == name) && is_among(codes, *code)
        });
        return ended.map(|(name, code)| {
            format!("Container {name} for pod {key} failed with exit code {code}")
        });
    }
    let wanted = rule.on_pod_conditions.iter().flatten();
    let mut held = wanted.filter(|wanted| {
        let status = wanted.status.as_deref().unwrap_or("True");
        let found = part.conditions.iter();
        found
            .clone()
            .any(|(kind, is)| *kind == wanted.type_ && is == status)
    });
    let first = held.next()?;
    Some(format!("Pod {key} has condition {}", first.type_))
}

/// Whether the requirement matches an exit code; 0 never matches.
fn is_among(codes: &PodFailurePolicyOnExitCodesRequirement, code: i32) -> bool {
    let listed = codes.values.contains(&code);
    code != 0
        && match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
}

/// The index of the first rule by which these succeeded indexes are enough.
pub(super) fn is_enough(spec: &JobSpec, succeeded: &Indexes) -> Option<usize> {
    let completions = spec.completions?;
    let rules = spec.success_policy.as_ref()?.rules.iter();
    let met = |rule: &config_kube::k8s_openapi::api::batch::v1::SuccessPolicyRule| {
        let Some(list) = &rule.succeeded_indexes else {
            let count = rule
                .succeeded_count
                .and_then(|count| usize::try_from(count).ok());
            return count.is_some_and(|count| succeeded.len() >= count);
        };
        // Validation has refused intervals that overlap. They are not unrolled: a rule may name two
        // billion indexes.
        let (mut wanted, mut found) = (0, 0);
        for interval in intervals(list, completions) {
            wanted += span(*interval.start(), *interval.end());
            found += succeeded.count_in(&interval);
        }
        let least = rule
            .succeeded_count
            .and_then(|count| usize::try_from(count).ok());
        found >= least.unwrap_or(wanted)
    };
    rules.into_iter().position(met)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_rule_about_two_billion_indexes_costs_no_more_than_one_about_two() {
        let rules = json!([{"succeededIndexes": "0,2-2147483646"},
            {"succeededIndexes": "1-2147483646", "succeededCount": 2}]);
        let spec = json!({"completions": i32::MAX, "completionMode": "Indexed", "template": {},
            "successPolicy": {"rules": rules}});
        let spec: JobSpec = serde_json::from_value(spec).unwrap();
        let enough = |succeeded: &[i32]| is_enough(&spec, &succeeded.iter().copied().collect());
        assert_eq!(enough(&[0, 7]), None);
        assert_eq!(enough(&[0, 7, 2_147_483_646]), Some(1));
    }

    #[test]
    fn a_rule_without_a_count_wants_all_its_indexes() {
        let spec = json!({"completions": 9, "completionMode": "Indexed", "template": {},
            "successPolicy": {"rules": [{"succeededIndexes": "1,3-5"}]}});
        let spec: JobSpec = serde_json::from_value(spec).unwrap();
        let enough = |succeeded: &[i32]| is_enough(&spec, &succeeded.iter().copied().collect());
        assert_eq!(enough(&[1, 3, 4]), None);
        assert_eq!(enough(&[1, 2, 3, 4, 5]), Some(0));
    }
}
