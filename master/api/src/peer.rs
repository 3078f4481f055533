//! What a connection showed of its other end.

use crate::user::UserInfo;
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

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
}

impl Peer {
    /// Whom the certificate names; none where there is none, or it names nobody.
    pub(crate) fn user(&self) -> Option<&UserInfo> {
        let leaf = self.certificates.first()?;
        self.known.get_or_init(|| UserInfo::of_certificate(leaf)).as_ref()
    }
}
