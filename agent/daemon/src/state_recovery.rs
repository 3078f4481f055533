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
use agent_volume::engine::{self, RecoveredVolume, Recovery};
use agent_volume::{Reason, Report, header};
use config_state::generation::BootNonce;
use config_unlock::one_off::{OneOff, OneOffError};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use zeroize::Zeroizing;

/// A state that opened by the admin's one-off key.
pub(crate) struct RecoveredState {
    recovered: RecoveredVolume,
    floor: u64,
    admin: [u8; 32],
    keys: Zeroizing<Vec<u8>>,
}

/// Looks for a one-off key after the state did not open for `reason`, and opens the state by it.
///
/// # Errors
/// The disk or the TPM failed. A state that does not open is no error but a [`Reason`]: the given
/// one if there is no one-off key.
pub(crate) fn look(
    disk: &mut Partition,
    store: &mut TpmStore,
    reason: Reason,
) -> Result<Result<RecoveredState, Reason>, Error> {
    let others = matches!(
        reason,
        Reason::NoKey | Reason::OtherKey | Reason::ForeignIndex | Reason::Floor(_)
    );
    if !others {
        // A one-off key does not override the board's own record: an older copy of its own state
        // stays refused.
        return Ok(Err(reason));
    }
    let mut bytes = vec![0; header::MAX_ONE_OFF];
    let read = disk.0.read_exact_at(&mut bytes, header::ONE_OFF);
    read.map_err(fault("read", Path::new("the one-off key's place")))?;
    let one_off = match OneOff::parse(&bytes) {
        Ok(one_off) => one_off,
        Err(OneOffError::Absent) => return Ok(Err(reason)),
        Err(OneOffError::Damaged | OneOffError::Make(_)) => return Ok(Err(Reason::OneOffDamaged)),
    };
    let content = match content(store, &one_off)? {
        Ok(content) => content,
        Err(reason) => return Ok(Err(reason)),
    };
    let Some((key, keys)) = content.split_first_chunk() else {
        return Ok(Err(Reason::OneOffDamaged));
    };
    let by = Recovery {
        key: Zeroizing::new(*key),
        generation: one_off.generation,
        admin: one_off.admin.0,
        board: one_off.ek.0,
    };
    let recovered = engine::recover(disk, store, &by).map_err(part)?;
    Ok(recovered.map(|recovered| RecoveredState {
        recovered,
        floor: one_off.floor,
        admin: one_off.admin.0,
        keys: Zeroizing::new(keys.to_vec()),
    }))
}

/// The content of the one-off key, opened by this board's TPM.
fn content(
    store: &TpmStore,
    one_off: &OneOff,
) -> Result<Result<Zeroizing<Vec<u8>>, Reason>, Error> {
    if !one_off.is_for(&store.unlock.approver) || one_off.floor > store.unlock.svn {
        return Ok(Err(Reason::OneOffOtherImage));
    }
    let wrapped = WrappedKey {
        ek: one_off.ek,
        key: one_off.secret.clone(),
    };
    let unwrapped = store
        .tpm
        .unwrap_secret(&store.unlock, one_off.floor, wrapped);
    Ok(match unwrapped {
        Ok(secret) => one_off.open(&secret).ok_or(Reason::OneOffDamaged),
        Err(agent_tpm::Error::ForAnotherTpm { .. }) => Err(Reason::OneOffOtherBoard),
        Err(agent_tpm::Error::NotImported { .. } | agent_tpm::Error::Malformed { .. }) => {
            Err(Reason::OneOffDamaged)
        }
        // An image is approved for its own version and for a limited number of lower floors.
        Err(agent_tpm::Error::NotApproved) => Err(Reason::OneOffOtherImage),
        Err(error) => return Err(Error::Tpm(error)),
    })
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
