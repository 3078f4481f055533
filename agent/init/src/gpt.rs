//! GPT: reading a table from hostile bytes, adding the state partition at the real end of the disk,
//! renaming.
//!
//! Source: UEFI Specification 2.10, chapter 5.3. Pure: reading goes through a closure, changes come
//! out as an ordered list of writes. Guarantees: nothing panics or allocates more than
//! [`MAX_ENTRIES`] entries whatever the bytes are; a [`Table`] proves that its checksums held and
//! that its partitions lie within the disk without overlap; a cut at any point of [`Table::writes`]
//! leaves one valid copy, the old or the new.

use std::io;

use crate::guid::Guid;

/// Most entries that a table may have; real tables have 128.
pub const MAX_ENTRIES: u32 = 256;
const ENTRY: usize = 128;
const HEADER: usize = 92;
const ALIGN_BYTES: u64 = 1 << 20;

/// Why a table was refused or can't be changed.
#[derive(Debug, thiserror::Error)]
pub enum GptError {
    /// The disk failed.
    #[error("the disk can't be read")]
    Read(#[source] io::Error),
    /// Neither copy has the signature.
    #[error("there is no GPT")]
    Absent,
    /// A field or checksum is wrong; the text names it.
    #[error("the GPT's {0} is wrong")]
    Damaged(&'static str),
    /// All entries are taken.
    #[error("the GPT has no free entry")]
    Full,
    /// Not enough room behind the last partition.
    #[error("the disk has {have} bytes free behind its last partition, {need} are needed")]
    NoRoom {
        /// Bytes that are free.
        have: u64,
        /// Bytes that are needed.
        need: u64,
    },
}

/// A used partition; sectors count from the disk's start, `last` belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Number of its entry, counting from 1.
    pub number: u32,
    /// What it holds.
    pub kind: Guid,
    /// Which one it is.
    pub id: Guid,
    /// First sector.
    pub first: u64,
    /// Last sector.
    pub last: u64,
    /// Its label, at most 36 UTF-16 units.
    pub name: String,
}

/// A partition to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPartition<'a> {
    /// What it will hold.
    pub kind: Guid,
    /// Which one it will be.
    pub id: Guid,
    /// Its label.
    pub name: &'a str,
    /// Fewest bytes that make sense.
    pub least_bytes: u64,
}

/// Bytes to write at a byte offset of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The offset in bytes.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The size of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a logical sector, a power of two from 512 to 4096.
    pub sector: u64,
    /// Number of sectors.
    pub sectors: u64,
}

/// A valid table on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    geometry: Geometry,
    disk: Guid,
    first_usable: u64,
    entries: Vec<[u8; ENTRY]>,
    /// The primary is damaged: this was read from the copy at the disk's end.
    from_copy: bool,
}

struct Header {
    disk: Guid,
    first_usable: u64,
    entries_at: u64,
    count: u32,
    entries_crc: u32,
}

impl Table {
    /// Reads the primary table or, where that is damaged, the copy in the disk's last sector.
    ///
    /// `read(offset, length)` returns exactly `length` bytes from byte `offset` on.
    ///
    /// # Errors
    /// [`GptError::Absent`] where there is no table of this geometry, [`GptError::Read`] where the
    /// disk cannot be read, or the fault of the copy if both are damaged.
    pub fn read(
        geometry: Geometry,
        mut read: impl FnMut(u64, usize) -> io::Result<Vec<u8>>,
    ) -> Result<Self, GptError> {
        if !matches!(geometry.sector, 512 | 1024 | 2048 | 4096) || geometry.sectors < 8 {
            return Err(GptError::Absent);
        }
        match Self::read_copy(geometry, 1, &mut read) {
            Ok(table) => Ok(table),
            Err(primary) => match Self::read_copy(geometry, geometry.sectors - 1, &mut read) {
                Ok(table) => Ok(table),
                Err(GptError::Absent) => Err(primary),
                Err(backup) => Err(if matches!(primary, GptError::Absent) {
                    backup
                } else {
                    primary
                }),
            },
        }
    }

    fn read_copy(
        geometry: Geometry,
        at: u64,
        read: &mut impl FnMut(u64, usize) -> io::Result<Vec<u8>>,
    ) -> Result<Self, GptError> {
        let sector = usize::try_from(geometry.sector)
            .ok()
            .ok_or(GptError::Absent)?;
        let offset = at.checked_mul(geometry.sector).ok_or(GptError::Absent)?;
        let header = Header::parse(&read(offset, sector).map_err(GptError::Read)?, at, geometry)?;
        let length = ENTRY
            * usize::try_from(header.count)
                .ok()
                .ok_or(GptError::Damaged("entry count"))?;
        let offset = header.entries_at * geometry.sector;
        let bytes = read(offset, length).map_err(GptError::Read)?;
        if bytes.len() != length || crc32(&bytes) != header.entries_crc {
            return Err(GptError::Damaged("entry checksum"));
        }
        let entries = bytes.as_chunks::<ENTRY>().0.to_vec();
        let table = Self {
            geometry,
            disk: header.disk,
            first_usable: header.first_usable,
            entries,
            from_copy: at != 1,
        };
        table.check()?;
        Ok(table)
    }

