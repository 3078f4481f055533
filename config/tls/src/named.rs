//! A server that is identified by the subject of its certificate, because its address may change;
//! the chain must lead to the cluster's root.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use std::fmt::Debug;
use std::sync::Arc;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// A reason to refuse a certificate although its chain is valid.
pub trait Objection: Send + Sync + Debug {
    /// Why the certificate (DER) is refused; `None` if there is no reason.
    fn objection(&self, certificate: &[u8]) -> Option<String>;
}

/// Accepts a chain that `inner` accepts for a server, whose leaf has exactly this common name,
/// unless there is an objection.
#[derive(Debug)]
pub struct NamedServer<O> {
    inner: Arc<WebPkiServerVerifier>,
    common_name: String,
    objection: O,
}

impl<O: Objection> NamedServer<O> {
    /// A verifier for one server.
    pub fn new(inner: Arc<WebPkiServerVerifier>, common_name: String, objection: O) -> Self {
        Self {
            inner,
            common_name,
            objection,
        }
    }
}

/// The common name of a certificate's subject.
fn common_name(certificate: &[u8]) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

impl<O: Objection> ServerCertVerifier for NamedServer<O> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if common_name(certificate).as_deref() != Some(self.common_name.as_str()) {
            return Err(CertificateError::NotValidForName.into());
        }
        if let Some(why) = self.objection.objection(certificate) {
            return Err(Error::General(why));
        }
        match self
            .inner
            .verify_server_cert(certificate, intermediates, name, ocsp, now)
        {
            // webpki has verified the chain and then missed the DNS name; the subject is the name
            // here.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Issuer, client, server};
    use rustls::RootCertStore;

    #[derive(Debug)]
    struct Says(Option<&'static str>);

    impl Objection for Says {
        fn objection(&self, _: &[u8]) -> Option<String> {
            self.0.map(str::to_owned)
        }
    }

    fn verdict(
        issuer: &Issuer,
        certificate: &CertificateDer<'_>,
        objection: Option<&'static str>,
    ) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        roots.add(issuer.root()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
        let dialled = ServerName::try_from("192.0.2.7").unwrap();
        NamedServer::new(inner, "node-1".to_owned(), Says(objection))
            .verify_server_cert(certificate, &[], &dialled, &[], UnixTime::now())
            .map(drop)
    }

    #[test]
    fn a_server_is_verified_by_chain_and_subject_at_any_address() {
        let (own, other) = (Issuer::new("own"), Issuer::new("other"));
        assert_eq!(verdict(&own, &server(&own, "node-1"), None), Ok(()));
        let elsewhere = verdict(&own, &server(&own, "node-2"), None);
        assert_eq!(elsewhere, Err(CertificateError::NotValidForName.into()));
        let foreign = verdict(&own, &server(&other, "node-1"), None);
        assert!(foreign.is_err(), "another cluster's certificate");
        let usage = verdict(&own, &client(&own, "node-1"), None);
        assert!(usage.is_err(), "a client's certificate");
    }

    #[test]
    fn an_objection_refuses_a_good_chain_and_a_bad_chain_is_refused_anyway() {
        let (own, other) = (Issuer::new("own"), Issuer::new("other"));
        let good = server(&own, "node-1");
        assert_eq!(
            verdict(&own, &good, Some("it is retired")),
            Err(Error::General("it is retired".to_owned()))
        );
        assert!(verdict(&own, &server(&other, "node-1"), None).is_err());
    }
}
