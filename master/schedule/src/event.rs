//! Changes of the cluster after which an unschedulable pod may find a node.

use crate::key::PodKey;
use crate::node::NodeInfo;
use crate::request::{Demand, PodRequest};
use crate::resources::Resources;
use crate::snapshot::KeptPlace;
use master_client::Key;
use std::sync::Arc;

/// A change of the cluster.
#[derive(Debug, Clone)]
pub enum ClusterEvent {
    /// A node was added, or changed in a way that matters for scheduling.
    Node(Box<NodeChange>),
    /// A node was deleted; its last state.
    NodeGone(NodeInfo),
    /// A pod was bound to a node, or the labels of a bound pod changed.
    Placed(PodChange),
    /// A pod has left its node, or the place that was kept for it is given up.
    Left(PodLeft),
    /// A bound pod requests less than before; by how much.
    Freed(Resources),
    /// Labels of a namespace changed.
    Namespace,
    /// A claim was added or changed.
    Claim(Key),
    /// A volume was added or changed.
    Volume,
    /// A StorageClass was added or changed.
    Class,
    /// The free storage that a CSI driver reports changed, or it stopped reporting.
    Capacity,
    /// Anything may have changed: all objects of a kind were listed again.
    Anything,
}

/// What kind of change an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    Node,
    NodeGone,
    Placed,
    Left,
    Freed,
    Namespace,
    Claim,
    Volume,
    Class,
    Capacity,
    Anything,
}

impl ClusterEvent {
    pub(crate) fn kind(&self) -> EventKind {
        match self {
            Self::Node(_) => EventKind::Node,
            Self::NodeGone(_) => EventKind::NodeGone,
            Self::Placed(_) => EventKind::Placed,
            Self::Left(_) => EventKind::Left,
            Self::Freed(_) => EventKind::Freed,
            Self::Namespace => EventKind::Namespace,
            Self::Claim(_) => EventKind::Claim,
            Self::Volume => EventKind::Volume,
            Self::Class => EventKind::Class,
            Self::Capacity => EventKind::Capacity,
            Self::Anything => EventKind::Anything,
        }
    }
}

/// A node that was added or changed.
#[derive(Debug, Clone)]
pub struct NodeChange {
    /// Its state before, if it was known.
    pub(crate) before: Option<NodeInfo>,
    pub(crate) now: NodeInfo,
}

impl NodeChange {
    /// Whether `holds` is true for the node's present state or for the one before.
    pub(crate) fn ever(&self, holds: impl Fn(&NodeInfo) -> bool) -> bool {
        holds(&self.now) || self.before.as_ref().is_some_and(holds)
    }
}

/// A pod that was bound, or whose labels changed.
#[derive(Debug, Clone)]
pub struct PodChange {
    /// Its state before, if only its labels changed.
    pub(crate) before: Option<PodUsage>,
    pub(crate) now: PodUsage,
}

impl PodChange {
    /// A pod that was bound.
    pub(crate) fn new(demand: Arc<Demand>) -> Self {
        Self {
            before: None,
            now: PodUsage(demand),
        }
    }
}

/// A pod that has left its node, or lost a place that was kept for it.
#[derive(Debug, Clone)]
pub struct PodLeft {
    pub(crate) usage: PodUsage,
    /// For a kept place: its pod, and that pod's priority. The place did not count for that pod or
    /// for pods of higher priority.
    kept_for: Option<(PodKey, i32)>,
}

impl PodLeft {
    /// Whether it took room from a pod.
    pub(crate) fn concerns(&self, pod: &PodRequest) -> bool {
        let kept_for = self.kept_for.as_ref();
        kept_for.is_none_or(|(key, priority)| pod.priority <= *priority && pod.key != *key)
    }
}

/// The pod has left its node.
impl From<PodUsage> for ClusterEvent {
    fn from(usage: PodUsage) -> Self {
        let kept_for = None;
        Self::Left(PodLeft { usage, kept_for })
    }
}

/// The kept place is given up.
impl From<KeptPlace> for ClusterEvent {
    fn from(place: KeptPlace) -> Self {
        Self::Left(PodLeft {
            usage: place.usage,
            kept_for: Some((place.key, place.priority)),
        })
    }
}

/// What a pod uses on its node, and its affinity to other pods.
#[derive(Debug, Clone)]
pub struct PodUsage(pub(crate) Arc<Demand>);
