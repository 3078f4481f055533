//! Whether the node may run a pod at all, by selectors and taints: the kubelet checks once more, as
//! a pod can be bound without the scheduler. Rules, reasons and messages are upstream's.

use crate::status::Refusal;
use config_kube::identity::{OS, OS_LABELS};
use config_kube::k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Taint};
use config_kube::node_selector::matches;
use config_kube::taints::{NO_EXECUTE, tolerates};

/// Why no node of this operating system takes the pod.
pub fn os_mismatch(pod: &Pod) -> Option<Refusal> {
    let labelled = pod.metadata.labels.as_ref();
    let labelled = labelled.and_then(|labels| labels.get(OS_LABELS[0]));
    if labelled.is_some_and(|os| os != OS) {
        return Some(Refusal {
            reason: "PodOSSelectorNodeLabelDoesNotMatch".into(),
            message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
                .to_owned(),
        });
    }
    let named = pod.spec.as_ref().and_then(|spec| spec.os.as_ref());
    named.filter(|os| os.name != OS).map(|_| Refusal {
        reason: "PodOSNotSupported".into(),
        message: "Failed to admit pod as the OS field doesn't match node OS".to_owned(),
    })
}

/// The refusal of a pod of the API that has the name of one of the machine's static pods. Logs,
/// exec and ports find a pod by its name, and must never reach another one.
pub fn named_as_static(pod: &Pod, static_pods: &[Pod]) -> Option<Refusal> {
    let meta = &pod.metadata;
    let same = |one: &&Pod| {
        let own = &one.metadata;
        own.namespace == meta.namespace && own.name == meta.name && own.uid != meta.uid
    };
    let taken = static_pods.iter().find(same)?;
    let namespace = taken.metadata.namespace.as_deref().unwrap_or_default();
    let name = taken.metadata.name.as_deref().unwrap_or_default();
    Some(Refusal {
        reason: "NameOfStaticPod".into(),
        message: format!(
            "{namespace}/{name} is the name of a static pod of this machine's configuration, and runs here as that alone; give the pod another name"
        ),
    })
}

/// Why this node does not take the pod: the pod selects other nodes, or does not tolerate a taint
/// with the effect NoExecute.
pub fn predicate_failure(pod: &Pod, node: &Node) -> Option<Refusal> {
    let spec = pod.spec.as_ref()?;
    let failed = |reason: &'static str, text: &str| {
        Some(Refusal {
            reason: reason.into(),
            message: format!("Predicate {reason} failed: {text}"),
        })
    };
    if !selects(spec, node) {
        let text = "node(s) didn't match Pod's node affinity/selector";
        return failed("NodeAffinity", text);
    }
    let taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    let tolerated = |taint: &Taint| {
        let mut all = spec.tolerations.iter().flatten();
        all.any(|one| tolerates(one, taint))
    };
    // NoSchedule counts for the scheduler alone (upstream's rule).
    let mut evicting = taints.filter(|taint| taint.effect == NO_EXECUTE);
    if evicting.any(|taint| !tolerated(taint)) {
        let text = "node(s) had taints that the pod didn't tolerate";
        return failed("TaintToleration", text);
    }
    None
}

/// Whether the node is among those that the pod's selector and its required affinity name.
fn selects(spec: &PodSpec, node: &Node) -> bool {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let mut selector = spec.node_selector.iter().flatten();
    let affinity = spec.affinity.as_ref();
    let affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|own| {
        own.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    selector.all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|required| {
            let mut terms = required.node_selector_terms.iter();
            terms.any(|term| matches(term, name, &labels))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::borrow::Cow;

    fn reason(spec: &Value) -> Option<Cow<'static, str>> {
        let node = json!({
            "metadata": {"name": "n", "labels": {"disk": "ssd"}},
            "spec": {"taints": [
                {"key": "a", "effect": "NoSchedule"},
                {"key": "b", "value": "x", "effect": "NoExecute"},
            ]},
        });
        let mut spec = spec.clone();
        spec["containers"] = json!([]);
        let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let node = serde_json::from_value(node).unwrap();
        let refusal = predicate_failure(&pod, &node)?;
        let beginning = format!("Predicate {} failed: node(s) ", refusal.reason);
        assert!(
            refusal.message.starts_with(&beginning),
            "{}",
            refusal.message
        );
        Some(refusal.reason)
    }

    #[test]
    fn a_node_takes_pods_that_select_it_and_tolerate_its_taints_that_end_pods() {
        let tolerations = json!([{"key": "b", "operator": "Exists", "tolerationSeconds": 5}]);
        let with = |key: &str, value: Value| {
            let mut spec = json!({"tolerations": tolerations});
            spec[key] = value;
            reason(&spec)
        };
        let required = |terms: Value| {
            let terms = json!({"nodeSelectorTerms": terms});
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
        };
        let name = |name: &str| {
            let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
            json!({"matchFields": [field]})
        };
        assert_eq!(with("nodeSelector", json!({"disk": "ssd"})), None);
        assert_eq!(
            with("nodeSelector", json!({"disk": "ssd", "zone": "a"})),
            Some("NodeAffinity".into())
        );
        let either = required(json!([name("other"), name("n")]));
        assert_eq!(with("affinity", either), None);
        let other = required(json!([name("other")]));
        assert_eq!(with("affinity", other), Some("NodeAffinity".into()));
        assert_eq!(reason(&json!({})), Some("TaintToleration".into()));
    }

    #[test]
    fn a_pod_of_another_operating_system_is_not_taken() {
        let reason = |pod: Value| {
            let pod = serde_json::from_value(pod).unwrap();
            os_mismatch(&pod).map(|refusal| refusal.reason)
        };
        let with = |os: &str| {
            let labels = json!({"kubernetes.io/os": os});
            let spec = json!({"os": {"name": os}, "containers": []});
            (
                reason(json!({"metadata": {"labels": labels}})),
                reason(json!({"spec": spec})),
            )
        };
        assert_eq!(with("linux"), (None, None));
        let (label, field) = with("windows");
        assert_eq!(label, Some("PodOSSelectorNodeLabelDoesNotMatch".into()));
        assert_eq!(field, Some("PodOSNotSupported".into()));
    }
}
