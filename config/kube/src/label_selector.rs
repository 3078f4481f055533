//! Which objects a label selector selects. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use std::collections::BTreeMap;

/// Whether labels meet all requirements of a selector. One without requirements selects everything
/// (upstream); an unknown operator selects nothing.
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.match_labels.iter().flatten();
    let mut needs = selector.match_expressions.iter().flatten();
    equal
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && needs.all(|need| meets(need, labels))
}

/// Whether a selector has no requirements.
pub fn is_empty(selector: &LabelSelector) -> bool {
    let labels = selector.match_labels.as_ref();
    let needs = selector.match_expressions.as_ref();
    labels.is_none_or(BTreeMap::is_empty) && needs.is_none_or(Vec::is_empty)
}

fn meets(need: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&need.key);
    let values = need.values.as_deref().unwrap_or_default();
    match need.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}
