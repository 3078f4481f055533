//! When a volume is trusted, and how it moves from one generation to the next.
//!
//! Two things are kept: a header on the disk, which an attacker may write, and a key with a
//! generation in the TPM, which only a boot approved by the release key may write. Each boot writes
//! the header of the next generation first and the TPM second, so that the disk is at most one
//! ahead: a header older than the TPM's generation is an old copy.
//!
//! Guarantees: [`OpenOutcome::Opened`] has a key that an approved boot under this boot's
//! configuration made, for a header that is not older than the last boot that opened it. A power
//! cut after any write leaves a volume that opens or, while one is made, one that is made again.
//! What this can't detect is a restored part of the volume behind its header, or a copy of the disk
//! that was taken and restored within one generation: init finds those whose files do not name the
//! boot for which the TPM moved ([`Kept::boot`]).

use crate::header::{self, Header, HeaderError, VolumeKey, WrappingKey};
use crate::kept::{Kept, MADE};
use crate::reason::Reason;
use config_state::generation::BootNonce;
use std::error::Error;
use std::fmt;

/// The header's place on the disk; see [`header::COPIES`].
pub trait Disk {
    /// Reads a copy.
    ///
    /// # Errors
    /// The place can't be read. What is read there may be anything, and is no error of this method.
    fn read(&mut self, copy: usize) -> Result<Vec<u8>, std::io::Error>;
    /// Writes a copy, and returns when it is on the medium.
    ///
    /// # Errors
    /// The disk fails; the copy is then of the old content, the new or neither.
    fn write(&mut self, copy: usize, bytes: &[u8]) -> Result<(), std::io::Error>;
}

/// The slots of a TPM.
pub trait Store {
    /// Why the TPM failed.
    type Error: Error + Send + Sync + 'static;
    /// What each slot holds.
    ///
    /// # Errors
    /// The TPM failed to show its slots. One that is closed to this boot is no error.
    fn slots(&mut self) -> Result<Vec<SlotContent>, Self::Error>;
    /// Replaces the content of a slot, for images from `floor` on.
    ///
    /// # Errors
    /// The TPM failed to replace the slot, or this boot is not approved for the floor.
    fn write(&mut self, slot: usize, floor: u64, kept: &Kept) -> Result<(), Self::Error>;
    /// Empties a slot.
    ///
    /// # Errors
    /// The TPM refuses or fails. An empty slot is no error.
    fn delete(&mut self, slot: usize) -> Result<(), Self::Error>;
}

/// What was found in a slot of the TPM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotContent {
    /// Nothing.
    Absent,
    /// An index that someone else made, or that cannot be parsed.
    Foreign,
    /// A key for images of the other role.
    OtherRole,
    /// A key for images of another floor.
    Closed(u64),
    /// A place for a key, without one.
    Unwritten,
    /// The key, with its floor.
    Open(u64, Kept),
}

/// A failure of disk or TPM. It says nothing about the state: another try may succeed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError<E: Error + 'static> {
    /// The disk failed.
    #[error("the state's header can't be read or written")]
    Disk(#[source] std::io::Error),
    /// The TPM failed.
    #[error("the TPM failed to read or write the state's key")]
    Store(#[source] E),
    /// The header can't be made.
    #[error("the state's header can't be made")]
    Header(#[source] HeaderError),
}

/// The result of [`open`].
#[derive(Debug)]
pub enum OpenOutcome {
    /// The volume opens.
    Opened(Box<OpenVolume>),
    /// It doesn't.
    Closed(ClosedVolume),
}

/// A volume that opened.
pub struct OpenVolume {
    /// Its key.
    pub volume: VolumeKey,
    /// What the TPM keeps.
    pub kept: Kept,
    /// The lowest security version of images that open it.
    pub floor: u64,
    /// The boots for which the TPM moved last: the one that [`Self::advance`] follows and, while a
    /// rise of the floor is not done, that of the lower floor.
    pub boots: Vec<BootNonce>,
    recoverable: bool,
    header: Header,
    copy: usize,
    slot: usize,
}

impl fmt::Debug for OpenVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = self.header.generation;
        f.debug_struct("OpenVolume")
            .field("generation", &generation)
            .field("floor", &self.floor)
            .finish_non_exhaustive()
    }
}

/// A volume that did not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedVolume {
    /// Why.
    pub reason: Reason,
    /// How often the state was made anew before, by the TPM's record.
    pub renewals: u32,
    /// Whether the TPM may hold the key of a state that was finished. The disk says nothing about
    /// that: anyone can write a partition table in which the state is missing.
    pub finished: bool,
    /// The highest floor of a key that this boot can't read.
    pub floor: Option<u64>,
    /// Whether the TPM has the key of a state of the other role's images.
    pub other_role: bool,
}

