//! Questions to authorization, and decisions.

use master_client::UserInfo;
use master_rbac::{Request, Who};

/// A decision, with the reason that reviews show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Allowed.
    Allow(String),
    /// Not allowed by any mode.
    NoOpinion(String),
}

/// A request, as authorization reads it.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The caller.
    pub user: &'a UserInfo,
    /// What it wants to do.
    pub request: Request<'a>,
    /// The node to which a field selector limits a list, if one does.
    pub of_node: Option<&'a str>,
    /// Whether each pod in the answer has only the fields that other nodes' packet filters need:
    /// names, labels, addresses, ports.
    pub network_only: bool,
}

/// A caller, as RBAC reads it.
pub fn who(user: &UserInfo) -> Who<'_> {
    Who {
        name: &user.name,
        groups: &user.groups,
    }
}
