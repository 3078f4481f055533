//! Sealing: bytes that only this TPM can open, and only for boots that a release key approved.
//!
//! A TPM seals at most 128 bytes, so it seals a random AES-256-GCM key, and the key seals the
//! bytes. The blob: `2` ‖ u64 floor ‖ u16 length ‖ `TPM2B_PUBLIC` ‖ u16 length ‖ the private part ‖
//! 12-byte nonce ‖ ciphertext and tag. The head up to the nonce is authenticated with the
//! ciphertext. A blob without a policy begins with `1` and has no floor.
//!
//! Guarantees: the TPM opens a blob with a policy while its registers are approved, under
//! [`Use::Seal`], for the blob's floor ([`config_unlock::approvals`]); the key is encrypted on the
//! way to the TPM and back, in sessions salted by a key of this TPM. A seal does not prove who made
//! it: the owner of the hierarchy can seal anything under the same policy. A caller that unseals a
//! key compares it with the public half that it knows.

use crate::device::{Device, flush_after};
use crate::error::AtStep;
use crate::state::{Flow, Unlock, approval};
use crate::{Error, SEAL_LIMIT, templates};
use config_unlock::approvals::{BootApproval, FLOORS, Use};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use tss_esapi::Context;
use tss_esapi::constants::{SessionType, Tss2ResponseCodeKind};
use tss_esapi::handles::{KeyHandle, ObjectHandle};
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{Private, Public, PublicBuffer, SensitiveData};
use tss_esapi::traits::{Marshall, UnMarshall};
use zeroize::Zeroizing;

/// First byte of a blob that any boot opens.
const UNBOUND: u8 = 1;
/// First byte of a blob with a policy.
const BOUND: u8 = 2;
/// Bytes of the key that the TPM seals.
const KEY_LENGTH: usize = 32;

/// Which boots can open what is sealed.
#[derive(Debug, Clone)]
pub enum Sealing {
    /// Boots of images that a release key approved, from the machine's floor on.
    Approved(Unlock),
    /// Any system on this TPM: for hosts that don't run an image, if so configured.
    AnyBoot,
}

/// The kind of seal that a caller opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// The kind that is made now.
    Current,
    /// A seal without a policy, as earlier versions made it; it is opened once, to be sealed again
    /// with one.
    Unbound,
}

impl Device {
    /// The lowest image version that can open what is sealed now; `None` if any boot can.
    ///
    /// It is the floor of the machine's state: the version of the machine's last admission before
    /// this boot. If the TPM keeps no state, it is the image's own version.
    pub(crate) fn seal_floor(&mut self, sealing: &Sealing) -> Result<Option<u64>, Error> {
        match sealing {
            Sealing::AnyBoot => Ok(None),
            Sealing::Approved(unlock) => {
                let floor = self.state_floor(unlock)?;
                Ok(Some(floor.unwrap_or(unlock.svn)))
            }
        }
    }

    /// Seals bytes under the storage key of the owner hierarchy.
    pub(crate) fn seal(&mut self, sealing: &Sealing, secret: &[u8]) -> Result<Vec<u8>, Error> {
        const TOO_LARGE: Error = Error::Malformed {
            what: "what is to be sealed",
        };
        if secret.len() > SEAL_LIMIT {
            return Err(TOO_LARGE);
        }
        let (mut blob, policy) = match (sealing, self.seal_floor(sealing)?) {
            (Sealing::Approved(unlock), Some(floor)) => {
                // A boot seals only what it could open again.
                self.seal_approval(unlock, floor)?;
                let head = [&[BOUND][..], &floor.to_be_bytes()].concat();
                (head, Some(Use::Seal.auth_policy(&unlock.approver, floor)))
            }
            _ => (vec![UNBOUND], None),
        };
        let (key, nonce) = (random::<KEY_LENGTH>()?, random::<NONCE_LEN>()?);
        let object = self.create(policy.as_ref().map(config_tpm::Digest::as_bytes), &*key)?;
        push_sized(&mut blob, &object.public)?;
        push_sized(&mut blob, &object.private)?;
        let mut text = secret.to_vec();
        cipher(&*key)?
            .seal_in_place_append_tag(nonce_of(&*nonce)?, Aad::from(&blob), &mut text)
            .map_err(|_unspecified| TOO_LARGE)?;
        blob.extend_from_slice(&*nonce);
        blob.extend_from_slice(&text);
        Ok(blob)
    }

