//! Users of the API.

use config_kube::identity;
use std::collections::BTreeMap;

/// An authenticated caller (Kubernetes: `user.Info`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInfo {
    /// The user's name.
    pub name: String,
    /// Unique id, if the authenticator knows one.
    pub uid: String,
    /// Groups, including `system:authenticated` or `system:unauthenticated`.
    pub groups: Vec<String>,
    /// Extra information, by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// A caller with a name and groups; `system:authenticated` is added.
    pub fn authenticated<G: Into<String>>(name: &str, groups: impl IntoIterator<Item = G>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(Into::into).collect();
        if !groups
            .iter()
            .any(|group| group == identity::AUTHENTICATED_GROUP)
        {
            groups.push(identity::AUTHENTICATED_GROUP.to_owned());
        }
        Self {
            name: name.to_owned(),
            uid: String::new(),
            groups,
            extra: BTreeMap::new(),
        }
    }

    /// A caller without credentials.
    pub fn anonymous() -> Self {
        Self {
            name: identity::ANONYMOUS_USER.to_owned(),
            uid: String::new(),
            groups: vec![identity::UNAUTHENTICATED_GROUP.to_owned()],
            extra: BTreeMap::new(),
        }
    }

    /// A member of `system:masters`, who may do everything.
    pub fn admin(name: &str) -> Self {
        Self::authenticated(name, [identity::MASTERS_GROUP])
    }

    /// Whether the caller is in a group.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The node whose identity the caller has, if any.
    pub fn node(&self) -> Option<&str> {
        if self.in_group(identity::NODES_GROUP) {
            identity::node_of_user(&self.name)
        } else {
            None
        }
    }
}
