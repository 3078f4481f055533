//! Certificates of TPM keys, names in certificates, and signatures of X.509 structures. Nothing
//! here opens a file or a socket or reads a clock: the time is an argument. TLS peer verification
//! is in `config/tls`.
//!
//! Enter by [`check_ek_certificate`] for the certificate of an endorsement key, by [`San`] for the
//! names of a serving certificate, by [`x509`] for signatures and for the exact form of a
//! certificate request.
//!
//! # Glossary
//! - *EK*: endorsement key. The TPM's manufacturer certifies that it is in a TPM.
//! - *issuer* ([`EkIssuer`]): a manufacturer's certificates, under a name in the cluster's
//!   configuration.

mod ek;
mod san;
pub mod x509;

pub use ek::{EkFault, EkIssuer, EkIssuerError, check_ek_certificate};
pub use san::San;
