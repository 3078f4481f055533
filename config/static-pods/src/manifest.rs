//! From a manifest to the pod that the node runs.

use crate::{HASH, SOURCE};
use config_kube::k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use config_protocol::name::is_node_name;
use config_tpm::Digest;
use serde_json::Value;
use std::collections::BTreeMap;

/// Hex digits of a UID, as many as upstream's static pods have.
const UID_DIGITS: usize = 32;

/// Why a manifest is no static pod.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is no YAML (JSON is YAML, too).
    #[error("it is no YAML or JSON: {0}")]
    Syntax(serde_yaml_ng::Error),
    /// It is of another kind.
    #[error("it is {found}, expected apiVersion: v1 and kind: Pod")]
    Kind {
        /// Its `apiVersion` and `kind`.
        found: String,
    },
    /// A field has a value of another type, or is missing.
    #[error("it is no pod: {0}")]
    Pod(serde_json::Error),
    /// A field that pods do not have.
    #[error("pods have no field {0}")]
    Field(String),
    /// The name, or what it is with the node's name at its end.
    #[error(
        "metadata.name: {0:?} and the node's name must give a DNS name in lower case, of at most 63 characters"
    )]
    Name(String),
    /// The namespace.
    #[error("metadata.namespace: {0:?} is no DNS label")]
    Namespace(String),
    /// There is nothing to run.
    #[error("spec.containers: a pod has at least one")]
    Empty,
    /// A field that the node or the API server sets.
    #[error("{0}: leave it out: the node or the API server sets it")]
    Given(&'static str),
    /// The pod needs an object of the API.
    #[error(
        "{0}: a static pod runs whether there is a master or not, so it can't use objects of the API; put it into a Deployment or DaemonSet"
    )]
    Reference(&'static str),
}

/// Reads a manifest for a node.
///
/// # Errors
/// [`ManifestError`]: the manifest is no pod, has unknown fields, or needs objects of the API.
pub fn read(manifest: &str, node: &str) -> Result<Pod, ManifestError> {
    let mut given: Value = serde_yaml_ng::from_str(manifest).map_err(ManifestError::Syntax)?;
    if let Some(spec) = given.get_mut("spec") {
        quantities_as_text(spec);
    }
    let text = |key: &str| given.get(key).and_then(Value::as_str).unwrap_or("none");
    let (version, kind) = (text("apiVersion"), text("kind"));
    if (version, kind) != ("v1", "Pod") {
        let found = format!("apiVersion: {version} and kind: {kind}");
        return Err(ManifestError::Kind { found });
    }
    let pod: Pod = serde_json::from_value(given.clone()).map_err(ManifestError::Pod)?;
    let known = serde_json::to_value(&pod).map_err(ManifestError::Pod)?;
    if let Some(field) = unknown(&given, &known, "") {
        return Err(ManifestError::Field(field));
    }
    let spec = pod.spec.as_ref().filter(|spec| !spec.containers.is_empty());
    let spec = spec.ok_or(ManifestError::Empty)?;
    if let Some(field) = given_by_others(&pod, spec, node) {
        return Err(ManifestError::Given(field));
    }
    if let Some(field) = reference(spec, &given) {
        return Err(ManifestError::Reference(field));
    }
    made(pod, &given, node)
}

/// The pod with its identity: upstream's names of all parts.
fn made(mut pod: Pod, given: &Value, node: &str) -> Result<Pod, ManifestError> {
    let own = pod.metadata.name.clone().unwrap_or_default();
    let name = format!("{own}-{node}");
    if !is_node_name(&own) || !is_node_name(&name) {
        return Err(ManifestError::Name(own));
    }
    let namespace = pod.metadata.namespace.take();
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    if !is_node_name(&namespace) || namespace.contains('.') {
        return Err(ManifestError::Namespace(namespace));
    }
    // Keys of JSON objects are sorted here, so the same manifest with another layout is the same
    // pod.
    let digest = Digest::of_parts(&[node.as_bytes(), &[0], given.to_string().as_bytes()]);
    let uid: String = digest.to_hex().chars().take(UID_DIGITS).collect();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(HASH.to_owned(), uid.clone());
    annotations.insert(SOURCE.to_owned(), "file".to_owned());
    pod.metadata.name = Some(name);
    pod.metadata.namespace = Some(namespace);
    pod.metadata.uid = Some(uid);
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node.to_owned());
        fill(spec);
    }
    Ok(pod)
}

