//! The state's key: two NV indices that only boots approved by a release key can read and write.
//!
//! Guarantees: the content of [`StateSlot::Open`] was written by a boot that the release key
//! approved for a floor of at least the slot's, under the Secure Boot settings of this boot,
//! because the index's Name equals that of the template ([`config_unlock::approvals::Index`]),
//! which can be written only by PolicyAuthorize followed by PolicyPCR. The owner of the hierarchy
//! can delete an index or make another, but not one that is trusted. Each command that carries the
//! key runs in a session salted by a key of this TPM, with the key encrypted on the way.

use crate::device::{Device, flush_after, selection};
use crate::error::{AtStep, Authorized};
use crate::{Error, PcrValue, templates};
use config_unlock::approvals::{
    Approvals, Approver, BootApproval, INDEX_ATTRIBUTES, Index, SECURE_BOOT_PCR, Use,
    state_key_policy,
};
use tss_esapi::attributes::{NvIndexAttributes, SessionAttributesBuilder};
use tss_esapi::constants::SessionType;
use tss_esapi::constants::tss::TPM2_NV_INDEX_FIRST;
use tss_esapi::handles::{NvIndexHandle, NvIndexTpmHandle, ObjectHandle, SessionHandle, TpmHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::{Hierarchy, NvAuth, Provision};
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    Digest, EccParameter, EccSignature, MaxNvBuffer, Name, Nonce, NvPublic, Public, Signature,
    SymmetricDefinition,
};
use tss_esapi::traits::UnMarshall;
use tss_esapi::{Context, structures::VerifiedTicket};
use zeroize::Zeroizing;

/// Bytes that a slot holds.
pub const SLOT_SIZE: u16 = 48;
/// Slots. Two, so that a change makes the new one before it removes the old one.
pub const SLOTS: usize = 2;
/// Handles of the slots, in the range that the TCG's registry leaves to a TPM's owner.
const HANDLES: [u32; SLOTS] = [0x0180_7072, 0x0180_7073];
/// How far above and below an image's own version a floor is recognized, so that a refusal can name
/// it.
const KNOWN_FLOORS: u64 = 4096;

/// What an image contains to open its machine's state.
#[derive(Debug, Clone)]
pub struct Unlock {
    /// The release key that the image names.
    pub approver: Approver,
    /// The image's approvals.
    pub approvals: Approvals,
    /// The image's SVN.
    pub svn: u64,
}

/// What was found in a slot.
#[derive(Clone, PartialEq, Eq)]
pub enum StateSlot {
    /// No index.
    Absent,
    /// An index that does not match the template (its maker may know its content), or one of
    /// another release key or of other Secure Boot settings.
    Foreign,
    /// An index with content that a boot of the other role's image wrote, of the same release key
    /// and Secure Boot settings. No boot of this role opens it.
    OtherRole,
    /// An index of this release key with content, whose floor this boot is not approved for.
    Closed {
        /// Its floor.
        floor: u64,
    },
    /// An index of this release key without content, which may be anybody's.
    Unwritten {
        /// Its floor.
        floor: u64,
    },
    /// The content.
    Open {
        /// Its floor.
        floor: u64,
        /// [`SLOT_SIZE`] bytes.
        content: Zeroizing<Vec<u8>>,
    },
}

impl std::fmt::Debug for StateSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent => f.write_str("Absent"),
            Self::Foreign => f.write_str("Foreign"),
            Self::OtherRole => f.write_str("OtherRole"),
            Self::Closed { floor } => write!(f, "Closed({floor})"),
            Self::Unwritten { floor } => write!(f, "Unwritten({floor})"),
            Self::Open { floor, .. } => write!(f, "Open({floor})"),
        }
    }
}

impl Unlock {
    fn index(&self, slot: usize, floor: u64, secure_boot: PcrValue) -> Option<Index> {
        index(&self.approver, slot, floor, secure_boot)
    }

