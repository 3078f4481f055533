//! Cluster role aggregation: roles that gather the rules of others always have them.

use crate::driver::{Controller, Now, Plan, Right};
use crate::observe::{Kind, Observed};
use crate::write::Write;
use master_rbac::Role;
use master_rbac::aggregate::gathered;
use serde_json::Value;

/// What it does, for whoever grants it. Rules that it has not itself it writes by `escalate`.
pub(crate) const RIGHTS: &[Right] = &[Right {
    group: "rbac.authorization.k8s.io",
    resource: "clusterroles",
    verbs: &["get", "list", "watch", "patch", "escalate"],
}];

/// The controller.
#[derive(Debug, Default)]
pub(crate) struct Aggregation;

impl Controller for Aggregation {
    fn name(&self) -> &'static str {
        "clusterrole-aggregation-controller"
    }

    fn follows(&self) -> &'static [Kind] {
        &[Kind::ClusterRole]
    }

    fn plan(&mut self, observed: &Observed, _: Now) -> Plan {
        let mut plan = Plan::default();
        for (name, (role, version)) in &observed.cluster_roles {
            let others = observed.cluster_roles.values().map(|(other, _)| other);
            let Some(rules) = gathered(role, others, selects).filter(|rules| *rules != role.rules)
            else {
                continue;
            };
            let Ok(rules) = serde_json::to_value(rules) else {
                continue;
            };
            plan.writes.push(Write::Aggregate {
                name: name.clone(),
                version: version.clone(),
                rules,
            });
        }
        plan
    }
}

/// Whether a label selector selects a role. One that selects everything gathers nothing: it is no selector.
fn selects(selector: &Value, role: &Role) -> bool {
    let labels = selector.get("matchLabels").and_then(Value::as_object);
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    let label = |key: &str| role.metadata.labels.get(key).map(String::as_str);
    let equal = labels
        .into_iter()
        .flatten()
        .all(|(key, value)| label(key).is_some_and(|own| value == own));
    equal
        && expressions.into_iter().flatten().all(|expression| {
            let text = |key: &str| {
                expression
                    .get(key)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            let own = label(text("key"));
            let values = expression.get("values").and_then(Value::as_array);
            let among = own.is_some_and(|own| {
                values.is_some_and(|values| values.iter().any(|value| value == own))
            });
            match text("operator") {
                "In" => among,
                "NotIn" => !among,
                "Exists" => own.is_some(),
                "DoesNotExist" => own.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_select_by_labels_and_by_expressions() {
        let role: Role = serde_json::from_value(
            json!({"metadata": {"name": "a", "labels": {"to": "admin"}}, "rules": []}),
        )
        .expect("a role");
        let cases = [
            (json!({"matchLabels": {"to": "admin"}}), true),
            (json!({"matchLabels": {"to": "view"}}), false),
            (
                json!({"matchExpressions": [{"key": "to", "operator": "In", "values": ["admin", "edit"]}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "to", "operator": "NotIn", "values": ["admin"]}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}),
                true,
            ),
        ];
        for (selector, expected) in cases {
            assert_eq!(selects(&selector, &role), expected, "{selector}");
        }
    }
}
