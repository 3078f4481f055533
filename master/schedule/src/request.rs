//! What a pod requires of its node.

use crate::affinity::NodePreferences;
use crate::node::HostPort;
use crate::resources::{self, Resources};
use crate::snapshot::PodKey;
use config_kube::k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use std::sync::Arc;

/// A pod's requirements, read once.
#[derive(Debug, Clone, PartialEq)]
pub struct PodRequest {
    /// Which pod.
    pub key: PodKey,
    /// Its UID.
    pub uid: String,
    /// Higher values are scheduled first.
    pub priority: i32,
    pub(crate) demand: Arc<Demand>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) node_preferences: NodePreferences,
    /// Required features that this scheduler does not support yet, by name; the pod is not placed.
    pub not_yet: Vec<&'static str>,
    /// Preferences that this scheduler does not support yet, by name; the pod is placed without
    /// them.
    pub not_weighed: Vec<&'static str>,
}

/// What a pod uses on its node. Replicas share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Demand {
    /// The owner of the replicas, which are spread.
    pub(crate) owner: Option<String>,
    pub(crate) needed: Resources,
    pub(crate) scored: Resources,
    pub(crate) ports: Vec<HostPort>,
}

impl PodRequest {
    /// Reads a pod.
    pub fn of(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let owners = meta.owner_references.iter().flatten();
        let owner = owners
            .filter(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid.clone())
            .next();
        let (not_yet, not_weighed) = unsupported(spec);
        Self {
            key: PodKey::of(pod),
            uid: meta.uid.clone().unwrap_or_default(),
            priority: spec.priority.unwrap_or(0),
            demand: Arc::new(Demand {
                owner,
                needed: resources::needed(spec),
                scored: resources::scored(spec),
                ports: ports(spec),
            }),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            node_preferences: NodePreferences::of(spec),
            not_yet,
            not_weighed,
        }
    }

    /// The same for a pod with a node: its requirements for nodes no longer matter.
    pub(crate) fn settled(self) -> Self {
        let (tolerations, node_preferences) = (Vec::new(), NodePreferences::default());
        Self {
            tolerations,
            node_preferences,
            not_yet: Vec::new(),
            not_weighed: Vec::new(),
            ..self
        }
    }
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
            address: address.unwrap_or_else(|| "0.0.0.0".to_owned()),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            port: number,
        })
    });
    taken.collect()
}

/// Requirements and preferences that are not supported yet.
fn unsupported(spec: &PodSpec) -> (Vec<&'static str>, Vec<&'static str>) {
    let affinity = spec.affinity.clone().unwrap_or_default();
    let (to, from) = (
        affinity.pod_affinity.unwrap_or_default(),
        affinity.pod_anti_affinity.unwrap_or_default(),
    );
    let some = |present: Option<usize>| present.is_some_and(|count| count > 0);
    let spread = || spec.topology_spread_constraints.iter().flatten();
    let hard = |when: &str| when == "DoNotSchedule";
    let volumes = || spec.volumes.iter().flatten();
    let required = |list: Option<&Vec<_>>| some(list.map(Vec::len));
    let demands = [
        (
            "pod affinity",
            required(
                to.required_during_scheduling_ignored_during_execution
                    .as_ref(),
            ),
        ),
        (
            "pod anti-affinity",
            required(
                from.required_during_scheduling_ignored_during_execution
                    .as_ref(),
            ),
        ),
        (
            "topology spread constraints",
            spread().any(|c| hard(&c.when_unsatisfiable)),
        ),
        (
            "persistent volume claims",
            volumes().any(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some()),
        ),
        (
            "resource claims",
            some(spec.resource_claims.as_ref().map(Vec::len)),
        ),
        ("scheduling groups", spec.scheduling_group.is_some()),
    ];
    let preferred = |list: Option<&Vec<_>>| some(list.map(Vec::len));
    let preferences = [
        (
            "preferred pod affinity",
            preferred(
                to.preferred_during_scheduling_ignored_during_execution
                    .as_ref(),
            ),
        ),
        (
            "preferred pod anti-affinity",
            preferred(
                from.preferred_during_scheduling_ignored_during_execution
                    .as_ref(),
            ),
        ),
        (
            "topology spread with ScheduleAnyway",
            spread().any(|c| !hard(&c.when_unsatisfiable)),
        ),
    ];
    let names = |list: &[(&'static str, bool)]| {
        list.iter()
            .filter(|(_, asked)| *asked)
            .map(|(name, _)| *name)
            .collect()
    };
    (names(&demands), names(&preferences))
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
        let terms = json!([{"topologyKey": "kubernetes.io/hostname"}]);
        let node_preferences = json!([{"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}]);
        let pod = request(&json!({
            "containers": [],
            "affinity": {
                "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": node_preferences},
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms},
            },
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "tmp", "emptyDir": {}}],
        }));
        assert_eq!(
            pod.not_yet,
            [
                "pod anti-affinity",
                "topology spread constraints",
                "persistent volume claims"
            ]
        );
        assert_eq!(
            pod.not_weighed,
            [
                "preferred pod affinity",
                "topology spread with ScheduleAnyway"
            ]
        );
        assert!(
            request(&json!({"containers": [], "volumes": [{"name": "tmp", "emptyDir": {}}]}))
                .not_yet
                .is_empty()
        );
    }
}
