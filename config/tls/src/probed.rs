//! The server that a probe or a lifecycle hook asks: any certificate is accepted, and the answer is
//! not trusted.

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use std::sync::Arc;

/// All schemes with which servers sign, the strong ones first. No signature is verified, so the
/// list includes schemes that ring can't compute.
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

/// A connection for one request of a probe or a lifecycle hook, which **proves nothing** about the
/// other side.
///
/// Kubernetes promises pods that `httpGet` with `scheme: HTTPS` skips the verification of
/// certificates (<https://kubernetes.io/docs/concepts/workloads/pods/probes/>): most containers
/// serve a self-signed certificate, for a name that is not the pod's address. A probe may do this
/// because it sends nothing but what the pod's author wrote, and learns nothing but a status, by
/// which at worst the author's own container is restarted or gets no traffic. TLS protects nothing
/// here: a machine in the middle can read the headers that the author set, and answer.
///
/// Use it for nothing else: the request must hold no secret of the machine or the cluster, and the
/// answer must affect only the probed pod. It shows no certificate of the node and keeps no
/// sessions. `cargo xtask tidy` lets `agent/handlers` alone name it; [`crate::unverified_server`]
/// is for servers that something else proves.
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

    // The certificate is not verified, so a signature by its key proves nothing. Verifying it would
    // refuse servers that upstream's probes accept: those with certificates that webpki does not
    // read (version 1, small keys) or with algorithms that ring lacks.
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
