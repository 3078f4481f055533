//! Reads a GUID partition table and changes it, by writes after each of which a power cut leaves
//! the old table or the new one (UEFI specification 2.10, chapter 5.3).
//!
//! A [`Table`] proves that its checksums held and that its partitions lie within the disk without
//! overlap. Entries that are not changed stay as they are, byte by byte.

use crate::gpt::{Extent, SECTOR, crc32, header};
use crate::guid::Guid;

/// Bytes of an entry, and how many a table has.
const ENTRY: usize = 128;
const ENTRIES: usize = 128;
/// Sectors that the entries take.
const TABLE_SECTORS: u64 = (ENTRY * ENTRIES) as u64 / SECTOR;

/// Why there is no table that can be changed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The disk failed.
    #[error("the partition table can't be read")]
    Read(#[source] std::io::Error),
    /// Neither copy is one.
    #[error("there is no GUID partition table with 128 entries and sectors of 512 bytes")]
    Absent,
    /// Entries lie outside of the disk or share sectors.
    #[error("the partitions of the table overlap, or end behind the disk")]
    Overlap,
}

/// A valid table of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    sectors: u64,
    disk: [u8; 16],
    entries: Vec<[u8; ENTRY]>,
}

/// An entry that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it holds.
    pub kind: [u8; 16],
    /// Its own identifier, as it is stored.
    pub unique: [u8; 16],
    /// Its place.
    pub extent: Extent,
    /// Its label.
    pub label: String,
}

impl Table {
    /// Reads the table of a disk of `bytes`: the primary copy or, where that is damaged, the one in
    /// the last sector. `read(offset, length)` gives exactly `length` bytes.
    ///
    /// # Errors
    /// No copy is valid, or the disk can't be read.
    pub fn read(
        bytes: u64,
        mut read: impl FnMut(u64, usize) -> std::io::Result<Vec<u8>>,
    ) -> Result<Self, TableError> {
        let sectors = bytes / SECTOR;
        if sectors < 2 * TABLE_SECTORS + 4 {
            return Err(TableError::Absent);
        }
        for own in [1, sectors - 1] {
            if let Some(table) = copy(sectors, own, &mut read)? {
                return table.checked();
            }
        }
        Err(TableError::Absent)
    }

    fn checked(self) -> Result<Self, TableError> {
        let mut ranges: Vec<(u64, u64)> = self
            .entries
            .iter()
            .filter(|entry| used(entry))
            .map(|entry| (word(entry, 32), word(entry, 40)))
            .collect();
        ranges.sort_unstable();
        let mut free = 2 + TABLE_SECTORS;
        for (first, last) in ranges {
            if first < free || last < first || last >= self.sectors - TABLE_SECTORS - 1 {
                return Err(TableError::Overlap);
            }
            free = last + 1;
        }
        Ok(self)
    }

    /// The entry of this index, counting from zero, if it is in use.
    pub fn entry(&self, index: usize) -> Option<Entry> {
        let entry = self.entries.get(index).filter(|entry| used(entry))?;
        let (first, last) = (word(entry, 32), word(entry, 40));
        let units: Vec<u16> = entry[56..]
            .as_chunks::<2>()
            .0
            .iter()
            .map(|unit| u16::from_le_bytes(*unit))
            .take_while(|unit| *unit != 0)
            .collect();
        Some(Entry {
            kind: field(entry, 0),
            unique: field(entry, 16),
            extent: Extent {
                start: first * SECTOR,
                size: (last - first + 1) * SECTOR,
            },
            label: String::from_utf16_lossy(&units),
        })
    }

    /// The entry with this label.
    pub fn labelled(&self, label: &str) -> Option<Entry> {
        (0..ENTRIES)
            .filter_map(|index| self.entry(index))
            .find(|entry| entry.label == label)
    }

    /// Exchanges the places and identifiers of two entries.
    pub fn swap(&mut self, one: usize, other: usize) {
        if one.max(other) < ENTRIES {
            for at in 16..48 {
                let byte = self.entries[one][at];
                self.entries[one][at] = self.entries[other][at];
                self.entries[other][at] = byte;
            }
        }
    }

    /// Gives an entry another identifier.
    pub fn identify(&mut self, index: usize, unique: [u8; 16]) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry[16..32].copy_from_slice(&unique);
        }
    }

    /// What to write, each part on the medium before the next: the copy at the disk's end, then the
    /// primary one.
    pub fn writes(&self) -> Vec<(u64, Vec<u8>)> {
        let entries = self.entries.concat();
        let (sum, last) = (crc32(&entries), self.sectors - 1);
        let header = |own, other, entries_at| {
            header(
                Guid::from_stored(self.disk),
                own,
                other,
                entries_at,
                last,
                sum,
            )
        };
        vec![
            ((last - TABLE_SECTORS) * SECTOR, entries.clone()),
            (last * SECTOR, header(last, 1, last - TABLE_SECTORS)),
            (2 * SECTOR, entries),
            (SECTOR, header(1, last, 2)),
        ]
    }
}