    /// The floor of the index with this Name, and whether it has content.
    fn recognise(&self, slot: usize, name: &[u8], secure_boot: PcrValue) -> Option<(u64, bool)> {
        self.recognise_of(&self.approver, slot, name, secure_boot)
    }

    /// The slot's state where the index is not one of this role's images. An index without content
    /// counts as foreign: the owner of the hierarchy can make one, and no state is lost with it.
    fn unrecognised(&self, slot: usize, name: &[u8], secure_boot: PcrValue) -> StateSlot {
        let other = self.approver.of_other_role();
        match self.recognise_of(&other, slot, name, secure_boot) {
            Some((_, true)) => StateSlot::OtherRole,
            Some((_, false)) | None => StateSlot::Foreign,
        }
    }

    fn recognise_of(
        &self,
        approver: &Approver,
        slot: usize,
        name: &[u8],
        secure_boot: PcrValue,
    ) -> Option<(u64, bool)> {
        // The floor is most often the image's own version, or a little below.
        let floors = (0..=KNOWN_FLOORS).flat_map(|distance| {
            let below = self.svn.saturating_sub(distance);
            [below, self.svn.saturating_add(distance)]
        });
        floors.into_iter().find_map(|floor| {
            let index = index(approver, slot, floor, secure_boot)?;
            // TPMA_NV_WRITTEN is among the attributes that the Name covers.
            [true, false]
                .into_iter()
                .find(|written| index.name(*written) == name)
                .map(|written| (floor, written))
        })
    }
}

/// The index of a slot for images that `approver` approved for `floor`.
fn index(approver: &Approver, slot: usize, floor: u64, secure_boot: PcrValue) -> Option<Index> {
    let handle = *HANDLES.get(slot)?;
    Some(Index {
        handle,
        policy: state_key_policy(approver, floor, secure_boot),
        size: SLOT_SIZE,
    })
}

impl Device {
    /// Whether the image's release key approved the registers' current values for the image's own
    /// version.
    pub(crate) fn approved(&mut self, unlock: &Unlock) -> Result<bool, Error> {
        let policy = self.policy_now(Use::State)?;
        Ok(approval(unlock, Use::State, &policy, unlock.svn).is_some())
    }

    /// The policy of the registers as they are.
    pub(crate) fn policy_now(&mut self, of: Use) -> Result<PcrValue, Error> {
        Ok(of.policy(&self.read_pcrs(of.pcrs())?))
    }

    /// The value of [`SECURE_BOOT_PCR`].
    pub(crate) fn secure_boot(&mut self) -> Result<PcrValue, Error> {
        let values = self.read_pcrs(&[SECURE_BOOT_PCR])?;
        values
            .get(&SECURE_BOOT_PCR)
            .copied()
            .ok_or(Error::Malformed {
                what: "the TPM's answer to PCR_Read",
            })
    }

    /// Reads both slots.
    pub(crate) fn state_slots(&mut self, unlock: &Unlock) -> Result<Vec<StateSlot>, Error> {
        let policy = self.policy_now(Use::State)?;
        let present = self.handles(TPM2_NV_INDEX_FIRST)?;
        let mut slots = Vec::with_capacity(SLOTS);
        for (slot, handle) in HANDLES.into_iter().enumerate() {
            slots.push(if present.contains(&handle) {
                self.state_slot(unlock, slot, &policy)?
            } else {
                StateSlot::Absent
            });
        }
        Ok(slots)
    }

    /// The highest floor of the slots with content. The owner of the hierarchy can remove a slot or
    /// add an empty one; neither lowers the floor without losing the state.
    pub(crate) fn state_floor(&mut self, unlock: &Unlock) -> Result<Option<u64>, Error> {
        let secure_boot = self.secure_boot()?;
        let present = self.handles(TPM2_NV_INDEX_FIRST)?;
        let mut highest = None;
        for (slot, handle) in HANDLES.into_iter().enumerate() {
            if present.contains(&handle) {
                let found = self.with_index(slot, |device, index| {
                    let name = device
                        .context
                        .tr_get_name(index)
                        .step("read the Name of the state's index")?;
                    Ok(unlock.recognise(slot, name.value(), secure_boot))
                })?;
                let written = found.filter(|(_, written)| *written);
                highest = highest.max(written.map(|(floor, _)| floor));
            }
        }
        Ok(highest)
    }

