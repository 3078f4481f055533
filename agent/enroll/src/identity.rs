//! Certificates in use, swapped whole when they are renewed.

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::sync::{Arc, PoisonError, RwLock};

/// A certificate with its key that TLS takes at each handshake; empty until the first enrolment.
///
/// Guarantee: a handshake sees one certificate with its own key, the old or the new, never a mixture.
#[derive(Debug, Default)]
pub struct Slot {
    current: RwLock<Option<Arc<CertifiedKey>>>,
}

impl Slot {
    /// Puts a certificate in use from the next handshake on.
    pub fn set(&self, key: CertifiedKey) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(key));
    }

    /// What the next handshake would use.
    pub fn get(&self) -> Option<Arc<CertifiedKey>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesClientCert for Slot {
    fn resolve(&self, _root_hint_subjects: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.get()
    }

    fn has_certs(&self) -> bool {
        self.get().is_some()
    }
}

impl ResolvesServerCert for Slot {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.get()
    }
}
