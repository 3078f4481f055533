//! The open TPM: sessions, loading and flushing, registers.

use crate::error::{AtStep, Authorized};
use crate::key_types::{AttestationKey, EndorsementKey, LoadedTemplate};
use crate::{Error, PcrValue};
use config_tpm::pcr::QUOTE_PCRS;
use std::collections::BTreeMap;
use std::str::FromStr;
use tss_esapi::Context;
use tss_esapi::constants::ecc::EccCurveIdentifier;
use tss_esapi::constants::{CapabilityType, SessionType};
use tss_esapi::handles::{KeyHandle, ObjectHandle, PcrHandle, SessionHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    Auth, CapabilityData, Digest, DigestValues, PcrSelection, PcrSelectionList, PcrSlot, Public,
    SymmetricDefinition,
};
use tss_esapi::tcti_ldr::TctiNameConf;
use tss_esapi::utils::TpmsContext;

/// Attempts to see the registers at rest; they are extended a handful of times in a boot.
pub(crate) const STEADY_ATTEMPTS: u32 = 8;
/// Registers of a TPM (PC Client Platform TPM Profile: 24).
const PCR_COUNT: u8 = 24;

/// Entries of a list of capabilities that are asked for at once; a TPM has a handful of banks and
/// curves.
const CAPABILITIES: u32 = 64;

/// The open TPM and the keys derived from it so far. Lives on its own thread.
pub(crate) struct Device {
    pub(crate) context: Context,
    pub(crate) endorsement: Option<Vec<EndorsementKey>>,
    pub(crate) ak: Option<AttestationKey>,
    pub(crate) nk: Option<LoadedTemplate>,
    pub(crate) imported: Option<LoadedTemplate>,
}

impl Device {
    /// Opens the TPM.
    pub(crate) fn open(tcti: &str) -> Result<Self, Error> {
        let name = TctiNameConf::from_str(tcti).map_err(|source| Error::Tcti {
            tcti: tcti.to_owned(),
            source,
        })?;
        let context = Context::new(name).map_err(|source| Error::Open {
            tcti: tcti.to_owned(),
            source,
        })?;
        Ok(Self {
            context,
            endorsement: None,
            ak: None,
            nk: None,
            imported: None,
        })
    }

