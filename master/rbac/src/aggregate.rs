//! The rules of a cluster role that gathers those of others.

use crate::object::Role;
use crate::rule::Rule;

/// The rules of `role`, gathered from all `others` that `selects` says one of its selectors selects: in the order of
/// their names, each rule once, its own never. None where it gathers nothing.
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
    let mut rules: Vec<Rule> = Vec::new();
    for selector in &aggregation.cluster_role_selectors {
        for other in others.iter().filter(|other| selects(selector, other)) {
            for rule in &other.rules {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    Some(rules)
}

/// Whether a selector made of `matchLabels` alone selects a role: as those of the default roles are.
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
