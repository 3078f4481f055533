//! A key or a secret from outside, wrapped to one of this TPM's endorsement keys: imported under
//! it, loaded, and used to sign, or unsealed.

use crate::device::{Device, flush_after};
use crate::error::AtStep;
use crate::key_types::{LoadedTemplate, PublicKey};
use crate::keys::{ecdsa, no_ticket, p256_key};
use crate::prove::{name_hash, satisfy_endorsement_policy};
use crate::state::{Flow, Unlock, approval};
use crate::templates::EkKind;
use crate::{Error, PcrValue};
use config_tpm::{Duplicate, Public as Area};
use config_unlock::approvals::{SECURE_BOOT_PCR, Use};
use config_unlock::one_off::secret_policy;
use tss_esapi::constants::SessionType;
use tss_esapi::handles::KeyHandle;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{
    Digest, EncryptedSecret, Private, Public, SignatureScheme, SymmetricDefinitionObject,
};
use tss_esapi::traits::UnMarshall;
use tss_esapi::utils::TpmsContext;
use zeroize::Zeroizing;

/// A key that an admin had certified and wrapped to a TPM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// SHA-256 of the SubjectPublicKeyInfo of the endorsement key that it was wrapped to.
    pub ek: PcrValue,
    /// The key.
    pub key: Duplicate,
}

impl Device {
    /// Imports a wrapped key until this agent exits.
    pub(crate) fn import(&mut self, wrapped: &WrappedKey) -> Result<PublicKey, Error> {
        wrapped.key.check().map_err(|_malformed| Error::Malformed {
            what: "the wrapped key",
        })?;
        let (saved, public) = self.imported(wrapped)?;
        let public = p256_key(&public)?;
        self.imported = Some(LoadedTemplate {
            saved,
            public: public.clone(),
        });
        Ok(public)
    }

    /// Imports a wrapped secret and unseals it, in a salted session that the approval of this boot
    /// satisfies.
    pub(crate) fn unwrap_secret(
        &mut self,
        unlock: &Unlock,
        floor: u64,
        wrapped: &WrappedKey,
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let settings = self.secure_boot()?;
        let is_for = |settings| {
            let policy = secret_policy(&unlock.approver, floor, settings);
            wrapped.key.check_secret(&policy).is_ok()
        };
        let own: &[u8] = match (is_for(Some(settings)), is_for(None)) {
            (true, _) => &[SECURE_BOOT_PCR],
            (false, true) => &[],
            (false, false) => {
                return Err(Error::Malformed {
                    what: "the wrapped secret",
                });
            }
        };
        let now = self.policy_now(Use::State)?;
        let approval = approval(unlock, Use::State, &now, floor).ok_or(Error::NotApproved)?;
        let (saved, _) = self.imported(wrapped)?;
        self.with_saved(&saved, None, |device, handle| {
            let unsealed = device.with_policy(unlock, approval, own, Flow::FromTpm, |context| {
                context.unseal(handle.into())
            })?;
            let secret = unsealed.step("unseal the wrapped secret")?;
            Ok(Zeroizing::new(secret.value().to_vec()))
        })
    }

    /// Imports an object under the endorsement key that it was wrapped to, and saves it.
    fn imported(&mut self, wrapped: &WrappedKey) -> Result<(TpmsContext, Public), Error> {
        let kind = self.kind_of(wrapped.ek)?;
        let public = Public::unmarshall(&wrapped.key.public).step("read the wrapped key")?;
        let duplicate =
            Private::try_from(wrapped.key.private.clone()).step("read the wrapped key")?;
        let seed =
            EncryptedSecret::try_from(wrapped.key.seed.clone()).step("read the wrapped key")?;
        let loaded = self.with_endorsement_key(kind, |device, ek| {
            let private = device.as_parent(kind, |context| {
                context.import(
                    ek.into(),
                    None,
                    public.clone(),
                    duplicate,
                    seed,
                    SymmetricDefinitionObject::Null,
                )
            })?;
            let private = private.map_err(|source| Error::NotImported { source })?;
            let handle =
                device.as_parent(kind, |context| context.load(ek, private, public.clone()))?;
            let handle = handle.step("load the imported key")?;
            let saved = device
                .context
                .context_save(handle.into())
                .step("save a key");
            flush_after(&mut device.context, handle.into(), saved)
        })?;
        Ok((loaded, public))
    }

    /// Runs a command that uses an endorsement key as a parent, which its policy allows to everyone
    /// who has the endorsement hierarchy's (empty) auth value.
    fn as_parent<T>(
        &mut self,
        kind: EkKind,
        command: impl FnOnce(&mut tss_esapi::Context) -> tss_esapi::Result<T>,
    ) -> Result<tss_esapi::Result<T>, Error> {
        self.with_session(SessionType::Policy, name_hash(kind), |context, session| {
            satisfy_endorsement_policy(context, session, kind)?;
            Ok(context.execute_with_session(Some(AuthSession::from(session)), command))
        })
    }

    /// Which of the TPM's endorsement keys has this hash.
    fn kind_of(&mut self, wanted: PcrValue) -> Result<EkKind, Error> {
        let mut have = Vec::new();
        for key in self.endorsement_keys()? {
            let spki = Area::parse(&key.public).and_then(|area| area.spki());
            let hash = PcrValue::of(&spki.map_err(|_unreadable| Error::Malformed {
                what: "an endorsement key",
            })?);
            if hash == wanted {
                return Ok(key.kind);
            }
            have.push(hash.to_text());
        }
        Err(Error::ForAnotherTpm {
            wanted: wanted.to_text(),
            have: have.join(", "),
        })
    }

    /// Signs a SHA-256 digest with the imported key.
    pub(crate) fn sign_imported(&mut self, digest: [u8; 32]) -> Result<[u8; 64], Error> {
        const STEP: &str = "sign with the imported key";
        let key = self.imported.clone().ok_or(Error::Malformed {
            what: "the request: no key was imported",
        })?;
        self.with_saved(&key.saved, None, |device, handle: KeyHandle| {
            let digest = Digest::try_from(digest.as_slice()).step(STEP)?;
            let ticket = no_ticket().step(STEP)?;
            let signed = device
                .context
                .execute_with_session(Some(AuthSession::Password), |context| {
                    context.sign(handle, digest, SignatureScheme::Null, ticket)
                });
            ecdsa(signed.step(STEP)?)
        })
    }
}
