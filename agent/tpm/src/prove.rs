//! Evidence: quote, certify, and the answer to a credential challenge.

use crate::device::{Device, STEADY_ATTEMPTS, flush_after, selection};
use crate::error::{AtStep, Authorized};
use crate::templates::EkKind;
use crate::{Error, PcrValue, endorsement};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use tss_esapi::Context;
use tss_esapi::constants::SessionType;
use tss_esapi::handles::{AuthHandle, KeyHandle, ObjectHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    Attest, AttestInfo, Data, Digest, DigestList, EncryptedSecret, IdObject, Nonce, Signature,
    SignatureScheme,
};
use tss_esapi::traits::Marshall;
use zeroize::Zeroizing;

/// Something that the attestation key has signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attestation {
    /// `TPMS_ATTEST`, the exact bytes that were signed.
    pub attest: Vec<u8>,
    /// `TPMT_SIGNATURE`.
    pub signature: Vec<u8>,
}

/// A quote with the values of the registers that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    /// The attestation, and its signature.
    pub attestation: Attestation,
    /// The registers of the SHA-256 bank; their digest is the quote's.
    pub pcrs: BTreeMap<u8, PcrValue>,
}

impl Device {
    /// Quotes registers, and again if one was extended between quoting and reading.
    pub(crate) fn quote(&mut self, qualifying: [u8; 32], pcrs: &[u8]) -> Result<Quote, Error> {
        let ak = self.ak()?;
        self.with_saved(&ak.key.saved, Some(ak.auth), |device, handle| {
            for _ in 0..STEADY_ATTEMPTS {
                let values = device.read_pcrs(pcrs)?;
                let data = Data::try_from(qualifying.as_slice()).step("quote")?;
                let (attest, signature) = device
                    .context
                    .execute_with_session(Some(AuthSession::Password), |context| {
                        context.quote(handle, data, SignatureScheme::Null, selection(pcrs)?)
                    })
                    .step("quote")?;
                if quotes(&attest, &values) {
                    return Ok(Quote {
                        attestation: encode(&attest, &signature)?,
                        pcrs: values,
                    });
                }
            }
            Err(Error::Unsteady {
                step: "quote",
                attempts: STEADY_ATTEMPTS,
            })
        })
    }

    /// Certifies the node key by the attestation key; the node key's empty auth value allows it.
    pub(crate) fn certify(&mut self, qualifying: [u8; 32]) -> Result<Attestation, Error> {
        let (ak, nk) = (self.ak()?, self.nk()?);
        let data = Data::try_from(qualifying.as_slice()).step("certify the NK")?;
        self.with_saved(&nk.saved, None, |device, subject| {
            device.with_saved(&ak.key.saved, Some(ak.auth), |device, signer| {
                let sessions = (
                    Some(AuthSession::Password),
                    Some(AuthSession::Password),
                    None,
                );
                let (attest, signature) = device
                    .context
                    .execute_with_sessions(sessions, |context| {
                        context.certify(subject.into(), signer, data, SignatureScheme::Null)
                    })
                    .step("certify the NK")?;
                encode(&attest, &signature)
            })
        })
    }

    /// Opens a credential made for an endorsement key and the attestation key.
    pub(crate) fn activate(
        &mut self,
        kind: EkKind,
        credential: &[u8],
        secret: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let credential = IdObject::try_from(credential).step("read the credential")?;
        let secret = EncryptedSecret::try_from(secret).step("read the credential's secret")?;
        let ak = self.ak()?;
        self.with_endorsement_key(kind, |device, ek| {
            device.with_saved(&ak.key.saved, Some(ak.auth), |device, ak| {
                device.with_session(SessionType::Policy, name_hash(kind), |context, session| {
                    satisfy_endorsement_policy(context, session, kind)?;
                    let sessions = (
                        Some(AuthSession::Password),
                        Some(AuthSession::from(session)),
                        None,
                    );
                    let opened = context
                        .execute_with_sessions(sessions, |context| {
                            context.activate_credential(ak, ek, credential, secret)
                        })
                        .step("open the credential")?;
                    Ok(Zeroizing::new(opened.value().to_vec()))
                })
            })
        })
    }

    /// Hands an endorsement key to `f`: the persisted one if the TPM keeps one, else derived for
    /// this once.
    pub(crate) fn with_endorsement_key<T>(
        &mut self,
        kind: EkKind,
        f: impl FnOnce(&mut Self, KeyHandle) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(mut handle) = self.persisted(kind)? {
            let outcome = f(self, KeyHandle::from(handle));
            let closed = self
                .context
                .tr_close(&mut handle)
                .step("close the EK's handle");
            let value = outcome?;
            return closed.map(|()| value);
        }
        let handle = self.derive_endorsement_key(kind)?.key_handle;
        let outcome = f(self, handle);
        flush_after(&mut self.context, handle.into(), outcome)
    }
}

/// Satisfies the policy by which the EK templates allow `TPM2_ActivateCredential`, `TPM2_Import`
/// and `TPM2_Load`.
///
/// Template L: `PolicyA` = PolicySecret(endorsement hierarchy). Template H: `PolicyB` =
/// PolicyOR(PolicyA, `PolicyC`), where `PolicyC` is an owner's choice by an NV index (TCG EK
/// Credential Profile, B.6).
pub(crate) fn satisfy_endorsement_policy(
    context: &mut Context,
    session: PolicySession,
    kind: EkKind,
) -> Result<(), Error> {
    context
        .execute_with_session(Some(AuthSession::Password), |context| {
            let hierarchy = AuthHandle::from(ObjectHandle::Endorsement);
            context.policy_secret(
                session,
                hierarchy,
                Nonce::default(),
                Digest::default(),
                Nonce::default(),
                None,
            )
        })
        .authorized(Hierarchy::Endorsement, "satisfy the EK's policy")?;
    if kind != EkKind::P384 {
        return Ok(());
    }
    let policy_a = context
        .policy_get_digest(session)
        .step("satisfy the EK's policy")?;
    let policy_c = Digest::try_from(endorsement::POLICY_C_SHA384.as_slice())
        .step("satisfy the EK's policy")?;
    let mut branches = DigestList::new();
    branches.add(policy_a).step("satisfy the EK's policy")?;
    branches.add(policy_c).step("satisfy the EK's policy")?;
    context
        .policy_or(session, branches)
        .step("satisfy the EK's policy")
}

/// The name algorithm of a kind's template.
pub(crate) fn name_hash(kind: EkKind) -> HashingAlgorithm {
    match kind {
        EkKind::Rsa2048 | EkKind::P256 => HashingAlgorithm::Sha256,
        EkKind::P384 => HashingAlgorithm::Sha384,
    }
}

/// Whether the quote is about exactly these values.
fn quotes(attest: &Attest, values: &BTreeMap<u8, PcrValue>) -> bool {
    let mut hash = Sha256::new();
    for value in values.values() {
        hash.update(value.as_bytes());
    }
    if let AttestInfo::Quote { info } = attest.attested() {
        info.pcr_digest().value() == hash.finalize().as_slice()
    } else {
        false
    }
}

fn encode(attest: &Attest, signature: &Signature) -> Result<Attestation, Error> {
    Ok(Attestation {
        attest: attest.marshall().step("encode what was attested")?,
        signature: signature.marshall().step("encode the signature")?,
    })
}
