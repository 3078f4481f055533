//! TPM2_MakeCredential in software (TPM 2.0 part 1, 24, and annexes B.10.4 and C.6.4), and the
//! seeds and the wrapping that duplication has in common with it.

use super::buffer::put_sized;
use super::{Agreement, Curve, Entropy, HashAlg, Key, Name, Public, Symmetric, TpmError};
use hmac::Mac as _;
use rand_core::CryptoRngCore;
use zeroize::Zeroizing;

/// What TPM2_ActivateCredential takes, without the sizes before its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialBlob {
    /// TPMS_ID_OBJECT: the integrity of the encrypted secret, and the encrypted secret.
    pub id_object: Vec<u8>,
    /// TPMU_ENCRYPTED_SECRET: the seed of both, encrypted to the endorsement key.
    pub encrypted_secret: Vec<u8>,
}

/// Wraps `secret` so that only the TPM that holds both `ek` and the key with `name` can open it.
///
/// Assumes that `ek` is a storage key of its template.
///
/// # Errors
/// [`TpmError::Key`] where its numbers are no key; [`TpmError::Unsupported`] for a name algorithm
/// that no template has.
pub fn make_credential(
    ek: &Public,
    name: &Name,
    secret: &[u8; 32],
    rng: &mut impl Entropy,
) -> Result<CredentialBlob, TpmError> {
    let (seed, encrypted_secret) = seed_for(ek, Seeded::Credential, rng)?;
    let id_object = wrap(ek.name_alg, ek.key.symmetric(), &seed, name, secret)?;
    Ok(CredentialBlob {
        id_object,
        encrypted_secret,
    })
}

/// A seed, and the same encrypted.
type Seed = (Zeroizing<Vec<u8>>, Vec<u8>);

/// What a seed is for, which is its label.
#[derive(Debug, Clone, Copy)]
pub(super) enum Seeded {
    Credential,
    Duplicate,
}

impl Seeded {
    /// The label with the zero that ends it.
    fn label(self) -> &'static str {
        match self {
            Self::Credential => "IDENTITY\0",
            Self::Duplicate => "DUPLICATE\0",
        }
    }
}

/// Makes a seed and encrypts it to a storage key.
pub(super) fn seed_for(
    ek: &Public,
    what: Seeded,
    rng: &mut impl Entropy,
) -> Result<Seed, TpmError> {
    match &ek.key {
        Key::Rsa { .. } => rsa_seed(ek, what, rng),
        Key::Ecc { curve, .. } => ecc_seed(ek, *curve, what, rng),
    }
}

fn rsa_seed(ek: &Public, what: Seeded, rng: &mut impl CryptoRngCore) -> Result<Seed, TpmError> {
    let mut seed = Zeroizing::new(vec![0; ek.name_alg.size()]);
    rng.fill_bytes(&mut seed);
    let padding = match ek.name_alg {
        HashAlg::Sha256 => rsa::Oaep::new_with_label::<sha2::Sha256, _>(what.label()),
        HashAlg::Sha384 => rsa::Oaep::new_with_label::<sha2::Sha384, _>(what.label()),
        HashAlg::Sha1 | HashAlg::Sha512 => {
            return Err(TpmError::Unsupported("EK name algorithm", ek.name_alg.id()));
        }
    };
    let ciphertext = ek
        .rsa()?
        .encrypt(rng, padding, &seed)
        .map_err(|_unencryptable| TpmError::Key)?;
    Ok((seed, ciphertext))
}

/// The seed exchange on a curve: ephemeral ECDH, then KDFe.
fn ecc_seed(
    ek: &Public,
    curve: Curve,
    what: Seeded,
    rng: &mut impl Entropy,
) -> Result<Seed, TpmError> {
    let own = ek.sec1(curve)?;
    let Agreement { point, shared } = rng.agree(curve, &own).ok_or(TpmError::Key)?;
    let size = curve.size();
    let (Some(x), Some(y), Some(own_x)) = (
        point.get(1..=size),
        point.get(size + 1..),
        own.get(1..=size),
    ) else {
        return Err(TpmError::Key);
    };
    let seed = kdfe(
        ek.name_alg,
        &shared,
        what.label().trim_end_matches('\0'),
        x,
        own_x,
    );
    let mut encrypted = Vec::new();
    put_sized(&mut encrypted, x);
    put_sized(&mut encrypted, y);
    Ok((seed, encrypted))
}

