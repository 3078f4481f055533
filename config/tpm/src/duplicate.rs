//! TPM2_Duplicate in software: a private key wrapped so that one TPM alone can import it (TPM 2.0
//! part 1, 23.3).
//!
//! Outer wrapper only: the seed goes to the endorsement key, and the sensitive area is encrypted
//! and authenticated by keys derived from it, over the Name of the key. No inner wrapper (its key
//! would have to travel beside it).

use super::buffer::{Reader, put_sized};
use super::credential::{Seeded, seed_for, wrap};
use super::public::ALG_ECC;
use super::{Attributes, Entropy, HashAlg, Name, Public, TpmError, template};
use crate::Digest;
use p256::elliptic_curve::sec1::ToEncodedPoint as _;
use zeroize::Zeroizing;

/// Most bytes of a wrapped P-256 key: a digest, a scalar and their sizes.
pub const MAX_PRIVATE: usize = 256;
/// Most bytes of an encrypted seed: an RSA-2048 ciphertext, or a point of P-384.
pub const MAX_SEED: usize = 256;

/// A private key as TPM2_Import takes it. Only the TPM for which it was made can open it.
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
/// Assumes that `ek` is an endorsement key of its template.
///
/// # Errors
/// [`TpmError::Key`] where its numbers are no key.
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
    let sensitive = sensitive(ALG_ECC, &[], &Zeroizing::new(key.to_bytes().to_vec()));
    wrapped(ek, public.to_bytes(), &public.name(), &sensitive, rng)
}

fn wrapped(
    ek: &Public,
    public: Vec<u8>,
    name: &Name,
    sensitive: &[u8],
    rng: &mut impl Entropy,
) -> Result<Duplicate, TpmError> {
    let (seed, encrypted) = seed_for(ek, Seeded::Duplicate, rng)?;
    let private = wrap(ek.name_alg, ek.key.symmetric(), &seed, name, sensitive)?;
    Ok(Duplicate {
        public,
        private,
        seed: encrypted,
    })
}

/// TPM_ALG_KEYEDHASH.
const ALG_KEYED_HASH: u16 = 0x0008;
/// TPM_ALG_NULL.
const ALG_NULL: u16 = 0x0010;
/// Bytes of the obfuscation value of an object with name algorithm SHA-256.
const SEED_VALUE: usize = 32;

/// Wraps 32 bytes to the TPM of `ek` as a sealed data object that can be unsealed only by `policy`:
/// it has no usable auth value, and no policy by which it could leave the TPM again.
///
/// Assumes that `ek` is an endorsement key of its template.
///
/// # Errors
/// [`TpmError::Key`] where its numbers are no key.
pub fn duplicate_secret(
    ek: &Public,
    secret: &[u8; 32],
    policy: &Digest,
    rng: &mut impl Entropy,
) -> Result<Duplicate, TpmError> {
    let mut obfuscation = Zeroizing::new([0; SEED_VALUE]);
    rng.fill_bytes(obfuscation.as_mut_slice());
    let unique = HashAlg::Sha256.digest(&[obfuscation.as_slice(), secret]);
    let public = sealed_area(policy, &unique);
    let sensitive = sensitive(ALG_KEYED_HASH, obfuscation.as_slice(), secret);
    let name = Name::of_area(&public);
    wrapped(ek, public, &name, &sensitive, rng)
}

/// TPMT_PUBLIC of a sealed data object (part 2, 12.2.4): a keyed hash without a scheme.
fn sealed_area(policy: &Digest, unique: &[u8]) -> Vec<u8> {
    let attributes = Attributes::ADMIN_WITH_POLICY.with(Attributes::NO_DA);
    let mut out = ALG_KEYED_HASH.to_be_bytes().to_vec();
    out.extend_from_slice(&HashAlg::Sha256.id().to_be_bytes());
    out.extend_from_slice(&attributes.0.to_be_bytes());
    put_sized(&mut out, policy.as_bytes());
    out.extend_from_slice(&ALG_NULL.to_be_bytes());
    put_sized(&mut out, unique);
    out
}

