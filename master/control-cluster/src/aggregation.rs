//! Cluster role aggregation: keeps the rules of aggregated roles equal to those of the roles that
//! they select.

use config_kube::ToJson as _;
use config_kube::k8s_openapi::api::rbac::v1::ClusterRole;
use master_client::{ApiError, Delta, Index, Key, Lookup, Patch, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::version;
use master_control::writer::Writer;
use master_rbac::Role;
use master_rbac::aggregate::gathered;
use serde_json::{Value, json};
use std::sync::Arc;

/// A cluster role as decisions take it.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleView {
    /// The role.
    pub role: Role,
    /// Its resource version.
    pub version: String,
}

impl View for RoleView {
    type Object = ClusterRole;

    fn read(role: ClusterRole) -> Self {
        let version = version(&role.metadata);
        let role = role.to_tree().and_then(serde_json::from_value::<Role>);
        Self {
            role: role.unwrap_or_default(),
            version,
        }
    }
}

/// Roles by their labels (`key=value`).
static BY_LABEL: Index<RoleView> = Index::new("label", |_, view| {
    let labels = view.role.metadata.labels.iter();
    labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
});

/// Roles that gather others, all under one value.
static AGGREGATING: Index<RoleView> = Index::new("gathering", |_, view| {
    let gathers = view.role.aggregation_rule.is_some();
    gathers.then(String::new).into_iter().collect()
});

/// The controller. Its keys are cluster roles that gather others.
#[derive(Debug)]
pub struct Aggregation {
    roles: Store<RoleView>,
    by_label: Lookup<RoleView>,
}

/// A role that gathers, and the roles that it may select.
#[derive(Debug)]
pub struct Facts {
    name: String,
    own: Arc<RoleView>,
    others: Vec<Arc<RoleView>>,
}

/// The role gets the rules that it gathers.
#[derive(Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// The object's name.
    pub name: String,
    /// Its resource version: not written if it changed.
    pub version: String,
    /// The rules.
    pub rules: Value,
}

impl Controller for Aggregation {
    const NAME: &'static str = "clusterrole-aggregation-controller";
    /// Rules that it has not itself it writes by `escalate`.
    const RIGHTS: &'static [Right] = &[right(
        "rbac.authorization.k8s.io",
        "clusterroles",
        &["get", "list", "watch", "patch", "escalate"],
    )];
    type Facts = Facts;
    type Action = Aggregate;

    fn new(setup: &mut Setup<'_>) -> Self {
        // The listener asks the store that it listens to.
        let store: Store<RoleView> = setup.read();
        let aggregating = store.index(&AGGREGATING);
        let roles = setup.follow(move |delta: &Delta<RoleView>, keys| {
            keys.push((*delta.key).clone());
            let views = [&delta.before, &delta.after];
            let selected = |gatherer: &RoleView| {
                let mut either = views.iter().filter_map(|view| view.as_deref());
                either.any(|view| may_select(gatherer, &view.role))
            };
            let gatherers = aggregating.get("").into_iter();
            keys.extend(
                gatherers
                    .filter(|(_, gatherer)| selected(gatherer))
                    .map(|(key, _)| (*key).clone()),
            );
        });
        let by_label = roles.index(&BY_LABEL);
        Self { roles, by_label }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let own = self.roles.get(key)?;
        let mut others = Vec::new();
        for selector in selectors(&own) {
            match label_of(selector) {
                Some(label) => others.extend(self.by_label.get(&label)),
                // A selector of expressions alone: there are few of them, and few roles.
                None => others.extend(self.roles.all()),
            }
        }
        others.sort_by(|(a, _), (b, _)| a.cmp(b));
        others.dedup_by(|(a, _), (b, _)| a == b);
        Some(Facts {
            name: key.name.clone(),
            own,
            others: others.into_iter().map(|(_, view)| view).collect(),
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Aggregate> {
        let role = &facts.own.role;
        let others = facts.others.iter().map(|view| &view.role);
        let rules = gathered(role, others, selects).filter(|rules| *rules != role.rules);
        let action = rules.and_then(|rules| {
            Some(Aggregate {
                name: facts.name.clone(),
                version: facts.own.version.clone(),
                rules: serde_json::to_value(rules).ok()?,
            })
        });
        action.into()
    }

    async fn carry_out(&self, role: Aggregate, writer: &Writer) -> Result<(), ApiError> {
        let patch = json!({"metadata": {"resourceVersion": role.version}, "rules": role.rules});
        let key = Key::cluster(&role.name);
        let patch = Patch::Merge(patch);
        writer.patch::<ClusterRole>(&key, &patch).await.map(drop)
    }
}

/// The selectors by which a role aggregates others.
fn selectors(view: &RoleView) -> &[Value] {
    let rule = view.role.aggregation_rule.as_ref();
    rule.map_or(&[], |rule| rule.cluster_role_selectors.as_slice())
}

/// One of the labels that a selector asks for.
fn label_of(selector: &Value) -> Option<String> {
    let labels = selector.get("matchLabels")?.as_object()?;
    let (key, value) = labels.iter().next()?;
    Some(format!("{key}={}", value.as_str()?))
}

fn may_select(gatherer: &RoleView, role: &Role) -> bool {
    let mut selectors = selectors(gatherer).iter();
    selectors.any(|selector| selects(selector, role))
}

/// Whether a label selector selects a role. An empty one selects every role, an unknown operator
/// none (upstream: `LabelSelectorAsSelector`).
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
