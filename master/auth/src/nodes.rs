//! The master's decisions on its nodes.

use std::fmt;

/// Decisions on nodes that authentication and authorization ask for. The service that admits
/// machines implements them.
pub trait Nodes: fmt::Debug + Send + Sync {
    /// The reason why a node is denied; `None` if it is not. Tokens that are bound to a denied
    /// node, or to one of its pods, are refused.
    fn denied(&self, node: &str) -> Option<String>;

    /// Whether a node may create its own Node object.
    ///
    /// # Errors
    /// It may not; the text says why.
    fn may_register(&self, node: &str) -> Result<(), String>;
}
