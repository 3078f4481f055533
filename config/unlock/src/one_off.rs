//! The one-off key: with the admin's signature it opens a master's state once, on one board other
//! than the one that made it.
//!
//! It lies in front of the encrypted state, where anyone with the disk can read and write, and is
//! used before the machine trusts any of its own data. So it is a few bounded fields and no file,
//! and only one boot of one board can use it:
//!
//! - a secret is wrapped to the board's endorsement key ([`duplicate_secret`]), and the board's TPM
//!   unseals it by the state's own policy alone: in a boot that the release key approved, before
//!   the state was opened, and under the Secure Boot settings that the admin expects of the board
//!   ([`crate::approvals`]);
//! - the secret encrypts the content: the state's recovery key and the master's keys;
//! - the admin's key signs all of it. The machine learns only later, from its measured
//!   configuration, which admin key it has to trust: the volume's header names the key from then
//!   on, and the master refuses to serve for any other.
//!
//! It is valid for one generation of the volume's header, and opening the state makes the next: it
//! works once.
//!
//! Layout, numbers big-endian, parts with a length of 16 bits before them: 16 bytes magic and
//! version, u64 generation, u64 floor, 32 bytes hash of the endorsement key, the admin's
//! SubjectPublicKeyInfo, TPMT_PUBLIC, private part and seed of the secret, the content, the
//! signature (r and s, 64 bytes, over all before it). Zeros may follow.

use crate::approvals::{Approver, Use, state_key_policy};
use config_tpm::Digest;
use config_tpm::buffer::{Reader, put_sized};
use config_tpm::{Duplicate, Entropy, MAX_PRIVATE, MAX_SEED, Public, TpmError, duplicate_secret};
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{Signature, SigningKey, VerifyingKey};
use p256::pkcs8::{DecodePublicKey as _, EncodePublicKey as _};
use ring::aead;
use zeroize::Zeroizing;

/// Most bytes of the content, before and after encryption.
pub const MAX_CONTENT: usize = 16 << 10;

const MAGIC: &[u8; 16] = b"PRATIQUE ONEOFF\x01";
/// Most bytes of a SubjectPublicKeyInfo of P-256, which has 91.
const MAX_ADMIN: usize = 128;
/// Most bytes of a TPMT_PUBLIC of sealed data.
const MAX_PUBLIC: usize = 128;
const SIGNATURE: usize = 64;

/// Why there is no one-off key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OneOffError {
    /// Nothing was written there.
    #[error("there is no one-off key")]
    Absent,
    /// A length, a field or the signature is wrong.
    #[error("the one-off key is damaged")]
    Damaged,
    /// Its parts are too long or not usable.
    #[error("the one-off key can't be made: {0}")]
    Make(&'static str),
}

impl From<TpmError> for OneOffError {
    fn from(_: TpmError) -> Self {
        Self::Damaged
    }
}

/// The volume, images and board that a one-off key is for.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// The header's generation.
    pub generation: u64,
    /// The release key of the images that may use it.
    pub approver: &'a Approver,
    /// Their lowest SVN.
    pub floor: u64,
    /// The board's endorsement key.
    pub ek: &'a Public,
    /// The board's Secure Boot settings (the value of [`crate::approvals::SECURE_BOOT_PCR`]);
    /// `None`: any.
    pub secure_boot: Option<Digest>,
}

/// The authPolicy of the secret. Without the settings, anyone who has the board could switch Secure
/// Boot off before the master's first start, and load a driver that reads what the genuine image
/// unseals.
pub fn secret_policy(approver: &Approver, floor: u64, secure_boot: Option<Digest>) -> Digest {
    secure_boot.map_or_else(
        || Use::State.auth_policy(approver, floor),
        |settings| state_key_policy(approver, floor, settings),
    )
}

/// A parsed one-off key. Holding one proves that the key [`OneOff::admin`] signed it, not that
/// this key is an admin's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OneOff {
    /// The generation of the header that it is for.
    pub generation: u64,
    /// The lowest SVN of images that may use it.
    pub floor: u64,
    /// SHA-256 of the SubjectPublicKeyInfo of the endorsement key of the board that it is for.
    pub ek: Digest,
    /// SHA-256 of the SubjectPublicKeyInfo of the admin's key.
    pub admin: Digest,
    /// The secret, for the board's TPM.
    pub secret: Duplicate,
    head: Vec<u8>,
    content: Vec<u8>,
}

