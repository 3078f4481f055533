//! Who may call the kubelet's API: clients with a certificate of the cluster's roots of the moment.

use agent_enroll::Roots;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Verifies callers by the roots that the last renewal brought.
#[derive(Debug)]
pub(crate) struct Callers {
    roots: Roots,
    /// For what does not depend on roots.
    first: Arc<dyn ClientCertVerifier>,
}

impl Callers {
    pub(crate) fn new(roots: Roots) -> Result<Self, Error> {
        let first = verifier(&roots)?;
        Ok(Self { roots, first })
    }
}

fn verifier(roots: &Roots) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let mut store = RootCertStore::empty();
    for root in roots.get().iter() {
        store.add(root.clone())?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let built = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider).build();
    built.map_err(|error| Error::General(error.to_string()))
}

impl ClientCertVerifier for Callers {
    /// None are hinted at: the master has one certificate for a node, whatever the roots of the moment are.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        verifier(&self.roots)?.verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.first
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.first
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.first.supported_verify_schemes()
    }
}