    /// Checks that the TPM has what the proof needs, as far as it reports that: an error here names
    /// what is missing, instead of a response code in the middle of an exchange.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        let bank = "SHA-256 bank of registers that is switched on";
        let cure = "switch it on in the firmware's settings (PCR banks), or by `tpm2_pcrallocate sha256:all` and a reboot";
        if let Some(CapabilityData::AssignedPcr(banks)) =
            self.capability(CapabilityType::AssignedPcr)
        {
            let on = |slot| {
                let held = |bank: &PcrSelection| {
                    bank.hashing_algorithm() == HashingAlgorithm::Sha256 && bank.is_selected(slot)
                };
                banks.get_selections().iter().any(held)
            };
            let needed = selection(QUOTE_PCRS).step("select registers")?;
            let all = needed
                .get_selections()
                .iter()
                .flat_map(PcrSelection::selected)
                .all(on);
            if !all {
                return Err(Error::Lacks { what: bank, cure });
            }
        }
        if let Some(CapabilityData::EccCurves(curves)) = self.capability(CapabilityType::EccCurves)
            && !curves.into_inner().contains(&EccCurveIdentifier::NistP256)
        {
            let cure =
                "no setting gives it one; update its firmware, or use a machine with a newer TPM";
            return Err(Error::Lacks {
                what: "ECC keys on the curve P-256",
                cure,
            });
        }
        Ok(())
    }

    /// A list of the TPM's capabilities; `None` if its answer is not understood.
    fn capability(&mut self, kind: CapabilityType) -> Option<CapabilityData> {
        let listed = self
            .context
            .execute_without_session(|context| context.get_capability(kind, 0, CAPABILITIES));
        listed.ok().map(|(data, _)| data)
    }

    /// Makes a primary key, hands it to `f`, and flushes it.
    pub(crate) fn with_primary<T>(
        &mut self,
        hierarchy: Hierarchy,
        public: Public,
        auth: Option<Auth>,
        step: &'static str,
        f: impl FnOnce(&mut Context, KeyHandle, Public) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let made = self
            .context
            .execute_with_session(Some(AuthSession::Password), |context| {
                context.create_primary(hierarchy, public, auth, None, None, None)
            })
            .authorized(hierarchy, step)?;
        let outcome = f(&mut self.context, made.key_handle, made.out_public);
        flush_after(&mut self.context, made.key_handle.into(), outcome)
    }

    /// Loads a saved key, hands it to `f`, and flushes it.
    pub(crate) fn with_saved<T>(
        &mut self,
        saved: &TpmsContext,
        auth: Option<Auth>,
        f: impl FnOnce(&mut Self, KeyHandle) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let handle = self
            .context
            .context_load(saved.clone())
            .step("load a key of this boot")?;
        let outcome = match auth.map_or(Ok(()), |auth| self.context.tr_set_auth(handle, auth)) {
            Ok(()) => f(self, KeyHandle::from(handle)),
            Err(source) => Err(Error::Command {
                step: "set a key's auth value",
                source,
            }),
        };
        flush_after(&mut self.context, handle, outcome)
    }

    /// Starts a session of the given type, hands it to `f`, and flushes it.
    pub(crate) fn with_session<T>(
        &mut self,
        kind: SessionType,
        hash: HashingAlgorithm,
        f: impl FnOnce(&mut Context, PolicySession) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let session = self
            .context
            .execute_without_session(|context| {
                context.start_auth_session(
                    None,
                    None,
                    None,
                    kind,
                    SymmetricDefinition::AES_128_CFB,
                    hash,
                )
            })
            .step("start a session")?
            .ok_or(Error::Malformed {
                what: "the TPM's answer to StartAuthSession",
            })?;
        let outcome = PolicySession::try_from(session)
            .step("start a policy session")
            .and_then(|policy| f(&mut self.context, policy));
        flush_after(
            &mut self.context,
            SessionHandle::from(session).into(),
            outcome,
        )
    }

    /// Reads registers of the SHA-256 bank, all at one moment: no register changed between the
    /// first and the last read.
    pub(crate) fn read_pcrs(&mut self, pcrs: &[u8]) -> Result<BTreeMap<u8, PcrValue>, Error> {
        for _ in 0..STEADY_ATTEMPTS {
            if let Some(values) = self.read_pcrs_once(pcrs)? {
                return Ok(values);
            }
        }
        Err(Error::Unsteady {
            step: "read them",
            attempts: STEADY_ATTEMPTS,
        })
    }

    /// One pass over the registers; `None` if one was extended meanwhile (`TPM2_PCR_Read` returns
    /// at most eight at once).
    fn read_pcrs_once(&mut self, pcrs: &[u8]) -> Result<Option<BTreeMap<u8, PcrValue>>, Error> {
        let mut values = BTreeMap::new();
        let mut first_counter = None;
        for &pcr in pcrs {
            if values.contains_key(&pcr) {
                continue;
            }
            let missing: Vec<u8> = pcrs
                .iter()
                .copied()
                .filter(|pcr| !values.contains_key(pcr))
                .take(8)
                .collect();
            let (counter, _, digests) = self
                .context
                .execute_without_session(|context| context.pcr_read(selection(&missing)?))
                .step("read registers")?;
            if *first_counter.get_or_insert(counter) != counter {
                return Ok(None);
            }
            let mut sorted = missing;
            sorted.sort_unstable();
            if digests.len() != sorted.len() {
                return Err(Error::Malformed {
                    what: "the TPM's SHA-256 bank",
                });
            }
            for (pcr, digest) in sorted.into_iter().zip(digests.value()) {
                let value = PcrValue::from_slice(digest.value()).ok_or(Error::Malformed {
                    what: "a register of the SHA-256 bank",
                })?;
                values.insert(pcr, value);
            }
        }
        Ok(Some(values))
    }

    /// Extends a register of the SHA-256 bank.
    pub(crate) fn extend_pcr(&mut self, pcr: u8, digest: PcrValue) -> Result<(), Error> {
        if pcr >= PCR_COUNT {
            return Err(Error::Malformed {
                what: "the register's number",
            });
        }
        let handle = PcrHandle::try_from(u32::from(pcr)).step("name a register")?;
        let mut digests = DigestValues::new();
        digests.set(
            HashingAlgorithm::Sha256,
            Digest::try_from(digest.as_bytes()).step("extend a register")?,
        );
        self.context
            .execute_with_session(Some(AuthSession::Password), |context| {
                context.pcr_extend(handle, digests)
            })
            .step("extend a register")
    }
}

/// The selection of `pcrs` in the SHA-256 bank.
pub(crate) fn selection(pcrs: &[u8]) -> tss_esapi::Result<PcrSelectionList> {
    let slots = pcrs
        .iter()
        .map(|&pcr| PcrSlot::try_from(1_u32.checked_shl(pcr.into()).unwrap_or(0)));
    let slots = slots.collect::<tss_esapi::Result<Vec<_>>>()?;
    PcrSelectionList::builder()
        .with_selection(HashingAlgorithm::Sha256, &slots)
        .build()
}

/// Flushes `handle` after any outcome; an error of the outcome takes precedence.
pub(crate) fn flush_after<T>(
    context: &mut Context,
    handle: ObjectHandle,
    outcome: Result<T, Error>,
) -> Result<T, Error> {
    let flushed = context
        .execute_without_session(|context| context.flush_context(handle))
        .step("flush a handle");
    let value = outcome?;
    flushed.map(|()| value)
}