/// Makes a one-off key that carries `content`.
///
/// # Errors
/// [`OneOffError::Make`] where the content is too long, or the endorsement key's numbers are no
/// key.
pub fn make(
    terms: Terms<'_>,
    content: &[u8],
    admin: &SigningKey,
    rng: &mut impl Entropy,
) -> Result<Vec<u8>, OneOffError> {
    let fault = OneOffError::Make;
    if content.len() + aead::AES_256_GCM.tag_len() > MAX_CONTENT {
        return Err(fault("its content is too long"));
    }
    let mut key = Zeroizing::new([0; 32]);
    rng.fill_bytes(key.as_mut_slice());
    let policy = secret_policy(terms.approver, terms.floor, terms.secure_boot);
    let secret = duplicate_secret(terms.ek, &key, &policy, rng)
        .map_err(|_no_key| fault("the endorsement key is none"))?;
    let spki = admin
        .verifying_key()
        .to_public_key_der()
        .map_err(|_opaque| fault("the admin's key can't be encoded"))?;
    let ek = terms
        .ek
        .spki()
        .map_err(|_no_key| fault("the endorsement key is none"))?;
    let mut out = MAGIC.to_vec();
    out.extend(terms.generation.to_be_bytes());
    out.extend(terms.floor.to_be_bytes());
    out.extend(Digest::of(&ek).as_bytes());
    for part in [
        spki.as_bytes(),
        &secret.public,
        &secret.private,
        &secret.seed,
    ] {
        put_sized(&mut out, part);
    }
    let mut text = Zeroizing::new(Vec::with_capacity(content.len() + 16));
    text.extend_from_slice(content);
    cipher(key.as_slice())
        .and_then(|cipher| {
            let sealed =
                cipher.seal_in_place_append_tag(nonce(), aead::Aad::from(&out), &mut *text);
            sealed.ok()
        })
        .ok_or(fault("its content can't be encrypted"))?;
    put_sized(&mut out, &text);
    let signature: Signature = admin.sign(&out);
    put_sized(&mut out, &signature.to_bytes());
    Ok(out)
}

impl OneOff {
    /// Reads what [`make`] wrote, with zeros after it. Total over all bytes.
    ///
    /// # Errors
    /// [`OneOffError::Absent`] where something else is there, [`OneOffError::Damaged`] where a byte
    /// of it was changed.
    pub fn parse(bytes: &[u8]) -> Result<Self, OneOffError> {
        if !bytes.starts_with(MAGIC) {
            return Err(OneOffError::Absent);
        }
        let mut reader = Reader::new(bytes, "one-off key");
        reader.take(MAGIC.len())?;
        let (generation, floor) = (reader.u64()?, reader.u64()?);
        let ek = Digest::from_slice(reader.take(32)?).ok_or(OneOffError::Damaged)?;
        let admin = reader.sized(MAX_ADMIN)?;
        let secret = Duplicate {
            public: reader.sized(MAX_PUBLIC)?.to_vec(),
            private: reader.sized(MAX_PRIVATE)?.to_vec(),
            seed: reader.sized(MAX_SEED)?.to_vec(),
        };
        // `rest` shrinks as fields are read, so the signed part is what is no longer in it.
        let read = |left: usize| bytes.get(..bytes.len() - left).unwrap_or_default();
        let head = read(reader.left()).to_vec();
        let content = reader.sized(MAX_CONTENT)?.to_vec();
        let signed = read(reader.left());
        let signature = reader.sized(SIGNATURE)?;
        if reader.rest().iter().any(|byte| *byte != 0) {
            return Err(OneOffError::Damaged);
        }
        let damaged = |_: p256::ecdsa::Error| OneOffError::Damaged;
        let key =
            VerifyingKey::from_public_key_der(admin).map_err(|_no_key| OneOffError::Damaged)?;
        let signature = Signature::from_slice(signature).map_err(damaged)?;
        key.verify(signed, &signature).map_err(damaged)?;
        Ok(Self {
            generation,
            floor,
            ek,
            admin: Digest::of(admin),
            secret,
            head,
            content,
        })
    }

    /// Whether the secret is for images of this release key, at the floor that it names, and for
    /// these Secure Boot settings or any.
    pub fn is_for(&self, approver: &Approver, secure_boot: Digest) -> bool {
        [Some(secure_boot), None].into_iter().any(|settings| {
            let policy = secret_policy(approver, self.floor, settings);
            self.secret.check_secret(&policy).is_ok()
        })
    }

    /// The content, by the secret that the TPM unsealed; `None` if that is the wrong one.
    pub fn open(&self, secret: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let mut text = Zeroizing::new(self.content.clone());
        let plain = cipher(secret)?
            .open_in_place(nonce(), aead::Aad::from(&self.head), &mut text)
            .ok()?;
        Some(Zeroizing::new(plain.to_vec()))
    }
}