/// What init knows of this boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootFacts {
    /// The partition was made just now, or was never finished.
    pub fresh: bool,
    /// The digest of the configuration, where the image has the state belong to one. The TPM's key
    /// is bound to images only: without this digest an approved image would open the state under
    /// any user-data that an attacker with the board supplies.
    pub configuration: Option<[u8; 32]>,
    /// Whether the state can be recovered on another board, as a master's. A worker's can't: a
    /// recovery key that somebody once read would open each later copy of its disk.
    pub recoverable: bool,
}

/// Looks for a volume that can be trusted: by this boot's image, and under its configuration.
///
/// # Errors
/// The disk or the TPM failed, which says nothing about the state.
pub fn open<S: Store>(
    disk: &mut impl Disk,
    store: &mut S,
    boot: BootFacts,
) -> Result<OpenOutcome, VolumeError<S::Error>> {
    let slots = store.slots().map_err(VolumeError::Store)?;
    let renewals = slots
        .iter()
        .filter_map(|slot| open_key(slot).map(|(_, kept)| kept.renewals))
        .max()
        .unwrap_or(0);
    let finished = slots.iter().any(finished);
    let floor = slots.iter().filter_map(closed_floor).max();
    let other_role = slots.contains(&SlotContent::OtherRole);
    let closed = |reason| {
        Ok(OpenOutcome::Closed(ClosedVolume {
            reason,
            renewals,
            finished,
            floor,
            other_role,
        }))
    };
    if boot.fresh {
        let first = slots.iter().all(|slot| *slot == SlotContent::Absent);
        return closed(if first {
            Reason::FirstStart
        } else {
            Reason::PartitionGone
        });
    }
    let (headers, damaged) = headers(disk).map_err(VolumeError::Disk)?;
    if headers.is_empty() {
        return closed(if damaged {
            Reason::Damaged
        } else {
            Reason::NoHeader
        });
    }
    match trusted(&slots, &headers, boot) {
        Ok(open) => Ok(OpenOutcome::Opened(Box::new(open))),
        Err(reason) => closed(reason),
    }
}

/// The volume that a key of the TPM opens and that can be trusted, or why there is none: its header
/// is the one that the TPM recorded last, and made under this boot's configuration.
fn trusted(
    slots: &[SlotContent],
    headers: &[HeaderCopy],
    boot: BootFacts,
) -> Result<OpenVolume, Reason> {
    let mut best: Option<OpenVolume> = None;
    // Until the deletion of the lower index commits a rise of the floor, boots of the older image
    // follow the one that is there, and boots of the newer image the other.
    let mut boots = Vec::new();
    let (mut older, mut foreign) = (false, false);
    for (slot, found) in slots.iter().enumerate() {
        let Some((floor, kept)) = open_key(found) else {
            continue;
        };
        for HeaderCopy { copy, header } in headers {
            let Some(volume) = header.open(&kept.key) else {
                continue;
            };
            if !is_current(header, kept) {
                older = true;
                continue;
            }
            if header.configuration() != boot.configuration {
                foreign = true;
                continue;
            }
            boots.push(kept.boot);
            // By floor first: a power cut while the floor was raised leaves the key of the lower
            // floor in the other slot.
            let newer = |best: &OpenVolume| {
                (floor, kept.generation, header.generation)
                    > (best.floor, best.kept.generation, best.header.generation)
            };
            if best.as_ref().is_none_or(newer) {
                let (kept, header) = (kept.clone(), header.clone());
                best = Some(OpenVolume {
                    volume,
                    kept,
                    floor,
                    boots: Vec::new(),
                    recoverable: boot.recoverable,
                    header,
                    copy: *copy,
                    slot,
                });
            }
        }
    }
    match best {
        Some(open) => {
            let others = boots.into_iter().filter(|boot| *boot != open.kept.boot);
            let boots = [open.kept.boot].into_iter().chain(others.take(1));
            Ok(OpenVolume {
                boots: boots.collect(),
                ..open
            })
        }
        None if foreign => Err(Reason::OtherConfiguration),
        None if older => Err(Reason::OlderCopy),
        None => Err(closed_reason(slots)),
    }
}

/// Whether the header has the TPM's generation or, after a power cut between the two writes, the
/// next one. Every other header that the TPM's key opens is from an older copy of the disk.
fn is_current(header: &Header, kept: &Kept) -> bool {
    header.generation == kept.generation
        || Some(header.generation) == kept.generation.checked_add(1)
}

