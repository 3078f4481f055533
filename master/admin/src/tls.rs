//! How the tool trusts a master: before its proof not at all, afterwards by the proven root.

use crate::error::{Error, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::Arc;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Accepts any certificate, but only from a peer that holds its key.
///
/// Safe only for the bootstrap connection: what comes over it is used after the master's TPM signed this connection's
/// exporter and the root's key, and after the shown chain was found to end in that root.
#[derive(Debug)]
struct Unproven(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Unproven {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// For a master that has yet to prove itself.
pub(crate) fn unproven() -> Result<Arc<ClientConfig>> {
    let provider = provider();
    let verifier = Arc::new(Unproven(provider.signature_verification_algorithms));
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(Error::Tls)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// For proven roots, with the admin's certificate.
pub(crate) fn proven(
    known: &[Vec<u8>],
    chain: Vec<Vec<u8>>,
    key: Vec<u8>,
) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for root in known {
        roots
            .add(CertificateDer::from(root.clone()))
            .map_err(Error::Tls)?;
    }
    let chain = chain.into_iter().map(CertificateDer::from).collect();
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(Error::Tls)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key)))
        .map_err(Error::Tls)?;
    Ok(Arc::new(config))
}

/// Whether a chain, leaf first, is a server's and ends in `root`.
pub(crate) fn ends_in(chain: &[CertificateDer<'_>], root: &[u8], now: UnixTime) -> bool {
    let root = CertificateDer::from(root);
    let Ok(anchor) = webpki::anchor_from_trusted_cert(&root) else {
        return false;
    };
    let Some((leaf, between)) = chain.split_first() else {
        return false;
    };
    let Ok(leaf) = webpki::EndEntityCert::try_from(leaf) else {
        return false;
    };
    let usage = webpki::KeyUsage::server_auth();
    leaf.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        &[anchor],
        between,
        now,
        usage,
        None,
        None,
    )
    .is_ok()
}
