//! Writes an image onto a disk that has an older one, and keeps the machine's state partition.
//!
//! The disk has room for two roots. The new root and its verity tree go into the pair that the
//! machine does not use; then the partition table names them; then the EFI system partition gets
//! the new kernel image, in the half of it that is not in use, and last the one sector that leads
//! there ([`image_format::slots`]). All other entries of the table, the state's first of all, stay
//! as they are, and nothing behind the image is written.
//!
//! A power cut before the last step leaves a disk that boots the older image, one after it a disk
//! that boots the newer one. Only an EFI system partition that is not as an image or this command
//! made it is written as a whole: a power cut in that leaves a disk that boots nothing until the
//! same command has run to its end. In any case the state is untouched.
//!
//! Somebody who had the disk may have made a volume with user-data (label CIDATA) of a part that
//! the new image does not fill. The command removes the marks by which a machine finds one, from
//! the disk itself and from the image's partitions. Other partitions are the admin's.
//!
//! Enter at [`Update::plan`].

use crate::error::{Error, Result, at};
use config_unlock::approvals::{AREA, Approvals, Approver, FLOORS, Role, Use};
use image_format::gpt::{Extent, SECTOR};
use image_format::slots;
use image_format::table::{Entry, Table};
use p256::ecdsa::VerifyingKey;
use p256::pkcs8::DecodePublicKey as _;
use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Entries of an image, in the order of its table.
const LABELS: [&str; 5] = ["esp", "root-a", "verity-a", "root-b", "verity-b"];
const ESP: usize = 0;
/// The pair of root and verity tree that the kernel image starts.
const CURRENT: [usize; 2] = [1, 2];
const SPARE: [usize; 2] = [3, 4];
/// The state's label, and its label while it is made.
const STATE: [&str; 2] = ["pratique-state", "pratique-state-new"];
/// With a block device (open(2)): refuses one that is mounted.
const O_EXCL: i32 = 0o200;
const PIECE: u64 = 1 << 20;
/// Where the first sector of a volume says that it is FAT16 or FAT32, without which a machine reads
/// no label there (`agent/init/src/label.rs`). Boot code, a root and a verity tree are 0 there.
const FAT_MARKS: [Range<usize>; 2] = [0x36..0x39, 0x52..0x57];
/// The beginning of a descriptor of ISO 9660, and where it is in a volume.
const ISO_MARK: [u8; 7] = *slots::ISO_MARK;
const ISO_OFFSET: u64 = slots::ISO_OFFSET as u64;

/// A disk and the image for it, both opened and checked.
#[derive(Debug)]
pub struct Update {
    image: Source,
    disk: Source,
}

#[derive(Debug)]
struct Source {
    path: PathBuf,
    file: File,
    table: Table,
    /// In the order of [`LABELS`].
    parts: Vec<Entry>,
}

/// One step; each is on the medium before the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Copies a partition of the image.
    Copy {
        /// Where it is in the image.
        from: Extent,
        /// Where it goes on the disk.
        to: u64,
    },
    /// Removes the marks of a volume that may hold user-data.
    Clear {
        /// Where it would begin.
        volume: u64,
    },
    /// Writes a part of the partition table, or of the EFI system partition.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
}

/// The images whose secrets an image opens, by its approvals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Approved {
    role: Role,
    /// Lowest and highest floor, the latter the image's own SVN.
    floors: (u64, u64),
}

impl Update {
    /// Opens both, and compares their partitions.
    ///
    /// # Errors
    /// A file can't be read, the disk is in use, or it does not have the partitions of an image.
    pub fn open(image: &Path, disk: &Path) -> Result<Self> {
        Self {
            image: Source::open(image, false)?,
            disk: Source::open(disk, true)?,
        }
        .checked()
    }

