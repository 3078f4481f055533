//! The recovery copy: secrets encrypted to the admin's public key, so that a dead board does not
//! end a cluster.
//!
//! ECIES: an ephemeral P-256 key agrees with the admin's, HKDF-SHA-256 (salt: both public points)
//! gives an AES-256-GCM key that is used once, with a zero nonce. The recipient's hash is bound as
//! associated data.
//!
//! Anyone who knows the admin's public key can make such a file. A root's private key in it proves
//! that it is the cluster's ([`Recovered::root_pins`]), and then the rest of the file too, because
//! it has one author.

use crate::error::{Error, Result};
use crate::names::spki_hash;
use crate::names::{certificates_of_pem, pem, spki_of};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use p256::elliptic_curve::sec1::ToEncodedPoint as _;
use p256::pkcs8::{DecodePrivateKey as _, DecodePublicKey as _, EncodePublicKey as _};
use ring::{aead, hkdf};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Context of the key derivation; a new format takes a new one.
const INFO: &[u8] = b"pratique recovery/v1";

/// The file's content.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Envelope {
    version: u32,
    recipient: String,
    ephemeral: String,
    ciphertext: String,
}

/// Encrypts `secret` to the holder of the key with this SubjectPublicKeyInfo (P-256) and returns
/// the file's JSON.
///
/// # Errors
/// [`Error::Key`] where the recipient's key is no P-256 key; [`Error::Recovery`] where the
/// encryption fails.
pub fn encrypt(recipient_spki: &[u8], secret: &[u8]) -> Result<String> {
    let recipient = p256::PublicKey::from_public_key_der(recipient_spki)
        .map_err(|_opaque| Error::Key("a recovery copy needs a P-256 public key"))?;
    let ephemeral = p256::ecdh::EphemeralSecret::random(&mut rand_core::OsRng);
    let point = ephemeral.public_key().to_encoded_point(false);
    let shared = ephemeral.diffie_hellman(&recipient);
    let key = derive(shared.raw_secret_bytes(), point.as_bytes(), &recipient)?;
    let hash = spki_hash(recipient_spki);
    let mut text = secret.to_vec();
    key.seal_in_place_append_tag(nonce(), aead::Aad::from(hash.as_bytes()), &mut text)
        .map_err(|_opaque| Error::Recovery("encryption failed"))?;
    let envelope = Envelope {
        version: 1,
        recipient: hash,
        ephemeral: STANDARD.encode(point.as_bytes()),
        ciphertext: STANDARD.encode(&text),
    };
    serde_json::to_string_pretty(&envelope).map_err(|_opaque| Error::Recovery("encoding failed"))
}

/// Opens a recovery copy with the admin's private key (PKCS#8 PEM, P-256).
///
/// # Errors
/// [`Error::Recovery`] where the key is none, the file is no recovery copy of this version, it was
/// encrypted to another key, or it was changed.
pub fn decrypt(admin_key_pem: &str, file: &str) -> Result<Zeroizing<Vec<u8>>> {
    let secret = p256::SecretKey::from_pkcs8_pem(admin_key_pem)
        .map_err(|_opaque| Error::Recovery("the admin's key is not a PKCS#8 PEM P-256 key"))?;
    let envelope: Envelope = serde_json::from_str(file)
        .map_err(|_opaque| Error::Recovery("the file is not a recovery copy"))?;
    if envelope.version != 1 {
        return Err(Error::Recovery(
            "the file's version is not known to this program",
        ));
    }
    let own = secret
        .public_key()
        .to_public_key_der()
        .map_err(|_opaque| Error::Recovery("the admin's key cannot be encoded"))?;
    if envelope.recipient != spki_hash(own.as_bytes()) {
        return Err(Error::Recovery("it was encrypted to another key"));
    }
    let point = STANDARD
        .decode(&envelope.ephemeral)
        .map_err(|_opaque| Error::Recovery("the file is damaged"))?;
    let ephemeral = p256::PublicKey::from_sec1_bytes(&point)
        .map_err(|_opaque| Error::Recovery("the file is damaged"))?;
    let shared = p256::ecdh::diffie_hellman(secret.to_nonzero_scalar(), ephemeral.as_affine());
    let key = derive(shared.raw_secret_bytes(), &point, &secret.public_key())?;
    let mut text = STANDARD
        .decode(&envelope.ciphertext)
        .map_err(|_opaque| Error::Recovery("the file is damaged"))?;
    let plain = key
        .open_in_place(
            nonce(),
            aead::Aad::from(envelope.recipient.as_bytes()),
            &mut text,
        )
        .map_err(|_opaque| Error::Recovery("the file was altered"))?;
    Ok(Zeroizing::new(plain.to_vec()))
}

/// Label of the PEM block with the key of the recovery slot of the machine's encrypted state.
const STATE_KEY: &str = "PRATIQUE STATE RECOVERY KEY";
/// Bytes of that key.
pub const STATE_KEY_BYTES: usize = 32;

/// The PEM block of a state's recovery key.
pub(crate) fn state_key_pem(key: &[u8; STATE_KEY_BYTES]) -> Zeroizing<String> {
    Zeroizing::new(pem(STATE_KEY, key))
}

/// What an opened recovery copy holds.
pub struct Recovered {
    /// The private keys and root certificates, PEM, without the state's key.
    pub keys: Zeroizing<String>,
    /// The key of the state's recovery slot; none in the copy of a master that had no encrypted
    /// state.
    pub state_key: Option<Zeroizing<[u8; STATE_KEY_BYTES]>>,
}