/// A copy on the disk that parses as a header.
struct HeaderCopy {
    /// Its place; see [`header::COPIES`].
    copy: usize,
    header: Header,
}

/// The copies that parse as headers, and whether one has the mark of a damaged volume.
fn headers(disk: &mut impl Disk) -> Result<(Vec<HeaderCopy>, bool), std::io::Error> {
    let (mut headers, mut damaged) = (Vec::new(), false);
    for copy in 0..header::COPIES.len() {
        let bytes = disk.read(copy)?;
        damaged |= bytes.starts_with(header::DAMAGED);
        let header = Header::parse(&bytes).ok();
        headers.extend(header.map(|header| HeaderCopy { copy, header }));
    }
    Ok((headers, damaged))
}

/// The key that this boot can read in a slot, with its floor.
fn open_key(found: &SlotContent) -> Option<(u64, &Kept)> {
    match found {
        SlotContent::Open(floor, kept) => Some((*floor, kept)),
        SlotContent::Absent
        | SlotContent::Foreign
        | SlotContent::OtherRole
        | SlotContent::Closed(_)
        | SlotContent::Unwritten => None,
    }
}

fn closed_floor(found: &SlotContent) -> Option<u64> {
    match found {
        SlotContent::Closed(floor) => Some(*floor),
        SlotContent::Absent
        | SlotContent::Foreign
        | SlotContent::OtherRole
        | SlotContent::Unwritten
        | SlotContent::Open(..) => None,
    }
}

/// Whether a slot may hold the key of a state that was finished: one that this boot can't read may.
fn finished(found: &SlotContent) -> bool {
    match found {
        SlotContent::Absent | SlotContent::Unwritten => false,
        SlotContent::Foreign | SlotContent::OtherRole | SlotContent::Closed(_) => true,
        SlotContent::Open(_, kept) => kept.generation > MADE,
    }
}

/// Why no header opened, by the TPM's slots.
fn closed_reason(slots: &[SlotContent]) -> Reason {
    let any = |wanted: fn(&SlotContent) -> bool| slots.iter().any(wanted);
    if any(|slot| open_key(slot).is_some()) {
        Reason::OtherKey
    } else if let Some(floor) = slots.iter().filter_map(closed_floor).max() {
        Reason::Floor(floor)
    } else if any(|slot| *slot == SlotContent::OtherRole) {
        Reason::OtherRole
    } else if any(|slot| *slot == SlotContent::Foreign) {
        Reason::ForeignIndex
    } else {
        Reason::NoKey
    }
}

impl OpenVolume {
    /// SHA-256 of the key of the admin who moved the volume to this board; `None` if it was made
    /// here.
    pub fn admin(&self) -> Option<[u8; 32]> {
        self.header.admin()
    }

    /// The generation of the header that opened.
    pub fn generation(&self) -> u64 {
        self.header.generation
    }

    /// Moves to the next generation, of the boot with this value: the header, then the TPM; and
    /// raises the floor if `floor` is higher. Afterwards the TPM has one key, and a state that
    /// can't be recovered has no recovery slot, which earlier versions made for each state.
    ///
    /// # Errors
    /// [`VolumeError`] of the disk, the TPM or the header's random bytes. A power cut in between
    /// leaves a volume that opens.
    pub fn advance<S: Store>(
        mut self,
        disk: &mut impl Disk,
        store: &mut S,
        floor: u64,
        boot: BootNonce,
    ) -> Result<Self, VolumeError<S::Error>> {
        let generation = self
            .header
            .generation
            .max(self.kept.generation)
            .saturating_add(1);
        let past = if self.recoverable {
            None
        } else {
            self.header.drop_recovery().then_some(self.copy)
        };
        self.header = self
            .header
            .renewed(generation, &self.volume, &self.kept.key)
            .map_err(VolumeError::Header)?;
        // Into the other copy, so that a torn write leaves the header that opened.
        self.copy = next_index(self.copy, header::COPIES.len());
        disk.write(self.copy, &self.header.to_bytes())
            .map_err(VolumeError::Disk)?;
        self.kept.generation = generation;
        self.kept.boot = boot;
        // An index has its floor in its policy for life: a higher one needs another index, and the
        // old one is deleted only after that. That deletion commits the rise: after a power cut
        // before it the older image still opens the volume, by the lower index, and deletes the
        // higher one; the newer image raises the floor again when it boots next.
        if floor > self.floor {
            self.floor = floor;
            self.slot = next_index(self.slot, 2);
        }
        store
            .write(self.slot, self.floor, &self.kept)
            .map_err(VolumeError::Store)?;
        store
            .delete(next_index(self.slot, 2))
            .map_err(VolumeError::Store)?;
        // Last, as until now it was the header that opens after a power cut. After one here the
        // next boot writes over it.
        if let Some(copy) = past {
            disk.write(copy, &self.header.to_bytes())
                .map_err(VolumeError::Disk)?;
        }
        Ok(self)
    }
}

