//! Changes of the cluster after which a pod that fitted nowhere may find a node.

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
    /// A node came, or something of it changed that matters for scheduling.
    Node(Box<NodeChange>),
    /// A node went; as it was.
    NodeGone(NodeInfo),
    /// A pod has a node now, or its labels changed there.
    Placed(PodChange),
    /// A pod has left its node, or a place is kept for it no longer.
    Left(PodLeft),
    /// A pod needs less of its node than before; by how much.
    Freed(Resources),
    /// Labels of a namespace changed.
    Namespace,
    /// A claim came or changed.
    Claim(Key),
    /// A volume came or changed.
    Volume,
    /// A StorageClass came or changed.
    Class,
    /// A CSI driver reports other room, or reports it no longer.
    Capacity,
    /// Anything: all was listed anew.
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

/// A node that came or changed.
#[derive(Debug, Clone)]
pub struct NodeChange {
    /// What it was, if it was known.
    pub(crate) before: Option<NodeInfo>,
    pub(crate) now: NodeInfo,
}

impl NodeChange {
    /// Whether something holds of the node as it is, or held of it as it was.
    pub(crate) fn ever(&self, holds: impl Fn(&NodeInfo) -> bool) -> bool {
        holds(&self.now) || self.before.as_ref().is_some_and(holds)
    }
}

/// A pod that has a node.
#[derive(Debug, Clone)]
pub struct PodChange {
    /// What it was on its node with other labels.
    pub(crate) before: Option<PodUsage>,
    pub(crate) now: PodUsage,
}

impl PodChange {
    /// A pod that gets a node.
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
    /// For which pod a place was kept, and its priority: it did not count for that one, nor for
    /// more important ones.
    kept_for: Option<(PodKey, i32)>,
}

impl PodLeft {
    /// Whether it counted for a pod.
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

/// The place is kept no longer.
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
