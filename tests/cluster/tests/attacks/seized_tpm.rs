//! A TPM that an attacker with its machine controls: keys by any template or from outside, and
//! every quote, certification and signature that the TPM itself gives for them.

use config_protocol::wire::{Blob, Credential, Signed};
use config_tpm::{Digest, pcr};
use config_tpm::{HashAlg, Key as Body, Public as Area, template};
use p256::ecdsa::SigningKey;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard};
use tss_esapi::Context;
use tss_esapi::constants::tss::{TPM2_RH_NULL, TPM2_ST_HASHCHECK};
use tss_esapi::constants::{SessionType, StartupType};
use tss_esapi::handles::{AuthHandle, KeyHandle, ObjectHandle, PersistentTpmHandle, TpmHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    Attest, Auth, Data, EccParameter, EncryptedSecret, IdObject, Nonce, PcrSelectionList, PcrSlot,
    Public, Sensitive, Signature, SignatureScheme, SymmetricDefinition,
};
use tss_esapi::tcti_ldr::TctiNameConf;
use tss_esapi::traits::{Marshall as _, UnMarshall as _};
use tss_esapi::tss2_esys::TPMT_TK_HASHCHECK;

/// The handle of a TPM's RSA endorsement key.
const EK_HANDLE: u32 = 0x8101_0001;

/// The TPM. Loaded keys are flushed when this is dropped.
pub(crate) struct Seized {
    context: Mutex<Context>,
}

/// A key in it.
#[derive(Clone)]
pub(crate) struct Key {
    handle: KeyHandle,
    /// Its true public area.
    pub(crate) public: Area,
    /// Registers that its policy wants; none: its empty auth value is enough.
    policy: Vec<u8>,
}

fn encoded((attest, signature): (Attest, Signature)) -> Signed {
    let (attest, signature) = (attest.marshall().unwrap(), signature.marshall().unwrap());
    Signed {
        attest: Blob::new(attest).unwrap(),
        signature: Blob::new(signature).unwrap(),
    }
}

fn selection(bank: HashAlg, pcrs: &[u8]) -> PcrSelectionList {
    let slots: Vec<_> = pcrs
        .iter()
        .map(|pcr| PcrSlot::try_from(1_u32 << pcr).unwrap())
        .collect();
    let bank = if bank == HashAlg::Sha1 {
        HashingAlgorithm::Sha1
    } else {
        HashingAlgorithm::Sha256
    };
    PcrSelectionList::builder()
        .with_selection(bank, &slots)
        .build()
        .unwrap()
}

/// The policy that wants these registers as they are.
pub(crate) fn policy(pcrs: &[u8], values: &BTreeMap<u8, Digest>) -> Vec<u8> {
    const TPM_CC_POLICY_PCR: [u8; 4] = 0x0000_017f_u32.to_be_bytes();
    let selection = pcr::Selection::of(pcrs);
    let digest = selection.digest(values);
    let parts = [
        Digest::ZERO.as_bytes(),
        &TPM_CC_POLICY_PCR,
        &selection.to_tpm(),
        digest.as_bytes(),
    ];
    Digest::of_parts(&parts).0.to_vec()
}

/// A number at its full width; the TPM may leave out leading zeros.
fn wide(number: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[32 - number.len()..].copy_from_slice(number);
    bytes
}

impl Seized {
    pub(crate) fn open(tcti: &str) -> Self {
        let name = TctiNameConf::from_str(tcti).unwrap();
        Self {
            context: Mutex::new(Context::new(name).unwrap()),
        }
    }

    /// Announces a power-off, as a kernel does at a reboot: otherwise the TPM counts it as a guess
    /// of its keys' auth values.
    pub(crate) fn shut_down(&self) {
        self.context()
            .execute_without_session(|context| context.shutdown(StartupType::Clear))
            .unwrap();
    }

