//! The labels that a node sets on its own Node.
//!
//! Pods select nodes by labels: with the host name, zone or type of another node, a compromised
//! node would get the pods that are meant for that one, and their secrets. The master labels the
//! Node of a Machine, so its agent may only add the labels that the master does not know: operating
//! system and architecture, where they are missing. A node without a Machine sets the labels of
//! upstream's kubelet, which nothing else knows; its host name must be the name of its Node.

use super::address_owners::AddressOwners;
use crate::plugin::Request;
use config_kube::identity::{ARCH_LABELS, HOSTNAME_LABEL, KUBELET_LABELS, OS_LABELS};
use master_schema::error::ApiError;
use master_schema::object::metadata;
use master_schema::validate::{Fields, object};
use serde_json::Value;

/// A change of one label.
struct Change<'a> {
    label: &'a str,
    /// Its value; `None` where it is removed.
    now: Option<&'a Value>,
    /// Its value before; `None` where it is new.
    before: Option<&'a Value>,
}

/// Refuses changes of labels that the node may not make; `old` is `None` if it creates its Node.
pub(super) async fn check(
    owners: &AddressOwners,
    request: &Request<'_>,
    node: &str,
    new: &Fields,
    old: Option<&Fields>,
) -> Result<(), ApiError> {
    let changes = changes(labels(Some(new)), labels(old));
    if changes.is_empty() {
        return Ok(());
    }
    let of_machine = owners.has_machine(request, node).await?;
    let may_set = |change: &Change<'_>| {
        if of_machine {
            may_set_on_machine(change, node, old.is_none())
        } else {
            may_set_on_other(change, node)
        }
    };
    let refused = changes.iter().filter(|change| !may_set(change));
    let mut refused: Vec<&str> = refused.map(|change| change.label).collect();
    if refused.is_empty() {
        return Ok(());
    }
    refused.sort_unstable();
    let what = if old.is_some() { "modify" } else { "set" };
    let why = format!("is not allowed to {what} labels: {}", refused.join(", "));
    Err(request.forbidden(node, &why))
}

fn labels(fields: Option<&Fields>) -> Option<&Fields> {
    object(metadata(fields?), "labels")
}

fn changes<'a>(new: Option<&'a Fields>, old: Option<&'a Fields>) -> Vec<Change<'a>> {
    let set = new.into_iter().flatten().map(|(label, value)| Change {
        label,
        now: Some(value),
        before: old.and_then(|old| old.get(label)),
    });
    let set = set.filter(|change| change.now != change.before);
    let gone = old.into_iter().flatten();
    let gone = gone.filter(|(label, _)| !new.is_some_and(|new| new.contains_key(*label)));
    let gone = gone.map(|(label, value)| Change {
        label,
        now: None,
        before: Some(value),
    });
    set.chain(gone).collect()
}

/// On a Node that a Machine stands for: what the agent adds, and in a Node that the node itself may
/// make, its name.
fn may_set_on_machine(change: &Change<'_>, node: &str, makes_it: bool) -> bool {
    let is_missing = change.before.is_none() && change.now.is_some();
    let is_known = OS_LABELS.contains(&change.label) || ARCH_LABELS.contains(&change.label);
    let is_own_name = change.now.is_some_and(|value| value == node);
    (is_missing && is_known) || (makes_it && change.label == HOSTNAME_LABEL && is_own_name)
}

/// On a Node that no Machine stands for. Stricter than upstream's `NodeRestriction`: no labels but
/// a kubelet's and those of its two domains, and no host name but its own.
fn may_set_on_other(change: &Change<'_>, node: &str) -> bool {
    let label = change.label;
    if label == HOSTNAME_LABEL {
        return change.now.is_some_and(|value| value == node);
    }
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let own = |suffix: &str| {
        domain == suffix
            || domain
                .strip_suffix(suffix)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    KUBELET_LABELS.contains(&label) || own("kubelet.kubernetes.io") || own("node.kubernetes.io")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The labels of changes that are allowed, on the Node of a Machine and on another one.
    fn allowed(new: &Value, old: &Value) -> [Vec<String>; 2] {
        let changes = changes(new.as_object(), old.as_object());
        let those = |may: &dyn Fn(&Change<'_>) -> bool| {
            let allowed = changes.iter().filter(|change| may(change));
            let mut allowed: Vec<String> = allowed.map(|change| change.label.to_owned()).collect();
            allowed.sort();
            allowed
        };
        let makes_it = old.is_null();
        [
            those(&|change| may_set_on_machine(change, "n1", makes_it)),
            those(&|change| may_set_on_other(change, "n1")),
        ]
    }

    #[test]
    fn the_node_of_a_machine_gets_a_missing_system_and_architecture_and_nothing_else() {
        let all = json!({"kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "arm64",
            "kubernetes.io/hostname": "n1", "topology.kubernetes.io/zone": "a", "x.node.kubernetes.io/y": "z"});
        let [of_machine, other] = allowed(&all, &json!({}));
        assert_eq!(of_machine, ["beta.kubernetes.io/arch", "kubernetes.io/os"]);
        assert_eq!(other.len(), 5);
        let [made_of_machine, made] = allowed(&all, &Value::Null);
        assert_eq!(made_of_machine.len(), 3, "its name too");
        assert_eq!(made.len(), 5);
        let [changed, _] = allowed(&json!({"kubernetes.io/os": "plan9"}), &all);
        assert_eq!(changed, [""; 0], "neither another one nor none");
    }

    #[test]
    fn no_node_has_another_ones_host_name() {
        let named = |name: &str| json!({"kubernetes.io/hostname": name});
        for (new, old) in [
            (named("n2"), json!({})),
            (named("n2"), named("n1")),
            (named("n2"), Value::Null),
            (json!({}), named("n1")),
        ] {
            let none: [Vec<String>; 2] = Default::default();
            assert_eq!(allowed(&new, &old), none, "{old} to {new}");
        }
    }
}
