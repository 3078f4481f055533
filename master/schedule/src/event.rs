//! Changes of the cluster after which a pod that fitted nowhere may find a node.

use crate::node::NodeInfo;
use crate::request::Demand;
use crate::resources::Resources;
use master_client::Key;
use std::sync::Arc;

/// A change of the cluster.
#[derive(Debug, Clone)]
pub enum Event {
    /// A node came, or something of it changed that matters for scheduling.
    Node(Box<NodeChange>),
    /// A node went; as it was.
    NodeGone(NodeInfo),
    /// A pod has a node now, or its labels changed there.
    Placed(Held),
    /// A pod has left its node.
    Left(Held),
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
pub(crate) enum Kind {
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

impl Event {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Node(_) => Kind::Node,
            Self::NodeGone(_) => Kind::NodeGone,
            Self::Placed(_) => Kind::Placed,
            Self::Left(_) => Kind::Left,
            Self::Freed(_) => Kind::Freed,
            Self::Namespace => Kind::Namespace,
            Self::Claim(_) => Kind::Claim,
            Self::Volume => Kind::Volume,
            Self::Class => Kind::Class,
            Self::Capacity => Kind::Capacity,
            Self::Anything => Kind::Anything,
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

/// What a pod uses, and asks of others.
#[derive(Debug, Clone)]
pub struct Held(pub(crate) Arc<Demand>);
