//! A message that a client of the cluster signed outside of TLS.

use rustls::pki_types::{CertificateDer, UnixTime};

/// Why a message is not a client's of the cluster.
#[derive(Debug, thiserror::Error)]
pub enum NotSigned {
    /// There is no certificate, or it can't be read.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// The chain leads to none of the roots, has ended, or is not a client's.
    #[error("the certificate is not a valid client certificate of the cluster")]
    Chain(#[source] webpki::Error),
    /// The certificate's key did not sign this message.
    #[error("the signature does not verify with the certificate's key")]
    Signature(#[source] webpki::Error),
}

/// Verifies at `now` that a chain, leaf first, leads to one of `roots` and is a client's, and that
/// its key signed `message` (ECDSA P-256 with SHA-256, in DER).
///
/// # Errors
/// The first of these that does not hold, as [`NotSigned`].
pub fn signed_by_client(
    chain: &[CertificateDer<'_>],
    roots: &[CertificateDer<'_>],
    now: UnixTime,
    message: &[u8],
    signature: &[u8],
) -> Result<(), NotSigned> {
    let (leaf, between) = chain.split_first().ok_or(NotSigned::Unreadable)?;
    let leaf = webpki::EndEntityCert::try_from(leaf).map_err(|_form| NotSigned::Unreadable)?;
    let anchors = roots.iter();
    let anchors: Vec<_> = anchors
        .filter_map(|root| webpki::anchor_from_trusted_cert(root).ok())
        .collect();
    leaf.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        &anchors,
        between,
        now,
        webpki::KeyUsage::client_auth(),
        None,
        None,
    )
    .map_err(NotSigned::Chain)?;
    leaf.verify_signature(webpki::ring::ECDSA_P256_SHA256, message, signature)
        .map_err(NotSigned::Signature)
}
