//! Who takes the place of a call that lasts: an answer of a node that is read, a tunnel, a watch.

use config_kube::identity::{MASTERS_GROUP, party};
use config_limits::host;
use master_client::UserInfo;
use std::net::SocketAddr;

/// Who takes a place.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// Who has a part: a user, or all service accounts of a namespace.
    pub(crate) name: &'a str,
    /// Whether it is an account of a namespace.
    pub(crate) is_account: bool,
    /// Whether it is a node.
    pub(crate) is_node: bool,
    /// Whether it takes what is kept, without a part of its own.
    pub(crate) is_first: bool,
    remote: Option<SocketAddr>,
}

impl<'a> Asker<'a> {
    /// A caller. Those inside the process and members of `system:masters` come first.
    pub fn new(user: &'a UserInfo, is_inside: bool) -> Self {
        let name = party(&user.name);
        Self {
            name,
            is_account: name != user.name,
            is_node: user.node().is_some(),
            is_first: is_inside || user.in_group(MASTERS_GROUP),
            remote: None,
        }
    }

    /// The same caller at an address: all callers of a host have a part together.
    #[must_use]
    pub fn at(self, remote: Option<SocketAddr>) -> Self {
        Self { remote, ..self }
    }

    /// The host that it asks from; nodes and those that come first are counted without.
    pub(crate) fn host(&self) -> Option<String> {
        let counted = self.remote.filter(|_| !self.is_node && !self.is_first);
        counted.map(|remote| host(remote.ip()))
    }

    /// The same caller where what it asks for must not wait for others.
    #[must_use]
    pub fn first(self) -> Self {
        Self {
            is_first: true,
            ..self
        }
    }
}
