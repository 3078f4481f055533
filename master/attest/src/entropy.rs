//! Randomness of the operating system, and ECDH by ring, which is four times as fast as the
//! verifier's own implementation.

use ::ring::agreement::{
    Algorithm, ECDH_P256, ECDH_P384, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral,
};
use ::ring::rand::SystemRandom;
use config_tpm::{Agreement, Curve, Entropy};
use rand_core::{CryptoRng, OsRng, RngCore};
use zeroize::Zeroizing;

/// Randomness from the operating system.
#[derive(Debug, Clone, Copy)]
pub struct SystemEntropy;

impl RngCore for SystemEntropy {
    fn next_u32(&mut self) -> u32 {
        OsRng.next_u32()
    }

    fn next_u64(&mut self) -> u64 {
        OsRng.next_u64()
    }

    fn fill_bytes(&mut self, dest: &mut [u8]) {
        OsRng.fill_bytes(dest);
    }

    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), rand_core::Error> {
        OsRng.try_fill_bytes(dest)
    }
}

impl CryptoRng for SystemEntropy {}

impl Entropy for SystemEntropy {
    fn agree(&mut self, curve: Curve, peer: &[u8]) -> Option<Agreement> {
        let algorithm: &'static Algorithm = match curve {
            Curve::P256 => &ECDH_P256,
            Curve::P384 => &ECDH_P384,
        };
        let own = EphemeralPrivateKey::generate(algorithm, &SystemRandom::new()).ok()?;
        let point = own.compute_public_key().ok()?.as_ref().to_vec();
        let peer = UnparsedPublicKey::new(algorithm, peer);
        let shared = agree_ephemeral(own, &peer, |shared| Zeroizing::new(shared.to_vec())).ok()?;
        Some(Agreement { point, shared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The curve's base point G (SEC 2, 2.4.2 and 2.5.1).
    fn base(curve: Curve) -> Vec<u8> {
        let (x, y) = match curve {
            Curve::P256 => (
                "6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296",
                "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5",
            ),
            Curve::P384 => (
                "aa87ca22be8b05378eb1c71ef320ad746e1d3b628ba79b9859f741e082542a385502f25dbf55296c3a545e3872760ab7",
                "3617de4a96262c6f5d9e98bf9292dc29f8f41dbd289a147ce9da3113b5f0b8c00a60b1ce1d7e819d7a431d7c90ea0e5f",
            ),
        };
        [vec![4], hex::decode(x).unwrap(), hex::decode(y).unwrap()].concat()
    }

    /// A new key d and G share x(d·G), and d·G is the public point of d: so each implementation can
    /// be checked alone.
    #[test]
    fn agreement_with_the_base_point_gives_the_public_point() {
        for curve in [Curve::P256, Curve::P384] {
            let x = 1..=curve.size();
            let fast = SystemEntropy.agree(curve, &base(curve)).unwrap();
            let pure = OsRng.agree(curve, &base(curve)).unwrap();
            for made in [&fast, &pure] {
                assert_eq!(made.point.len(), 1 + 2 * curve.size());
                assert_eq!(made.point[x.clone()], made.shared[..]);
            }
            assert_ne!(
                fast.point,
                SystemEntropy.agree(curve, &base(curve)).unwrap().point,
                "a key serves once"
            );
        }
    }

    #[test]
    fn both_refuse_a_point_off_the_curve() {
        for curve in [Curve::P256, Curve::P384] {
            let mut off = base(curve);
            let last = off.len() - 1;
            off[last] ^= 1;
            let short = &base(curve)[..last];
            let infinity = [0_u8];
            for peer in [&off[..], short, &infinity, &[]] {
                assert!(SystemEntropy.agree(curve, peer).is_none());
                assert!(OsRng.agree(curve, peer).is_none());
            }
        }
    }
}
