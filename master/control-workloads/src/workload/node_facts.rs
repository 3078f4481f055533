//! Decides on which nodes a pod of a DaemonSet should run, by its node selector, node affinity and
//! tolerations.

use super::kept::Labels;
use config_kube::k8s_openapi::api::core::v1::{Node, PodSpec, Taint, Toleration};
use config_kube::node_selector::matches;
use config_kube::taints::{NO_EXECUTE, NO_SCHEDULE, tolerates};
use master_client::View;

/// The parts of a node that DaemonSets need.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeFacts {
    /// Labels.
    pub labels: Labels,
    /// Taints with the effect `NoSchedule` or `NoExecute`.
    pub taints: Vec<Taint>,
}

impl View for NodeFacts {
    type Object = Node;

    fn read(node: Node) -> Self {
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let keeps = |taint: &Taint| taint.effect == NO_SCHEDULE || taint.effect == NO_EXECUTE;
        Self {
            labels: node.metadata.labels.unwrap_or_default(),
            taints: taints
                .into_iter()
                .filter(keeps)
                .map(|taint| Taint {
                    time_added: None,
                    ..taint
                })
                .collect(),
        }
    }
}

/// Whether a daemon pod should run on a node, and whether one that runs there should continue to.
pub fn fits(
    spec: &PodSpec,
    tolerations: &[Toleration],
    node: &str,
    place: &NodeFacts,
) -> (bool, bool) {
    let named = spec
        .node_name
        .as_deref()
        .is_none_or(|name| name.is_empty() || name == node);
    if !named || !is_selected(spec, node, &place.labels) {
        return (false, false);
    }
    let repels = |taint: &&Taint| !tolerations.iter().any(|one| tolerates(one, taint));
    let mut faults = place.taints.iter().filter(repels).peekable();
    let should_run = faults.peek().is_none();
    (should_run, !faults.any(|taint| taint.effect == NO_EXECUTE))
}

fn is_selected(spec: &PodSpec, node: &str, labels: &Labels) -> bool {
    let mut wanted = spec.node_selector.iter().flatten();
    if !wanted.all(|(key, value)| labels.get(key) == Some(value)) {
        return false;
    }
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|one| one.node_affinity.as_ref());
    let required = affinity.and_then(|one| {
        one.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    required.is_none_or(|required| {
        required
            .node_selector_terms
            .iter()
            .any(|term| matches(term, node, labels))
    })
}