    /// Every partition lies on the disk, behind the table, and shares no sector with another.
    fn check(&self) -> Result<(), GptError> {
        let mut ranges: Vec<(u64, u64)> = self
            .partitions()
            .map(|part| (part.first, part.last))
            .collect();
        ranges.sort_unstable();
        let mut free = self.first_usable;
        for (first, last) in ranges {
            if first < free || last < first || last >= self.geometry.sectors {
                return Err(GptError::Damaged("partition range"));
            }
            free = last + 1;
        }
        Ok(())
    }

    /// The used partitions in the order of their entries.
    pub fn partitions(&self) -> impl Iterator<Item = Partition> {
        self.entries
            .iter()
            .zip(1..)
            .filter_map(|(entry, number)| partition(entry, number))
    }

    /// This table with `wanted` in the free room behind the last partition, up to the disk's real
    /// end, and the number of its entry. Start and end are aligned to 1 MiB.
    ///
    /// # Errors
    /// [`GptError::NoRoom`] where less than `wanted.least_bytes` is free behind the last partition,
    /// [`GptError::Full`] where no entry of the table is.
    pub fn with(&self, wanted: &NewPartition<'_>) -> Result<(Self, Partition), GptError> {
        let align = ALIGN_BYTES / self.geometry.sector;
        let after = self
            .partitions()
            .map(|part| part.last + 1)
            .max()
            .unwrap_or(self.first_usable);
        let first = after.max(self.first_usable).next_multiple_of(align);
        let end = (self.last_usable()? + 1) / align * align;
        let have = end.saturating_sub(first) * self.geometry.sector;
        if have < wanted.least_bytes.max(ALIGN_BYTES) {
            return Err(GptError::NoRoom {
                have,
                need: wanted.least_bytes.max(ALIGN_BYTES),
            });
        }
        let free = self
            .entries
            .iter()
            .position(is_free)
            .ok_or(GptError::Full)?;
        let number = u32::try_from(free + 1).ok().ok_or(GptError::Full)?;
        let added = Partition {
            number,
            kind: wanted.kind,
            id: wanted.id,
            first,
            last: end - 1,
            name: wanted.name.to_owned(),
        };
        let mut table = self.clone();
        if let Some(place) = table.entries.get_mut(free) {
            *place = entry(&added);
        }
        Ok((table, added))
    }

    /// This table with entry `number` called `name`; the same table where there is no such entry.
    #[must_use]
    pub fn renamed(&self, number: u32, name: &str) -> Self {
        let mut table = self.clone();
        let index = usize::try_from(number).unwrap_or(0).wrapping_sub(1);
        if let Some(place) = table.entries.get_mut(index) {
            set_name(place, name);
        }
        table
    }

    /// What to write, in this order and each synced before the next: the copy at the disk's end,
    /// then the primary. The other way round where the table was read from the copy, as that is
    /// the only valid one.
    ///
    /// # Errors
    /// The disk is too small for the table and its copy.
    pub fn writes(&self) -> Result<Vec<Write>, GptError> {
        let sector = self.geometry.sector;
        let entries = self.entries.concat();
        let last = self.geometry.sectors - 1;
        let copy_at = last - self.entry_sectors();
        let copy = [
            Write {
                offset: copy_at * sector,
                bytes: entries.clone(),
            },
            Write {
                offset: last * sector,
                bytes: self.header(last, 1, copy_at)?,
            },
        ];
        let primary = [
            Write {
                offset: 2 * sector,
                bytes: entries,
            },
            Write {
                offset: sector,
                bytes: self.header(1, last, 2)?,
            },
        ];
        let in_order = if self.from_copy {
            [primary, copy]
        } else {
            [copy, primary]
        };
        Ok(in_order.into_iter().flatten().collect())
    }

    fn entry_sectors(&self) -> u64 {
        let bytes = u64::try_from(self.entries.len() * ENTRY).unwrap_or(0);
        bytes.div_ceil(self.geometry.sector)
    }

    fn last_usable(&self) -> Result<u64, GptError> {
        let taken = self.entry_sectors() + 2;
        self.geometry
            .sectors
            .checked_sub(taken)
            .ok_or(GptError::NoRoom {
                have: 0,
                need: taken * self.geometry.sector,
            })
    }