    fn state_slot(
        &mut self,
        unlock: &Unlock,
        slot: usize,
        policy: &PcrValue,
    ) -> Result<StateSlot, Error> {
        let secure_boot = self.secure_boot()?;
        self.with_index(slot, |device, index| {
            let name = device
                .context
                .tr_get_name(index)
                .step("read the Name of the state's index")?;
            let Some((floor, written)) = unlock.recognise(slot, name.value(), secure_boot) else {
                return Ok(unlock.unrecognised(slot, name.value(), secure_boot));
            };
            // First, as the owner of the hierarchy can make an empty index of any floor: it must
            // not look like a key that other images open, for which a state would be kept.
            if !written {
                return Ok(StateSlot::Unwritten { floor });
            }
            let Some(approval) = approval(unlock, Use::State, policy, floor) else {
                return Ok(StateSlot::Closed { floor });
            };
            let index = NvIndexHandle::from(index);
            let read = device.with_own_approval(unlock, approval, Flow::FromTpm, |context| {
                context.nv_read(NvAuth::NvIndex(index), index, SLOT_SIZE, 0)
            })?;
            let content = Zeroizing::new(read.step("read the state's key")?.value().to_vec());
            Ok(StateSlot::Open { floor, content })
        })
    }

    /// Writes a slot; makes its index anew if it does not have this floor.
    pub(crate) fn write_state_slot(
        &mut self,
        unlock: &Unlock,
        slot: usize,
        floor: u64,
        content: &[u8],
    ) -> Result<(), Error> {
        let size = Error::Malformed {
            what: "what is to be kept in the TPM",
        };
        let secure_boot = self.secure_boot()?;
        let wanted = unlock
            .index(slot, floor, secure_boot)
            .filter(|_| content.len() == usize::from(SLOT_SIZE))
            .ok_or(size)?;
        let policy = self.policy_now(Use::State)?;
        let approval = approval(unlock, Use::State, &policy, floor).ok_or(Error::NotApproved)?;
        let ready = self.handles(TPM2_NV_INDEX_FIRST)?.contains(&wanted.handle)
            && self.with_index(slot, |device, index| {
                let name = device
                    .context
                    .tr_get_name(index)
                    .step("read the Name of the state's index")?;
                Ok([true, false]
                    .into_iter()
                    .any(|written| wanted.name(written) == name.value()))
            })?;
        if !ready {
            self.delete_state_slot(slot)?;
            self.define(&wanted)?;
        }
        let data = MaxNvBuffer::try_from(content.to_vec()).step("write the state's key")?;
        self.with_index(slot, |device, index| {
            let index = NvIndexHandle::from(index);
            let written = device.with_own_approval(unlock, approval, Flow::ToTpm, |context| {
                context.nv_write(NvAuth::NvIndex(index), index, data, 0)
            })?;
            written.step("write the state's key")
        })
    }

    fn define(&mut self, wanted: &Index) -> Result<(), Error> {
        const STEP: &str = "make the state's index";
        let public = NvPublic::builder()
            .with_nv_index(NvIndexTpmHandle::new(wanted.handle).step(STEP)?)
            .with_index_name_algorithm(HashingAlgorithm::Sha256)
            .with_index_attributes(NvIndexAttributes::try_from(INDEX_ATTRIBUTES).step(STEP)?)
            .with_index_auth_policy(Digest::try_from(wanted.policy.as_bytes()).step(STEP)?)
            .with_data_area_size(wanted.size.into())
            .build()
            .step(STEP)?;
        let made = self
            .context
            .execute_with_session(Some(AuthSession::Password), |context| {
                context.nv_define_space(Provision::Owner, None, public)
            });
        let mut handle = ObjectHandle::from(made.authorized(Hierarchy::Owner, STEP)?);
        self.context.tr_close(&mut handle).step("close a handle")
    }

