//! Whether a certificate chain ends in a given root: each certificate signed by the next.

use rustls::pki_types::{CertificateDer, UnixTime};

/// Whether a chain, leaf first, is a server's and ends in `root` (DER) at `now`.
pub fn ends_in(chain: &[CertificateDer<'_>], root: &[u8], now: UnixTime) -> bool {
    is_signed(chain, root, now, webpki::KeyUsage::server_auth())
}

/// Whether a chain, leaf first, is a client's and ends in `root` (DER) at `now`.
pub fn client_ends_in(chain: &[CertificateDer<'_>], root: &[u8], now: UnixTime) -> bool {
    is_signed(chain, root, now, webpki::KeyUsage::client_auth())
}

fn is_signed(
    chain: &[CertificateDer<'_>],
    root: &[u8],
    now: UnixTime,
    usage: webpki::KeyUsage,
) -> bool {
    let root = CertificateDer::from(root);
    let Ok(anchor) = webpki::anchor_from_trusted_cert(&root) else {
        return false;
    };
    let Some((leaf, between)) = chain.split_first() else {
        return false;
    };
    let Ok(leaf) = webpki::EndEntityCert::try_from(leaf) else {
        return false;
    };
    leaf.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        &[anchor],
        between,
        now,
        usage,
        None,
        None,
    )
    .is_ok()
}
