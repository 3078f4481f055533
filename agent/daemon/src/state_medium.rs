//! Where the state's header and key are: the partition's start and the TPM's slots, as the engine
//! of `agent/volume` needs them.

use crate::error::Error;
use agent_tpm::{StateSlot, Tpm, Unlock};
use agent_volume::engine::{Disk, SlotContent, Store, VolumeError};
use agent_volume::{Kept, header};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The error of a file operation on a path.
pub(crate) fn fault(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { what, path, source }
}

/// A failure that a person must fix keeps its class, and so the exit code by which init recognizes
/// it.
pub(crate) fn part(cause: VolumeError<agent_tpm::Error>) -> Error {
    use agent_tpm::Error::{Authorization, Full};
    match cause {
        VolumeError::Store(cause @ (Authorization { .. } | Full { .. })) => Error::Tpm(cause),
        cause @ (VolumeError::Store(_) | VolumeError::Disk(_) | VolumeError::Header(_)) => {
            Error::Part("state", Box::new(cause))
        }
    }
}

/// The partition's start.
pub(crate) struct Partition(pub(crate) File);

impl Disk for Partition {
    fn read(&mut self, copy: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; header::SIZE];
        self.0
            .read_exact_at(&mut bytes, place(copy)?)
            .map(|()| bytes)
    }

    fn write(&mut self, copy: usize, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, place(copy)?)?;
        self.0.sync_all()
    }
}

fn place(copy: usize) -> io::Result<u64> {
    header::COPIES
        .get(copy)
        .copied()
        .ok_or_else(|| io::Error::other("there is no such copy of the header"))
}

/// The TPM's slots.
pub(crate) struct TpmStore {
    pub(crate) tpm: Tpm,
    pub(crate) unlock: Unlock,
}

impl Store for TpmStore {
    type Error = agent_tpm::Error;

    fn slots(&mut self) -> Result<Vec<SlotContent>, agent_tpm::Error> {
        let found = |slot| match slot {
            StateSlot::Absent => SlotContent::Absent,
            StateSlot::Foreign => SlotContent::Foreign,
            StateSlot::OtherRole => SlotContent::OtherRole,
            StateSlot::Closed { floor } => SlotContent::Closed(floor),
            StateSlot::Unwritten { .. } => SlotContent::Unwritten,
            StateSlot::Open { floor, content } => Kept::parse(&content)
                .map_or(SlotContent::Foreign, |kept| SlotContent::Open(floor, kept)),
        };
        Ok(self
            .tpm
            .state_slots(&self.unlock)?
            .into_iter()
            .map(found)
            .collect())
    }

    fn write(&mut self, slot: usize, floor: u64, kept: &Kept) -> Result<(), agent_tpm::Error> {
        self.tpm
            .write_state_slot(&self.unlock, slot, floor, kept.to_bytes())
    }

    fn delete(&mut self, slot: usize) -> Result<(), agent_tpm::Error> {
        self.tpm.delete_state_slot(slot)
    }
}
