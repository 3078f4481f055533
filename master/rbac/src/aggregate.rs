//! The rules of an aggregated cluster role.

use crate::object::Role;
use crate::rule::Rule;
use std::collections::HashSet;

/// The rules that `role` aggregates from those of `others` that match one of its selectors by
/// `selects`: sorted by role name, each rule once, never its own. `None` if it is not aggregated.
pub fn gathered<'a>(
    role: &Role,
    others: impl IntoIterator<Item = &'a Role>,
    selects: impl Fn(&serde_json::Value, &Role) -> bool,
) -> Option<Vec<Rule>> {
    let aggregation = role.aggregation_rule.as_ref()?;
    let mut others: Vec<&Role> = others
        .into_iter()
        .filter(|other| other.metadata.name != role.metadata.name)
        .collect();
    others.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let (mut rules, mut known) = (Vec::new(), HashSet::new());
    for selector in &aggregation.cluster_role_selectors {
        for other in others.iter().filter(|other| selects(selector, other)) {
            for rule in &other.rules {
                if known.insert(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    Some(rules)
}

/// Whether a selector with `matchLabels` only matches a role, as the selectors of the default roles
/// do.
pub fn by_labels(selector: &serde_json::Value, role: &Role) -> bool {
    let Some(wanted) = selector
        .get("matchLabels")
        .and_then(serde_json::Value::as_object)
    else {
        return false;
    };
    wanted.iter().all(|(key, value)| {
        role.metadata
            .labels
            .get(key)
            .is_some_and(|own| value == own)
    })
}
