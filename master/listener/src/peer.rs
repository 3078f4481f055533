//! What a connection proves about its other end.

use crate::answers::Owner;
use crate::connections::Slot;
use master_auth::{ClientCertificate, of_certificate};
use master_client::UserInfo;
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The other end of a connection, as the TLS layer verified it.
///
/// Holding certificates here proves that the chain was verified and that the other end signed the
/// handshake with the leaf's key.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// Its address; `None` for callers inside the process.
    pub remote: Option<SocketAddr>,
    /// The verified client certificate chain, leaf first; empty if the client sent none.
    pub certificates: Arc<[CertificateDer<'static>]>,
    /// The TLS exporter of the connection (RFC 9266: `EXPORTER-Channel-Binding`, empty context).
    pub exporter: Option<[u8; 32]>,
    /// The user that the certificate names, parsed once for all requests of the connection.
    pub(crate) known: Arc<OnceLock<Option<UserInfo>>>,
    /// The connection's slot within the limits; `None` for callers inside the process.
    pub(crate) slot: Option<Arc<Slot>>,
    /// Whether an attestation exchange is running. One at a time: the evidence is bound to the
    /// connection, and its parts are held in memory.
    pub(crate) exchange: Arc<AtomicBool>,
    /// The result of a later check of the certificates, and the generation in which it was made.
    pub(crate) verified: Arc<Mutex<Option<(u64, bool)>>>,
}

impl Peer {
    /// The user that the certificate names; `None` without a certificate or without a name in it.
    pub fn user(&self) -> Option<&UserInfo> {
        let leaf = self.certificates.first()?;
        self.known.get_or_init(|| of_certificate(leaf)).as_ref()
    }

    /// What the client certificate says, for authentication.
    pub fn certificate(&self) -> ClientCertificate<'_> {
        match self.user() {
            Some(user) => ClientCertificate::Of(user),
            None if self.certificates.is_empty() => ClientCertificate::Absent,
            None => ClientCertificate::Nameless,
        }
    }

    /// Counts the connection among those of a user whose certificate or token was verified, and
    /// who is not denied.
    pub fn identify(&self, user: &UserInfo) {
        if let Some(slot) = &self.slot {
            let shown = self.user().is_some_and(|own| own.name == user.name);
            let node = shown && user.node().is_some();
            slot.identify(user, node);
            slot.own(|| Owner::of(user, node));
        }
    }

    /// Counts the connection among those of strangers: its caller is denied.
    pub fn forget(&self) {
        if let Some(slot) = &self.slot {
            slot.forget();
        }
    }

    /// Counts the connection as listed: the caller showed an endorsement key (the SHA-256 of its
    /// public part) of the inventory. It grants nothing else, as these keys are public.
    pub fn list(&self, key: [u8; 32]) {
        if let Some(slot) = &self.slot {
            slot.list(key);
        }
    }

    /// Waits until the connection must be closed, because another one took its slot; for ever for
    /// callers inside the process. This also ends a tunnel, which continues after HTTP on the
    /// connection has ended.
    pub async fn displaced(&self) {
        match &self.slot {
            Some(slot) => slot.ended().cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Begins an attestation exchange; `None` while another one runs on this connection.
    pub fn begin_exchange(&self) -> Option<Exchange> {
        let taken = self.exchange.swap(true, Ordering::AcqRel);
        (!taken).then(|| Exchange(self.exchange.clone()))
    }

    /// The result of `look`, cached for the connection until the caller asks for another
    /// `generation`.
    pub fn once_for(&self, generation: u64, look: impl FnOnce() -> bool) -> bool {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        match *verified {
            Some((of, found)) if of == generation => found,
            Some(_) | None => verified.insert((generation, look())).1,
        }
    }
}

/// The running attestation exchange of a connection; ended when dropped.
#[derive(Debug)]
pub struct Exchange(Arc<AtomicBool>);

impl Drop for Exchange {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_result_is_valid_for_its_generation() {
        let peer = Peer::default();
        let mut looks = 0;
        let found: Vec<bool> = [(1, true), (1, false), (2, false), (2, true)]
            .map(|(generation, found)| {
                peer.clone().once_for(generation, || {
                    looks += 1;
                    found
                })
            })
            .to_vec();
        assert_eq!((found, looks), (vec![true, true, false, false], 2));
    }

    #[test]
    fn a_connection_has_one_exchange_at_a_time() {
        let peer = Peer::default();
        let first = peer.begin_exchange();
        assert!(first.is_some() && peer.clone().begin_exchange().is_none());
        drop(first);
        assert!(peer.begin_exchange().is_some());
    }
}