    fn checked(self) -> Result<Self> {
        for (label, (new, old)) in LABELS
            .iter()
            .zip(self.image.parts.iter().zip(&self.disk.parts))
        {
            if (new.kind, new.extent.size) != (old.kind, old.extent.size) {
                return Err(Error::Image(format!(
                    "the partition {label} of {} has {} bytes, that of the image {}: this image does not fit beside the state; \
                     write it as a whole, which gives the machine a new state",
                    self.disk.path.display(),
                    old.extent.size,
                    new.extent.size
                )));
            }
        }
        if self.disk.parts[ESP].extent != self.image.parts[ESP].extent {
            return Err(Error::Image(format!(
                "the EFI system partition of {} is in another place than that of the image",
                self.disk.path.display()
            )));
        }
        Ok(self)
    }

    /// The bytes of the state's partition; `None` if the disk has none.
    pub fn state(&self) -> Option<u64> {
        let found = STATE
            .iter()
            .find_map(|label| self.disk.table.labelled(label));
        found.map(|entry| entry.extent.size)
    }

    /// Checks that the machine opens its state with the image, as it does with the image on the
    /// disk.
    ///
    /// # Errors
    /// The image, or the one on the disk, was not signed by the key `release` (PEM), they are for
    /// different roles, or the image opens nothing of a machine that the older one was admitted
    /// with.
    pub fn keeps_the_state(&self, release: &Path) -> Result<()> {
        let pem = std::fs::read_to_string(release).map_err(at("read", release))?;
        let key = VerifyingKey::from_public_key_pem(&pem).map_err(|cause| Error::Key {
            path: release.display().to_string(),
            what: format!("expected a P-256 public key in PEM: {cause}"),
        })?;
        let (new, old) = (self.image.approved(&key)?, self.disk.approved(&key)?);
        if new.role != old.role {
            return Err(Error::Image(format!(
                "the disk has a {}'s image, and this one is a {}'s, which opens no state of it",
                old.role.name(),
                new.role.name()
            )));
        }
        let ((lowest, svn), (_, before)) = (new.floors, old.floors);
        if svn < before {
            return Err(Error::Image(format!(
                "the image is of security version {svn}, and the disk has {before}: once a machine was admitted with {before}, no older \
                 image opens its state"
            )));
        }
        if lowest > before {
            return Err(Error::Image(format!(
                "the image is of security version {svn} and opens states with a floor of {lowest} or above, and the disk has an image of \
                 {before}: boot one of at most {} in between",
                before + FLOORS - 1
            )));
        }
        Ok(())
    }

    /// The steps, in their order.
    pub fn plan(&self) -> Vec<Step> {
        let mut table = self.disk.table.clone();
        let unique = |index: usize| self.image.parts[index].unique;
        let done = CURRENT
            .iter()
            .all(|&index| self.disk.parts[index].unique == unique(index));
        let target = if done { CURRENT } else { SPARE };
        let copy = |from: usize, to: usize| Step::Copy {
            from: self.image.parts[from].extent,
            to: self.disk.parts[to].extent.start,
        };
        let parts = (CURRENT.into_iter().chain(SPARE)).map(|index| &self.disk.parts[index]);
        let volumes = [0].into_iter().chain(parts.map(|part| part.extent.start));
        let mut steps: Vec<Step> = volumes.map(|volume| Step::Clear { volume }).collect();
        steps.extend((CURRENT.into_iter().zip(target)).map(|(from, to)| copy(from, to)));
        for (current, spare) in CURRENT.into_iter().zip(SPARE) {
            if !done {
                table.swap(current, spare);
                table.identify(current, unique(current));
            }
        }
        let writes = table.writes().into_iter();
        steps.extend(writes.map(|(offset, bytes)| Step::Write { offset, bytes }));
        match self.kernel() {
            Some(writes) => steps.extend(writes),
            None => steps.push(copy(ESP, ESP)),
        }
        steps
    }

    /// The steps that bring the kernel image beside the one that is there; `None` if all of its
    /// partition must be written.
    fn kernel(&self) -> Option<Vec<Step>> {
        let [image, disk] = [&self.image, &self.disk].map(|source| {
            let extent = source.parts[ESP].extent;
            move |range: Range<usize>| {
                let (start, length) = (range.start as u64, range.len() as u64);
                let inside = start.checked_add(length)? <= extent.size;
                inside.then(|| source.read(extent.start + start, length).ok())?
            }
        });
        let start = self.disk.parts[ESP].extent.start;
        let writes = slots::switch(&disk, &image)?.into_iter();
        let step = |write: slots::Write| Step::Write {
            offset: start + write.offset as u64,
            bytes: write.bytes,
        };
        Some(writes.map(step).collect())
    }

