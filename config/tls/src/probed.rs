//! The server that a probe or a lifecycle hook asks: any, and nothing that it says is believed.

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use std::sync::Arc;

/// All that servers sign with, the strong ones first. No signature is verified, so what this machine can't compute is there, too.
const SCHEMES: [SignatureScheme; 12] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
    SignatureScheme::ECDSA_SHA1_Legacy,
    SignatureScheme::RSA_PKCS1_SHA1,
];

/// Accepts any certificate, also one that can't be read, and any signature.
#[derive(Debug)]
struct Anything;

/// A connection for one request of a probe or a lifecycle hook, which **proves nothing** about the other side.
///
/// Kubernetes promises pods that `httpGet` with `scheme: HTTPS` skips the verification of certificates
/// (<https://kubernetes.io/docs/concepts/workloads/pods/probes/>): a container mostly serves a certificate of its own making,
/// for a name that is not the pod's address. A probe may do this because it sends nothing but what the pod's author wrote, and
/// learns nothing but a status, by which at worst the author's own container is restarted or gets no traffic. TLS is a form of
/// the request here, no protection: who sits between can read the headers that the author set, and answer.
///
/// For nothing else: what is sent must be no secret of the machine or the cluster, and what is answered must decide about the
/// asked pod alone. It shows no certificate of the node and keeps no sessions. `cargo xtask tidy` lets `agent/handlers` alone
/// name it; [`crate::unverified_server`] is for servers that something else proves.
///
/// # Errors
/// The provider has none of the protocol's versions.
pub fn unproven_probe_server() -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::ALL_VERSIONS)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anything))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

impl ServerCertVerifier for Anything {
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

    // Whose key it is nobody knows, so that its signature says nothing. To verify it would refuse servers whose certificates
    // webpki does not read (version 1, small keys) or whose algorithms ring does not have, and which upstream's probes take.
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SCHEMES.to_vec()
    }
}
