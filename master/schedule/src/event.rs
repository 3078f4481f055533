//! Changes of the cluster after which a pod that fitted nowhere may find a node.

use crate::node::NodeInfo;
use crate::request::Demand;
use master_client::Key;
use std::sync::Arc;

/// A change of the cluster.
#[derive(Debug, Clone)]
pub enum Event {
    /// A node came, or something of it changed that matters for scheduling; as it is now.
    Node(NodeInfo),
    /// A pod has a node now, or its labels changed there.
    Placed(Held),
    /// A pod has left its node.
    Left(Held),
    /// Labels of a namespace changed.
    Namespace,
    /// A claim came or changed.
    Claim(Key),
    /// A volume came or changed.
    Volume,
    /// A StorageClass came or changed.
    Class,
    /// Anything: all was listed anew.
    Anything,
}

/// What kind of change an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Node,
    Placed,
    Left,
    Namespace,
    Claim,
    Volume,
    Class,
    Anything,
}

impl Event {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Node(_) => Kind::Node,
            Self::Placed(_) => Kind::Placed,
            Self::Left(_) => Kind::Left,
            Self::Namespace => Kind::Namespace,
            Self::Claim(_) => Kind::Claim,
            Self::Volume => Kind::Volume,
            Self::Class => Kind::Class,
            Self::Anything => Kind::Anything,
        }
    }
}

/// What a pod uses, and asks of others.
#[derive(Debug, Clone)]
pub struct Held(pub(crate) Arc<Demand>);