/// Constant: each secret is random and encrypts one content, so that no nonce repeats under a key.
fn nonce() -> aead::Nonce {
    aead::Nonce::assume_unique_for_key([0; aead::NONCE_LEN])
}

fn cipher(key: &[u8]) -> Option<aead::LessSafeKey> {
    aead::UnboundKey::new(&aead::AES_256_GCM, key)
        .ok()
        .map(aead::LessSafeKey::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::approvals::Role;
    use config_tpm::template;
    use proptest::prelude::*;
    use rand_core::OsRng;
    use std::sync::LazyLock;

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_slice(&[seed; 32]).expect("a key")
    }

    fn ek() -> Public {
        let spki = p256::SecretKey::from_slice(&[9; 32])
            .expect("a key")
            .public_key()
            .to_public_key_der()
            .expect("DER");
        template::ek_of_spki(spki.as_bytes()).expect("an EK")
    }

    fn made() -> Vec<u8> {
        made_for(None)
    }

    fn made_for(secure_boot: Option<Digest>) -> Vec<u8> {
        let approver = Approver::new(*key(1).verifying_key(), Role::Master);
        let terms = Terms {
            generation: 7,
            approver: &approver,
            floor: 3,
            ek: &ek(),
            secure_boot,
        };
        make(terms, b"the keys", &key(2), &mut OsRng).expect("made")
    }

    static GOOD: LazyLock<Vec<u8>> = LazyLock::new(made);

    #[test]
    fn a_one_off_key_is_read_with_zeros_after_it() {
        let spki = key(2).verifying_key().to_public_key_der().expect("DER");
        let mut bytes = GOOD.clone();
        for _ in 0..2 {
            let read = OneOff::parse(&bytes).expect("one");
            assert_eq!((read.generation, read.floor), (7, 3));
            assert_eq!(read.ek, Digest::of(&ek().spki().expect("DER")));
            assert_eq!(read.admin, Digest::of(spki.as_bytes()));
            let is_for = |of: u8, role| {
                let approver = Approver::new(*key(of).verifying_key(), role);
                read.is_for(&approver, Digest([5; 32]))
            };
            assert!(is_for(1, Role::Master));
            assert!(!is_for(2, Role::Master));
            assert!(!is_for(1, Role::Worker));
            assert_eq!(read.open(&[7; 32]), None, "another secret");
            bytes.resize(64 << 10, 0);
        }
        assert!(!GOOD.windows(8).any(|window| window == b"the keys"));
        assert_ne!(made(), *GOOD, "never twice the same");
    }

    #[test]
    fn a_one_off_key_is_for_the_secure_boot_settings_that_the_admin_expects() {
        let read = OneOff::parse(&made_for(Some(Digest([5; 32])))).expect("one");
        let approver = Approver::new(*key(1).verifying_key(), Role::Master);
        assert!(read.is_for(&approver, Digest([5; 32])));
        assert!(!read.is_for(&approver, Digest([6; 32])));
    }

    #[test]
    fn no_byte_of_a_one_off_key_can_be_changed_or_missing() {
        for at in 0..GOOD.len() {
            let mut bad = GOOD.clone();
            bad[at] ^= 1;
            assert!(OneOff::parse(&bad).is_err(), "byte {at}");
            assert!(OneOff::parse(&GOOD[..at]).is_err(), "{at} bytes");
        }
        let followed = [&GOOD[..], &[0, 1]].concat();
        assert_eq!(OneOff::parse(&followed), Err(OneOffError::Damaged));
        assert_eq!(OneOff::parse(&[0; 4096]), Err(OneOffError::Absent));
    }

    #[test]
    fn a_content_that_does_not_fit_is_refused() {
        let approver = Approver::new(*key(1).verifying_key(), Role::Master);
        let terms = Terms {
            generation: 1,
            approver: &approver,
            floor: 1,
            ek: &ek(),
            secure_boot: None,
        };
        let make = |length: usize| make(terms, &vec![1; length], &key(2), &mut OsRng);
        let longest = MAX_CONTENT - 16;
        OneOff::parse(&make(longest).expect("made")).expect("read");
        assert!(matches!(make(longest + 1), Err(OneOffError::Make(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600), ours in any::<bool>()) {
            let bytes = if ours { [&MAGIC[..], &bytes].concat() } else { bytes };
            prop_assert!(OneOff::parse(&bytes).is_err());
        }
    }
}