impl std::fmt::Debug for Recovered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recovered").finish_non_exhaustive()
    }
}

impl Recovered {
    /// Parses the output of [`decrypt`].
    ///
    /// # Errors
    /// [`Error::Recovery`] where it is not text, or a state's key is truncated.
    pub fn parse(plain: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(plain)
            .map_err(|_binary| Error::Recovery("it holds no keys in PEM"))?;
        let (begin, end) = (
            format!("-----BEGIN {STATE_KEY}-----\n"),
            format!("-----END {STATE_KEY}-----\n"),
        );
        let Some((before, rest)) = text.split_once(&begin) else {
            return Ok(Self {
                keys: Zeroizing::new(text.to_owned()),
                state_key: None,
            });
        };
        let damaged = Error::Recovery("the state's key in it is damaged");
        let (body, after) = rest.split_once(&end).ok_or(damaged)?;
        let decoded = STANDARD.decode(body.trim()).map(Zeroizing::new);
        let key = decoded.ok().and_then(|key| (*key).clone().try_into().ok());
        let key = key.ok_or(Error::Recovery("the state's key in it is damaged"))?;
        Ok(Self {
            keys: Zeroizing::new([before, after].concat()),
            state_key: Some(Zeroizing::new(key)),
        })
    }

    /// `sha256:<hex>` of each root whose certificate and private key are both here.
    pub fn root_pins(&self) -> Vec<String> {
        let keys = private_keys(&self.keys);
        let public: Vec<Vec<u8>> = keys.iter().filter_map(|key| public_of(key)).collect();
        let roots = certificates_of_pem(&self.keys);
        roots
            .iter()
            .filter_map(|root| spki_of(root))
            .filter(|spki| public.contains(spki))
            .map(|spki| spki_hash(&spki))
            .collect()
    }
}

/// The private keys (PKCS#8 DER) of a PEM text, in order; unreadable ones are left out.
pub(crate) fn private_keys(text: &str) -> Vec<Zeroizing<Vec<u8>>> {
    use rustls_pki_types::pem::PemObject as _;
    rustls_pki_types::PrivatePkcs8KeyDer::pem_slice_iter(text.as_bytes())
        .filter_map(std::result::Result::ok)
        .map(|key| Zeroizing::new(key.secret_pkcs8_der().to_vec()))
        .collect()
}

/// The SubjectPublicKeyInfo of a private key (PKCS#8 DER).
pub(crate) fn public_of(key: &[u8]) -> Option<Vec<u8>> {
    use rcgen::PublicKeyData as _;
    rcgen::KeyPair::try_from(key)
        .ok()
        .map(|pair| pair.subject_public_key_info())
}

/// The key is used for one message, so its nonce may be constant.
fn nonce() -> aead::Nonce {
    aead::Nonce::assume_unique_for_key([0; 12])
}

fn derive(
    shared: &[u8],
    ephemeral_point: &[u8],
    recipient: &p256::PublicKey,
) -> Result<aead::LessSafeKey> {
    let mut salt = ephemeral_point.to_vec();
    salt.extend_from_slice(recipient.to_encoded_point(false).as_bytes());
    let mut key = Zeroizing::new([0_u8; 32]);
    hkdf::Salt::new(hkdf::HKDF_SHA256, &salt)
        .extract(shared)
        .expand(&[INFO], hkdf::HKDF_SHA256)
        .and_then(|okm| okm.fill(key.as_mut_slice()))
        .map_err(|_opaque| Error::Recovery("key derivation failed"))?;
    let unbound = aead::UnboundKey::new(&aead::AES_256_GCM, key.as_slice())
        .map_err(|_opaque| Error::Recovery("key derivation failed"))?;
    Ok(aead::LessSafeKey::new(unbound))
}

#[cfg(test)]
mod tests {
    use super::*;
    use p256::pkcs8::{EncodePrivateKey as _, LineEnding};

    fn admin() -> (String, Vec<u8>) {
        let key = p256::SecretKey::random(&mut rand_core::OsRng);
        let pem = key.to_pkcs8_pem(LineEnding::LF).unwrap().to_string();
        (
            pem,
            key.public_key().to_public_key_der().unwrap().into_vec(),
        )
    }

    #[test]
    fn the_admin_opens_a_copy_encrypted_to_the_admins_key() {
        let (pem, spki) = admin();
        let file = encrypt(&spki, b"root key").unwrap();
        assert_eq!(decrypt(&pem, &file).unwrap().as_slice(), b"root key");
    }

    #[test]
    fn no_other_key_opens_it() {
        let (_, spki) = admin();
        let (other, _) = admin();
        let file = encrypt(&spki, b"root key").unwrap();
        assert!(matches!(
            decrypt(&other, &file),
            Err(Error::Recovery("it was encrypted to another key"))
        ));
    }

    #[test]
    fn an_altered_copy_is_refused() {
        let (pem, spki) = admin();
        let mut envelope: Envelope =
            serde_json::from_str(&encrypt(&spki, b"root key").unwrap()).unwrap();
        let mut text = STANDARD.decode(&envelope.ciphertext).unwrap();
        text[0] ^= 1;
        envelope.ciphertext = STANDARD.encode(text);
        let file = serde_json::to_string(&envelope).unwrap();
        assert!(matches!(
            decrypt(&pem, &file),
            Err(Error::Recovery("the file was altered"))
        ));
    }
}