    /// Removes a slot's index, whatever it is; one that is not there is no error.
    pub(crate) fn delete_state_slot(&mut self, slot: usize) -> Result<(), Error> {
        let handle = HANDLES.get(slot).ok_or(Error::Malformed {
            what: "the number of a slot",
        })?;
        if !self.handles(TPM2_NV_INDEX_FIRST)?.contains(handle) {
            return Ok(());
        }
        let index = self.open_index(slot)?;
        self.context
            .execute_with_session(Some(AuthSession::Password), |context| {
                context.nv_undefine_space(Provision::Owner, index.into())
            })
            .authorized(Hierarchy::Owner, "remove the state's index")
    }

    fn open_index(&mut self, slot: usize) -> Result<ObjectHandle, Error> {
        let handle = *HANDLES.get(slot).ok_or(Error::Malformed {
            what: "the number of a slot",
        })?;
        let handle = NvIndexTpmHandle::new(handle).step("name the state's index")?;
        self.context
            .execute_without_session(|context| {
                context.tr_from_tpm_public(TpmHandle::NvIndex(handle))
            })
            .step("open the state's index")
    }

    fn with_index<T>(
        &mut self,
        slot: usize,
        f: impl FnOnce(&mut Self, ObjectHandle) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut index = self.open_index(slot)?;
        let outcome = f(self, index);
        let closed = self.context.tr_close(&mut index).step("close a handle");
        let value = outcome?;
        closed.map(|()| value)
    }

    /// Runs a command in a salted session that satisfies PolicyAuthorize by an approval of the
    /// registers as they are.
    pub(crate) fn with_approval<T>(
        &mut self,
        unlock: &Unlock,
        approval: &BootApproval,
        flow: Flow,
        command: impl FnOnce(&mut Context) -> tss_esapi::Result<T>,
    ) -> Result<tss_esapi::Result<T>, Error> {
        self.with_policy(unlock, approval, &[], flow, command)
    }

    /// As [`Device::with_approval`], for an object whose policy has the machine's Secure Boot
    /// settings, too ([`state_key_policy`]).
    fn with_own_approval<T>(
        &mut self,
        unlock: &Unlock,
        approval: &BootApproval,
        flow: Flow,
        command: impl FnOnce(&mut Context) -> tss_esapi::Result<T>,
    ) -> Result<tss_esapi::Result<T>, Error> {
        self.with_policy(unlock, approval, &[SECURE_BOOT_PCR], flow, command)
    }

    /// PolicyPCR and PolicyAuthorize, then PolicyPCR over the machine's `own` registers, if there
    /// are some.
    pub(crate) fn with_policy<T>(
        &mut self,
        unlock: &Unlock,
        approval: &BootApproval,
        own: &[u8],
        flow: Flow,
        command: impl FnOnce(&mut Context) -> tss_esapi::Result<T>,
    ) -> Result<tss_esapi::Result<T>, Error> {
        let ticket = self.ticket(unlock, approval)?;
        let name = unlock.approver.public().name();
        let name = Name::try_from(name.as_bytes().to_vec()).step("name the release key")?;
        self.with_salted_session(SessionType::Policy, flow, |device, session| {
            const STEP: &str = "satisfy the policy of what is kept";
            let context = &mut device.context;
            let session = PolicySession::try_from(session).step(STEP)?;
            let pcrs = selection(approval.of.pcrs()).step("select registers")?;
            context
                .policy_pcr(session, Digest::default(), pcrs)
                .step(STEP)?;
            let policy = Digest::try_from(approval.policy.as_bytes()).step(STEP)?;
            let reference = Nonce::try_from(
                approval
                    .of
                    .reference(unlock.approver.role(), approval.floor),
            )
            .step(STEP)?;
            context
                .policy_authorize(session, policy, reference, &name, ticket)
                .step(STEP)?;
            if !own.is_empty() {
                let pcrs = selection(own).step("select registers")?;
                context
                    .policy_pcr(session, Digest::default(), pcrs)
                    .step(STEP)?;
            }
            Ok(context.execute_with_session(Some(AuthSession::from(session)), command))
        })
    }

