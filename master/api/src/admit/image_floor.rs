//! The lowest SVN that a CertificatePolicy admits rises by an ordinary write and falls only by one that says so: no
//! plugin, as it can't be switched off.

use super::{Operation, Request};
use crate::error::ApiError;
use crate::object::meta_text;
use crate::validate::{Fields, items, object};
use config_kube::identity::{GROUP, LOWER_SVN};
use serde_json::Value;

/// Refuses a lower floor that nobody asked for in so many words.
pub(super) fn check(request: &Request<'_>, new: &Fields) -> Result<(), ApiError> {
    let Some(old) = request.old.filter(|_| request.operation == Operation::Update) else { return Ok(()) };
    if !request.writes(GROUP, "certificatepolicies") {
        return Ok(());
    }
    let Some((rule, from, to)) = lowered(old, new) else { return Ok(()) };
    let wanted = format!("{rule}={to}");
    let annotations = object(new, "metadata").and_then(|metadata| object(metadata, "annotations"));
    let said = annotations.and_then(|annotations| annotations.get(LOWER_SVN)).and_then(Value::as_str);
    if said == Some(wanted.as_str()) {
        return Ok(());
    }
    let name = meta_text(new, "name");
    let why = format!(
        "rule {rule:?} would admit images of SVN {to}, and admits none below {from} now: machines could go back to images \
         whose faults are known. If this is meant: kubectl annotate certificatepolicy {name} --overwrite \
         {LOWER_SVN}={wanted}, and write it again"
    );
    Err(request.call.forbidden(name, &why))
}

fn floors(policy: &Fields) -> Vec<(&str, u64)> {
    let rules = object(policy, "spec").map_or(&[][..], |spec| items(spec, "rules"));
    let floor = |rule: &Value| rule.pointer("/images/minSvn").and_then(Value::as_u64).unwrap_or_default();
    let verifies = |rule: &&Value| rule.get("policy").and_then(Value::as_str) == Some("cloud-verify");
    rules
        .iter()
        .filter(verifies)
        .map(|rule| (rule.get("name").and_then(Value::as_str).unwrap_or_default(), floor(rule)))
        .collect()
}

/// The first rule with a lower floor: by its name, and for a new name by the lowest that there was.
fn lowered<'a>(old: &Fields, new: &'a Fields) -> Option<(&'a str, u64, u64)> {
    let before = floors(old);
    let least = before.iter().map(|(_, floor)| *floor).min()?;
    floors(new).into_iter().find_map(|(name, floor)| {
        let known = before.iter().find(|(other, _)| *other == name).map_or(least, |(_, floor)| *floor);
        (floor < known).then_some((name, known, floor))
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
        assert_eq!(lowered(&old, &policy(&[("workers", 8), ("masters", 9)])), None);
        assert_eq!(lowered(&old, &policy(&[("masters", 8)])), Some(("masters", 9, 8)));
        assert_eq!(lowered(&old, &policy(&[("others", 6)])), Some(("others", 7, 6)));
        assert_eq!(lowered(&old, &policy(&[("others", 7)])), None);
    }
}