/// What the API server would have filled in, as far as the node does not take it for granted
/// itself.
fn fill(spec: &mut PodSpec) {
    // No taint ends it (upstream's rule): only another configuration does.
    spec.tolerations.get_or_insert_default().push(Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    });
    let initial = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(initial) {
        // A limit without a request is a request, too: quality of service and room are counted by
        // requests.
        if let Some(resources) = &mut container.resources {
            let limits = resources.limits.clone().unwrap_or_default();
            let requests: &mut BTreeMap<_, _> = resources.requests.get_or_insert_default();
            for (name, limit) in limits {
                requests.entry(name).or_insert(limit);
            }
        }
    }
}

/// Writes quantities that are plain numbers (`cpu: 1`) as text, as the API's types have them:
/// upstream reads both.
fn quantities_as_text(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                match (key.as_str(), field) {
                    ("limits" | "requests" | "overhead", Value::Object(quantities)) => {
                        for quantity in quantities.values_mut() {
                            as_text(quantity);
                        }
                    }
                    ("sizeLimit" | "divisor", quantity) => as_text(quantity),
                    (_, other) => quantities_as_text(other),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                quantities_as_text(item);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn as_text(quantity: &mut Value) {
    if let Value::Number(number) = quantity {
        let text = number.to_string();
        *quantity = Value::String(text);
    }
}

/// The first field of what was given that is not in what was understood.
fn unknown(given: &Value, known: &Value, at: &str) -> Option<String> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given
            .iter()
            .filter(|(_, value)| !value.is_null())
            .find_map(|(key, value)| {
                let dot = if at.is_empty() { "" } else { "." };
                let at = format!("{at}{dot}{key}");
                match known.get(key) {
                    Some(known) => unknown(value, known, &at),
                    None => Some(at),
                }
            }),
        (Value::Array(given), Value::Array(known)) => given
            .iter()
            .zip(known)
            .enumerate()
            .find_map(|(index, (given, known))| unknown(given, known, &format!("{at}[{index}]"))),
        _ => None,
    }
}

/// A field that is not the author's.
fn given_by_others(pod: &Pod, spec: &PodSpec, node: &str) -> Option<&'static str> {
    let meta = &pod.metadata;
    [
        ("metadata.uid", meta.uid.is_some()),
        ("metadata.generateName", meta.generate_name.is_some()),
        ("metadata.ownerReferences", meta.owner_references.is_some()),
        ("metadata.finalizers", meta.finalizers.is_some()),
        (
            "metadata.deletionTimestamp",
            meta.deletion_timestamp.is_some(),
        ),
        ("status", pod.status.is_some()),
        (
            "spec.nodeName",
            spec.node_name.as_ref().is_some_and(|name| name != node),
        ),
        (
            "spec.ephemeralContainers",
            spec.ephemeral_containers.is_some(),
        ),
    ]
    .into_iter()
    .find_map(|(field, found)| found.then_some(field))
}

/// An object of the API that the pod can't do without: what the API server refuses in a mirror
/// (upstream's rule).
fn reference(spec: &PodSpec, given: &Value) -> Option<&'static str> {
    if spec.service_account_name.is_some() || spec.service_account.is_some() {
        return Some("spec.serviceAccountName");
    }
    if spec.image_pull_secrets.is_some() {
        return Some("spec.imagePullSecrets (credentials of registries are in [[registry]])");
    }
    if spec.resource_claims.is_some() {
        return Some("spec.resourceClaims");
    }
    let volumes = given.pointer("/spec/volumes");
    let containers = ["/spec/containers", "/spec/initContainers"];
    let containers = containers.iter().find_map(|at| {
        let list = given.pointer(at)?;
        let used = |key| has(list, key).then_some(key);
        [
            "secretKeyRef",
            "secretRef",
            "configMapKeyRef",
            "configMapRef",
        ]
        .into_iter()
        .find_map(used)
    });
    let volume = [
        "secret",
        "configMap",
        "persistentVolumeClaim",
        "ephemeral",
        "serviceAccountToken",
        "clusterTrustBundle",
        "podCertificate",
        "csi",
    ]
    .into_iter()
    .find(|key| volumes.is_some_and(|volumes| has(volumes, key)));
    containers.or(volume)
}

