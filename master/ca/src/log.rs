//! The key of the log of verdicts.

use crate::error::{Error, Result};
use config_verdicts::signed_bytes;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls_pki_types::CertificateDer;

/// Signs records of the log of verdicts, with a key for this log only and a certificate that the
/// root signed.
pub struct LogSigner {
    cluster: String,
    key: EcdsaKeyPair,
    certificate: CertificateDer<'static>,
    root: CertificateDer<'static>,
    random: SystemRandom,
}

impl std::fmt::Debug for LogSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogSigner")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl LogSigner {
    pub(crate) fn new(
        cluster: &str,
        pkcs8: &[u8],
        certificate: CertificateDer<'static>,
        root: CertificateDer<'static>,
    ) -> Result<Self> {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8, &random)
            .map_err(|_opaque| Error::Key("the verdict log's key cannot be read"))?;
        Ok(Self {
            cluster: cluster.to_owned(),
            key,
            certificate,
            root,
            random,
        })
    }

    /// The cluster's name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The key's certificate, DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// The root's certificate, DER.
    pub fn root(&self) -> &[u8] {
        &self.root
    }

    /// Signs one record (its JSON): ECDSA P-256 with SHA-256, DER.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn sign(&self, json: &[u8]) -> Result<Vec<u8>> {
        let signature = self.key.sign(&self.random, &signed_bytes(json));
        signature
            .map(|signature| signature.as_ref().to_vec())
            .map_err(|_opaque| Error::Key("no randomness to sign with"))
    }
}