    /// Makes the sealed object.
    fn create(&mut self, policy: Option<&[u8]>, key: &[u8]) -> Result<SealedObject, Error> {
        let sensitive = SensitiveData::try_from(key).step("seal")?;
        let template = templates::sealed(policy).step("describe a sealed object")?;
        self.with_salted_session(SessionType::Hmac, Flow::ToTpm, |device, session| {
            device.with_storage_key(|context, parent| {
                let made = context
                    .execute_with_session(Some(session), |context| {
                        context.create(parent, template, None, Some(sensitive), None, None)
                    })
                    .step("seal")?;
                let public = PublicBuffer::try_from(made.out_public)
                    .and_then(|public| public.marshall())
                    .step("encode a seal")?;
                let private = made.out_private.value().to_vec();
                Ok(SealedObject { public, private })
            })
        })
    }

    /// Opens a blob that [`Device::seal`] made.
    pub(crate) fn unseal(
        &mut self,
        sealing: &Sealing,
        which: Seal,
        blob: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let parts = Parts::split(blob).ok_or(Error::Malformed {
            what: "the sealed blob",
        })?;
        let key = match (sealing, which, parts.floor) {
            (Sealing::Approved(unlock), Seal::Current, Some(floor)) => {
                self.open_bound(unlock, floor, &parts)?
            }
            (Sealing::Approved(_), Seal::Unbound, None) | (Sealing::AnyBoot, _, None) => {
                self.open_unbound(&parts)?
            }
            (Sealing::Approved(_), Seal::Current, None) => return Err(Error::UnboundSeal),
            (Sealing::Approved(_), Seal::Unbound, Some(_)) | (Sealing::AnyBoot, _, Some(_)) => {
                return Err(Error::BoundSeal);
            }
        };
        let mut text = Zeroizing::new(parts.text.to_vec());
        let opened = cipher(&key)?
            .open_in_place(nonce_of(parts.nonce)?, Aad::from(parts.head), &mut text)
            .map_err(|_unspecified| Error::NotSealedHere)?
            .len();
        text.truncate(opened);
        Ok(text)
    }

    fn open_bound(
        &mut self,
        unlock: &Unlock,
        floor: u64,
        parts: &Parts<'_>,
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let public = parts.public_area()?;
        let policy = Use::Seal.auth_policy(&unlock.approver, floor);
        if !is_by_policy_alone(&public, policy.as_bytes()) {
            return Err(Error::OtherReleaseKey);
        }
        let approval = self.seal_approval(unlock, floor)?;
        self.with_sealed(public, parts, |device, object| {
            let opened =
                device.with_approval(unlock, approval, Flow::FromTpm, |c| c.unseal(object))?;
            let key = opened.step("unseal")?;
            Ok(Zeroizing::new(key.value().to_vec()))
        })
    }

    fn open_unbound(&mut self, parts: &Parts<'_>) -> Result<Zeroizing<Vec<u8>>, Error> {
        self.with_sealed(parts.public_area()?, parts, |device, object| {
            device.with_salted_session(SessionType::Hmac, Flow::FromTpm, |device, session| {
                let opened = device
                    .context
                    .execute_with_session(Some(session), |context| context.unseal(object));
                let key = opened.step("unseal")?;
                Ok(Zeroizing::new(key.value().to_vec()))
            })
        })
    }