/// The index after this one; after the last of so many comes the first.
fn next_index(index: usize, count: usize) -> usize {
    (index + 1) % count
}

/// A new volume.
pub struct NewVolume {
    /// Its key.
    pub volume: VolumeKey,
    /// The key of its recovery slot, if it has one. This is its only copy.
    pub recovery: Option<WrappingKey>,
    /// How often the state was made anew, this time included.
    pub renewals: u32,
}

impl fmt::Debug for NewVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewVolume")
            .field("renewals", &self.renewals)
            .finish_non_exhaustive()
    }
}

/// Makes a new volume for images from `floor` on and for this boot's configuration, with a recovery
/// slot where it can be recovered, in place of the one that did not open: writes both copies of the
/// header, then the TPM.
///
/// # Errors
/// [`VolumeError`] of the disk, the TPM or the header's random bytes.
pub fn make<S: Store>(
    disk: &mut impl Disk,
    store: &mut S,
    floor: u64,
    closed: ClosedVolume,
    boot: BootFacts,
) -> Result<NewVolume, VolumeError<S::Error>> {
    let renewals = if closed.reason == Reason::FirstStart {
        0
    } else {
        closed.renewals.saturating_add(1)
    };
    let volume = header::random_volume_key().map_err(VolumeError::Header)?;
    let recovery = boot
        .recoverable
        .then(header::random_key)
        .transpose()
        .map_err(VolumeError::Header)?;
    let kept = Kept::random(renewals).map_err(VolumeError::Header)?;
    let mut header = Header::seal(kept.generation, &volume, &kept.key, recovery.as_ref())
        .map_err(VolumeError::Header)?;
    if let Some(configuration) = boot.configuration {
        header = header
            .made_under(configuration, &volume, &kept.key)
            .map_err(VolumeError::Header)?;
    }
    write_new(disk, store, floor, &header, &kept)?;
    Ok(NewVolume {
        volume,
        recovery,
        renewals,
    })
}

