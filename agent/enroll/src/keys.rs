//! The node key, inside the TPM or in memory, as a TLS client key and as the signer of a
//! certificate request.

use agent_tpm::{Tpm, WrappedKey};
use config_errors::chain;
use p256::ecdsa::Signature;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm as CsrAlgorithm};
use ring::digest::{SHA256, digest};
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, OtherError, SignatureAlgorithm, SignatureScheme};
use std::sync::Arc;
use tokio::runtime::{Handle, RuntimeFlavor};
use zeroize::Zeroizing;

/// Length of an uncompressed P-256 point, the end of its `SubjectPublicKeyInfo`.
const POINT_LENGTH: usize = 65;

/// The node key: in the TPM, where every signature is one request to its thread, or in memory where
/// there is no TPM.
#[derive(Debug, Clone)]
pub struct NodeKey {
    spki: Vec<u8>,
    storage: KeyStorage,
}

/// Where the private key is, and how it signs.
#[derive(Debug, Clone)]
enum KeyStorage {
    Tpm(
        Tpm,
        fn(&Tpm, [u8; 32]) -> Result<[u8; 64], agent_tpm::Error>,
    ),
    Memory(Arc<KeyPair>),
}

/// Why a key did not sign.
#[derive(Debug, thiserror::Error)]
enum SignError {
    #[error(transparent)]
    Tpm(#[from] agent_tpm::Error),
    #[error("the node key in memory does not sign")]
    Memory(#[source] rcgen::Error),
}

impl NodeKey {
    /// The node key of `tpm`; derived now if it has not been used since the agent started.
    ///
    /// # Errors
    /// The TPM failed to derive the key, or did not answer in time.
    pub fn new(tpm: Tpm) -> Result<Self, agent_tpm::Error> {
        let spki = tpm.node_key()?.spki;
        Ok(Self {
            spki,
            storage: KeyStorage::Tpm(tpm, Tpm::sign),
        })
    }

    /// A key that an admin wrapped to this TPM, imported now.
    ///
    /// # Errors
    /// As [`Tpm::import`].
    pub fn imported(tpm: Tpm, wrapped: WrappedKey) -> Result<Self, agent_tpm::Error> {
        let spki = tpm.import(wrapped)?.spki;
        Ok(Self {
            spki,
            storage: KeyStorage::Tpm(tpm, Tpm::sign_imported),
        })
    }

    /// A new key of a machine without a TPM.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn in_memory() -> Result<Self, crate::Error> {
        KeyPair::generate()
            .map(Self::of_pair)
            .map_err(crate::Error::Csr)
    }

    /// A key from the output of [`NodeKey::to_pkcs8`].
    ///
    /// # Errors
    /// The bytes are no ECDSA P-256 key.
    pub fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, crate::Error> {
        let der = PrivatePkcs8KeyDer::from(pkcs8);
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256);
        pair.map(Self::of_pair).map_err(crate::Error::Csr)
    }

    fn of_pair(pair: KeyPair) -> Self {
        Self {
            spki: pair.subject_public_key_info(),
            storage: KeyStorage::Memory(Arc::new(pair)),
        }
    }

    /// The key in PKCS#8, if it is in memory.
    pub fn to_pkcs8(&self) -> Option<Zeroizing<Vec<u8>>> {
        match &self.storage {
            KeyStorage::Tpm(..) => None,
            KeyStorage::Memory(pair) => Some(Zeroizing::new(pair.serialize_der())),
        }
    }

    /// Its SubjectPublicKeyInfo, DER.
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }

    /// An ECDSA signature in DER over SHA-256 of `message`.
    fn sign_message(&self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        match &self.storage {
            KeyStorage::Memory(pair) => {
                rcgen::SigningKey::sign(pair.as_ref(), message).map_err(SignError::Memory)
            }
            KeyStorage::Tpm(tpm, sign) => {
                let mut hash = [0; 32];
                hash.copy_from_slice(digest(&SHA256, message).as_ref());
                let fixed = off_the_runtime(|| sign(tpm, hash))?;
                let signature =
                    Signature::from_slice(&fixed).map_err(|_zero| agent_tpm::Error::Malformed {
                        what: "the node key's signature",
                    })?;
                Ok(signature.to_der().as_bytes().to_vec())
            }
        }
    }

    /// The same, for the exchange of a machine without a TPM.
    pub(crate) fn sign_answer(&self, message: &[u8]) -> Result<Vec<u8>, crate::Error> {
        rcgen::SigningKey::sign(self, message).map_err(crate::Error::Csr)
    }
}

/// Runs a call that blocks for the length of a TPM command without delaying the runtime's other
/// tasks.
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
        Some(SubjectPublicKeyInfoDer::from(self.spki.as_slice()))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for NodeKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.sign_message(message)
            .map_err(|error| Error::Other(OtherError(Arc::new(error))))
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP256_SHA256
    }
}

impl PublicKeyData for NodeKey {
    fn der_bytes(&self) -> &[u8] {
        let start = self.spki.len().saturating_sub(POINT_LENGTH);
        self.spki.get(start..).unwrap_or_default()
    }

    fn algorithm(&self) -> &'static CsrAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for NodeKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.sign_message(message).map_err(|error| {
            // `rcgen` takes no cause, so this is where it is shown.
            tracing::error!(error = chain(&error), "the node key did not sign");
            rcgen::Error::RemoteKeyError
        })
    }
}
