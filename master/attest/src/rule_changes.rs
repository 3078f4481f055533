//! Finds the changes of policies and releases for the log of verdicts.

use master_client::{Change, Gone, Object};
use std::sync::Arc;

/// The objects that were created, changed or deleted since `known`, each with whether it is gone.
/// An object is compared only with the known one of its name and uid, so that an equal spec of
/// another object does not hide a change.
pub(crate) fn changed<T: Object + Clone>(
    known: &[Arc<T>],
    change: &Change<T>,
    same: impl Fn(&T, &T) -> bool,
) -> Vec<(T, bool)> {
    let is_one = |one: &T, other: &T| {
        let (one, other) = (one.metadata(), other.metadata());
        one.name == other.name && one.uid == other.uid
    };
    let is_new = |new: &&T| !known.iter().any(|old| is_one(old, new) && same(old, new));
    let made = |new: &T| (new.clone(), false);
    match change {
        Change::Set(new) => Some(new).filter(is_new).map(made).into_iter().collect(),
        Change::Deleted(gone) => {
            let is_it = |old: &&Arc<T>| Gone::of(old.metadata()).is(gone);
            let old = known.iter().find(is_it);
            old.map(|old| (T::clone(old), true)).into_iter().collect()
        }
        Change::Listed(now) => {
            let gone = known
                .iter()
                .filter(|old| !now.iter().any(|new| is_one(old, new)))
                .map(|old| (T::clone(old), true));
            gone.chain(now.iter().filter(is_new).map(made)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::{CertificatePolicy, CertificatePolicySpec, Rule};
    use std::slice::from_ref;

    fn policy(name: &str, uid: &str, rule: &str) -> CertificatePolicy {
        let rule = Rule {
            name: rule.to_owned(),
            ..Rule::default()
        };
        let spec = CertificatePolicySpec { rules: vec![rule] };
        let mut policy = CertificatePolicy::named(name, spec);
        policy.metadata.uid = Some(uid.to_owned());
        policy
    }

    /// The found changes as text: `name rule`, and `-name` for a deleted object.
    fn heard(known: &[CertificatePolicy], change: &Change<CertificatePolicy>) -> Vec<String> {
        let known: Vec<Arc<CertificatePolicy>> = known.iter().cloned().map(Arc::new).collect();
        let text = |(policy, gone): (CertificatePolicy, bool)| {
            let name = policy.metadata.name.unwrap_or_default();
            let rule = policy.spec.rules.first().map_or("", |rule| &rule.name);
            if gone {
                format!("-{name}")
            } else {
                format!("{name} {rule}")
            }
        };
        let changed = changed(&known, change, |old, new| old.spec == new.spec);
        changed.into_iter().map(text).collect()
    }

    #[test]
    fn every_change_is_found_and_nothing_else() {
        let (open, shut) = (policy("default", "1", "open"), policy("draft", "2", "shut"));
        let known = [open.clone(), shut];
        let now = policy("default", "1", "shut");
        assert_eq!(
            heard(&known, &Change::Set(now.clone())),
            ["default shut"],
            "a spec that another policy has"
        );
        assert_eq!(
            heard(&known, &Change::Set(open.clone())),
            [] as [&str; 0],
            "a known object, again"
        );
        assert_eq!(
            heard(&known, &Change::Deleted(Gone::of(&open.metadata))),
            ["-default"]
        );
        let again = policy("default", "3", "open");
        assert_eq!(
            heard(&known, &Change::Set(again.clone())),
            ["default open"],
            "another object of the name"
        );
        // While the watch was broken.
        assert_eq!(
            heard(&known, &Change::Listed(vec![now])),
            ["-draft", "default shut"]
        );
        assert_eq!(
            heard(from_ref(&open), &Change::Listed(vec![again])),
            ["-default", "default open"]
        );
        assert_eq!(
            heard(from_ref(&open), &Change::Listed(vec![open.clone()])),
            [] as [&str; 0]
        );
    }
}
