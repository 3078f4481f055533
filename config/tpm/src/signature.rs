//! Signatures (TPMT_SIGNATURE, TPM 2.0 part 2, 11.3.4): ECDSA P-256 with SHA-256, nothing else.

use super::buffer::{Reader, put_sized};
use super::public::left_pad;
use super::{HashAlg, TpmError};
use p256::ecdsa::Signature;
use p256::elliptic_curve::sec1::ToEncodedPoint as _;
use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

const ALG_ECDSA: u16 = 0x0018;

/// An ECDSA signature by a TPM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EcdsaSignature {
    /// Hash over the message.
    pub hash: HashAlg,
    /// r, big-endian, may be short.
    pub r: Vec<u8>,
    /// s, big-endian, may be short.
    pub s: Vec<u8>,
}

impl EcdsaSignature {
    /// Parses a TPMT_SIGNATURE; every byte must belong to it.
    ///
    /// # Errors
    /// [`TpmError::Unsupported`] for other algorithms than ECDSA, [`TpmError::Malformed`] where
    /// bytes are missing or left.
    pub fn parse(bytes: &[u8]) -> Result<Self, TpmError> {
        let mut reader = Reader::new(bytes, "signature");
        let algorithm = reader.u16()?;
        if algorithm != ALG_ECDSA {
            return Err(TpmError::Unsupported("signature algorithm", algorithm));
        }
        let hash = HashAlg::from_id(reader.u16()?)?;
        let r = reader.sized(66)?.to_vec();
        let s = reader.sized(66)?.to_vec();
        reader.finish()?;
        Ok(Self { hash, r, s })
    }

    /// The TPMT_SIGNATURE.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = ALG_ECDSA.to_be_bytes().to_vec();
        out.extend_from_slice(&self.hash.id().to_be_bytes());
        put_sized(&mut out, &self.r);
        put_sized(&mut out, &self.s);
        out
    }

    /// r and s as a fixed-size signature, or `None` if they are none on P-256.
    pub fn to_p256(&self) -> Option<Signature> {
        let r: [u8; 32] = left_pad(&self.r, 32)?.try_into().ok()?;
        let s: [u8; 32] = left_pad(&self.s, 32)?.try_into().ok()?;
        Signature::from_scalars(r, s).ok()
    }

    /// The DER form (RFC 3279, 2.2.3) that TLS and X.509 use.
    pub fn to_der(&self) -> Option<Vec<u8>> {
        self.to_p256()
            .map(|signature| signature.to_der().as_bytes().to_vec())
    }

    /// Whether it is a signature over SHA-256 of `message` by `key`. The hash of the scheme must be
    /// SHA-256.
    pub fn verifies(&self, key: &p256::PublicKey, message: &[u8]) -> bool {
        let point = key.to_encoded_point(false);
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point.as_bytes());
        self.hash == HashAlg::Sha256
            && self
                .to_p256()
                .is_some_and(|signature| key.verify(message, &signature.to_bytes()).is_ok())
    }
}

impl From<&Signature> for EcdsaSignature {
    fn from(signature: &Signature) -> Self {
        let (r, s) = signature.split_bytes();
        Self {
            hash: HashAlg::Sha256,
            r: r.to_vec(),
            s: s.to_vec(),
        }
    }
}