/// Whether a field of this name is anywhere in a value.
fn has(value: &Value, key: &str) -> bool {
    match value {
        Value::Object(fields) => {
            fields.get(key).is_some_and(|found| !found.is_null())
                || fields.values().any(|inner| has(inner, key))
        }
        Value::Array(items) => items.iter().any(|inner| has(inner, key)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: exporter
  labels:
    app: exporter
spec:
  hostNetwork: true
  containers:
  - name: main
    image: registry.example/exporter:1
    resources:
      limits:
        memory: 64Mi
";

    fn with(from: &str, to: &str) -> Result<Pod, ManifestError> {
        assert!(MANIFEST.contains(from), "{from}");
        read(&MANIFEST.replacen(from, to, 1), "worker-1")
    }

    #[test]
    fn a_pod_has_its_node_in_its_name_and_its_manifest_in_its_uid() {
        let pod = read(MANIFEST, "worker-1").unwrap();
        let meta = &pod.metadata;
        assert_eq!(meta.name.as_deref(), Some("exporter-worker-1"));
        assert_eq!(meta.namespace.as_deref(), Some("default"));
        let uid = meta.uid.clone().unwrap();
        assert_eq!(uid.len(), UID_DIGITS);
        let annotations = meta.annotations.as_ref().unwrap();
        assert_eq!(annotations[HASH], uid);
        assert_eq!(annotations[SOURCE], "file");
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("worker-1"));
        let tolerated = spec.tolerations.as_ref().unwrap();
        assert_eq!(tolerated[0].effect.as_deref(), Some("NoExecute"));
        let resources = spec.containers[0].resources.as_ref().unwrap();
        assert_eq!(resources.requests.as_ref().unwrap()["memory"].0, "64Mi");

        let of = |pod: Pod| pod.metadata.uid;
        let laid_out_anew = MANIFEST.replace("  name: exporter\n", "  name:   exporter\n");
        assert_eq!(
            of(read(&laid_out_anew, "worker-1").unwrap()),
            Some(uid.clone())
        );
        assert_ne!(
            of(with("exporter:1", "exporter:2").unwrap()),
            Some(uid.clone())
        );
        assert_ne!(of(read(MANIFEST, "worker-2").unwrap()), Some(uid));
    }

    #[test]
    fn a_quantity_may_be_a_plain_number() {
        let limits = "      limits:\n        cpu: 0.5\n        example.com/device: 1\n";
        let pod = with("      limits:\n", limits).unwrap();
        let resources = pod.spec.unwrap().containers[0].resources.clone().unwrap();
        let limits = resources.limits.unwrap();
        assert_eq!(limits["cpu"].0, "0.5");
        assert_eq!(limits["example.com/device"].0, "1");
        let volumes = "  volumes: [{name: v, emptyDir: {sizeLimit: 1048576}}]";
        let pod = with("  hostNetwork: true", volumes).unwrap();
        let volume = pod.spec.unwrap().volumes.unwrap().remove(0);
        assert_eq!(volume.empty_dir.unwrap().size_limit.unwrap().0, "1048576");
        let name = with("name: exporter\n", "name: 7\n");
        assert!(matches!(name, Err(ManifestError::Pod(_))), "{name:?}");
    }

    #[test]
    fn each_fault_names_its_field() {
        let cases = [
            ("kind: Pod", "kind: Job", "apiVersion: v1 and kind: Job"),
            ("    image:", "    imagee:", "spec.containers[0].imagee"),
            ("  name: exporter\n", "  name: Exporter\n", "metadata.name"),
            (
                "  labels:",
                "  namespace: A\n  labels:",
                "metadata.namespace",
            ),
            ("  hostNetwork: true", "  hostNetwork: 7", "no pod"),
            ("  hostNetwork: true", "  nodeName: other", "spec.nodeName"),
            (
                "  hostNetwork: true",
                "  serviceAccountName: a",
                "spec.serviceAccountName",
            ),
            (
                "  hostNetwork: true",
                "  volumes: [{name: v, secret: {secretName: s}}]",
                "secret",
            ),
            (
                "  hostNetwork: true",
                "  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]",
                "serviceAccountToken",
            ),
            (
                "    resources:",
                "    envFrom: [{configMapRef: {name: c}}]\n    resources:",
                "configMapRef",
            ),
            ("apiVersion: v1", "apiVersion: [", "YAML"),
        ];
        for (from, to, named) in cases {
            let fault = with(from, to).unwrap_err().to_string();
            assert!(fault.contains(named), "{to}: {fault}");
        }
        let none = read(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}",
            "n",
        );
        assert!(matches!(none, Err(ManifestError::Empty)), "{none:?}");
    }

    #[test]
    fn an_emptydir_and_fields_of_the_pod_itself_need_no_master() {
        let volumes = "  volumes: [{name: v, emptyDir: {}}, {name: d, downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.name}}]}}]";
        assert!(with("  hostNetwork: true", volumes).is_ok());
    }
}
