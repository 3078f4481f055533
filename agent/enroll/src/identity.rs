//! Certificates in use, replaced as a whole when they are renewed.

use config_tls::{Pins, ShownRoot, pins_text};
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::sync::{Arc, PoisonError, RwLock};

/// A certificate with its key that TLS reads at each handshake; empty until the first enrolment.
///
/// Guarantee: a handshake sees one certificate with its own key, the old or the new, never a
/// mixture.
#[derive(Debug, Default)]
pub struct CertificateSlot {
    current: RwLock<Option<Arc<CertifiedKey>>>,
}

impl CertificateSlot {
    /// Puts a certificate in use from the next handshake on.
    pub fn set(&self, key: CertifiedKey) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(key));
    }

    /// The certificate for the next handshake.
    pub fn get(&self) -> Option<Arc<CertifiedKey>> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ResolvesClientCert for CertificateSlot {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.get()
    }

    fn has_certs(&self) -> bool {
        self.get().is_some()
    }
}

impl ResolvesServerCert for CertificateSlot {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.get()
    }
}

/// The cluster's pinned roots, which verify the master as a client. Clones share them: a renewal
/// brings the current ones.
#[derive(Debug, Clone)]
pub struct PinnedRoots(Arc<RwLock<Arc<[CertificateDer<'static>]>>>);

impl From<Vec<CertificateDer<'static>>> for PinnedRoots {
    fn from(roots: Vec<CertificateDer<'static>>) -> Self {
        Self(Arc::new(RwLock::new(roots.into())))
    }
}

impl PinnedRoots {
    /// The current roots.
    pub fn get(&self) -> Arc<[CertificateDer<'static>]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn replace(&self, roots: Vec<CertificateDer<'static>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = roots.into();
    }
}

impl config_tls::Roots for PinnedRoots {
    fn roots(&self) -> Vec<CertificateDer<'static>> {
        self.get().to_vec()
    }
}

/// Whether a node is ready for a new root, and what it lacks if not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootReadiness {
    /// Ready: every root that the master shows is pinned, and the node's certificate leads to each.
    /// Holds their pins.
    Ready(Vec<String>),
    /// A root is not pinned.
    PinMissing(String),
    /// The node's certificate ends with another root.
    CertificateOld(String),
}

/// Whether a node is ready for each of the roots that its master showed last; `None` if it has
/// shown none yet.
pub fn root_readiness(pins: &Pins, certificate: &CertificateSlot) -> Option<RootReadiness> {
    let (shown, pinned) = (pins.shown(), pins.get());
    let chain = certificate.get()?;
    let names = issuers(&chain.cert);
    let text = |root: &ShownRoot| pins_text([&root.pin]);
    if let Some(root) = shown.iter().find(|root| !pinned.contains(&root.pin)) {
        return Some(RootReadiness::PinMissing(text(root)));
    }
    if let Some(root) = shown.iter().find(|root| !names.contains(&root.name)) {
        return Some(RootReadiness::CertificateOld(text(root)));
    }
    (!shown.is_empty()).then(|| RootReadiness::Ready(shown.iter().map(text).collect()))
}

/// The issuer names of the certificates in a chain.
fn issuers(chain: &[CertificateDer<'_>]) -> Vec<Vec<u8>> {
    let parsed = chain
        .iter()
        .filter_map(|der| x509_parser::parse_x509_certificate(der).ok());
    parsed
        .map(|(_, certificate)| certificate.issuer().as_raw().to_vec())
        .collect()
}
