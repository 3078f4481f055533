//! The caller that a long-lived call counts against: an answer of a node that is read, a tunnel, a
//! watch.

use config_kube::identity::{MASTERS_GROUP, party};
use config_limits::host;
use master_client::UserInfo;
use std::net::SocketAddr;

/// The caller that a call counts against.
#[derive(Debug, Clone, Copy)]
pub struct CallOwner<'a> {
    /// The name that calls are counted by: a user, or all service accounts of a namespace.
    pub(crate) name: &'a str,
    /// Whether it is an account of a namespace.
    pub(crate) is_account: bool,
    /// Whether it is a node.
    pub(crate) is_node: bool,
    /// Whether it may take the reserved slots, without a share of its own.
    pub(crate) has_priority: bool,
    remote: Option<SocketAddr>,
}

impl<'a> CallOwner<'a> {
    /// A caller. Those inside the process and members of `system:masters` have priority.
    pub fn new(user: &'a UserInfo, is_inside: bool) -> Self {
        let name = party(&user.name);
        Self {
            name,
            is_account: name != user.name,
            is_node: user.node().is_some(),
            has_priority: is_inside || user.in_group(MASTERS_GROUP),
            remote: None,
        }
    }

    /// The same caller at an address: all callers of a host share one part.
    #[must_use]
    pub fn at(self, remote: Option<SocketAddr>) -> Self {
        Self { remote, ..self }
    }

    /// The host that it asks from; `None` for nodes and callers with priority, which are not
    /// counted by host.
    pub(crate) fn host(&self) -> Option<String> {
        let counted = self.remote.filter(|_| !self.is_node && !self.has_priority);
        counted.map(|remote| host(remote.ip()))
    }

    /// The same caller with priority, for a call that must not wait for others.
    #[must_use]
    pub fn with_priority(self) -> Self {
        Self {
            has_priority: true,
            ..self
        }
    }
}