/// What is needed to open another board's volume here.
pub struct Recovery {
    /// The key of its recovery slot.
    pub key: WrappingKey,
    /// The generation of the header that the admin saw.
    pub generation: u64,
    /// SHA-256 of the admin's key, for the volume's headers from now on.
    pub admin: [u8; 32],
    /// A value that only this board has.
    pub board: [u8; 32],
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovery")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// A volume that opened by its recovery key. It is bound to no TPM yet.
pub struct RecoveredVolume {
    /// Its key.
    pub volume: VolumeKey,
    /// Its generation once it is bound.
    pub generation: u64,
    header: Header,
    key: WrappingKey,
    admin: [u8; 32],
}

impl fmt::Debug for RecoveredVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecoveredVolume")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// The result of [`recover`].
#[derive(Debug)]
pub enum RecoverOutcome {
    /// The recovery key opens the volume.
    Recovered(Box<RecoveredVolume>),
    /// It doesn't, or may not.
    Refused(Reason),
}

/// Opens a volume by its recovery key, or says why that is not allowed; writes nothing.
///
/// Guarantee: an opened volume has the generation that the admin saw, and was not opened by the
/// same one-off key before. The key that [`RecoveredVolume::bind`] writes to the TPM is derived
/// from the recovery key, the generation and the board, so that a TPM that already used it is
/// recognized.
///
/// # Errors
/// [`VolumeError`] of the disk or the TPM.
pub fn recover<S: Store>(
    disk: &mut impl Disk,
    store: &mut S,
    by: &Recovery,
) -> Result<RecoverOutcome, VolumeError<S::Error>> {
    let refused = |reason| Ok(RecoverOutcome::Refused(reason));
    let (headers, damaged) = headers(disk).map_err(VolumeError::Disk)?;
    if headers.is_empty() {
        return refused(if damaged {
            Reason::Damaged
        } else {
            Reason::NoHeader
        });
    }
    let opened = headers.into_iter().filter_map(|found| {
        let volume = found.header.recover(&by.key)?;
        Some((found.header, volume))
    });
    let newest = opened.max_by_key(|(header, _)| header.generation);
    let (header, volume) = match newest {
        None => return refused(Reason::OneOffOtherDisk),
        Some((header, _)) if header.generation < by.generation => {
            return refused(Reason::OneOffOlderCopy);
        }
        Some((header, _)) if header.generation > by.generation => {
            return refused(Reason::OneOffUsed);
        }
        Some(found) => found,
    };
    let key = header::wrapping_key_on(&by.key, by.generation, &by.board);
    let slots = store.slots().map_err(VolumeError::Store)?;
    let used = |slot: &SlotContent| {
        open_key(slot).is_some_and(|(_, kept)| kept.key == key && kept.generation > by.generation)
    };
    if slots.iter().any(used) {
        return refused(Reason::OneOffUsed);
    }
    Ok(RecoverOutcome::Recovered(Box::new(RecoveredVolume {
        volume,
        generation: by.generation.saturating_add(1),
        header,
        key,
        admin: by.admin,
    })))
}

impl RecoveredVolume {
    /// Binds the volume to this TPM for images from `floor` on, in the boot with this value: the
    /// key to the TPM, both copies of the header in the next generation, then that generation to
    /// the TPM. A power cut leaves a volume that can be recovered again, or one that opens.
    ///
    /// # Errors
    /// [`VolumeError`] of the disk, the TPM or the header's random bytes.
    pub fn bind<S: Store>(
        self,
        disk: &mut impl Disk,
        store: &mut S,
        floor: u64,
        boot: BootNonce,
    ) -> Result<(), VolumeError<S::Error>> {
        let mut kept = Kept {
            key: self.key,
            generation: self.header.generation,
            boot: BootNonce::default(),
            renewals: 0,
        };
        let slots = store.slots().map_err(VolumeError::Store)?;
        let of = |wanted: &dyn Fn(&SlotContent) -> bool| slots.iter().position(wanted);
        let slot = of(&|slot| open_key(slot).is_some_and(|(_, old)| old.key == kept.key))
            .or_else(|| of(&|slot| open_key(slot).is_none()))
            .unwrap_or(0);
        // With the old generation: until the header is written this key opens none, and the volume
        // can be recovered again, by the same derived key.
        store
            .write(slot, floor, &kept)
            .map_err(VolumeError::Store)?;
        let header = self
            .header
            .moved_to(self.generation, &self.volume, &kept.key, self.admin)
            .map_err(VolumeError::Header)?;
        for copy in 0..header::COPIES.len() {
            disk.write(copy, &header.to_bytes())
                .map_err(VolumeError::Disk)?;
        }
        kept.generation = self.generation;
        kept.boot = boot;
        store
            .write(slot, floor, &kept)
            .map_err(VolumeError::Store)?;
        store
            .delete(next_index(slot, 2))
            .map_err(VolumeError::Store)
    }
}

/// Notes that a state which was made in this boot has a file system: moves it from generation
/// [`MADE`] to the next, of the boot with this value. From then on [`ClosedVolume::finished`]
/// protects it.
///
/// # Errors
/// [`VolumeError`] of the disk, the TPM or the header's random bytes. A power cut in between leaves
/// a volume that opens.
pub fn finish<S: Store>(
    disk: &mut impl Disk,
    store: &mut S,
    facts: BootFacts,
    boot: BootNonce,
) -> Result<(), VolumeError<S::Error>> {
    let facts = BootFacts {
        fresh: false,
        ..facts
    };
    match open(disk, store, facts)? {
        OpenOutcome::Opened(opened) => opened.advance(disk, store, 0, boot).map(drop),
        // Header or TPM were changed since the volume was made: the next boot finds and reports
        // that.
        OpenOutcome::Closed(_) => Ok(()),
    }
}

/// Writes the header twice and the TPM once, into the slot that no key is in, if there is one.
fn write_new<S: Store>(
    disk: &mut impl Disk,
    store: &mut S,
    floor: u64,
    header: &Header,
    kept: &Kept,
) -> Result<(), VolumeError<S::Error>> {
    // The TPM last: before it has the key nothing opens the new header, and the volume is made
    // again.
    for copy in 0..header::COPIES.len() {
        disk.write(copy, &header.to_bytes())
            .map_err(VolumeError::Disk)?;
    }
    let slots = store.slots().map_err(VolumeError::Store)?;
    let slot = slots
        .iter()
        .position(|slot| open_key(slot).is_none())
        .unwrap_or(0);
    store.write(slot, floor, kept).map_err(VolumeError::Store)?;
    store
        .delete(next_index(slot, 2))
        .map_err(VolumeError::Store)
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
