//! The types of the TPM's keys: their public parts, and what loads them again. `endorsement` and
//! `keys` derive them, and [`crate::device::Device`] keeps them.

use crate::templates::EkKind;
use tss_esapi::structures::Auth;
use tss_esapi::utils::TpmsContext;

/// An endorsement key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndorsementKey {
    /// Its kind.
    pub kind: EkKind,
    /// `TPMT_PUBLIC`, without a size before it.
    pub public: Vec<u8>,
    /// Its X.509 certificate in DER, where the TPM holds one.
    pub certificate: Option<Vec<u8>>,
}

/// A public key as the TPM returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// `TPMT_PUBLIC`, without a size before it.
    pub public: Vec<u8>,
    /// The same key as a SubjectPublicKeyInfo in DER.
    pub spki: Vec<u8>,
}

/// A primary key that can be loaded again without deriving it.
#[derive(Debug, Clone)]
pub(crate) struct LoadedTemplate {
    pub(crate) saved: TpmsContext,
    pub(crate) public: PublicKey,
}

/// The attestation key with the auth value that this thread set.
#[derive(Debug, Clone)]
pub(crate) struct AttestationKey {
    pub(crate) key: LoadedTemplate,
    pub(crate) auth: Auth,
}
