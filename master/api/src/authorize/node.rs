//! What a node may do: itself, its lease, what is bound to it, and what those pods refer to (upstream: the Node
//! authorizer). What it may write into them, `admit` says.

use super::Question;
use crate::error::ApiError;
use crate::path::Verb;
use crate::server::ApiServer;
use crate::verbs::store_error;
use config_kube::identity;
use master_store::ListQuery;
use serde_json::Value;

/// None where it may; otherwise why not.
pub(super) async fn allow(api: &ApiServer, node: &str, question: &Question<'_>) -> Result<Option<String>, ApiError> {
    let target = question.target;
    let named = match target.verb {
        Verb::List | Verb::Watch => question.selector.exact("metadata.name").unwrap_or_default(),
        Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => &target.name,
    };
    match (target.group.as_str(), target.plural.as_str(), target.subresource.as_str()) {
        ("", "nodes", "" | "status") => Ok(own_node(node, named, target.verb, &target.subresource)),
        ("coordination.k8s.io", "leases", "") => Ok(own_lease(node, named, question)),
        ("", "pods", sub) => pod(api, node, question, sub).await,
        ("", "secrets" | "configmaps", "") => referenced(api, node, named, question).await,
        ("" | "events.k8s.io", "events", "") => {
            let records = matches!(target.verb, Verb::Create | Verb::Update | Verb::Patch);
            Ok((!records).then(|| "nodes only record events".to_owned()))
        }
        ("certificates.k8s.io", "certificatesigningrequests", "") => {
            let asks = matches!(target.verb, Verb::Create | Verb::Get | Verb::List | Verb::Watch);
            Ok((!asks).then(|| "nodes only make requests and read them".to_owned()))
        }
        _ => Ok(Some(format!("node {node:?} has no business with this resource"))),
    }
}

fn own_node(node: &str, named: &str, verb: Verb, subresource: &str) -> Option<String> {
    match verb {
        Verb::Create => Some("the master makes the Node of a machine that it admitted".to_owned()),
        Verb::Delete | Verb::DeleteCollection => Some("nodes do not delete nodes".to_owned()),
        Verb::Get | Verb::List | Verb::Watch | Verb::Update | Verb::Patch if named == node => None,
        Verb::Get | Verb::List | Verb::Watch => Some(format!(
            "node {node:?} cannot read {named:?}, only its own Node object (field selector metadata.name)"
        )),
        Verb::Update | Verb::Patch if subresource == "status" => {
            Some(format!("node {node:?} is not allowed to modify the status of node {named:?}"))
        }
        Verb::Update | Verb::Patch => Some(format!("node {node:?} is not allowed to modify node {named:?}")),
    }
}

fn own_lease(node: &str, named: &str, question: &Question<'_>) -> Option<String> {
    let target = question.target;
    let here = target.namespace == identity::NODE_LEASE_NAMESPACE;
    let own = named == node || target.verb == Verb::Create;
    let single = target.verb != Verb::DeleteCollection;
    let text = "can only access node lease with the same name as the requesting node, in namespace kube-node-lease";
    (!(here && own && single)).then(|| text.to_owned())
}

async fn pod(api: &ApiServer, node: &str, question: &Question<'_>, sub: &str) -> Result<Option<String>, ApiError> {
    let target = question.target;
    let selected = || {
        let own = question.selector.exact("spec.nodeName") == Some(node);
        (!own).then(|| format!("can only list/watch pods with field selector spec.nodeName={node}"))
    };
    match (target.verb, sub) {
        (Verb::List | Verb::Watch, "") => Ok(selected()),
        (Verb::Get | Verb::Delete, "") | (Verb::Get | Verb::Update | Verb::Patch, "status") => {
            let key = format!("pods/{}/{}", target.namespace, target.name);
            let entry = api.inner.store.get(&key).await.map_err(store_error)?.entry;
            // What does not exist is said so by the verb itself.
            let Some(entry) = entry else { return Ok(None) };
            let pod: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
            Ok((!bound(&pod, node)).then(|| no_relation(node)))
        }
        _ => Ok(Some(format!("node {node:?} has no business with this resource"))),
    }
}

fn bound(pod: &Value, node: &str) -> bool {
    pod.pointer("/spec/nodeName").is_some_and(|name| name == node)
}

fn no_relation(node: &str) -> String {
    format!("no relationship found between node '{node}' and this object")
}

/// Secrets and config maps: those that a pod bound to the node refers to, one by one.
async fn referenced(
    api: &ApiServer,
    node: &str,
    named: &str,
    question: &Question<'_>,
) -> Result<Option<String>, ApiError> {
    let target = question.target;
    if !matches!(target.verb, Verb::Get | Verb::List | Verb::Watch) {
        return Ok(Some("nodes only read secrets and config maps".to_owned()));
    }
    if named.is_empty() || target.namespace.is_empty() {
        return Ok(Some("can only read them one by one, by name".to_owned()));
    }
    let prefix = format!("pods/{}/", target.namespace);
    let query = ListQuery { prefix, ..ListQuery::default() };
    let pods = api.inner.store.list(query).await.map_err(store_error)?.entries;
    for entry in pods {
        let pod: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        if bound(&pod, node) && refers(&pod["spec"], &target.plural, named) {
            return Ok(None);
        }
    }
    Ok(Some(no_relation(node)))
}

/// Whether a pod's spec refers to a secret or config map of a name.
fn refers(spec: &Value, plural: &str, name: &str) -> bool {
    let is = |value: Option<&Value>| value.is_some_and(|value| value == name);
    let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let secret = plural == "secrets";
    let (volume, volume_name, variable, from) = if secret {
        ("secret", "secretName", "secretKeyRef", "secretRef")
    } else {
        ("configMap", "name", "configMapKeyRef", "configMapRef")
    };
    if secret && list(spec, "imagePullSecrets").iter().any(|reference| is(reference.get("name"))) {
        return true;
    }
    let volumes = list(spec, "volumes");
    let mounted = volumes.iter().any(|found| {
        let projected = found.pointer("/projected/sources").and_then(Value::as_array).cloned().unwrap_or_default();
        is(found.pointer(&format!("/{volume}/{volume_name}")))
            || projected.iter().any(|source| is(source.pointer(&format!("/{volume}/name"))))
    });
    let containers =
        ["containers", "initContainers", "ephemeralContainers"].into_iter().flat_map(|key| list(spec, key));
    mounted
        || containers.into_iter().any(|container| {
            list(&container, "env").iter().any(|env| is(env.pointer(&format!("/valueFrom/{variable}/name"))))
                || list(&container, "envFrom").iter().any(|env| is(env.pointer(&format!("/{from}/name"))))
        })
}
