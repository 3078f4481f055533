//! The requirements of a pod on its node.

use crate::affinity::NodePreferences;
use crate::key::PodKey;
use crate::node::{ALL_ADDRESSES, HostPort};
use crate::profile::Profile;
use crate::resources::{self, Resources};
use crate::storage::PodClaim;
use crate::terms::{Affinity, Labels, Spread};
use config_kube::k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, Toleration, Volume};
use jiff::Timestamp;
use master_client::Key;
use std::sync::Arc;

/// Kinds whose pods are spread by default (upstream).
const REPLICATED: [(&str, &str); 3] = [
    ("apps/v1", "ReplicaSet"),
    ("v1", "ReplicationController"),
    ("apps/v1", "StatefulSet"),
];

/// The reason in the condition `DisruptionTarget` of a pod that is preempted.
pub(crate) const PREEMPTED: &str = "PreemptionByScheduler";

/// A pod's requirements, read once.
#[derive(Debug, Clone, PartialEq)]
pub struct PodRequest {
    /// Namespace and name.
    pub key: PodKey,
    /// Its UID.
    pub uid: String,
    /// Its `metadata.generation`, which conditions name as the one that they observed.
    pub(crate) generation: Option<i64>,
    /// Higher values are scheduled first.
    pub priority: i32,
    /// The scheduler profile that chooses its node.
    pub profile: Arc<Profile>,
    pub(crate) demand: Arc<Demand>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) node_preferences: NodePreferences,
    /// Constraints on the spread of pods like it.
    pub(crate) spreads: Arc<Vec<Spread>>,
    /// Names of its images, with a tag or digest.
    pub(crate) images: Arc<Vec<String>>,
    /// The claims of its volumes.
    pub(crate) claims: Arc<Vec<PodClaim>>,
    /// Whether it is being deleted.
    pub(crate) leaving: bool,
    /// Whether a scheduler has preempted it.
    pub(crate) preempted: bool,
    /// Since when its condition `PodScheduled` has been false, if it is.
    pub(crate) unscheduled: Option<Timestamp>,
    /// When it was started, or else created, in Unix seconds.
    pub(crate) since: i64,
    /// Whether it may preempt others.
    pub(crate) may_preempt: bool,
    /// Required features that this scheduler does not support yet, by name; the pod is not placed.
    pub not_yet: Vec<&'static str>,
}

/// The parts of a pod that count on its node. Replicas share one value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Demand {
    pub(crate) namespace: Box<str>,
    pub(crate) labels: Arc<Labels>,
    pub(crate) affinity: Affinity,
    /// The UID of the owner whose replicas are spread by default.
    pub(crate) owner: Option<String>,
    pub(crate) needed: Resources,
    pub(crate) scored: Resources,
    pub(crate) ports: Vec<HostPort>,
    /// The claims that it uses.
    pub(crate) claims: Vec<Key>,
}

impl PodRequest {
    /// Reads a pod, for the default profile.
    pub fn of(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let mut owners = meta.owner_references.iter().flatten();
        let controller = owners.find(|owner| owner.controller == Some(true));
        let owner = controller.filter(|owner| {
            REPLICATED.contains(&(owner.api_version.as_str(), owner.kind.as_str()))
        });
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let labels = meta.labels.clone().unwrap_or_default();
        let claims = claims(spec, namespace, meta.name.as_deref().unwrap_or_default());
        let leaving = meta.deletion_timestamp.is_some();
        let conditions = pod.status.as_ref();
        let conditions = conditions.and_then(|status| status.conditions.as_deref());
        let conditions = conditions.unwrap_or_default();
        Self {
            key: PodKey::of(pod),
            uid: meta.uid.clone().unwrap_or_default(),
            generation: meta.generation,
            priority: spec.priority.unwrap_or(0),
            profile: Profile::default_profile(),
            spreads: Arc::new(Spread::of(spec, &labels)),
            images: Arc::new(images(spec)),
            leaving,
            preempted: leaving && conditions.iter().any(is_preempted),
            unscheduled: conditions.iter().find_map(unscheduled_since),
            since: {
                let status = pod.status.as_ref();
                let began = status.and_then(|status| status.start_time.as_ref());
                let since = began.or(meta.creation_timestamp.as_ref());
                since.map(|time| time.0.as_second()).unwrap_or_default()
            },
            may_preempt: spec.preemption_policy.as_deref() != Some("Never"),
            demand: Arc::new(Demand {
                namespace: namespace.into(),
                affinity: Affinity::of(spec, namespace, &labels),
                labels: Arc::new(labels),
                owner: owner.map(|owner| owner.uid.clone()),
                needed: resources::needed(pod),
                scored: resources::scored(pod),
                ports: ports(spec),
                claims: claims.iter().map(|claim| claim.key.clone()).collect(),
            }),
            claims: Arc::new(claims),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            node_preferences: NodePreferences::of(spec),
            not_yet: unsupported(spec),
        }
    }

