//! The node key inside the TPM as a TLS client key and as the signer of a certificate request.

use agent_tpm::{PublicKey, Tpm, WrappedKey};
use p256::ecdsa::Signature;
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm as CsrAlgorithm};
use ring::digest::{SHA256, digest};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, OtherError, SignatureAlgorithm, SignatureScheme};
use std::sync::Arc;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Length of an uncompressed P-256 point, the end of its `SubjectPublicKeyInfo`.
const POINT_LENGTH: usize = 65;

/// The node key: every signature is one request to the TPM's thread.
#[derive(Debug, Clone)]
pub struct NodeKey {
    tpm: Tpm,
    public: PublicKey,
    sign: fn(&Tpm, [u8; 32]) -> Result<[u8; 64], agent_tpm::Error>,
}

impl NodeKey {
    /// The node key of `tpm`; derived now if it has not been used since the agent started.
    pub fn new(tpm: Tpm) -> Result<Self, agent_tpm::Error> {
        let public = tpm.node_key()?;
        Ok(Self { tpm, public, sign: Tpm::sign })
    }

    /// A key that an admin wrapped to this TPM, imported now.
    pub fn imported(tpm: Tpm, wrapped: WrappedKey) -> Result<Self, agent_tpm::Error> {
        let public = tpm.import(wrapped)?;
        Ok(Self { tpm, public, sign: Tpm::sign_imported })
    }

    /// The public key, as the TPM tells it.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// An ECDSA signature in DER over SHA-256 of `message`.
    fn sign_message(&self, message: &[u8]) -> Result<Vec<u8>, agent_tpm::Error> {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, message).as_ref());
        let fixed = off_the_runtime(|| (self.sign)(&self.tpm, hash))?;
        let signature = Signature::from_slice(&fixed)
            .map_err(|_zero| agent_tpm::Error::Malformed { what: "the node key's signature" })?;
        Ok(signature.to_der().as_bytes().to_vec())
    }
}

/// Runs a call that blocks for the length of a TPM command without holding up a runtime's other tasks.
fn off_the_runtime<T>(call: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(call),
        Ok(_) | Err(_) => call(),
    }
}

impl SigningKey for NodeKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let fits = offered.contains(&SignatureScheme::ECDSA_NISTP256_SHA256);
        fits.then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(SubjectPublicKeyInfoDer::from(self.public.spki.as_slice()))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for NodeKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.sign_message(message).map_err(|error| Error::Other(OtherError(Arc::new(error))))
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP256_SHA256
    }
}

impl PublicKeyData for NodeKey {
    fn der_bytes(&self) -> &[u8] {
        let start = self.public.spki.len().saturating_sub(POINT_LENGTH);
        self.public.spki.get(start..).unwrap_or_default()
    }

    fn algorithm(&self) -> &'static CsrAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for NodeKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.sign_message(message).map_err(|error| {
            tracing::error!(%error, "the TPM did not sign the certificate request");
            rcgen::Error::RemoteKeyError
        })
    }
}
