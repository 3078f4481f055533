//! Which nodes a pod's `nodeAffinity` selects: the terms of a node selector over a node's name and
//! labels. Pure.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use std::collections::BTreeMap;

/// Whether a node meets all requirements of a term. A term without requirements matches nothing
/// (upstream).
pub fn matches(term: &NodeSelectorTerm, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |key: &str| (key == "metadata.name").then_some(node);
    !(expressions.is_empty() && fields.is_empty())
        && expressions
            .iter()
            .all(|need| meets(need, labels.get(&need.key).map(String::as_str)))
        && fields.iter().all(|need| meets(need, field(&need.key)))
}

fn meets(need: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = need.values.as_deref().unwrap_or_default();
    let among = value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
    let numbers = || {
        let wanted = values.first().filter(|_| values.len() == 1)?;
        Some((value?.parse::<i64>().ok()?, wanted.parse::<i64>().ok()?))
    };
    match need.operator.as_str() {
        "In" => among,
        "NotIn" => !among,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, wanted)| value > wanted),
        "Lt" => numbers().is_some_and(|(value, wanted)| value < wanted),
        _ => false,
    }
}
