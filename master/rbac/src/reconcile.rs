//! Compares stored roles and bindings with the defaults. Additions by an admin are kept.

use crate::cover::lacking;
use crate::defaults::AUTOUPDATE;
use crate::object::{Aggregation, Binding, Metadata, Role};

/// The change that one default needs.
#[derive(Debug, Clone, PartialEq)]
pub enum Step<T> {
    /// None: it is up to date, or an admin disabled updates of it.
    Nothing,
    /// Write this.
    Update(T),
    /// Delete it and create this: the role of a binding is immutable.
    Replace(T),
}

fn protected(metadata: &Metadata) -> bool {
    metadata
        .annotations
        .get(AUTOUPDATE)
        .is_some_and(|value| value == "false")
}

/// Adds missing labels and annotations and keeps existing values; returns whether it added any.
fn complete(own: &mut Metadata, wanted: &Metadata) -> bool {
    let before = (own.labels.len(), own.annotations.len());
    for (key, value) in &wanted.labels {
        own.labels
            .entry(key.clone())
            .or_insert_with(|| value.clone());
    }
    for (key, value) in &wanted.annotations {
        own.annotations
            .entry(key.clone())
            .or_insert_with(|| value.clone());
    }
    before != (own.labels.len(), own.annotations.len())
}

/// Compares a stored role with the default one.
pub fn role(existing: &Role, wanted: &Role) -> Step<Role> {
    if protected(&existing.metadata) {
        return Step::Nothing;
    }
    let mut role = existing.clone();
    let mut changed = complete(&mut role.metadata, &wanted.metadata);
    // If both are aggregated, the rules belong to the aggregation controller.
    if existing.aggregation_rule.is_none() || wanted.aggregation_rule.is_none() {
        let missing = lacking(&existing.rules, &wanted.rules);
        changed |= !missing.is_empty();
        role.rules.extend(missing);
    }
    if let Some(wanted) = &wanted.aggregation_rule {
        changed |= gather(role.aggregation_rule.get_or_insert_default(), wanted);
    }
    if changed {
        Step::Update(role)
    } else {
        Step::Nothing
    }
}

fn gather(own: &mut Aggregation, wanted: &Aggregation) -> bool {
    let before = own.cluster_role_selectors.len();
    for selector in &wanted.cluster_role_selectors {
        if !own.cluster_role_selectors.contains(selector) {
            own.cluster_role_selectors.push(selector.clone());
        }
    }
    before != own.cluster_role_selectors.len()
}

/// Compares a stored binding with the default one.
pub fn binding(existing: &Binding, wanted: &Binding) -> Step<Binding> {
    if protected(&existing.metadata) {
        return Step::Nothing;
    }
    let mut binding = existing.clone();
    let mut changed = complete(&mut binding.metadata, &wanted.metadata);
    for subject in &wanted.subjects {
        if !binding.subjects.contains(subject) {
            binding.subjects.push(subject.clone());
            changed = true;
        }
    }
    if existing.role_ref != wanted.role_ref {
        binding.role_ref = wanted.role_ref.clone();
        return Step::Replace(binding);
    }
    if changed {
        Step::Update(binding)
    } else {
        Step::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults::{cluster_role_bindings, cluster_roles, on};

    fn default_role(name: &str) -> Role {
        cluster_roles()
            .into_iter()
            .find(|role| role.metadata.name == name)
            .unwrap()
    }

    #[test]
    fn a_missing_rule_is_added_and_an_admins_own_stays() {
        let wanted = default_role("system:kube-dns");
        assert_eq!(role(&wanted, &wanted), Step::Nothing);
        let mut existing = wanted.clone();
        existing.rules = vec![on("list", "core", "services"), on("get", "core", "pods")];
        let Step::Update(done) = role(&existing, &wanted) else {
            panic!("it lacks rules")
        };
        assert_eq!(lacking(&done.rules, &wanted.rules), []);
        assert_eq!(done.rules[..2], existing.rules[..]);
        assert_eq!(role(&done, &wanted), Step::Nothing, "once is enough");
    }

    #[test]
    fn a_role_with_updates_disabled_is_left_alone() {
        let wanted = default_role("system:kube-dns");
        let mut existing = Role {
            rules: Vec::new(),
            ..wanted.clone()
        };
        existing
            .metadata
            .annotations
            .insert(AUTOUPDATE.to_owned(), "false".to_owned());
        assert_eq!(role(&existing, &wanted), Step::Nothing);
    }

    #[test]
    fn gathered_rules_are_not_this_functions() {
        let wanted = default_role("admin");
        let mut existing = wanted.clone();
        existing.rules = vec![on("get", "core", "pods")];
        assert_eq!(role(&existing, &wanted), Step::Nothing);
        existing.aggregation_rule = None;
        assert!(
            matches!(role(&existing, &wanted), Step::Update(role) if role.aggregation_rule.is_some())
        );
    }

    #[test]
    fn a_missing_subject_is_added_and_another_role_is_replaced() {
        let all = cluster_role_bindings();
        let wanted = all
            .iter()
            .find(|binding| binding.metadata.name == "system:public-info-viewer")
            .unwrap();
        let mut existing = wanted.clone();
        let removed = existing.subjects.pop().unwrap();
        let Step::Update(done) = binding(&existing, wanted) else {
            panic!("a subject is missing")
        };
        assert!(done.subjects.contains(&removed));
        existing.role_ref.name = "view".to_owned();
        assert!(
            matches!(binding(&existing, wanted), Step::Replace(new) if new.role_ref == wanted.role_ref)
        );
    }
}
