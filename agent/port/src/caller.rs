//! Who calls: what the certificate says that TLS verified.

use config_kube::identity::APISERVER_KUBELET_USER;
use rustls::pki_types::CertificateDer;

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// The API server.
    Master,
    /// The holder of another certificate of the cluster.
    Other,
    /// A caller without a certificate.
    Nobody,
}

impl Caller {
    /// From the certificates that TLS verified.
    pub fn of(certificates: Option<&[CertificateDer<'_>]>) -> Self {
        let Some(leaf) = certificates.and_then(<[_]>::first) else {
            return Self::Nobody;
        };
        let Ok((_, leaf)) = x509_parser::parse_x509_certificate(leaf) else {
            return Self::Other;
        };
        let mut names = leaf.subject().iter_common_name();
        match (
            names.next().and_then(|name| name.as_str().ok()),
            names.next(),
        ) {
            (Some(APISERVER_KUBELET_USER), None) => Self::Master,
            _ => Self::Other,
        }
    }
}
