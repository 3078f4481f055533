//! `ImageFloor`: the lowest SVN that a CertificatePolicy admits can be raised by any write and
//! lowered only by a write that says so explicitly. Always enabled. An annotation keeps a rule's
//! floor when the rule is removed or stops deciding by image, so that no sequence of writes lowers
//! it unnoticed; the annotation that allows a lower floor ends when that floor rises again.

use crate::plugin::{Admitted, Operation, Plugin, Request};
use config_kube::identity::{FLOORS, GROUP, LOWER_SVN};
use config_kube::{Decides, PolicyName};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::object::meta_text;
use master_schema::validate::{Fields, items, object, object_mut};
use serde::Deserialize as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Floors kept per policy: those of its rules, and the highest of removed rules.
const MAX_FLOORS: usize = 64;
/// The value of the annotation that allows deleting the policy.
const ALL: &str = "all";

/// The plugin.
#[derive(Debug)]
pub(crate) struct ImageFloor;

impl Plugin for ImageFloor {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.writes(GROUP, "certificatepolicies")
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        policy: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        remember(policy, request.old);
        Box::pin(std::future::ready(Ok(())))
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        policy: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let answer = match (request.operation, request.old) {
            (Operation::Update, Some(old)) => check(request, old, policy),
            (Operation::Delete, _) => check_delete(request, policy),
            (Operation::Create | Operation::Update, _) => Ok(()),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// Records the floors of a policy's rules in its annotation, beside those recorded before, and
/// removes a permission to lower one that has been used.
fn remember(new: &mut Fields, old: Option<&Fields>) {
    let floors = merged(new, old);
    let is_used = old.is_some_and(|old| is_used(new, old, &floors));
    let Some(metadata) = object_mut(new, "metadata") else {
        return;
    };
    if is_used && let Some(annotations) = object_mut(metadata, "annotations") {
        annotations.remove(LOWER_SVN);
    }
    let text = Value::from(json!(floors).to_string());
    match object_mut(metadata, "annotations") {
        Some(annotations) if floors.is_empty() => drop(annotations.remove(FLOORS)),
        Some(annotations) => drop(annotations.insert(FLOORS.to_owned(), text)),
        None if floors.is_empty() => {}
        None => drop(metadata.insert("annotations".to_owned(), json!({ FLOORS: text }))),
    }
}

/// Whether the permission to lower a rule's floor has been used: the floor was that low and rises
/// now. The annotation stays in the stored object, and would allow the same fall once more without
/// anybody having asked for it.
fn is_used(new: &Fields, old: &Fields, floors: &BTreeMap<String, u64>) -> bool {
    let permission = annotation(old, LOWER_SVN);
    let rule = permission.and_then(|permission| Some(permission.rsplit_once('=')?.0));
    let rises = |rule: &str| {
        let before = known(old).get(rule).copied();
        before
            .zip(floors.get(rule).copied())
            .is_some_and(|(before, now)| now > before)
    };
    permission == annotation(new, LOWER_SVN) && rule.is_some_and(rises)
}

/// Refuses a lower floor without the annotation that allows it.
fn check(request: &Request<'_>, old: &Fields, new: &Fields) -> Result<(), ApiError> {
    let Some((rule, from, to)) = lowered(old, new) else {
        return Ok(());
    };
    let wanted = format!("{rule}={to}");
    if annotation(new, LOWER_SVN) == Some(wanted.as_str()) {
        return Ok(());
    }
    let name = meta_text(new, "name");
    let why = format!(
        "rule {rule:?} would admit images of SVN {to}, and none below {from} were admitted until now: machines could go back \
         to images whose faults are known. If this is intended: kubectl annotate certificatepolicy {name} --overwrite \
         {LOWER_SVN}={wanted}, and write it again"
    );
    Err(request.forbidden(name, &why))
}

/// Refuses to delete the policy with its recorded floors: a new policy of that name would start
/// without them.
fn check_delete(request: &Request<'_>, fields: &Fields) -> Result<(), ApiError> {
    let Some((rule, floor)) = known(fields)
        .into_iter()
        .max_by_key(|(_, floor)| *floor)
        .filter(|(_, floor)| *floor > 1)
    else {
        return Ok(());
    };
    if annotation(fields, LOWER_SVN) == Some(ALL) {
        return Ok(());
    }
    let name = meta_text(fields, "name");
    let why = format!(
        "that no image below SVN {floor} is admitted (rule {rule:?}) would be forgotten with it. Write the new policy over it; \
         or, if this is intended: kubectl annotate certificatepolicy {name} --overwrite {LOWER_SVN}={ALL}, and delete it again"
    );
    Err(request.forbidden(name, &why))
}

fn annotation<'a>(policy: &'a Fields, key: &str) -> Option<&'a str> {
    object(object(policy, "metadata")?, "annotations")?
        .get(key)?
        .as_str()
}

/// The floors of the rules that have one, by rule name.
fn floors(policy: &Fields) -> Vec<(&str, u64)> {
    let rules = object(policy, "spec").map_or(&[][..], |spec| items(spec, "rules"));
    let floor = |rule: &Value| {
        rule.pointer("/images/minSvn")
            .and_then(Value::as_u64)
            .unwrap_or_default()
    };
    let policy = |rule: &Value| PolicyName::deserialize(rule.get("policy")?).ok();
    let verifies =
        |rule: &&Value| policy(rule).is_some_and(|policy| policy.decides() == Decides::Verifier);
    rules
        .iter()
        .filter(verifies)
        .map(|rule| {
            (
                rule.get("name").and_then(Value::as_str).unwrap_or_default(),
                floor(rule),
            )
        })
        .collect()
}

