//! Who asks.

use crate::authenticate::CREDENTIAL;
use config_kube::identity;
use std::collections::BTreeMap;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Subject attribute that carries a user's UID (upstream's).
const UID: &str = "1.3.6.1.4.1.57683.2";

/// A caller, as authentication found it (Kubernetes: `user.Info`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserInfo {
    /// The user's name.
    pub name: String,
    /// Unique id, where the authenticator knows one.
    pub uid: String,
    /// Groups, including `system:authenticated` or `system:unauthenticated`.
    pub groups: Vec<String>,
    /// More facts, by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// A caller with a name and groups; `system:authenticated` is added.
    pub fn authenticated<G: Into<String>>(name: &str, groups: impl IntoIterator<Item = G>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(Into::into).collect();
        if !groups.iter().any(|group| group == identity::AUTHENTICATED_GROUP) {
            groups.push(identity::AUTHENTICATED_GROUP.to_owned());
        }
        Self { name: name.to_owned(), uid: String::new(), groups, extra: BTreeMap::new() }
    }

    /// A caller that showed nothing.
    pub fn anonymous() -> Self {
        Self {
            name: identity::ANONYMOUS_USER.to_owned(),
            uid: String::new(),
            groups: vec![identity::UNAUTHENTICATED_GROUP.to_owned()],
            extra: BTreeMap::new(),
        }
    }

    /// The admin: everything is allowed.
    pub fn admin(name: &str) -> Self {
        Self::authenticated(name, [identity::MASTERS_GROUP])
    }

    /// Whether the caller is in a group.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The node that the caller is, if it is one.
    pub fn node(&self) -> Option<&str> {
        if self.in_group(identity::NODES_GROUP) { identity::node_of_user(&self.name) } else { None }
    }

    /// The caller that a verified certificate names: its common name and organizations (upstream's reading), its UID
    /// where it carries one, and by which certificate he is known.
    ///
    /// None for a certificate that can't be read, or has no common name.
    pub(crate) fn of_certificate(leaf: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?;
        if name.is_empty() {
            return None;
        }
        let groups: Vec<String> =
            subject.iter_organization().filter_map(|group| group.as_str().ok()).map(str::to_owned).collect();
        // These two are said by the server alone.
        let own = [identity::AUTHENTICATED_GROUP, identity::UNAUTHENTICATED_GROUP];
        let mut user = Self::authenticated(name, groups.into_iter().filter(|group| !own.contains(&group.as_str())));
        let mut uids = subject.iter_attributes().filter(|attribute| attribute.attr_type().to_id_string() == UID);
        if let Some(uid) = uids.next().and_then(|uid| uid.as_str().ok()) {
            uid.clone_into(&mut user.uid);
        }
        let hash = hex::encode(ring::digest::digest(&ring::digest::SHA256, leaf));
        user.extra.insert(CREDENTIAL.to_owned(), vec![format!("X509SHA256={hash}")]);
        Some(user)
    }
}
