//! How the tool trusts a master: before its proof not at all, afterwards by the proven root.

use crate::error::{Error, Result};
use rustls::client::WantsClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use std::sync::Arc;

/// For a master that has not proved itself yet: any certificate is accepted.
pub(crate) fn unproven() -> Result<Arc<ClientConfig>> {
    config_tls::unverified_server(&[&rustls::version::TLS13]).map_err(Error::Tls)
}

/// For a proven root (DER), while the admin has no certificate yet.
pub(crate) fn of_root(root: &[u8]) -> Result<Arc<ClientConfig>> {
    Ok(Arc::new(trusting(&[root.to_vec()])?.with_no_client_auth()))
}

/// For proven roots, with the admin's certificate.
pub(crate) fn proven(
    known: &[Vec<u8>],
    chain: Vec<Vec<u8>>,
    key: Vec<u8>,
) -> Result<Arc<ClientConfig>> {
    let chain = chain.into_iter().map(CertificateDer::from).collect();
    let config = trusting(known)?
        .with_client_auth_cert(chain, PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key)))
        .map_err(Error::Tls)?;
    Ok(Arc::new(config))
}

/// Servers of these roots, by the name at which they are called.
fn trusting(known: &[Vec<u8>]) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let mut roots = RootCertStore::empty();
    for root in known {
        roots
            .add(CertificateDer::from(root.clone()))
            .map_err(Error::Tls)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(Error::Tls)?;
    Ok(config.with_root_certificates(roots))
}
