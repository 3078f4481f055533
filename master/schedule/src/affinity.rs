//! Node selectors and node affinity: the nodes that a pod may run on or prefers, by labels and
//! names.

use config_kube::k8s_openapi::api::core::v1::{NodeSelector, PodSpec, PreferredSchedulingTerm};
use config_kube::node_selector::matches;
use std::collections::BTreeMap;

/// A pod's requirements and preferences for nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodePreferences {
    selector: BTreeMap<String, String>,
    required: Option<NodeSelector>,
    preferred: Vec<PreferredSchedulingTerm>,
}

impl NodePreferences {
    pub(crate) fn of(spec: &PodSpec) -> Self {
        let affinity = spec
            .affinity
            .as_ref()
            .and_then(|affinity| affinity.node_affinity.clone())
            .unwrap_or_default();
        Self {
            selector: spec.node_selector.clone().unwrap_or_default(),
            required: affinity.required_during_scheduling_ignored_during_execution,
            preferred: affinity
                .preferred_during_scheduling_ignored_during_execution
                .unwrap_or_default(),
        }
    }

    /// Whether there are requirements.
    pub(crate) fn requires(&self) -> bool {
        !self.selector.is_empty() || self.required.is_some()
    }

    /// Whether there are preferences.
    pub(crate) fn prefers(&self) -> bool {
        !self.preferred.is_empty()
    }

    /// Whether a node meets the requirements.
    pub(crate) fn allow(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let selected = self
            .selector
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value));
        let required = self.required.as_ref().is_none_or(|selector| {
            selector
                .node_selector_terms
                .iter()
                .any(|term| matches(term, name, labels))
        });
        selected && required
    }

    /// Sum of the weights of the preferences that a node meets.
    pub(crate) fn weight(&self, name: &str, labels: &BTreeMap<String, String>) -> i64 {
        let met = self
            .preferred
            .iter()
            .filter(|wish| matches(&wish.preference, name, labels));
        met.map(|wish| i64::from(wish.weight)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn allowed(spec: Value) -> bool {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let labels =
            [("disk", "ssd"), ("rank", "7")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        NodePreferences::of(&serde_json::from_value(spec).unwrap()).allow("n1", &labels.into())
    }

    fn required(terms: &Value) -> Value {
        let selector = json!({"nodeSelectorTerms": terms});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}})
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> bool {
        allowed(required(
            &json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]),
        ))
    }

    #[test]
    fn selectors_want_every_label() {
        assert!(allowed(json!({"nodeSelector": {"disk": "ssd"}})));
        assert!(!allowed(
            json!({"nodeSelector": {"disk": "ssd", "zone": "a"}})
        ));
    }

    #[test]
    fn every_operator_means_what_upstream_says() {
        assert!(expression("disk", "In", &["hdd", "ssd"]) && !expression("zone", "In", &["a"]));
        assert!(expression("zone", "NotIn", &["a"]) && !expression("disk", "NotIn", &["ssd"]));
        assert!(expression("disk", "Exists", &[]) && !expression("zone", "Exists", &[]));
        assert!(
            expression("zone", "DoesNotExist", &[]) && !expression("disk", "DoesNotExist", &[])
        );
        assert!(expression("rank", "Gt", &["6"]) && !expression("rank", "Gt", &["7"]));
        assert!(expression("rank", "Lt", &["8"]) && !expression("disk", "Lt", &["8"]));
        assert!(!expression("disk", "Like", &["s"]));
    }

    #[test]
    fn terms_are_alternatives_and_an_empty_one_matches_nothing() {
        let no = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
        let yes =
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]});
        assert!(allowed(required(&json!([no, yes]))));
        assert!(!allowed(required(&json!([no]))));
        assert!(!allowed(required(&json!([{}]))));
    }

    #[test]
    fn wishes_add_their_weights() {
        let term = |key: &str| json!({"matchExpressions": [{"key": key, "operator": "Exists"}]});
        let node_preferences = json!([{"weight": 5, "preference": term("disk")}, {"weight": 7, "preference": term("zone")}]);
        let spec = json!({"containers": [], "affinity": {"nodeAffinity":
            {"preferredDuringSchedulingIgnoredDuringExecution": node_preferences}}});
        let node_preferences = NodePreferences::of(&serde_json::from_value(spec).unwrap());
        assert_eq!(
            node_preferences.weight("n1", &[("disk".to_owned(), String::new())].into()),
            5
        );
    }
}