    fn context(&self) -> MutexGuard<'_, Context> {
        self.context.lock().unwrap()
    }

    /// A primary key by a template.
    pub(crate) fn make(&self, hierarchy: Hierarchy, template: &Area, policy: &[u8]) -> Key {
        let public = Public::unmarshall(&template.to_bytes()).unwrap();
        let made = self
            .context()
            .execute_with_session(Some(AuthSession::Password), |context| {
                context.create_primary(hierarchy, public, None, None, None, None)
            });
        let made = made.unwrap();
        let public = Area::parse(&made.out_public.marshall().unwrap()).unwrap();
        Key {
            handle: made.key_handle,
            public,
            policy: policy.to_vec(),
        }
    }

    /// The attestation key that the agent has too.
    pub(crate) fn ak(&self) -> Key {
        self.make(Hierarchy::Endorsement, &template::ak(), &[])
    }

    /// The node key that the agent has too.
    pub(crate) fn nk(&self, values: &BTreeMap<u8, Digest>) -> Key {
        self.make(Hierarchy::Null, &template::nk(values), pcr::NK_PCRS)
    }

    /// Loads a key from outside with the attributes that the TPM allows: not fixed, not restricted,
    /// not made inside.
    pub(crate) fn bring(&self, secret: &SigningKey) -> Key {
        let point = secret.verifying_key().to_encoded_point(false);
        let area = template::issued_key(point.x().unwrap().to_vec(), point.y().unwrap().to_vec());
        let sensitive = Sensitive::Ecc {
            auth_value: Auth::default(),
            seed_value: tss_esapi::structures::Digest::default(),
            sensitive: EccParameter::try_from(secret.to_bytes().to_vec()).unwrap(),
        };
        let public = Public::unmarshall(&area.to_bytes()).unwrap();
        let loaded = self.context().execute_without_session(|context| {
            context.load_external(sensitive, public, Hierarchy::Null)
        });
        Key {
            handle: loaded.unwrap(),
            public: area,
            policy: Vec::new(),
        }
    }

    pub(crate) fn quote(&self, ak: &Key, question: &Digest, bank: HashAlg) -> Signed {
        let data = Data::try_from(question.as_bytes()).unwrap();
        let made = self
            .context()
            .execute_with_session(Some(AuthSession::Password), |context| {
                context.quote(
                    ak.handle,
                    data,
                    SignatureScheme::Null,
                    selection(bank, pcr::QUOTE_PCRS),
                )
            });
        encoded(made.unwrap())
    }

    pub(crate) fn certify(&self, ak: &Key, subject: &Key, question: &Digest) -> Signed {
        let data = Data::try_from(question.as_bytes()).unwrap();
        let sessions = (
            Some(AuthSession::Password),
            Some(AuthSession::Password),
            None,
        );
        let made = self.context().execute_with_sessions(sessions, |context| {
            context.certify(
                subject.handle.into(),
                ak.handle,
                data,
                SignatureScheme::Null,
            )
        });
        encoded(made.unwrap())
    }

    /// The credential's secret, if it was made for this TPM's endorsement key and for this key.
    pub(crate) fn activate(&self, ak: &Key, credential: &Credential) -> Option<Vec<u8>> {
        let id = IdObject::try_from(credential.id_object.as_bytes()).unwrap();
        let secret = EncryptedSecret::try_from(credential.encrypted_secret.as_bytes()).unwrap();
        self.by_policy(|context, session| {
            let ek = TpmHandle::Persistent(PersistentTpmHandle::new(EK_HANDLE).unwrap());
            let mut ek = context
                .execute_without_session(|context| context.tr_from_tpm_public(ek))
                .unwrap();
            context
                .execute_with_session(Some(AuthSession::Password), |context| {
                    let hierarchy = AuthHandle::from(ObjectHandle::Endorsement);
                    let none = tss_esapi::structures::Digest::default();
                    context.policy_secret(
                        session,
                        hierarchy,
                        Nonce::default(),
                        none,
                        Nonce::default(),
                        None,
                    )
                })
                .unwrap();
            let sessions = (
                Some(AuthSession::Password),
                Some(AuthSession::from(session)),
                None,
            );
            let opened = context.execute_with_sessions(sessions, |context| {
                context.activate_credential(ak.handle, KeyHandle::from(ek), id, secret)
            });
            context.tr_close(&mut ek).unwrap();
            opened.ok().map(|secret| secret.value().to_vec())
        })
    }

    /// An ECDSA signature in DER.
    fn sign(&self, key: &Key, message: &[u8]) -> Vec<u8> {
        let digest =
            tss_esapi::structures::Digest::try_from(Digest::of(message).as_bytes()).unwrap();
        let ticket = TPMT_TK_HASHCHECK {
            tag: TPM2_ST_HASHCHECK,
            hierarchy: TPM2_RH_NULL,
            digest: tss_esapi::structures::Digest::default().into(),
        };
        let signed = self.by_policy(|context, session| {
            let mut by = AuthSession::Password;
            if !key.policy.is_empty() {
                let pcrs = selection(HashAlg::Sha256, &key.policy);
                context
                    .policy_pcr(session, tss_esapi::structures::Digest::default(), pcrs)
                    .unwrap();
                by = AuthSession::from(session);
            }
            context.execute_with_session(Some(by), |context| {
                context.sign(
                    key.handle,
                    digest,
                    SignatureScheme::Null,
                    ticket.try_into()?,
                )
            })
        });
        let Signature::EcDsa(parts) = signed.unwrap() else {
            panic!("an ECDSA key")
        };
        let (r, s) = (
            wide(parts.signature_r().value()),
            wide(parts.signature_s().value()),
        );
        let signature = p256::ecdsa::Signature::from_scalars(r, s).unwrap();
        signature.to_der().as_bytes().to_vec()
    }

    /// Hands a policy session to `f`.
    fn by_policy<T>(&self, f: impl FnOnce(&mut Context, PolicySession) -> T) -> T {
        let mut context = self.context();
        let cipher = SymmetricDefinition::AES_128_CFB;
        let session = context
            .execute_without_session(|context| {
                let (kind, hash) = (SessionType::Policy, HashingAlgorithm::Sha256);
                context.start_auth_session(None, None, None, kind, cipher, hash)
            })
            .unwrap()
            .unwrap();
        let outcome = f(&mut context, PolicySession::try_from(session).unwrap());
        let handle = tss_esapi::handles::SessionHandle::from(session).into();
        context
            .execute_without_session(|context| context.flush_context(handle))
            .unwrap();
        outcome
    }
}

/// A key as the signer of a request.
pub(crate) struct Signer<'a>(&'a Seized, &'a Key, Vec<u8>);

impl<'a> Signer<'a> {
    pub(crate) fn new(tpm: &'a Seized, key: &'a Key) -> Self {
        let Body::Ecc { x, y, .. } = &key.public.key else {
            panic!("an ECC key")
        };
        Self(tpm, key, [&[4], &wide(x)[..], &wide(y)].concat())
    }
}

impl rcgen::PublicKeyData for Signer<'_> {
    fn der_bytes(&self) -> &[u8] {
        &self.2
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for Signer<'_> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.0.sign(self.1, message))
    }
}