/// The floors of the rules and the recorded ones.
fn known(policy: &Fields) -> BTreeMap<String, u64> {
    let noted = annotation(policy, FLOORS).and_then(|text| serde_json::from_str(text).ok());
    let mut known: BTreeMap<String, u64> = noted.unwrap_or_default();
    known.extend(
        floors(policy)
            .into_iter()
            .map(|(name, floor)| (name.to_owned(), floor)),
    );
    known
}

fn merged(new: &Fields, old: Option<&Fields>) -> BTreeMap<String, u64> {
    let own: BTreeMap<String, u64> = floors(new)
        .into_iter()
        .map(|(name, floor)| (name.to_owned(), floor))
        .collect();
    let mut others: Vec<(String, u64)> = old.map(known).unwrap_or_default().into_iter().collect();
    others.retain(|(name, _)| !own.contains_key(name));
    others.sort_by_key(|(_, floor)| std::cmp::Reverse(*floor));
    others.truncate(MAX_FLOORS.saturating_sub(own.len()));
    own.into_iter().chain(others).collect()
}

/// The first rule with a lower floor than before. Rules are compared by name; a new name is
/// compared with the lowest floor of the old rules, or if none has one, with the lowest recorded
/// floor.
fn lowered<'a>(old: &Fields, new: &'a Fields) -> Option<(&'a str, u64, u64)> {
    let known = known(old);
    let in_force = floors(old).into_iter().map(|(_, floor)| floor).min();
    let least = in_force.or_else(|| known.values().copied().min())?;
    floors(new).into_iter().find_map(|(name, floor)| {
        let before = known.get(name).copied().unwrap_or(least);
        (floor < before).then_some((name, before, floor))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(rules: &[(&str, u64)]) -> Fields {
        let rules: Vec<Value> = rules
            .iter()
            .map(|(name, svn)| json!({"name": name, "policy": "cloud-verify", "images": {"minSvn": svn}}))
            .collect();
        serde_json::from_value(json!({"spec": {"rules": rules}})).unwrap()
    }

    #[test]
    fn a_floor_falls_by_name_and_not_by_a_new_name_either() {
        let old = policy(&[("masters", 9), ("workers", 7)]);
        assert_eq!(
            lowered(&old, &policy(&[("workers", 8), ("masters", 9)])),
            None
        );
        assert_eq!(
            lowered(&old, &policy(&[("masters", 8)])),
            Some(("masters", 9, 8))
        );
        assert_eq!(
            lowered(&old, &policy(&[("others", 6)])),
            Some(("others", 7, 6))
        );
        assert_eq!(lowered(&old, &policy(&[("others", 7)])), None);
    }

    /// What the server stores: the policy with its floors recorded.
    fn kept(mut new: Fields, old: &Fields) -> Fields {
        let floors = json!(merged(&new, Some(old))).to_string();
        new.insert(
            "metadata".to_owned(),
            json!({ "annotations": { FLOORS: floors } }),
        );
        new
    }

    #[test]
    fn a_floor_is_known_after_a_detour_over_other_rules() {
        let high = policy(&[("masters", 9), ("workers", 7)]);
        let mut queue = policy(&[("workers", 7)]);
        queue["spec"]["rules"][0]["policy"] = json!("queue");
        let detour = kept(queue, &high);
        assert_eq!(lowered(&high, &detour), None);
        assert_eq!(
            lowered(&detour, &policy(&[("workers", 6)])),
            Some(("workers", 7, 6))
        );
        assert_eq!(
            lowered(&detour, &policy(&[("others", 6)])),
            Some(("others", 7, 6))
        );
        assert_eq!(
            lowered(&detour, &policy(&[("masters", 8)])),
            Some(("masters", 9, 8))
        );
        assert_eq!(
            lowered(&detour, &policy(&[("workers", 7), ("masters", 9)])),
            None
        );
        // A removed rule comes back with its floor, and a floor that was lowered explicitly is the
        // new floor.
        let fewer = kept(policy(&[("workers", 7)]), &high);
        assert_eq!(
            lowered(&fewer, &policy(&[("masters", 7)])),
            Some(("masters", 9, 7))
        );
        let consented = kept(policy(&[("workers", 3)]), &high);
        assert_eq!(known(&consented)["workers"], 3);
    }

    #[test]
    fn the_permission_to_lower_a_floor_ends_when_the_floor_rises_again() {
        let written = |svn: u64, old: &Fields| {
            let mut new = policy(&[("workers", svn)]);
            let permission = json!({ "annotations": { LOWER_SVN: "workers=3" } });
            new.insert("metadata".to_owned(), permission);
            remember(&mut new, Some(old));
            new
        };
        let permitted = written(7, &policy(&[("workers", 7)]));
        let low = written(3, &permitted);
        for policy in [&permitted, &low] {
            assert_eq!(annotation(policy, LOWER_SVN), Some("workers=3"));
        }
        assert_eq!(annotation(&written(7, &low), LOWER_SVN), None);
    }

    #[test]
    fn recorded_floors_are_bounded_and_the_lowest_is_dropped() {
        let many: Vec<(String, u64)> = (0..200)
            .map(|svn| (format!("rule-{svn:03}"), svn))
            .collect();
        let many: Vec<(&str, u64)> = many
            .iter()
            .map(|(name, svn)| (name.as_str(), *svn))
            .collect();
        let floors = merged(&policy(&[("workers", 1)]), Some(&policy(&many)));
        assert_eq!((floors.len(), floors["workers"]), (MAX_FLOORS, 1));
        assert!(
            floors.contains_key("rule-199") && !floors.contains_key("rule-100"),
            "{floors:?}"
        );
    }
}