    /// The release key's approval of this boot for seals of a floor.
    fn seal_approval<'a>(
        &mut self,
        unlock: &'a Unlock,
        floor: u64,
    ) -> Result<&'a BootApproval, Error> {
        let svn = unlock.svn;
        if floor > svn || svn - floor >= FLOORS {
            return Err(Error::SealFloor { floor, svn });
        }
        let policy = self.policy_now(Use::Seal)?;
        approval(unlock, Use::Seal, &policy, floor).ok_or(Error::BootNotApproved)
    }

    /// Loads a blob's object, hands it to `f`, and flushes it.
    fn with_sealed<T>(
        &mut self,
        public: Public,
        parts: &Parts<'_>,
        f: impl FnOnce(&mut Self, ObjectHandle) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let private = Private::try_from(parts.private).map_err(|_size| Error::Malformed {
            what: "the sealed blob's private part",
        })?;
        let object = self.with_storage_key(|context, parent| {
            context
                .execute_with_session(Some(AuthSession::Password), |c| {
                    c.load(parent, private, public)
                })
                .map_err(foreign)
        })?;
        let outcome = f(self, object.into());
        flush_after(&mut self.context, object.into(), outcome)
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

/// A sealed object as the TPM made it.
struct SealedObject {
    /// `TPM2B_PUBLIC`.
    public: Vec<u8>,
    /// The content of `TPM2B_PRIVATE`.
    private: Vec<u8>,
}

/// Whether a sealed object can be opened only by this policy.
fn is_by_policy_alone(public: &Public, policy: &[u8]) -> bool {
    !public.object_attributes().user_with_auth() && public.auth_policy().value() == policy
}

/// Bytes of the kernel's random generator: those of the TPM would cross the bus unencrypted.
fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>, Error> {
    let mut bytes = Zeroizing::new([0; N]);
    SystemRandom::new()
        .fill(&mut *bytes)
        .map_err(|_unspecified| Error::Malformed {
            what: "the kernel's answer to a request for random bytes",
        })?;
    Ok(bytes)
}

/// A load that fails by integrity or size is a fault of the blob; any other is a fault of the TPM.
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

/// A parsed sealed blob.
pub(crate) struct Parts<'a> {
    /// The floor of its policy, if it has one.
    floor: Option<u64>,
    pub(crate) head: &'a [u8],
    public: &'a [u8],
    private: &'a [u8],
    pub(crate) nonce: &'a [u8],
    pub(crate) text: &'a [u8],
}

impl<'a> Parts<'a> {
    pub(crate) fn split(blob: &'a [u8]) -> Option<Self> {
        if blob.len() > SEAL_LIMIT + 4096 {
            return None;
        }
        let (floor, rest) = match blob.split_first()? {
            (&UNBOUND, rest) => (None, rest),
            (&BOUND, rest) => {
                let (floor, rest) = rest.split_first_chunk::<8>()?;
                (Some(u64::from_be_bytes(*floor)), rest)
            }
            _ => return None,
        };
        let (public, rest) = take_sized(rest)?;
        let (private, rest) = take_sized(rest)?;
        let (nonce, text) = rest.split_at_checked(NONCE_LEN)?;
        let head = blob.get(..blob.len().checked_sub(rest.len())?)?;
        Some(Self {
            floor,
            head,
            public,
            private,
            nonce,
            text,
        })
    }

    pub(crate) fn public_area(&self) -> Result<Public, Error> {
        let public = PublicBuffer::unmarshall(self.public).and_then(Public::try_from);
        public.map_err(|_malformed| Error::Malformed {
            what: "the sealed blob's public part",
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
    fn a_truncated_blob_does_not_parse() {
        let floor = [BOUND, 0, 0, 0, 0, 0, 0, 0, 7];
        for (head, floor) in [(&[UNBOUND][..], None), (&floor, Some(7))] {
            let mut blob = [head, &[0, 2, 8, 8, 0, 1, 9]].concat();
            blob.extend_from_slice(&[5; NONCE_LEN]);
            let parts = Parts::split(&blob).expect("whole");
            assert_eq!(
                (parts.floor, parts.public, parts.private, parts.nonce),
                (floor, &[8, 8][..], &[9][..], &[5; NONCE_LEN][..])
            );
            assert_eq!(parts.head.len() + parts.nonce.len(), blob.len());
            for length in 0..blob.len() {
                assert!(Parts::split(&blob[..length]).is_none(), "{length}");
            }
        }
        assert!(Parts::split(&[3; 200]).is_none(), "of another version");
    }
}
