//! Sealing: bytes that only this TPM can open.
//!
//! A TPM seals at most 128 bytes, so it seals a random AES-256-GCM key, and the key seals the bytes. The blob:
//! `1` ‖ u16 length ‖ `TPM2B_PUBLIC` ‖ u16 length ‖ the private part ‖ 12-byte nonce ‖ ciphertext and tag. The head up to
//! the nonce is authenticated with the ciphertext.

use crate::device::{Device, flush_after};
use crate::error::Step;
use crate::{Error, SEAL_LIMIT, templates};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use tss_esapi::Context;
use tss_esapi::constants::Tss2ResponseCodeKind;
use tss_esapi::handles::KeyHandle;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{Private, Public, PublicBuffer, SensitiveData};
use tss_esapi::traits::{Marshall, UnMarshall};
use zeroize::Zeroizing;

/// First byte of a sealed blob.
const FORMAT: u8 = 1;
/// Bytes of the key that the TPM seals.
const KEY_LENGTH: usize = 32;

impl Device {
    /// Seals bytes under the storage key of the owner hierarchy.
    pub(crate) fn seal(&mut self, secret: &[u8]) -> Result<Vec<u8>, Error> {
        if secret.len() > SEAL_LIMIT {
            return Err(Error::Malformed {
                what: "what is to be sealed",
            });
        }
        let random = self
            .context
            .execute_without_session(|context| context.get_random(KEY_LENGTH))
            .step("draw a random key")?;
        let nonce = self
            .context
            .execute_without_session(|context| context.get_random(NONCE_LEN))
            .step("draw a random nonce")?;
        let key = Zeroizing::new(random.value().to_vec());
        let sensitive = SensitiveData::try_from(key.as_slice()).step("seal")?;
        let template = templates::sealed().step("describe a sealed object")?;
        let (public, private) = self.with_storage_key(|context, parent| {
            let made = context
                .execute_with_session(Some(AuthSession::Password), |context| {
                    context.create(parent, template, None, Some(sensitive), None, None)
                })
                .step("seal")?;
            let public = PublicBuffer::try_from(made.out_public)
                .and_then(|public| public.marshall())
                .step("encode a seal")?;
            Ok((public, made.out_private.value().to_vec()))
        })?;
        let mut blob = vec![FORMAT];
        push_sized(&mut blob, &public)?;
        push_sized(&mut blob, &private)?;
        let mut text = secret.to_vec();
        cipher(&key)?
            .seal_in_place_append_tag(nonce_of(nonce.value())?, Aad::from(&blob), &mut text)
            .map_err(|_unspecified| Error::Malformed {
                what: "what is to be sealed",
            })?;
        blob.extend_from_slice(nonce.value());
        blob.extend_from_slice(&text);
        Ok(blob)
    }

    /// Opens a blob that [`Device::seal`] made.
    pub(crate) fn unseal(&mut self, blob: &[u8]) -> Result<Zeroizing<Vec<u8>>, Error> {
        let parts = Parts::split(blob).ok_or(Error::Malformed {
            what: "the sealed blob",
        })?;
        let public = PublicBuffer::unmarshall(parts.public).and_then(Public::try_from);
        let public = public.map_err(|_malformed| Error::Malformed {
            what: "the sealed blob's public part",
        })?;
        let private = Private::try_from(parts.private).map_err(|_size| Error::Malformed {
            what: "the sealed blob's private part",
        })?;
        let key = self.with_storage_key(|context, parent| {
            let loaded = context.execute_with_session(Some(AuthSession::Password), |c| {
                c.load(parent, private, public)
            });
            let handle = loaded.map_err(foreign)?;
            let opened = context
                .execute_with_session(Some(AuthSession::Password), |context| {
                    context.unseal(handle.into())
                })
                .step("unseal");
            flush_after(context, handle.into(), opened)
        })?;
        let mut text = Zeroizing::new(parts.text.to_vec());
        let opened = cipher(key.value())?
            .open_in_place(nonce_of(parts.nonce)?, Aad::from(parts.head), &mut text)
            .map_err(|_unspecified| Error::NotSealedHere)?
            .len();
        text.truncate(opened);
        Ok(text)
    }

    fn with_storage_key<T>(
        &mut self,
        f: impl FnOnce(&mut Context, KeyHandle) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let template = templates::storage().step("describe the storage key")?;
        self.with_primary(
            Hierarchy::Owner,
            template,
            None,
            "derive the storage key",
            |context, handle, _| f(context, handle),
        )
    }
}

/// A load that fails by integrity or size is about the blob; anything else about the TPM.
fn foreign(source: tss_esapi::Error) -> Error {
    let about_blob = match source {
        tss_esapi::Error::Tss2Error(code) => matches!(
            code.kind(),
            Some(
                Tss2ResponseCodeKind::Integrity
                    | Tss2ResponseCodeKind::Size
                    | Tss2ResponseCodeKind::Binding
                    | Tss2ResponseCodeKind::Attributes
                    | Tss2ResponseCodeKind::Insufficient
            )
        ),
        tss_esapi::Error::WrapperError(_) => false,
    };
    if about_blob {
        Error::NotSealedHere
    } else {
        Error::Command {
            step: "load a seal",
            source,
        }
    }
}

/// A sealed blob, taken apart.
struct Parts<'a> {
    head: &'a [u8],
    public: &'a [u8],
    private: &'a [u8],
    nonce: &'a [u8],
    text: &'a [u8],
}

impl<'a> Parts<'a> {
    fn split(blob: &'a [u8]) -> Option<Self> {
        if blob.len() > SEAL_LIMIT + 4096 {
            return None;
        }
        let (&FORMAT, rest) = blob.split_first()? else {
            return None;
        };
        let (public, rest) = take_sized(rest)?;
        let (private, rest) = take_sized(rest)?;
        let (nonce, text) = rest.split_at_checked(NONCE_LEN)?;
        let head = blob.get(..blob.len().checked_sub(rest.len())?)?;
        Some(Self {
            head,
            public,
            private,
            nonce,
            text,
        })
    }
}

fn take_sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*size)))
}

fn push_sized(blob: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Error> {
    let size = u16::try_from(bytes.len()).map_err(|_size| Error::Malformed {
        what: "a seal that the TPM made",
    })?;
    blob.extend_from_slice(&size.to_be_bytes());
    blob.extend_from_slice(bytes);
    Ok(())
}

fn cipher(key: &[u8]) -> Result<LessSafeKey, Error> {
    UnboundKey::new(&AES_256_GCM, key)
        .map(LessSafeKey::new)
        .map_err(|_unspecified| Error::NotSealedHere)
}

fn nonce_of(bytes: &[u8]) -> Result<Nonce, Error> {
    Nonce::try_assume_unique_for_key(bytes).map_err(|_unspecified| Error::Malformed {
        what: "the sealed blob's nonce",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_blob_is_never_taken_apart_wrongly() {
        let mut blob = vec![FORMAT, 0, 2, 8, 8, 0, 1, 9];
        blob.extend_from_slice(&[5; NONCE_LEN]);
        let parts = Parts::split(&blob).expect("whole");
        assert_eq!(
            (parts.public, parts.private, parts.nonce),
            (&[8, 8][..], &[9][..], &[5; NONCE_LEN][..])
        );
        assert_eq!(parts.head.len() + parts.nonce.len(), blob.len());
        for length in 0..blob.len() {
            assert!(Parts::split(&blob[..length]).is_none(), "{length}");
        }
    }
}