    /// Has the TPM verify an approval.
    fn ticket(
        &mut self,
        unlock: &Unlock,
        approval: &BootApproval,
    ) -> Result<VerifiedTicket, Error> {
        const STEP: &str = "verify the release key's approval";
        let public = Public::unmarshall(&unlock.approver.public().to_bytes())
            .step("load the release key")?;
        // Not the NULL hierarchy: its tickets are empty, and PolicyAuthorize takes none.
        let key = self
            .context
            .execute_without_session(|context| {
                context.load_external_public(public, Hierarchy::Owner)
            })
            .step("load the release key")?;
        // In a closure, so that the key is flushed after a failure too.
        let verified = (|| {
            let role = unlock.approver.role();
            let digest = approval.of.approval(role, &approval.policy, approval.floor);
            let digest = Digest::try_from(digest.as_bytes()).step(STEP)?;
            let (r, s) = approval.signature.split_at(32);
            let r = EccParameter::try_from(r).step(STEP)?;
            let s = EccParameter::try_from(s).step(STEP)?;
            let signature = EccSignature::create(HashingAlgorithm::Sha256, r, s).step(STEP)?;
            self.context
                .execute_without_session(|context| {
                    context.verify_signature(key, digest, Signature::EcDsa(signature))
                })
                .step(STEP)
        })();
        flush_after(&mut self.context, key.into(), verified)
    }

    /// Starts a session whose secret is known to this TPM and to us alone: its salt is encrypted to
    /// the storage key.
    pub(crate) fn with_salted_session<T>(
        &mut self,
        kind: SessionType,
        flow: Flow,
        f: impl FnOnce(&mut Self, AuthSession) -> Result<T, Error>,
    ) -> Result<T, Error> {
        const STEP: &str = "start a salted session";
        let template = templates::storage().step("describe the storage key")?;
        let session = self.with_primary(
            Hierarchy::Owner,
            template,
            None,
            "derive the storage key",
            |context, key, _| {
                let aes = SymmetricDefinition::AES_128_CFB;
                let started = context.execute_without_session(|context| {
                    context.start_auth_session(
                        Some(key),
                        None,
                        None,
                        kind,
                        aes,
                        HashingAlgorithm::Sha256,
                    )
                });
                started.step(STEP)?.ok_or(Error::Malformed {
                    what: "the TPM's answer to StartAuthSession",
                })
            },
        )?;
        let builder = SessionAttributesBuilder::new().with_continue_session(true);
        let (attributes, mask) = match flow {
            Flow::FromTpm => builder.with_encrypt(true),
            Flow::ToTpm => builder.with_decrypt(true),
        }
        .build();
        let outcome = self
            .context
            .tr_sess_set_attributes(session, attributes, mask)
            .step(STEP)
            .and_then(|()| f(self, session));
        flush_after(
            &mut self.context,
            SessionHandle::from(session).into(),
            outcome,
        )
    }
}

/// The direction of a secret: only the first parameter of a command or of its answer can be
/// encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// In the answer.
    FromTpm,
    /// In the command.
    ToTpm,
}

/// The approval of registers with this policy, if the release key gave it.
pub(crate) fn approval<'a>(
    unlock: &'a Unlock,
    of: Use,
    policy: &PcrValue,
    floor: u64,
) -> Option<&'a BootApproval> {
    unlock
        .approvals
        .find(of, policy, floor)
        .filter(|approval| approval.is_by(&unlock.approver))
}
