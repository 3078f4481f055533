//! Callers that show a client certificate, verified by the roots that are in force at the
//! handshake.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};

/// The source of the roots that are in force.
pub trait Roots: Send + Sync + Debug {
    /// The current roots.
    fn roots(&self) -> Vec<CertificateDer<'static>>;

    /// Certificates by which a client that shows only its own may lead to a root. They are no
    /// anchors: each has to be signed by a root that is in force, as those that a client shows.
    fn intermediates(&self) -> Vec<CertificateDer<'static>> {
        Vec::new()
    }
}

/// Roots that never change.
impl Roots for Vec<CertificateDer<'static>> {
    fn roots(&self) -> Vec<CertificateDer<'static>> {
        self.clone()
    }
}

/// How a client without a certificate is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strangers {
    /// The handshake fails.
    Refused,
    /// The handshake succeeds, and the caller is anonymous.
    Anonymous,
}

/// Why no client certificate can be verified by the current roots.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// A root cannot be read as a trust anchor.
    #[error("a root of client certificates cannot be used")]
    Root(#[source] Error),
    /// There is no root.
    #[error("client certificate roots cannot be used")]
    Verifier(#[source] VerifierBuilderError),
}

/// Verifies client certificates by the roots that are in force at the handshake: a withdrawn root
/// counts for no later handshake.
#[derive(Debug)]
pub struct CurrentClients<R> {
    source: R,
    strangers: Strangers,
    built: RwLock<Built>,
}

/// The verifier for a list of roots.
#[derive(Debug)]
struct Built {
    roots: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Built {
    fn new(roots: Vec<CertificateDer<'static>>) -> Result<Self, RootsError> {
        let mut store = RootCertStore::empty();
        for root in &roots {
            store.add(root.clone()).map_err(RootsError::Root)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider)
            .build()
            .map_err(RootsError::Verifier)?;
        Ok(Self { roots, verifier })
    }
}

impl<R: Roots> CurrentClients<R> {
    /// # Errors
    /// There are no roots, or one is not a certificate.
    pub fn new(source: R, strangers: Strangers) -> Result<Self, RootsError> {
        let built = RwLock::new(Built::new(source.roots())?);
        Ok(Self {
            source,
            strangers,
            built,
        })
    }

    fn current(&self) -> Result<Arc<dyn ClientCertVerifier>, Error> {
        let roots = self.source.roots();
        {
            let built = self.built.read().unwrap_or_else(PoisonError::into_inner);
            if built.roots == roots {
                return Ok(Arc::clone(&built.verifier));
            }
        }
        let fresh =
            Built::new(roots).map_err(|error| Error::General(config_errors::chain(&error)))?;
        let verifier = Arc::clone(&fresh.verifier);
        *self.built.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(verifier)
    }
}

impl<R: Roots> ClientCertVerifier for CurrentClients<R> {
    fn client_auth_mandatory(&self) -> bool {
        self.strangers == Strangers::Refused
    }

    /// No hints: a client has one certificate for this server, whatever the current roots are.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let known = self.source.intermediates();
        let mut all = intermediates.to_vec();
        all.extend(known.into_iter().filter(|one| !intermediates.contains(one)));
        self.current()?.verify_client_cert(certificate, &all, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current()?
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current()?
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current()
            .map(|current| current.supported_verify_schemes())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Issuer, client};
    use std::sync::Mutex;

    #[derive(Debug, Clone)]
    struct Rotating(Arc<Mutex<Vec<CertificateDer<'static>>>>);

    impl Roots for Rotating {
        fn roots(&self) -> Vec<CertificateDer<'static>> {
            self.0.lock().unwrap().clone()
        }
    }

    #[test]
    fn a_client_is_verified_by_the_current_roots_and_not_by_earlier_ones() {
        let (first, second) = (Issuer::new("first"), Issuer::new("second"));
        let roots = Rotating(Arc::new(Mutex::new(vec![first.root()])));
        let verifier = CurrentClients::new(roots.clone(), Strangers::Anonymous).unwrap();
        let known = |leaf: &CertificateDer<'_>| {
            verifier
                .verify_client_cert(leaf, &[], UnixTime::now())
                .is_ok()
        };
        let (old, new) = (client(&first, "a"), client(&second, "b"));
        assert_eq!((known(&old), known(&new)), (true, false));
        *roots.0.lock().unwrap() = vec![first.root(), second.root()];
        assert_eq!((known(&old), known(&new)), (true, true), "both overlap");
        *roots.0.lock().unwrap() = vec![second.root()];
        assert_eq!((known(&old), known(&new)), (false, true), "withdrawn");
        roots.0.lock().unwrap().clear();
        assert_eq!((known(&old), known(&new)), (false, false), "no root at all");
    }

    #[test]
    fn a_caller_without_a_certificate_is_refused_or_anonymous_as_configured() {
        let roots = vec![Issuer::new("root").root()];
        let refused = CurrentClients::new(roots.clone(), Strangers::Refused).unwrap();
        let anonymous = CurrentClients::new(roots, Strangers::Anonymous).unwrap();
        assert!(refused.client_auth_mandatory() && refused.offer_client_auth());
        assert!(!anonymous.client_auth_mandatory() && anonymous.offer_client_auth());
    }

    #[test]
    fn a_verifier_needs_roots_that_are_certificates() {
        let of = |roots| CurrentClients::new(roots, Strangers::Refused).map(drop);
        assert!(matches!(of(Vec::new()), Err(RootsError::Verifier(_))));
        let garbage = vec![CertificateDer::from(b"garbage".to_vec())];
        assert!(matches!(of(garbage), Err(RootsError::Root(_))));
    }
}
