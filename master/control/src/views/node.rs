//! Nodes: their conditions and taints.

use crate::views::{created, uid, version};
use config_kube::k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use jiff::Timestamp;
use master_client::{Index, View};
use std::time::Duration;

/// Silence after which a node is not ready: four leases of ten seconds missed.
pub(crate) const GRACE: Duration = Duration::from_secs(40);

/// Nodes by the status of their condition `Ready`.
pub static BY_READY: Index<NodeView> =
    Index::new("ready", |_, node| vec![node.status("Ready").to_owned()]);

/// A node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeView {
    /// UID.
    pub uid: String,
    /// Resource version, for writes that must not be lost on a change.
    pub version: String,
    /// When it came.
    pub created: Option<Timestamp>,
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

    /// Whether its kubelet was given up as silent.
    pub fn is_unheard(&self) -> bool {
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
        Self {
            uid: uid(&node.metadata),
            version: version(&node.metadata),
            created: created(&node.metadata),
            cordoned: spec.unschedulable.unwrap_or(false),
            taints: spec.taints.unwrap_or_default(),
            pod_cidrs: spec.pod_cidrs.unwrap_or_default(),
            conditions: conditions.into_iter().flatten().map(wordless).collect(),
        }
    }
}

/// A condition without its words, which people read and controllers don't.
fn wordless(condition: NodeCondition) -> NodeCondition {
    NodeCondition {
        reason: None,
        message: None,
        ..condition
    }
}
