//! What a connection showed of its other end.

use crate::authenticate::certificate::of_certificate;
use crate::connections::Slot;
use master_client::UserInfo;
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The other end of a connection, as the TLS layer knows it.
///
/// Holding certificates here proves that the chain was verified and that the other end signed the handshake
/// with the leaf's key.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// Where it comes from; none for callers inside the process.
    pub remote: Option<SocketAddr>,
    /// The verified client certificate chain, leaf first; empty where none was shown.
    pub certificates: Arc<[CertificateDer<'static>]>,
    /// The TLS exporter of the connection (RFC 9266: `EXPORTER-Channel-Binding`, empty context).
    pub exporter: Option<[u8; 32]>,
    /// Whom the certificate names, read once for all requests of the connection.
    pub(crate) known: Arc<OnceLock<Option<UserInfo>>>,
    /// Its place among the connections; none for callers inside the process.
    pub(crate) slot: Option<Arc<Slot>>,
    /// One exchange of attestation at a time: a connection is bound into its evidence, and what is read of it is kept in memory.
    pub(crate) exchange: Arc<AtomicBool>,
    /// What a later look at the certificates found, and of which generation that was.
    pub(crate) looked: Arc<Mutex<Option<(u64, bool)>>>,
}

impl Peer {
    /// Whom the certificate names; none where there is none, or it names nobody.
    pub(crate) fn user(&self) -> Option<&UserInfo> {
        let leaf = self.certificates.first()?;
        self.known.get_or_init(|| of_certificate(leaf)).as_ref()
    }

    /// The caller showed an endorsement key (the SHA-256 of its public half) that the inventory lists: its connection is not among
    /// those of strangers any more. Nothing else follows from it, as such keys are no secrets.
    pub fn list(&self, key: [u8; 32]) {
        if let Some(slot) = &self.slot {
            slot.list(key);
        }
    }

    /// Begins an exchange; none while another one goes on over this connection.
    pub fn begin_exchange(&self) -> Option<Exchange> {
        let taken = self.exchange.swap(true, Ordering::AcqRel);
        (!taken).then(|| Exchange(self.exchange.clone()))
    }

    /// What a look at the certificates finds, kept for the whole connection until another `generation` asks.
    pub fn once_for(&self, generation: u64, look: impl FnOnce() -> bool) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        match *looked {
            Some((of, found)) if of == generation => found,
            Some(_) | None => looked.insert((generation, look())).1,
        }
    }
}

/// The one exchange of attestation that goes on over a connection; over when dropped.
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
    fn a_look_counts_for_its_generation() {
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