/// TPMT_SENSITIVE without an auth value (part 2, 12.3.2.4): an ECC key has its scalar and no
/// obfuscation value, sealed data has both.
fn sensitive(kind: u16, obfuscation: &[u8], content: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::with_capacity(96));
    out.extend_from_slice(&kind.to_be_bytes());
    put_sized(&mut out, &[]);
    put_sized(&mut out, obfuscation);
    put_sized(&mut out, content);
    out
}

impl Duplicate {
    /// Checks a wrapped key from a document: its public area must match the issued key's template
    /// exactly, and the other parts must be within their limits. Does not check that this TPM, or
    /// any, can open it.
    ///
    /// # Errors
    /// The public area is not of the template, its numbers are no P-256 key, or another part is
    /// longer than its limit.
    pub fn check(&self) -> Result<Public, TpmError> {
        let public = Public::parse(&self.public)?;
        let template = template::issued_key(Vec::new(), Vec::new());
        if !template::matches(&public, &template) {
            return Err(TpmError::Malformed(
                "key: not of the template of issued keys",
            ));
        }
        public.p256()?;
        self.check_parts().map(|()| public)
    }

    /// Checks a secret wrapped by [`duplicate_secret`]: its public area must have exactly that form
    /// and policy, and the other parts must be within their limits. Does not check that this TPM,
    /// or any, can open it.
    ///
    /// # Errors
    /// The public area is of another form or policy, or another part is longer than its limit.
    pub fn check_secret(&self, policy: &Digest) -> Result<(), TpmError> {
        let unique = self.public.len().saturating_sub(SEED_VALUE);
        let unique = self.public.get(unique..).unwrap_or_default();
        if self.public != sealed_area(policy, unique) {
            return Err(TpmError::Malformed("wrapped secret"));
        }
        self.check_parts()
    }

    fn check_parts(&self) -> Result<(), TpmError> {
        if self.seed.is_empty() || self.seed.len() > MAX_SEED || self.private.len() > MAX_PRIVATE {
            return Err(TpmError::Malformed("wrapped key"));
        }
        let mut reader = Reader::new(&self.private, "wrapped key");
        reader.sized(64).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::{ALG_ECC, Duplicate, duplicate, duplicate_secret, sensitive};
    use crate::Digest;
    use crate::{Public, template};
    use p256::pkcs8::EncodePublicKey as _;
    use proptest::prelude::*;
    use rand_core::OsRng;

    /// An endorsement key of each supported type, from the files that tools write.
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
    fn a_wrapped_key_matches_the_template_and_is_never_twice_the_same() {
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
        assert_eq!(*sensitive(ALG_ECC, &[], &[7; 32]), expected);
    }

    #[test]
    fn a_wrapped_secret_has_its_policy_and_is_never_twice_the_same() {
        let (policy, other) = (Digest::of(b"policy"), Digest::of(b"another"));
        for ek in eks() {
            let [one, two] = [(); 2]
                .map(|()| duplicate_secret(&ek, &[7; 32], &policy, &mut OsRng).expect("wrapped"));
            one.check_secret(&policy).expect("the negative control");
            assert!(one.check_secret(&other).is_err() && one.check().is_err());
            assert!(one.public != two.public && one.private != two.private);
            assert!(
                ![&one.public, &one.private, &one.seed]
                    .iter()
                    .any(|part| part.windows(8).any(|window| window == [7; 8])),
                "the secret is in the clear"
            );
            let mut longer = one;
            longer.public.push(0);
            assert!(longer.check_secret(&policy).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(public in prop::collection::vec(any::<u8>(), 0..120), rest in prop::collection::vec(any::<u8>(), 0..80)) {
            let hostile = Duplicate { public, private: rest.clone(), seed: rest };
            prop_assert!(hostile.check().is_err() && hostile.check_secret(&Digest::ZERO).is_err());
        }
    }
}
