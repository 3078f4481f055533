//! TPM arithmetic in software: structures of TPM 2.0, the firmware's event log, computation and
//! prediction of registers. No I/O.
//!
//! Parsers are total: every length is bounded, trailing bytes are refused, and what is not needed
//! here is refused as unsupported.

mod attest;
pub mod boot;
pub mod buffer;
mod credential;
pub mod digest;
mod duplicate;
mod entropy;
pub mod eventlog;
pub mod pcr;
mod public;
mod signature;
pub mod template;

pub(crate) use attest::selection_bytes;
pub use attest::{Attest, Attested, ClockInfo, PcrSelection, TPM_GENERATED};
pub use credential::{CredentialBlob, hmac, kdfa, kdfe, make_credential};
pub use digest::Digest;
pub use duplicate::{Duplicate, MAX_PRIVATE, MAX_SEED, duplicate, duplicate_secret};
pub use entropy::{Agreement, Entropy};
pub use public::{
    Attributes, Curve, ENDORSEMENT_HIERARCHY, Key, NULL_HIERARCHY, Name, Public, Scheme, Symmetric,
    qualified_name_of_primary,
};
pub use signature::EcdsaSignature;

/// Why bytes are not the expected TPM structure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TpmError {
    /// They end too early, go on too long, or a length is out of bounds.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// An algorithm that this protocol does not use.
    #[error("unsupported {0}: {1:#06x}")]
    Unsupported(&'static str, u16),
    /// The magic of an attestation is not the TPM's.
    #[error("magic {0:#010x} is not TPM_GENERATED_VALUE")]
    Magic(u32),
    /// Numbers that do not form a key.
    #[error("not a valid public key")]
    Key,
}

/// Hash algorithms (TPM_ALG_ID).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HashAlg {
    /// SHA-1; parsed so that it can be refused by name.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl HashAlg {
    /// Its TPM_ALG_ID.
    pub fn id(self) -> u16 {
        match self {
            Self::Sha1 => 0x0004,
            Self::Sha256 => 0x000b,
            Self::Sha384 => 0x000c,
            Self::Sha512 => 0x000d,
        }
    }

    /// By TPM_ALG_ID.
    ///
    /// # Errors
    /// [`TpmError::Unsupported`] for every other algorithm.
    pub fn from_id(id: u16) -> Result<Self, TpmError> {
        match id {
            0x0004 => Ok(Self::Sha1),
            0x000b => Ok(Self::Sha256),
            0x000c => Ok(Self::Sha384),
            0x000d => Ok(Self::Sha512),
            other => Err(TpmError::Unsupported("hash algorithm", other)),
        }
    }

    /// Bytes of a digest.
    pub fn size(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Digest of parts, one after the other.
    pub fn digest(self, parts: &[&[u8]]) -> Vec<u8> {
        fn run<D: sha2::Digest>(parts: &[&[u8]]) -> Vec<u8> {
            let mut hash = D::new();
            for part in parts {
                hash.update(part);
            }
            hash.finalize().to_vec()
        }
        match self {
            Self::Sha1 => run::<sha1::Sha1>(parts),
            Self::Sha256 => run::<sha2::Sha256>(parts),
            Self::Sha384 => run::<sha2::Sha384>(parts),
            Self::Sha512 => run::<sha2::Sha512>(parts),
        }
    }
}
