//! Randomness from the caller, and the key agreement that needs it.

use super::Curve;
use p256::elliptic_curve::sec1::{FromEncodedPoint as _, ToEncodedPoint as _};
use rand_core::CryptoRngCore;
use zeroize::Zeroizing;

/// The result of a key agreement with an ephemeral key.
pub struct Agreement {
    /// The ephemeral key's public point, uncompressed (SEC 1, 2.3.3).
    pub point: Vec<u8>,
    /// The x coordinate of the shared point, as long as the curve's field.
    pub shared: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Agreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agreement")
            .field("point", &hex::encode(&self.point))
            .finish_non_exhaustive()
    }
}

/// The caller's randomness. A caller with a faster implementation of the curves can provide that
/// too.
pub trait Entropy: CryptoRngCore + Sized {
    /// Makes a key on `curve` and agrees with `peer` (an uncompressed point). `None` if that is not
    /// a point on the curve.
    fn agree(&mut self, curve: Curve, peer: &[u8]) -> Option<Agreement> {
        match curve {
            Curve::P256 => p256(self, peer),
            Curve::P384 => p384(self, peer),
        }
    }
}

impl Entropy for rand_core::OsRng {}

/// Defines the agreement on one curve.
macro_rules! agreement {
    ($curve:ident) => {
        fn $curve(rng: &mut impl CryptoRngCore, peer: &[u8]) -> Option<Agreement> {
            let peer = $curve::EncodedPoint::from_bytes(peer).ok()?;
            let peer = Option::from($curve::PublicKey::from_encoded_point(&peer))?;
            let own = $curve::ecdh::EphemeralSecret::random(rng);
            let shared = Zeroizing::new(own.diffie_hellman(&peer).raw_secret_bytes().to_vec());
            Some(Agreement {
                point: own.public_key().to_encoded_point(false).as_bytes().to_vec(),
                shared,
            })
        }
    };
}
agreement!(p256);
agreement!(p384);
