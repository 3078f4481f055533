//! Why a pod cannot be placed, in upstream's words.

use crate::plugins::Plugins;
use std::collections::BTreeMap;
use std::fmt;

/// The reason why a pod is unschedulable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unschedulable {
    /// It requires features that are not supported yet.
    NotYet(Vec<&'static str>),
    /// There are no nodes.
    NoNodes,
    /// No node can take it, for a reason that was found without checking nodes.
    Nowhere {
        /// All nodes.
        nodes: usize,
        /// Why.
        reason: String,
        /// The plugin that rejects the pod.
        refusing: Plugins,
    },
    /// No node is feasible: the number of nodes, and how many have each reason.
    NoneFits {
        /// All nodes.
        nodes: usize,
        /// Nodes by reason; a node may have several.
        reasons: BTreeMap<String, usize>,
        /// The plugins that refused nodes: only events that may help with one of them wake the pod.
        refusing: Plugins,
    },
}

impl Unschedulable {
    /// The plugins that refused nodes.
    pub fn refusing(&self) -> Plugins {
        match self {
            Self::NotYet(_) | Self::NoNodes => Plugins::ALL,
            Self::Nowhere { refusing, .. } | Self::NoneFits { refusing, .. } => *refusing,
        }
    }
}

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYet(what) => write!(
                f,
                "the pod asks for {}, which this scheduler does not support yet; take it out of the pod's spec, or set \
                 spec.schedulerName to a scheduler that does",
                what.join(", ")
            ),
            Self::NoNodes => f.write_str("no nodes available to schedule pods"),
            Self::Nowhere { nodes, reason, .. } => {
                write!(f, "0/{nodes} nodes are available: {reason}.")
            }
            Self::NoneFits { nodes, reasons, .. } => {
                // Upstream sorts the finished phrases as text, so numbers first.
                let mut phrases: Vec<String> = reasons
                    .iter()
                    .map(|(reason, count)| format!("{count} {reason}"))
                    .collect();
                phrases.sort();
                write!(f, "0/{nodes} nodes are available: {}.", phrases.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phrase_is_upstreams() {
        let reasons = [("Insufficient memory", 1), ("Insufficient cpu", 2)]
            .map(|(why, count)| (why.to_owned(), count));
        let why = Unschedulable::NoneFits {
            nodes: 2,
            reasons: reasons.into(),
            refusing: Plugins::ALL,
        };
        assert_eq!(
            why.to_string(),
            "0/2 nodes are available: 1 Insufficient memory, 2 Insufficient cpu."
        );
        assert_eq!(
            Unschedulable::NoNodes.to_string(),
            "no nodes available to schedule pods"
        );
    }
}
