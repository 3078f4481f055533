//! Offline access to a machine's disk: reads and changes it byte by byte while the power is off.

use crate::machine::Blueprint;
use crate::process::run;
use crate::tools::Tools;
use crate::{Error, Result, file_error};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Bytes of a logical block of the machines' disks.
const BLOCK: u64 = 512;
/// Length of an entry of the partition table (UEFI 2.10, 5.3.3), and how many are read.
const ENTRY: usize = 128;
const ENTRIES: usize = 128;

/// All bytes of a disk, in a file of its own.
#[derive(Debug)]
pub struct Disk {
    file: File,
    path: PathBuf,
}

/// The place of a partition, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its first byte.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
}

impl Disk {
    /// Copies the disk of a machine whose power is off to `path`.
    ///
    /// # Errors
    /// qemu-img can't read the disk.
    pub fn copy_of(blueprint: &Blueprint, tools: &Tools, path: &Path) -> Result<Self> {
        let mut convert = tools.command("qemu-img");
        convert.args(["convert", "-q", "-f", "qcow2", "-O", "raw"]);
        run({
            convert.arg(blueprint.overlay_path()).arg(path);
            convert
        })?;
        Self::open(path)
    }

    /// Opens a file that holds all bytes of a disk.
    ///
    /// # Errors
    /// The file can't be opened for reading and writing.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(file_error("cannot open", path))?;
        Ok(Self {
            file,
            path: path.to_owned(),
        })
    }

    /// Gives the machine this disk in place of its own.
    ///
    /// # Errors
    /// A file can't be written, or qemu-img fails.
    pub fn give_to(&self, blueprint: &Blueprint, tools: &Tools) -> Result<()> {
        self.file
            .sync_all()
            .map_err(file_error("cannot write", &self.path))?;
        let overlay = blueprint.overlay_path();
        std::fs::remove_file(&overlay).map_err(file_error("cannot remove", &overlay))?;
        let mut create = tools.command("qemu-img");
        create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]);
        create.arg(&self.path).arg(&overlay);
        run(create).map(drop)
    }

    /// The disk's bytes.
    ///
    /// # Errors
    /// The file's metadata can't be read.
    pub fn size(&self) -> Result<u64> {
        let found = self.file.metadata();
        found
            .map(|found| found.len())
            .map_err(file_error("cannot look at", &self.path))
    }

    /// The place of the partition with this label.
    ///
    /// # Errors
    /// There is no such partition, or the table can't be read.
    pub fn partition(&self, label: &str) -> Result<Extent> {
        let table = self.read(2 * BLOCK, ENTRY * ENTRIES)?;
        let found = table.chunks_exact(ENTRY).find_map(|entry| {
            let (first, last) = (number(entry, 32)?, number(entry, 40)?);
            (name(entry) == label).then_some(Extent {
                start: first * BLOCK,
                length: (last + 1).checked_sub(first)? * BLOCK,
            })
        });
        found.ok_or_else(|| {
            let path = self.path.display();
            Error::Missing(format!("{path} has no partition {label}"))
        })
    }

    /// Reads bytes from an offset.
    ///
    /// # Errors
    /// The offset is beyond the disk's end, or the file can't be read.
    pub fn read(&self, place: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, place)
            .map_err(file_error("cannot read", &self.path))?;
        Ok(bytes)
    }

    /// Writes bytes from a place on.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(&self, place: u64, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(bytes, place)
            .map_err(file_error("cannot write", &self.path))
    }

    /// The places of the `size`-byte blocks of an extent in which two disks differ.
    ///
    /// # Errors
    /// A disk can't be read.
    pub fn differences(&self, other: &Self, extent: Extent, size: usize) -> Result<Vec<u64>> {
        const AT_ONCE: u64 = 1 << 20;
        let mut found = Vec::new();
        let mut done = 0;
        while done < extent.length {
            let (place, length) = (extent.start + done, AT_ONCE.min(extent.length - done));
            let length = usize::try_from(length)
                .map_err(|error| file_error("cannot read", &self.path)(io::Error::other(error)))?;
            let (one, two) = (self.read(place, length)?, other.read(place, length)?);
            let blocks = one.chunks(size).zip(two.chunks(size)).enumerate();
            found.extend(
                blocks
                    .filter(|(_, (one, two))| one != two)
                    .map(|(index, _)| place + index as u64 * size as u64),
            );
            done += AT_ONCE;
        }
        Ok(found)
    }
}

fn number(entry: &[u8], at: usize) -> Option<u64> {
    let bytes = entry.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

/// UTF-16, little-endian, up to the first zero.
fn name(entry: &[u8]) -> String {
    let units = entry.get(56..).unwrap_or_default().chunks_exact(2);
    let units = units.map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    char::decode_utf16(units.take_while(|unit| *unit != 0))
        .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_found_by_its_label_and_only_changed_blocks_differ() {
        let dir = tempfile::tempdir().unwrap();
        let make = |file: &str, filler: u8| {
            let mut bytes = vec![filler; 64 << 10];
            let entry = &mut bytes[1024 + ENTRY..][..ENTRY];
            entry.fill(0);
            entry[32] = 64;
            entry[40] = 71;
            for (unit, pair) in "data".encode_utf16().zip(entry[56..].chunks_exact_mut(2)) {
                pair.copy_from_slice(&unit.to_le_bytes());
            }
            std::fs::write(dir.path().join(file), &bytes).unwrap();
            Disk::open(&dir.path().join(file)).unwrap()
        };
        let (one, two) = (make("one", 0), make("two", 0));
        let extent = one.partition("data").unwrap();
        assert_eq!((extent.start, extent.length), (64 * 512, 8 * 512));
        assert!(one.partition("dat").is_err());
        assert_eq!(one.differences(&two, extent, 512).unwrap(), [0_u64; 0]);
        two.write(extent.start + 1030, &[1]).unwrap();
        two.write(extent.start + extent.length, &[1]).unwrap();
        let changed = one.differences(&two, extent, 512).unwrap();
        assert_eq!(changed, [extent.start + 1024]);
        assert_eq!(two.read(extent.start + 1030, 2).unwrap(), [1, 0]);
    }
}