    /// Carries out one step; it is on the medium when this returns. Parts that the disk has already
    /// are not written again.
    ///
    /// # Errors
    /// The image can't be read or the disk can't be written.
    pub fn carry_out(&self, step: &Step) -> Result<()> {
        let (image, disk) = (&self.image, &self.disk);
        let wrote = |bytes: &[u8], offset: u64| {
            let written = disk.file.write_all_at(bytes, offset);
            written.map_err(at("write", &disk.path))
        };
        match step {
            Step::Write { offset, bytes } => wrote(bytes, *offset)?,
            Step::Clear { volume } => {
                let found = disk.read(*volume, SECTOR)?;
                let mut cleared = found.clone();
                for mark in FAT_MARKS {
                    cleared[mark].fill(0);
                }
                if cleared != found {
                    wrote(&cleared, *volume)?;
                }
                let descriptor = volume + ISO_OFFSET;
                if disk.read(descriptor, ISO_MARK.len() as u64)? == ISO_MARK {
                    wrote(&[0; ISO_MARK.len()], descriptor)?;
                }
            }
            Step::Copy { from, to } => {
                let mut done = 0;
                while done < from.size {
                    let length = PIECE.min(from.size - done);
                    let new = image.read(from.start + done, length)?;
                    if disk.read(to + done, length)? != new {
                        wrote(&new, to + done)?;
                    }
                    done += length;
                }
            }
        }
        disk.file.sync_all().map_err(at("write", &disk.path))
    }
}

impl Source {
    fn open(path: &Path, write: bool) -> Result<Self> {
        let device = std::fs::metadata(path)
            .map_err(at("read", path))?
            .file_type()
            .is_block_device();
        let mut options = OpenOptions::new();
        options.read(true).write(write);
        if write && device {
            options.custom_flags(O_EXCL);
        }
        let mut file = options.open(path).map_err(at("open", path))?;
        let bytes = file.seek(SeekFrom::End(0)).map_err(at("read", path))?;
        let table = Table::read(bytes, |offset, length| {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, offset).map(|()| bytes)
        })
        .map_err(|source| Error::Table {
            path: path.display().to_string(),
            source,
        })?;
        let entry = |(index, label): (usize, &&str)| {
            let found = table.entry(index).filter(|entry| entry.label == **label);
            found.ok_or_else(|| {
                Error::Image(format!(
                    "{}: partition {} is not {label} of an image",
                    path.display(),
                    index + 1
                ))
            })
        };
        let parts = LABELS
            .iter()
            .enumerate()
            .map(entry)
            .collect::<Result<_>>()?;
        Ok(Self {
            path: path.to_owned(),
            file,
            table,
            parts,
        })
    }

    fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        let read = self.file.read_exact_at(&mut bytes, offset);
        read.map(|()| bytes).map_err(at("read", &self.path))
    }

    /// What the image at the front of this disk opens, by its approvals that `key` signed.
    fn approved(&self, key: &VerifyingKey) -> Result<Approved> {
        let verity = self.parts[CURRENT[1]].extent;
        let area = AREA as u64;
        let bytes = self.read(verity.start + verity.size.saturating_sub(area), area)?;
        let approvals = Approvals::parse(&bytes).unwrap_or_default();
        let by = |role: Role| {
            let approver = Approver::new(*key, role);
            let floors: Vec<u64> = approvals
                .iter()
                .filter(|approval| approval.of == Use::State && approval.is_by(&approver))
                .map(|approval| approval.floor)
                .collect();
            let (lowest, highest) = (floors.iter().min()?, floors.iter().max()?);
            Some(Approved {
                role,
                floors: (*lowest, *highest),
            })
        };
        Role::ALL.into_iter().find_map(by).ok_or_else(|| {
            Error::Image(format!(
                "the image of {} was not signed by this release key, or by none",
                self.path.display()
            ))
        })
    }
}