/// The copy whose header is at the sector `own`; nothing if it is not valid.
fn copy(
    sectors: u64,
    own: u64,
    read: &mut impl FnMut(u64, usize) -> std::io::Result<Vec<u8>>,
) -> Result<Option<Table>, TableError> {
    let mut head = read(own * SECTOR, 92).map_err(TableError::Read)?;
    if !head.starts_with(b"EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00") || head.len() != 92 {
        return Ok(None);
    }
    let sum = head[16..20].to_vec();
    head[16..20].fill(0);
    let number = |at: usize| u32::from_le_bytes(field(&head, at));
    let valid = sum == crc32(&head).to_le_bytes()
        && word(&head, 24) == own
        && [number(80), number(84)] == [128, 128];
    let at = word(&head, 72);
    if !valid || at < 2 || at > sectors - TABLE_SECTORS {
        return Ok(None);
    }
    let bytes = read(at * SECTOR, ENTRY * ENTRIES).map_err(TableError::Read)?;
    Ok((crc32(&bytes) == number(88)).then(|| Table {
        sectors,
        disk: field(&head, 56),
        entries: bytes.as_chunks::<ENTRY>().0.to_vec(),
    }))
}

fn used(entry: &[u8; ENTRY]) -> bool {
    entry[..16] != [0; 16]
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(part) = bytes.get(at..at + N) {
        out.copy_from_slice(part);
    }
    out
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpt::{Partition, kind, layout};

    /// A disk of 8 MiB with two partitions.
    fn disk() -> Vec<u8> {
        let partition = |n, label: &str| Partition {
            kind: kind::ROOT,
            unique: Guid::new(n),
            label: label.to_owned(),
            size: 1 << 20,
            attributes: 3,
        };
        let layout = layout(
            Guid::new(7),
            &[partition(1, "root-a"), partition(2, "root-b")],
        );
        let mut disk = layout.head;
        disk.resize(8 << 20, 0);
        disk
    }

    fn read(disk: &[u8]) -> Result<Table, TableError> {
        Table::read(disk.len() as u64, |offset, length| {
            let at = usize::try_from(offset).unwrap();
            Ok(disk[at..at + length].to_vec())
        })
    }

    /// On a disk that is larger than its image, too: the copy moves to the real end.
    #[test]
    fn a_power_cut_at_any_write_leaves_the_old_table_or_the_new_one() {
        let mut disk = disk();
        let old = read(&disk).unwrap();
        for (offset, bytes) in old.writes() {
            let at = usize::try_from(offset).unwrap();
            disk[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        assert_eq!(read(&disk).unwrap(), old);
        let mut new = old.clone();
        new.swap(0, 1);
        new.identify(0, [9; 16]);
        for whole in 0..=4 {
            let mut cut = disk.clone();
            for (count, (offset, bytes)) in new.writes().into_iter().enumerate() {
                let at = usize::try_from(offset).unwrap();
                let length = match count {
                    _ if count < whole => bytes.len(),
                    _ if count == whole => bytes.len() / 2,
                    _ => 0,
                };
                cut[at..at + length].copy_from_slice(&bytes[..length]);
            }
            let found = read(&cut).unwrap();
            assert!(found == old || found == new, "after {whole} writes");
            assert!(whole < 4 || found == new);
        }
    }

    #[test]
    fn swapped_entries_keep_kind_label_and_attributes() {
        let mut table = read(&disk()).unwrap();
        let (one, two) = (table.entry(0).unwrap(), table.entry(1).unwrap());
        table.swap(0, 1);
        let now = table.entry(0).unwrap();
        assert_eq!((now.label, now.kind), (one.label, one.kind));
        assert_eq!((now.extent, now.unique), (two.extent, two.unique));
        assert_eq!(
            table.labelled("root-b").map(|found| found.extent),
            Some(one.extent)
        );
        assert_eq!(table.entry(2), None);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let mut bytes = disk();
        assert!(matches!(read(&bytes[..1024]), Err(TableError::Absent)));
        bytes[1024 + 40] ^= 1;
        assert!(
            matches!(read(&bytes), Err(TableError::Absent)),
            "a changed entry"
        );
        let mut table = read(&disk()).unwrap();
        let extent: [u8; 16] = field(&table.entries[0], 32);
        table.entries[1][32..48].copy_from_slice(&extent);
        let mut bytes = disk();
        for (offset, part) in table.writes() {
            let at = usize::try_from(offset).unwrap();
            bytes[at..at + part.len()].copy_from_slice(&part);
        }
        assert!(matches!(read(&bytes), Err(TableError::Overlap)));
    }
}
