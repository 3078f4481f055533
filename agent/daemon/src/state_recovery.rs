//! Opens a master's state of another board by the admin's one-off key in front of it, if the TPM
//! has no key for it.
//!
//! Anyone with the disk can write these bytes. They are read at a fixed place and length, without a
//! file system; each field is bounded; and they have an effect only if this board's TPM unseals the
//! secret in them, which it does only for boots that the release key approved
//! ([`config_unlock::one_off`]). Nothing is written before init mounted the volume.

use crate::error::Error;
use crate::state_medium::{Partition, TpmStore, fault, part};
use agent_tpm::WrappedKey;
use agent_volume::engine::{self, RecoverOutcome, RecoveredVolume, Recovery};
use agent_volume::{Reason, Report, header};
use config_state::generation::BootNonce;
use config_unlock::approvals::SECURE_BOOT_PCR;
use config_unlock::one_off::{OneOff, OneOffError};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use zeroize::Zeroizing;

/// A state that opened by the admin's one-off key.
pub(crate) struct RecoveredState {
    recovered: Box<RecoveredVolume>,
    floor: u64,
    admin: [u8; 32],
    keys: Zeroizing<Vec<u8>>,
}

/// Why a state is not recovered.
pub(crate) enum Unrecovered {
    /// It does not open, or may not.
    Refused(Reason),
    /// The disk or the TPM failed, which says nothing about the state.
    Failed(Error),
}

impl From<Error> for Unrecovered {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Looks for a one-off key after the state did not open for `reason`, and opens the state by it.
///
/// # Errors
/// The disk or the TPM failed, or the state is not recovered: for the given reason if there is no
/// one-off key.
pub(crate) fn look(
    disk: &mut Partition,
    store: &mut TpmStore,
    reason: Reason,
) -> Result<RecoveredState, Unrecovered> {
    let others = matches!(
        reason,
        Reason::NoKey
            | Reason::OtherKey
            | Reason::ForeignIndex
            | Reason::OtherRole
            | Reason::Floor(_)
    );
    if !others {
        // A one-off key does not override the board's own record: an older copy of its own state
        // stays refused.
        return Err(Unrecovered::Refused(reason));
    }
    let mut bytes = vec![0; header::MAX_ONE_OFF];
    let read = disk.0.read_exact_at(&mut bytes, header::ONE_OFF);
    read.map_err(fault("read", Path::new("the one-off key's place")))?;
    let one_off = match OneOff::parse(&bytes) {
        Ok(one_off) => one_off,
        Err(OneOffError::Absent) => return Err(Unrecovered::Refused(reason)),
        Err(OneOffError::Damaged | OneOffError::Make(_)) => {
            return Err(Unrecovered::Refused(Reason::OneOffDamaged));
        }
    };
    let content = content(store, &one_off)?;
    let Some((key, keys)) = content.split_first_chunk() else {
        return Err(Unrecovered::Refused(Reason::OneOffDamaged));
    };
    let by = Recovery {
        key: Zeroizing::new(*key),
        generation: one_off.generation,
        admin: one_off.admin.0,
        board: one_off.ek.0,
    };
    match engine::recover(disk, store, &by).map_err(part)? {
        RecoverOutcome::Recovered(recovered) => Ok(RecoveredState {
            recovered,
            floor: one_off.floor,
            admin: one_off.admin.0,
            keys: Zeroizing::new(keys.to_vec()),
        }),
        RecoverOutcome::Refused(reason) => Err(Unrecovered::Refused(reason)),
    }
}

/// The content of the one-off key, opened by this board's TPM.
fn content(store: &TpmStore, one_off: &OneOff) -> Result<Zeroizing<Vec<u8>>, Unrecovered> {
    let registers = store.tpm.read_pcrs(&[SECURE_BOOT_PCR]);
    let registers = registers.map_err(|error| Unrecovered::Failed(Error::Tpm(error)))?;
    let settings = registers.get(&SECURE_BOOT_PCR).copied();
    let is_ours = one_off.is_for(&store.unlock.approver, settings.unwrap_or_default());
    if !is_ours || one_off.floor > store.unlock.svn {
        return Err(Unrecovered::Refused(Reason::OneOffOtherImage));
    }
    let wrapped = WrappedKey {
        ek: one_off.ek,
        key: one_off.secret.clone(),
    };
    let unwrapped = store
        .tpm
        .unwrap_secret(&store.unlock, one_off.floor, wrapped);
    let refused = |reason| Err(Unrecovered::Refused(reason));
    match unwrapped {
        Ok(secret) => {
            let content = one_off.open(&secret);
            content.ok_or(Unrecovered::Refused(Reason::OneOffDamaged))
        }
        Err(agent_tpm::Error::ForAnotherTpm { .. }) => refused(Reason::OneOffOtherBoard),
        Err(agent_tpm::Error::NotImported { .. } | agent_tpm::Error::Malformed { .. }) => {
            refused(Reason::OneOffDamaged)
        }
        // An image is approved for its own version and for a limited number of lower floors.
        Err(agent_tpm::Error::NotApproved) => refused(Reason::OneOffOtherImage),
        Err(error) => Err(Unrecovered::Failed(Error::Tpm(error))),
    }
}

impl RecoveredState {
    /// The report for init.
    pub(crate) fn report(&self) -> Report {
        Report::Recovered {
            key: self.recovered.volume.clone(),
            generation: self.recovered.generation,
            admin: self.admin,
            keys: self.keys.clone(),
        }
    }

    /// Binds the state to this board, in the boot with this value, and removes the one-off key,
    /// which can't be used again.
    pub(crate) fn bind(
        self,
        disk: &mut Partition,
        store: &mut TpmStore,
        boot: BootNonce,
    ) -> Result<(), Error> {
        let bound = self.recovered.bind(disk, store, self.floor, boot);
        bound.map_err(part)?;
        let zeros = vec![0; header::MAX_ONE_OFF];
        let removed = disk.0.write_all_at(&zeros, header::ONE_OFF);
        removed
            .and_then(|()| disk.0.sync_all())
            .map_err(fault("clear", Path::new("the one-off key's place")))
    }
}
