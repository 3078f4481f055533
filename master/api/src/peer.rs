//! What a connection showed of its other end.

use crate::authenticate::certificate::of_certificate;
use master_client::UserInfo;
use rustls::pki_types::CertificateDer;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
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
    /// What a later look at the certificates found, and of which generation that was.
    pub(crate) looked: Arc<Mutex<Option<(u64, bool)>>>,
}

impl Peer {
    /// Whom the certificate names; none where there is none, or it names nobody.
    pub(crate) fn user(&self) -> Option<&UserInfo> {
        let leaf = self.certificates.first()?;
        self.known.get_or_init(|| of_certificate(leaf)).as_ref()
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

/// Who counts as one where callers are counted: an IPv4 address, or a network of IPv6 as one customer gets it.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
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
    fn a_network_of_ipv6_is_one_caller() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::2"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
