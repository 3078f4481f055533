//! Nodes: their conditions and taints.

use crate::views::{created, uid, version};
use config_kube::identity::ROLE_LABEL;
use config_kube::k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use jiff::Timestamp;
use master_client::{Index, View};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Silence after which a node is not ready: four leases of ten seconds missed.
pub(crate) const GRACE: Duration = Duration::from_secs(40);

/// Label of a node's region.
const REGION: &str = "topology.kubernetes.io/region";
/// Label of a node's zone within its region.
const ZONE: &str = "topology.kubernetes.io/zone";
/// Label of a node that says nothing about the state of its zone.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// Nodes by the status of their condition `Ready`, and by [`counted`] of it.
pub static BY_READY: Index<NodeView> = Index::new("ready", |_, node| {
    with_counted(node, node.status("Ready").to_owned())
});

/// Nodes by their failure zone, and by [`counted`] of it.
pub static BY_ZONE: Index<NodeView> =
    Index::new("zone", |_, node| with_counted(node, node.zone.to_string()));

/// Nodes by their failure zone and the status of their condition `Ready`: see [`zone_ready`]; and
/// by [`counted`] of it.
pub static BY_ZONE_READY: Index<NodeView> = Index::new("zone-ready", |_, node| {
    with_counted(node, zone_ready(&node.zone, node.status("Ready")))
});

/// The value under which an index has those of a value's nodes that count for the state of their
/// zone. Names of zones have no space.
pub fn counted(value: &str) -> String {
    format!("counted {value}")
}

fn with_counted(node: &NodeView, value: String) -> Vec<String> {
    let counted = (!node.excluded).then(|| counted(&value));
    counted.into_iter().chain([value]).collect()
}

/// A value of [`BY_ZONE_READY`].
pub fn zone_ready(zone: &str, ready: &str) -> String {
    format!("{zone} {ready}")
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeView {
    /// UID.
    pub uid: String,
    /// Resource version, for writes that must not be lost on a change.
    pub version: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Its failure zone, region and zone as one name; empty where it has no labels for them.
    pub zone: Arc<str>,
    /// Whether it is not counted where the failure of its zone is judged.
    pub excluded: bool,
    /// Whether the master made it for a machine that it admitted, and labels it; others were
    /// written by people and have no agent.
    pub of_machine: bool,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Its ranges of pod addresses, as written.
    pub pod_cidrs: Vec<String>,
    /// Its conditions.
    pub conditions: Vec<NodeCondition>,
}

impl NodeView {
    /// A condition by its type.
    pub fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        self.conditions
            .iter()
            .find(|condition| condition.type_ == kind)
    }

    /// Status of a condition; `Unknown` where there is none.
    pub fn status(&self, kind: &str) -> &str {
        self.condition(kind)
            .map_or("Unknown", |condition| condition.status.as_str())
    }

    /// Whether its kubelet has stopped reporting.
    pub fn is_unreachable(&self) -> bool {
        self.condition("Ready")
            .is_some_and(|ready| ready.status == "Unknown")
    }

    /// Whether it has a taint of this key and effect.
    pub fn has_taint(&self, key: &str, effect: &str) -> bool {
        self.taints
            .iter()
            .any(|taint| taint.key == key && taint.effect == effect)
    }
}

impl View for NodeView {
    type Object = Node;

    fn read(node: Node) -> Self {
        let spec = node.spec.unwrap_or_default();
        let conditions = node.status.and_then(|status| status.conditions);
        let labels = node.metadata.labels.as_ref();
        Self {
            uid: uid(&node.metadata),
            version: version(&node.metadata),
            created: created(&node.metadata),
            zone: zone(labels),
            excluded: labels.is_some_and(|labels| labels.contains_key(EXCLUDED)),
            of_machine: labels.is_some_and(|labels| labels.contains_key(ROLE_LABEL)),
            cordoned: spec.unschedulable.unwrap_or(false),
            taints: spec.taints.unwrap_or_default(),
            pod_cidrs: spec.pod_cidrs.unwrap_or_default(),
            conditions: conditions
                .into_iter()
                .flatten()
                .map(without_message)
                .collect(),
        }
    }
}

/// The failure zone in a node's labels (upstream: `GetZoneKey`).
fn zone(labels: Option<&BTreeMap<String, String>>) -> Arc<str> {
    let label = |name: &str| labels.and_then(|labels| labels.get(name));
    match (label(REGION), label(ZONE)) {
        (None, None) => Arc::default(),
        (region, zone) => {
            let [region, zone] = [region, zone].map(|part| part.map_or("", String::as_str));
            format!("{region}/{zone}").into()
        }
    }
}

/// A condition without reason and message: no plan depends on them.
fn without_message(condition: NodeCondition) -> NodeCondition {
    NodeCondition {
        reason: None,
        message: None,
        ..condition
    }
}
