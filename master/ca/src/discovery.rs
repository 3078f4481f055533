//! The discovery key: it signs the document that lists the cluster's masters, and nothing else.

use crate::authority::Authority;
use crate::error::{Error, Result};
use config_discovery::Document;
use p256::ecdsa::{SigningKey, VerifyingKey};
use p256::pkcs8::{DecodePrivateKey as _, EncodePublicKey as _};

impl Authority {
    /// SubjectPublicKeyInfo DER of the discovery key, whose hash machines pin. Makes the key on
    /// first use; blocks on the keeper.
    ///
    /// # Errors
    /// The file is damaged or of another keeper, or the keeper or the disk fails.
    pub fn discovery_spki(&self) -> Result<Vec<u8>> {
        let spki = VerifyingKey::from(&self.discovery_signer()?).to_public_key_der();
        spki.map(p256::pkcs8::Document::into_vec)
            .map_err(|_opaque| Error::Key("the discovery key cannot be encoded"))
    }

    /// Signs a discovery document. The key is in memory during this call only; blocks on the
    /// keeper.
    ///
    /// # Errors
    /// As [`Authority::discovery_spki`]; or the document is one that no machine would accept.
    pub fn sign_discovery(&self, document: &Document) -> Result<Vec<u8>> {
        document
            .sign(&self.discovery_signer()?)
            .map_err(|fault| Error::Request(fault.to_string()))
    }

    fn discovery_signer(&self) -> Result<SigningKey> {
        let der = self.discovery_key()?;
        SigningKey::from_pkcs8_der(&der)
            .map_err(|_opaque| Error::Key("the discovery key is not a P-256 key"))
    }
}