    fn header(&self, own: u64, other: u64, entries_at: u64) -> Result<Vec<u8>, GptError> {
        let mut bytes = Vec::with_capacity(4096);
        bytes.extend(b"EFI PART");
        bytes.extend(0x0001_0000_u32.to_le_bytes());
        bytes.extend(92_u32.to_le_bytes());
        bytes.extend([0; 8]); // checksum, filled in below, and reserved
        for word in [own, other, self.first_usable, self.last_usable()?] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.disk.to_disk());
        bytes.extend(entries_at.to_le_bytes());
        bytes.extend(
            u32::try_from(self.entries.len())
                .ok()
                .ok_or(GptError::Full)?
                .to_le_bytes(),
        );
        bytes.extend(128_u32.to_le_bytes());
        bytes.extend(crc32(&self.entries.concat()).to_le_bytes());
        let sum = crc32(&bytes).to_le_bytes();
        bytes.splice(16..20, sum);
        bytes.resize(usize::try_from(self.geometry.sector).unwrap_or(512), 0);
        Ok(bytes)
    }
}

impl Header {
    fn parse(bytes: &[u8], own: u64, geometry: Geometry) -> Result<Self, GptError> {
        if !bytes.starts_with(b"EFI PART") {
            return Err(GptError::Absent);
        }
        let size = usize::try_from(word32(bytes, 12)?)
            .ok()
            .ok_or(GptError::Damaged("header size"))?;
        if size < HEADER {
            return Err(GptError::Damaged("header size"));
        }
        let mut covered = bytes
            .get(..size)
            .ok_or(GptError::Damaged("header size"))?
            .to_vec();
        covered.splice(16..20, [0; 4]);
        if crc32(&covered) != word32(bytes, 16)? {
            return Err(GptError::Damaged("header checksum"));
        }
        if word64(bytes, 24)? != own {
            return Err(GptError::Damaged("own address"));
        }
        let count = word32(bytes, 80)?;
        if word32(bytes, 84)? != 128 || !(1..=MAX_ENTRIES).contains(&count) {
            return Err(GptError::Damaged("entry size or count"));
        }
        let entry_sectors = (u64::from(count) * 128).div_ceil(geometry.sector);
        let entries_at = word64(bytes, 72)?;
        let fits = entries_at >= 2
            && entries_at
                .checked_add(entry_sectors)
                .is_some_and(|end| end <= geometry.sectors);
        let first_usable = word64(bytes, 40)?;
        if !fits || first_usable < 2 + entry_sectors || first_usable >= geometry.sectors {
            return Err(GptError::Damaged("layout"));
        }
        let disk = bytes
            .get(56..72)
            .and_then(|b| b.try_into().ok())
            .ok_or(GptError::Damaged("header size"))?;
        Ok(Self {
            disk: Guid::from_disk(disk),
            first_usable,
            entries_at,
            count,
            entries_crc: word32(bytes, 88)?,
        })
    }
}

fn word32(bytes: &[u8], at: usize) -> Result<u32, GptError> {
    let word = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    word.map(u32::from_le_bytes)
        .ok_or(GptError::Damaged("header size"))
}

fn word64(bytes: &[u8], at: usize) -> Result<u64, GptError> {
    let word = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    word.map(u64::from_le_bytes)
        .ok_or(GptError::Damaged("header size"))
}

fn is_free(entry: &[u8; ENTRY]) -> bool {
    entry.starts_with(&Guid::ZERO.0)
}

fn partition(entry: &[u8; ENTRY], number: u32) -> Option<Partition> {
    if is_free(entry) {
        return None;
    }
    let guid = |at: usize| {
        entry
            .get(at..at + 16)
            .and_then(|b| b.try_into().ok())
            .map(Guid::from_disk)
    };
    let units = entry
        .get(56..)?
        .as_chunks::<2>()
        .0
        .iter()
        .map(|pair| u16::from_le_bytes(*pair));
    let name = char::decode_utf16(units.take_while(|unit| *unit != 0))
        .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER));
    Some(Partition {
        number,
        kind: guid(0)?,
        id: guid(16)?,
        first: word64(entry, 32).ok()?,
        last: word64(entry, 40).ok()?,
        name: name.collect(),
    })
}

fn entry(part: &Partition) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    let mut head = Vec::with_capacity(56);
    head.extend(part.kind.to_disk());
    head.extend(part.id.to_disk());
    head.extend(part.first.to_le_bytes());
    head.extend(part.last.to_le_bytes());
    bytes.iter_mut().zip(head).for_each(|(to, byte)| *to = byte);
    set_name(&mut bytes, &part.name);
    bytes
}

fn set_name(entry: &mut [u8; ENTRY], name: &str) {
    let units = name
        .encode_utf16()
        .take(36)
        .flat_map(u16::to_le_bytes)
        .chain(std::iter::repeat(0));
    entry
        .iter_mut()
        .skip(56)
        .zip(units)
        .for_each(|(to, byte)| *to = byte);
}

/// CRC-32 as GPT uses it (IEEE 802.3, reflected).
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| {
        if crc & 1 == 1 {
            (crc >> 1) ^ 0xEDB8_8320
        } else {
            crc >> 1
        }
    };
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc))
    })
}

#[cfg(test)]
#[path = "gpt_tests.rs"]
mod tests;
