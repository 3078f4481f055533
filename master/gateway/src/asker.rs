//! Who takes the place of a call that lasts: an answer of a node that is read, a tunnel, a watch.

use config_kube::identity::MASTERS_GROUP;
use master_client::UserInfo;

/// What the names of service accounts begin with; their namespace and name follow.
const ACCOUNT: &str = "system:serviceaccount:";

/// Who takes a place.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// Who has a part: a user, or all service accounts of a namespace, as anyone who may make one
    /// there makes many.
    pub(crate) name: &'a str,
    /// Whether it is an account of a namespace.
    pub(crate) is_account: bool,
    /// Whether it is a node.
    pub(crate) is_node: bool,
    /// Whether it takes what is kept, without a part of its own.
    pub(crate) is_first: bool,
}

impl<'a> Asker<'a> {
    /// A caller. Those inside the process and members of `system:masters` come first.
    pub fn new(user: &'a UserInfo, is_inside: bool) -> Self {
        let account = user.name.strip_prefix(ACCOUNT);
        let namespace = account.and_then(|account| account.split_once(':'));
        let name = namespace.map_or(&*user.name, |(namespace, _)| {
            &user.name[..ACCOUNT.len() + namespace.len()]
        });
        Self {
            name,
            is_account: namespace.is_some(),
            is_node: user.node().is_some(),
            is_first: is_inside || user.in_group(MASTERS_GROUP),
        }
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
