//! Whether a certificate chain ends in a given root.

use rustls::pki_types::{CertificateDer, UnixTime};

/// Whether a chain, leaf first, is a server's and ends in `root` (DER) at `now`.
pub fn ends_in(chain: &[CertificateDer<'_>], root: &[u8], now: UnixTime) -> bool {
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
    let usage = webpki::KeyUsage::server_auth();
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