    /// The same for a pod with a node: its requirements for nodes no longer matter.
    pub(crate) fn settled(self) -> Self {
        let (tolerations, node_preferences) = (Vec::new(), NodePreferences::default());
        Self {
            tolerations,
            node_preferences,
            spreads: Arc::default(),
            images: Arc::default(),
            claims: Arc::default(),
            not_yet: Vec::new(),
            ..self
        }
    }
}

/// Whether a condition says that a scheduler has preempted the pod.
fn is_preempted(condition: &PodCondition) -> bool {
    condition.type_ == "DisruptionTarget"
        && condition.status == "True"
        && condition.reason.as_deref() == Some(PREEMPTED)
}

/// Since when the pod is not scheduled, by this condition.
fn unscheduled_since(condition: &PodCondition) -> Option<Timestamp> {
    let says_so = condition.type_ == "PodScheduled" && condition.status == "False";
    let since = condition.last_transition_time.as_ref();
    since.filter(|_| says_so).map(|time| time.0)
}

/// The claims of a pod's volumes, including those of its ephemeral volumes.
fn claims(spec: &PodSpec, namespace: &str, pod: &str) -> Vec<PodClaim> {
    let volumes = spec.volumes.iter().flatten();
    let claim = |volume: &Volume| {
        let name = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(source), _) => source.claim_name.clone(),
            (None, Some(_)) => format!("{pod}-{}", volume.name),
            (None, None) => return None,
        };
        Some(PodClaim {
            key: Key::new(namespace, &name),
            own: volume.persistent_volume_claim.is_none(),
        })
    };
    volumes.filter_map(claim).collect()
}

/// The host ports of a pod. With host networking every container port is one.
fn ports(spec: &PodSpec) -> Vec<HostPort> {
    let host_network = spec.host_network.unwrap_or(false);
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let containers = spec.containers.iter().chain(sidecars);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let taken = ports.filter_map(|port| {
        let own = host_network.then_some(port.container_port);
        let number = port
            .host_port
            .filter(|port| *port > 0)
            .or(own)
            .filter(|port| *port > 0)?;
        let address = port
            .host_ip
            .clone()
            .filter(|ip| !ip.is_empty() && ip != "::");
        Some(HostPort {
            address: address.unwrap_or_else(|| ALL_ADDRESSES.to_owned()),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            port: number,
        })
    });
    taken.collect()
}

/// Images of a pod as nodes name them: one without tag or digest is the latest.
fn images(spec: &PodSpec) -> Vec<String> {
    let containers = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    let images = containers.filter_map(|container| container.image.as_deref());
    let named = |image: &str| {
        let last = image.rsplit('/').next().unwrap_or_default();
        if last.contains([':', '@']) {
            image.to_owned()
        } else {
            format!("{image}:latest")
        }
    };
    images.map(named).collect()
}

/// Requirements that are not supported yet.
fn unsupported(spec: &PodSpec) -> Vec<&'static str> {
    let claims = spec.resource_claims.as_ref();
    let demands = [
        (
            "resource claims",
            claims.is_some_and(|claims| !claims.is_empty()),
        ),
        ("scheduling groups", spec.scheduling_group.is_some()),
    ];
    let required = demands.iter().filter(|(_, required)| *required);
    required.map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn request(spec: &Value) -> PodRequest {
        PodRequest::of(
            &serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap(),
        )
    }

    #[test]
    fn with_the_nodes_network_every_port_is_the_nodes() {
        let container = json!({"name": "c", "ports": [{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}]});
        assert!(
            request(&json!({"containers": [container]}))
                .demand
                .ports
                .is_empty()
        );
        let demand = request(&json!({"hostNetwork": true, "containers": [container]})).demand;
        assert_eq!(
            (demand.ports[0].port, demand.ports[1].protocol.as_str()),
            (80, "UDP")
        );
    }

    #[test]
    fn what_is_not_known_yet_is_named() {
        let pod = request(&json!({
            "containers": [],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "tmp", "emptyDir": {}}],
            "resourceClaims": [{"name": "gpu"}],
        }));
        assert_eq!(pod.not_yet, ["resource claims"]);
        let plain =
            request(&json!({"containers": [], "volumes": [{"name": "tmp", "emptyDir": {}}]}));
        assert!(plain.not_yet.is_empty());
    }

    #[test]
    fn an_image_without_a_tag_is_the_latest() {
        let container = |image: &str| json!({"name": "c", "image": image});
        let all = ["host:5000/web", "web:1", "host/web@sha256:00"].map(container);
        assert_eq!(
            *request(&json!({"containers": all})).images,
            ["host:5000/web:latest", "web:1", "host/web@sha256:00"]
        );
    }
}
