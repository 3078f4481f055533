//! The caller: by the certificate that TLS verified, or by a token that the master reviewed.

use config_kube::identity::{APISERVER_KUBELET_USER, AUTHENTICATED_GROUP};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use x509_parser::prelude::AttributeTypeAndValue;

/// The client of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// The API server.
    Master,
    /// The holder of another certificate of the cluster.
    User(Arc<ClusterUser>),
    /// A caller without a certificate.
    Nobody,
}

/// A user of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterUser {
    /// Its name.
    pub name: String,
    /// Its uid, where it has one.
    pub uid: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// Further attributes by name, from the token's review.
    pub extra: Vec<(String, Vec<String>)>,
}

impl ClusterUser {
    /// An authenticated user with a name and groups.
    pub fn named(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().copied().chain([AUTHENTICATED_GROUP]);
        Self {
            name: name.to_owned(),
            groups: groups.map(str::to_owned).collect(),
            ..Self::default()
        }
    }

    /// All attributes on which rights depend, in a fixed order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        let extra = self.extra.iter().flat_map(|(name, values)| {
            let values = values.iter().map(String::as_str);
            ["extra", name].into_iter().chain(values)
        });
        [&*self.name, &*self.uid]
            .into_iter()
            .chain(self.groups.iter().map(String::as_str))
            .chain(extra)
    }
}

impl Caller {
    /// From the certificates that TLS verified: the common name is the user, organizations are its
    /// groups. A certificate without exactly one common name is treated as absent.
    pub fn of(certificates: Option<&[CertificateDer<'_>]>) -> Self {
        let leaf = certificates.and_then(<[_]>::first);
        let leaf = leaf.and_then(|leaf| x509_parser::parse_x509_certificate(leaf).ok());
        let Some((_, leaf)) = leaf else {
            return Self::Nobody;
        };
        let subject = leaf.subject();
        let mut names = subject
            .iter_common_name()
            .map(AttributeTypeAndValue::as_str);
        let (Some(Ok(name)), None) = (names.next(), names.next()) else {
            return Self::Nobody;
        };
        if name.is_empty() {
            return Self::Nobody;
        }
        if name == APISERVER_KUBELET_USER {
            return Self::Master;
        }
        let groups = subject.iter_organization();
        let groups: Result<Vec<&str>, _> = groups.map(AttributeTypeAndValue::as_str).collect();
        groups.map_or(Self::Nobody, |groups| {
            Self::User(Arc::new(ClusterUser::named(name, &groups)))
        })
    }
}
