//! The attestation key and the node key.

use crate::device::{Device, STEADY_ATTEMPTS, selection};
use crate::error::{AtStep, failed_with};
use crate::key_types::{AttestationKey, LoadedTemplate, PublicKey};
use crate::{Error, templates};
use config_tpm::pcr::NK_PCRS;
use p256::pkcs8::EncodePublicKey;
use tss_esapi::constants::tss::{TPM2_RH_NULL, TPM2_ST_HASHCHECK};
use tss_esapi::constants::{SessionType, Tss2ResponseCodeKind};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{
    Auth, Digest, EccPoint, EccSignature, HashcheckTicket, Public, Signature, SignatureScheme,
};
use tss_esapi::traits::Marshall;
use tss_esapi::tss2_esys::TPMT_TK_HASHCHECK;

/// Length of the attestation key's auth value, the longest that SHA-256 keys take.
const AUTH_LENGTH: usize = 32;

impl Device {
    /// The attestation key, derived on first use.
    pub(crate) fn attestation_key(&mut self) -> Result<PublicKey, Error> {
        self.ak().map(|ak| ak.key.public)
    }

    /// The node key, derived on first use.
    pub(crate) fn node_key(&mut self) -> Result<PublicKey, Error> {
        self.nk().map(|nk| nk.public)
    }

    pub(crate) fn ak(&mut self) -> Result<AttestationKey, Error> {
        if let Some(ak) = &self.ak {
            return Ok(ak.clone());
        }
        let random = self
            .context
            .execute_without_session(|context| context.get_random(AUTH_LENGTH));
        let auth = Auth::try_from(random.step("draw a random auth value")?.value())
            .step("set the AK's auth value")?;
        let template = templates::attestation().step("describe the AK")?;
        let key = self.derive(
            Hierarchy::Endorsement,
            template,
            Some(auth.clone()),
            "derive the AK",
        )?;
        Ok(self.ak.insert(AttestationKey { key, auth }).clone())
    }

    pub(crate) fn nk(&mut self) -> Result<LoadedTemplate, Error> {
        if let Some(nk) = &self.nk {
            return Ok(nk.clone());
        }
        let policy = self.node_policy()?;
        let template = templates::node(policy).step("describe the NK")?;
        let key = self.derive(Hierarchy::Null, template, None, "derive the NK")?;
        Ok(self.nk.insert(key).clone())
    }

    /// The digest of `PolicyPCR` over the registers as they are now.
    fn node_policy(&mut self) -> Result<Digest, Error> {
        self.with_session(
            SessionType::Trial,
            HashingAlgorithm::Sha256,
            |context, session| {
                let pcrs = selection(NK_PCRS).step("select registers")?;
                context
                    .policy_pcr(session, Digest::default(), pcrs)
                    .step("compute the NK's policy")?;
                context
                    .policy_get_digest(session)
                    .step("compute the NK's policy")
            },
        )
    }

    fn derive(
        &mut self,
        hierarchy: Hierarchy,
        template: Public,
        auth: Option<Auth>,
        step: &'static str,
    ) -> Result<LoadedTemplate, Error> {
        self.with_primary(
            hierarchy,
            template,
            auth,
            step,
            |context, handle, public| {
                let saved = context.context_save(handle.into()).step("save a key")?;
                Ok(LoadedTemplate {
                    saved,
                    public: p256_key(&public)?,
                })
            },
        )
    }

    /// Signs a SHA-256 digest with the node key.
    pub(crate) fn sign(&mut self, digest: [u8; 32]) -> Result<[u8; 64], Error> {
        let nk = self.nk()?;
        self.with_saved(&nk.saved, None, |device, handle| {
            for _ in 0..STEADY_ATTEMPTS {
                let signed = device.with_session(
                    SessionType::Policy,
                    HashingAlgorithm::Sha256,
                    |context, session| {
                        let pcrs = selection(NK_PCRS).step("select registers")?;
                        context
                            .policy_pcr(session, Digest::default(), pcrs)
                            .step("satisfy the NK's policy")?;
                        let digest =
                            Digest::try_from(digest.as_slice()).step("sign with the NK")?;
                        let ticket = no_ticket().step("sign with the NK")?;
                        Ok(context
                            .execute_with_session(Some(AuthSession::from(session)), |context| {
                                context.sign(handle, digest, SignatureScheme::Null, ticket)
                            }))
                    },
                )?;
                match signed {
                    Ok(signature) => return ecdsa(signature),
                    Err(error) if failed_with(error, Tss2ResponseCodeKind::PcrChanged) => {}
                    Err(source) if failed_with(source, Tss2ResponseCodeKind::PolicyFail) => {
                        return Err(Error::PolicyBroken { source });
                    }
                    Err(source) => {
                        return Err(Error::Command {
                            step: "sign with the NK",
                            source,
                        });
                    }
                }
            }
            Err(Error::Unsteady {
                step: "sign with the NK",
                attempts: STEADY_ATTEMPTS,
            })
        })
    }
}

/// The ticket that says "this digest was not made by the TPM", which an unrestricted key accepts.
pub(crate) fn no_ticket() -> tss_esapi::Result<HashcheckTicket> {
    TPMT_TK_HASHCHECK {
        tag: TPM2_ST_HASHCHECK,
        hierarchy: TPM2_RH_NULL,
        digest: Digest::default().into(),
    }
    .try_into()
}

/// r and s of a signature that must be ECDSA.
pub(crate) fn ecdsa(signature: Signature) -> Result<[u8; 64], Error> {
    let Signature::EcDsa(parts) = signature else {
        return Err(Error::Malformed {
            what: "a signature of the TPM",
        });
    };
    fixed_signature(&parts).ok_or(Error::Malformed {
        what: "a signature of the TPM",
    })
}

/// r and s at their full width; the TPM may leave out leading zeros.
fn fixed_signature(parts: &EccSignature) -> Option<[u8; 64]> {
    let mut fixed = [0; 64];
    let (r, s) = (parts.signature_r().value(), parts.signature_s().value());
    fixed
        .get_mut(32_usize.checked_sub(r.len())?..32)?
        .copy_from_slice(r);
    fixed
        .get_mut(64_usize.checked_sub(s.len()).filter(|start| *start >= 32)?..)?
        .copy_from_slice(s);
    Some(fixed)
}

/// A P-256 key in both encodings.
pub(crate) fn p256_key(public: &Public) -> Result<PublicKey, Error> {
    let Public::Ecc { unique, .. } = public else {
        return Err(Error::Malformed {
            what: "a key that the TPM made",
        });
    };
    let spki = p256_spki(unique).ok_or(Error::Malformed {
        what: "a key that the TPM made",
    })?;
    let public = public.marshall().step("encode a public key")?;
    Ok(PublicKey { public, spki })
}

fn p256_spki(point: &EccPoint) -> Option<Vec<u8>> {
    let mut sec1 = [0; 65];
    sec1[0] = 4;
    let (x, y) = (point.x().value(), point.y().value());
    sec1.get_mut(33_usize.checked_sub(x.len()).filter(|start| *start >= 1)?..33)?
        .copy_from_slice(x);
    sec1.get_mut(65_usize.checked_sub(y.len()).filter(|start| *start >= 33)?..)?
        .copy_from_slice(y);
    let key = p256::PublicKey::from_sec1_bytes(&sec1).ok()?;
    key.to_public_key_der()
        .ok()
        .map(|der| der.as_bytes().to_vec())
}
