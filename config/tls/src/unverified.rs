//! A verifier that accepts any server certificate, for connections where the answers are verified
//! in another way or not trusted.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme, SupportedProtocolVersion,
};
use std::sync::Arc;

/// Accepts any certificate, but only from a server that holds its key.
#[derive(Debug)]
struct AnyServer(WebPkiSupportedAlgorithms);

/// A TLS connection to any server.
///
/// It keeps nothing secret from a server in the middle. Safe only for three uses:
///
/// - Discovery: a document is verified by its own signature; TLS only gets it through networks and
///   endpoints that require TLS. A cluster's credential sent this way changes nothing without the
///   discovery key. The operator's token for new clusters has no such protection: the admin's guide
///   says to send it over a trusted network.
/// - Bootstrap: what the master says is used after its TPM signed this connection's exporter and
///   the root's key, and after the shown chain was found to end in that root ([`crate::ends_in`]).
/// - The API's proxy hands a client what a program in a pod says, over a connection that the pod's
///   proven node made.
///
/// # Errors
/// Where the provider has none of the `versions`.
pub fn unverified_server(
    versions: &[&'static SupportedProtocolVersion],
) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(AnyServer(provider.signature_verification_algorithms));
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
