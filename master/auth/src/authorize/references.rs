//! Reads what a pod or a volume references from its stored form, without decoding the rest.

use super::graph::{Kind, Ref};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// Annotation of mirror pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    annotations: Option<serde_json::Map<String, Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct From {
    secret_key_ref: Option<Named>,
    config_map_key_ref: Option<Named>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Variable {
    value_from: Option<From>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Variables {
    secret_ref: Option<Named>,
    config_map_ref: Option<Named>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    env: Option<Vec<Variable>>,
    env_from: Option<Vec<Variables>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Claim {
    name: String,
    resource_claim_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: String,
    service_account_name: Option<String>,
    image_pull_secrets: Option<Vec<Named>>,
    volumes: Option<Vec<Value>>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
    ephemeral_containers: Option<Vec<Container>>,
    resource_claims: Option<Vec<Claim>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    resource_claim_statuses: Option<Vec<Claim>>,
    extended_resource_claim_status: Option<Claim>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pod {
    metadata: Metadata,
    spec: Spec,
    status: Option<Status>,
}

/// A bound pod, as the graph stores it.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) node: String,
    /// Whether its references may change other than by ephemeral containers: a claim that is made
    /// for the pod gets its name later.
    pub(super) moves: bool,
    pub(super) refs: BTreeSet<Ref>,
}

/// The references of a stored pod; `None` if it is bound to no node.
pub(super) fn of_pod(value: &[u8]) -> Option<Bound> {
    let pod: Pod = serde_json::from_slice(value).ok()?;
    if pod.spec.node_name.is_empty() {
        return None;
    }
    let mirror = pod
        .metadata
        .annotations
        .as_ref()
        .is_some_and(|own| own.contains_key(MIRROR));
    let moves = pod
        .spec
        .resource_claims
        .as_ref()
        .is_some_and(|claims| !claims.is_empty());
    let node = pod.spec.node_name.clone();
    // A node must not gain access through a pod that it created itself.
    let refs = if mirror {
        BTreeSet::new()
    } else {
        references(&pod)
    };
    Some(Bound { node, moves, refs })
}

/// Whether a stored pod may have ephemeral containers: they are added to a bound pod, with
/// references of their own. Looks at the text alone, as every write of a pod's status comes here.
pub(super) fn may_have_ephemeral_containers(value: &[u8]) -> bool {
    std::str::from_utf8(value).is_ok_and(|text| text.contains(r#""ephemeralContainers":["#))
}

fn references(pod: &Pod) -> BTreeSet<Ref> {
    let namespace = &pod.metadata.namespace;
    let spec = &pod.spec;
    let mut refs = BTreeSet::new();
    let mut add = |kind, name: Option<&str>| {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            refs.insert(Ref::new(kind, namespace, name));
        }
    };
    add(Kind::ServiceAccount, spec.service_account_name.as_deref());
    for secret in spec.image_pull_secrets.iter().flatten() {
        add(Kind::Secret, secret.name.as_deref());
    }
    let name = |named: &Option<Named>| named.as_ref().and_then(|named| named.name.clone());
    for container in [
        &spec.containers,
        &spec.init_containers,
        &spec.ephemeral_containers,
    ]
    .into_iter()
    .flatten()
    .flatten()
    {
        for from in container
            .env
            .iter()
            .flatten()
            .filter_map(|variable| variable.value_from.as_ref())
        {
            add(Kind::Secret, name(&from.secret_key_ref).as_deref());
            add(Kind::ConfigMap, name(&from.config_map_key_ref).as_deref());
        }
        for from in container.env_from.iter().flatten() {
            add(Kind::Secret, name(&from.secret_ref).as_deref());
            add(Kind::ConfigMap, name(&from.config_map_ref).as_deref());
        }
    }
    for volume in spec.volumes.iter().flatten() {
        of_volume(volume, &pod.metadata.name, &mut add);
    }
    let status = pod.status.as_ref();
    let made: Vec<&Claim> = status
        .and_then(|status| status.resource_claim_statuses.as_ref())
        .into_iter()
        .flatten()
        .collect();
    for claim in spec.resource_claims.iter().flatten() {
        let generated = made
            .iter()
            .find(|one| one.name == claim.name)
            .and_then(|one| one.resource_claim_name.as_deref());
        add(
            Kind::ResourceClaim,
            claim.resource_claim_name.as_deref().or(generated),
        );
    }
    let extended = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    add(
        Kind::ResourceClaim,
        extended.and_then(|claim| claim.resource_claim_name.as_deref()),
    );
    refs
}

/// JSON pointers in a volume at which a secret of the pod's namespace is named.
const SECRETS: &[&str] = &[
    "/secret/secretName",
    "/azureFile/secretName",
    "/cephfs/secretRef/name",
    "/cinder/secretRef/name",
    "/flexVolume/secretRef/name",
    "/iscsi/secretRef/name",
    "/rbd/secretRef/name",
    "/scaleIO/secretRef/name",
    "/storageos/secretRef/name",
    "/csi/nodePublishSecretRef/name",
];

fn of_volume(volume: &Value, pod: &str, add: &mut impl FnMut(Kind, Option<&str>)) {
    let text = |value: &Value, pointer: &str| {
        value
            .pointer(pointer)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    for pointer in SECRETS {
        add(Kind::Secret, text(volume, pointer).as_deref());
    }
    add(Kind::ConfigMap, text(volume, "/configMap/name").as_deref());
    for source in volume
        .pointer("/projected/sources")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        add(Kind::Secret, text(source, "/secret/name").as_deref());
        add(Kind::ConfigMap, text(source, "/configMap/name").as_deref());
    }
    add(
        Kind::Claim,
        text(volume, "/persistentVolumeClaim/claimName").as_deref(),
    );
    if volume.get("ephemeral").is_some_and(Value::is_object) {
        let name = text(volume, "/name").unwrap_or_default();
        add(Kind::Claim, Some(&format!("{pod}-{name}")));
    }
}

/// Sources of a persistent volume whose secrets the node itself reads.
const VOLUME_SECRETS: &[&str] = &[
    "azureFile",
    "cephfs",
    "cinder",
    "flexVolume",
    "iscsi",
    "rbd",
    "scaleIO",
    "storageos",
];
/// Secret references of a CSI source that the node reads.
const CSI_SECRETS: &[&str] = &[
    "nodePublishSecretRef",
    "nodeStageSecretRef",
    "nodeExpandSecretRef",
];

/// The claim that a stored persistent volume is bound to, and the secrets that its node needs for
/// it.
pub(super) fn of_persistent_volume(value: &[u8]) -> Option<(Ref, BTreeSet<Ref>)> {
    #[derive(Deserialize)]
    struct Volume {
        spec: Value,
    }
    let Volume { spec } = serde_json::from_slice(value).ok()?;
    let text = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str);
    let (namespace, name) = (text("/claimRef/namespace")?, text("/claimRef/name")?);
    let mut secrets = BTreeSet::new();
    let mut add = |source: &str| {
        let place = text(&format!("{source}/namespace"))
            .filter(|place| !place.is_empty())
            .unwrap_or(namespace);
        if let Some(name) = text(&format!("{source}/name")).filter(|name| !name.is_empty()) {
            secrets.insert(Ref::new(Kind::Secret, place, name));
        }
    };
    for source in VOLUME_SECRETS {
        add(&format!("/{source}/secretRef"));
    }
    for source in CSI_SECRETS {
        add(&format!("/csi/{source}"));
    }
    if let Some(name) = text("/azureFile/secretName") {
        let place = text("/azureFile/secretNamespace")
            .filter(|place| !place.is_empty())
            .unwrap_or(namespace);
        secrets.insert(Ref::new(Kind::Secret, place, name));
    }
    Some((Ref::new(Kind::Claim, namespace, name), secrets))
}

/// The node that a stored volume attachment or resource slice names.
pub(super) fn node_of(value: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Object {
        spec: Spec,
    }
    let Object { spec } = serde_json::from_slice(value).ok()?;
    (!spec.node_name.is_empty()).then_some(spec.node_name)
}