/// Encrypts and authenticates `content` for the object with `name`: TPMS_ID_OBJECT of a credential
/// (part 2, 12.4.2), the outer wrapper of a duplicate (part 1, 23.3.2.3).
pub(super) fn wrap(
    hash: HashAlg,
    symmetric: Symmetric,
    seed: &[u8],
    name: &Name,
    content: &[u8],
) -> Result<Vec<u8>, TpmError> {
    let mut identity = Zeroizing::new(Vec::new());
    put_sized(&mut identity, content);
    let key = kdfa(
        hash,
        seed,
        "STORAGE",
        name.as_bytes(),
        &[],
        symmetric.key_size(),
    );
    cfb_encrypt(symmetric, &key, &mut identity)?;
    let mac_key = kdfa(hash, seed, "INTEGRITY", &[], &[], hash.size());
    let mac = hmac(hash, &mac_key, &[&identity, name.as_bytes()]);
    let mut out = Vec::new();
    put_sized(&mut out, &mac);
    out.extend_from_slice(&identity);
    Ok(out)
}

fn cfb_encrypt(symmetric: Symmetric, key: &[u8], data: &mut [u8]) -> Result<(), TpmError> {
    use cfb_mode::cipher::{AsyncStreamCipher as _, KeyIvInit as _};
    let iv = [0; 16];
    match symmetric {
        Symmetric::Aes128Cfb => cfb_mode::Encryptor::<aes::Aes128>::new_from_slices(key, &iv)
            .map_err(|_wrong_length| TpmError::Key)?
            .encrypt(data),
        Symmetric::Aes256Cfb => cfb_mode::Encryptor::<aes::Aes256>::new_from_slices(key, &iv)
            .map_err(|_wrong_length| TpmError::Key)?
            .encrypt(data),
        Symmetric::Null => return Err(TpmError::Unsupported("symmetric algorithm", 0x0010)),
    }
    Ok(())
}

/// HMAC with any of the hashes.
pub fn hmac(hash: HashAlg, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    macro_rules! run {
        ($digest:ty) => {{
            // HMAC accepts keys of any length; the unreachable error arm yields an empty tag, which
            // no comparison accepts.
            let Ok(mut mac) = hmac::Hmac::<$digest>::new_from_slice(key) else {
                return Vec::new();
            };
            for part in parts {
                mac.update(part);
            }
            mac.finalize().into_bytes().to_vec()
        }};
    }
    match hash {
        HashAlg::Sha1 => run!(sha1::Sha1),
        HashAlg::Sha256 => run!(sha2::Sha256),
        HashAlg::Sha384 => run!(sha2::Sha384),
        HashAlg::Sha512 => run!(sha2::Sha512),
    }
}

/// KDFa (part 1, 11.4.10.2): `size` bytes from a key, a label and two contexts.
pub fn kdfa(
    hash: HashAlg,
    key: &[u8],
    label: &str,
    u: &[u8],
    v: &[u8],
    size: usize,
) -> Zeroizing<Vec<u8>> {
    let bits = u32::try_from(size * 8).unwrap_or(u32::MAX).to_be_bytes();
    let mut out = Zeroizing::new(Vec::new());
    let mut counter = 0_u32;
    while out.len() < size {
        counter += 1;
        let block = hmac(
            hash,
            key,
            &[&counter.to_be_bytes(), label.as_bytes(), &[0], u, v, &bits],
        );
        if block.is_empty() {
            break;
        }
        out.extend_from_slice(&block);
    }
    out.truncate(size);
    out
}

/// KDFe (part 1, 11.4.10.3): one digest from a shared point's x and both parties' x, each padded to
/// the curve's size.
pub fn kdfe(hash: HashAlg, z: &[u8], label: &str, u: &[u8], v: &[u8]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(hash.digest(&[&1_u32.to_be_bytes(), z, label.as_bytes(), &[0], u, v]))
}
