//! TPM2_Duplicate in software: a private key wrapped so that one TPM alone can import it (TPM 2.0 part 1, 23.3).
//!
//! Outer wrapper only: the seed goes to the endorsement key, and the sensitive area is encrypted and authenticated by
//! keys derived from it, over the Name of the key. No inner wrapper (its key would have to travel beside it).

use super::buffer::{Reader, put_sized};
use super::credential::{Seeded, seed_for, wrap};
use super::public::ALG_ECC;
use super::{Entropy, Key, Public, TpmError, template};
use p256::elliptic_curve::sec1::ToEncodedPoint as _;
use zeroize::Zeroizing;

/// Most bytes of a wrapped P-256 key: a digest, a scalar and their sizes.
pub const MAX_PRIVATE: usize = 256;
/// Most bytes of an encrypted seed: an RSA-2048 ciphertext, or a point of P-384.
pub const MAX_SEED: usize = 256;

/// A private key as TPM2_Import takes it. It says nothing to anybody but the TPM for which it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// TPMT_PUBLIC of the key.
    pub public: Vec<u8>,
    /// The contents of TPM2B_PRIVATE: integrity and encrypted sensitive area.
    pub private: Vec<u8>,
    /// The contents of TPM2B_ENCRYPTED_SECRET.
    pub seed: Vec<u8>,
}

/// Wraps a P-256 signing key to the TPM of `ek`.
///
/// Assumes that `ek` is an endorsement key of its template; errors when its numbers are no key.
pub fn duplicate(
    ek: &Public,
    key: &p256::SecretKey,
    rng: &mut impl Entropy,
) -> Result<Duplicate, TpmError> {
    let point = key.public_key().to_encoded_point(false);
    let (Some(x), Some(y)) = (point.x(), point.y()) else {
        return Err(TpmError::Key);
    };
    let public = template::issued_key(x.to_vec(), y.to_vec());
    let (seed, encrypted) = seed_for(ek, Seeded::Duplicate, rng)?;
    let sensitive = sensitive(&Zeroizing::new(key.to_bytes().to_vec()));
    let symmetric = match &ek.key {
        Key::Rsa { symmetric, .. } | Key::Ecc { symmetric, .. } => *symmetric,
    };
    let private = wrap(ek.name_alg, symmetric, &seed, &public.name(), &sensitive)?;
    Ok(Duplicate {
        public: public.to_bytes(),
        private,
        seed: encrypted,
    })
}

/// TPMT_SENSITIVE of an ECC key without an auth value (part 2, 12.3.2.4).
fn sensitive(scalar: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::with_capacity(64));
    out.extend_from_slice(&ALG_ECC.to_be_bytes());
    put_sized(&mut out, &[]);
    put_sized(&mut out, &[]);
    put_sized(&mut out, scalar);
    out
}

impl Duplicate {
    /// Checks what came in a document: a public area of exactly the issued key's template, and the other parts within
    /// their limits. Says nothing of whether this TPM, or any, can open it.
    pub fn check(&self) -> Result<Public, TpmError> {
        let public = Public::parse(&self.public)?;
        let template = template::issued_key(Vec::new(), Vec::new());
        if !template::matches(&public, &template) {
            return Err(TpmError::Malformed(
                "key: not of the template of issued keys",
            ));
        }
        public.p256()?;
        if self.seed.is_empty() || self.seed.len() > MAX_SEED || self.private.len() > MAX_PRIVATE {
            return Err(TpmError::Malformed("wrapped key"));
        }
        let mut reader = Reader::new(&self.private, "wrapped key");
        reader.sized(64)?;
        Ok(public)
    }
}

#[cfg(test)]
mod tests {
    use super::{Duplicate, duplicate, sensitive};
    use crate::tpm::{Public, template};
    use p256::pkcs8::EncodePublicKey as _;
    use proptest::prelude::*;
    use rand_core::OsRng;

    /// Endorsement keys of every kind, as an admin's files give them.
    fn eks() -> Vec<Public> {
        let rsa = rsa::RsaPrivateKey::new(&mut OsRng, 2048)
            .expect("a key")
            .to_public_key();
        let p256 = p256::SecretKey::random(&mut OsRng).public_key();
        let p384 = p384::SecretKey::random(&mut OsRng).public_key();
        let spkis = [
            rsa.to_public_key_der(),
            p256.to_public_key_der(),
            p384.to_public_key_der(),
        ];
        spkis
            .map(|spki| template::ek_of_spki(spki.expect("DER").as_bytes()).expect("an EK"))
            .to_vec()
    }

    #[test]
    fn an_ek_is_rebuilt_from_its_public_key() {
        for ek in eks() {
            assert!(template::is_ek(&ek));
            assert_eq!(
                template::ek_of_spki(&ek.spki().expect("DER")).expect("an EK"),
                ek
            );
        }
        let other = rsa::RsaPrivateKey::new(&mut OsRng, 1024)
            .expect("a key")
            .to_public_key();
        assert!(template::ek_of_spki(other.to_public_key_der().expect("DER").as_bytes()).is_none());
        assert!(template::ek_of_spki(b"nothing").is_none());
    }

    #[test]
    fn what_is_wrapped_is_of_the_template_and_never_twice_the_same() {
        let key = p256::SecretKey::random(&mut OsRng);
        for ek in eks() {
            let (one, two) = (
                duplicate(&ek, &key, &mut OsRng),
                duplicate(&ek, &key, &mut OsRng),
            );
            let (one, two) = (one.expect("wrapped"), two.expect("wrapped"));
            let public = one.check().expect("of the template");
            assert_eq!(public.p256().expect("a key"), key.public_key());
            assert_eq!(one.public, two.public);
            assert!(one.private != two.private && one.seed != two.seed);
            let scalar = key.to_bytes().to_vec();
            assert!(
                !one.private
                    .windows(scalar.len())
                    .any(|window| window == scalar),
                "the key is in the clear"
            );
        }
    }

    #[test]
    fn a_key_of_another_form_is_refused() {
        let key = p256::SecretKey::random(&mut OsRng);
        let good = duplicate(&eks()[1], &key, &mut OsRng).expect("wrapped");
        good.check().expect("the negative control");
        let mut fixed = Public::parse(&good.public).expect("a key");
        fixed.attributes = template::NK_ATTRIBUTES;
        assert!(
            Duplicate {
                public: fixed.to_bytes(),
                ..good.clone()
            }
            .check()
            .is_err()
        );
        assert!(
            Duplicate {
                seed: vec![],
                ..good.clone()
            }
            .check()
            .is_err()
        );
        assert!(
            Duplicate {
                seed: vec![0; 257],
                ..good.clone()
            }
            .check()
            .is_err()
        );
        assert!(
            Duplicate {
                private: vec![0; 257],
                ..good
            }
            .check()
            .is_err()
        );
    }

    /// TPMT_SENSITIVE, byte for byte: type, no auth value, no seed value, the scalar.
    #[test]
    fn the_sensitive_area_is_as_the_specification_has_it() {
        let expected = [&[0, 0x23, 0, 0, 0, 0, 0, 32][..], &[7; 32]].concat();
        assert_eq!(*sensitive(&[7; 32]), expected);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(public in prop::collection::vec(any::<u8>(), 0..120), rest in prop::collection::vec(any::<u8>(), 0..80)) {
            let hostile = Duplicate { public, private: rest.clone(), seed: rest };
            prop_assert!(hostile.check().is_err());
        }
    }
}
