//! GUID partition tables (UEFI specification 2.10, chapter 5): protective MBR, header, entries, and
//! their backup.

use crate::guid::Guid;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Partitions begin at multiples of this many bytes.
pub const ALIGNMENT: u64 = 1 << 20;

const ENTRIES: u32 = 128;
const ENTRY: u32 = 128;
/// Sectors that the entries take.
const TABLE_SECTORS: u64 = ENTRIES as u64 * ENTRY as u64 / SECTOR;

/// Partition types that the image uses.
pub mod kind {
    use crate::guid::Guid;

    /// EFI system partition.
    pub const ESP: Guid = Guid::new(0xc12a_7328_f81f_11d2_ba4b_00a0_c93e_c93b);
    /// Root, x86-64 (Discoverable Partitions Specification).
    pub const ROOT: Guid = Guid::new(0x4f68_bce3_e8cd_4db1_96e7_fbca_f984_b709);
    /// Verity hash tree of a root, x86-64 (Discoverable Partitions Specification).
    pub const ROOT_VERITY: Guid = Guid::new(0x2c73_57ed_ebd2_46d9_aec1_23d4_37ec_2bf5);
    /// Linux file system data.
    pub const LINUX: Guid = Guid::new(0x0fc6_3daf_8483_4772_8e79_3d69_d847_7de4);
}

/// A partition to be laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Type.
    pub kind: Guid,
    /// Its own identifier.
    pub unique: Guid,
    /// Label, at most 36 UTF-16 units; longer ones are cut.
    pub label: String,
    /// Bytes; rounded up to [`ALIGNMENT`].
    pub size: u64,
    /// Attribute bits (60: read-only).
    pub attributes: u64,
}

/// The place of a partition, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// From the disk's start.
    pub start: u64,
    /// Length.
    pub size: u64,
}

/// A disk laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the whole disk.
    pub size: u64,
    /// The place of each partition, in the given order.
    pub extents: Vec<Extent>,
    /// The bytes at the disk's start.
    pub head: Vec<u8>,
    /// The bytes at the disk's end.
    pub tail: Vec<u8>,
}

/// Lays partitions out one after the other and writes both tables. More than 128 partitions are
/// left out.
pub fn layout(disk: Guid, partitions: &[Partition]) -> Layout {
    let mut at = ALIGNMENT;
    let mut entries = Vec::with_capacity((ENTRIES * ENTRY) as usize);
    let mut extents = Vec::new();
    for partition in partitions.iter().take(ENTRIES as usize) {
        let extent = Extent {
            start: at,
            size: partition.size.next_multiple_of(ALIGNMENT),
        };
        at += extent.size;
        entries.extend(entry(partition, extent));
        extents.push(extent);
    }
    entries.resize((ENTRIES * ENTRY) as usize, 0);
    let size = at + ALIGNMENT;
    let last = size / SECTOR - 1;
    let table = crc32(&entries);
    let mut head = protective_mbr(last);
    head.extend(header(disk, 1, last, 2, last, table));
    head.extend_from_slice(&entries);
    let mut tail = entries;
    tail.extend(header(disk, last, 1, last - TABLE_SECTORS, last, table));
    Layout {
        size,
        extents,
        head,
        tail,
    }
}

fn entry(partition: &Partition, extent: Extent) -> Vec<u8> {
    let mut out = Vec::with_capacity(ENTRY as usize);
    out.extend(partition.kind.to_bytes());
    out.extend(partition.unique.to_bytes());
    out.extend((extent.start / SECTOR).to_le_bytes());
    out.extend(((extent.start + extent.size) / SECTOR - 1).to_le_bytes());
    out.extend(partition.attributes.to_le_bytes());
    out.extend(
        partition
            .label
            .encode_utf16()
            .take(36)
            .flat_map(u16::to_le_bytes),
    );
    out.resize(ENTRY as usize, 0);
    out
}

/// A header at sector `own`, whose twin is at `other`; `last` is the disk's last sector.
pub(crate) fn header(
    disk: Guid,
    own: u64,
    other: u64,
    entries_at: u64,
    last: u64,
    table: u32,
) -> Vec<u8> {
    let mut out = b"EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00".to_vec();
    out.extend([0; 8]);
    for sector in [own, other, 2 + TABLE_SECTORS, last - TABLE_SECTORS - 1] {
        out.extend(sector.to_le_bytes());
    }
    out.extend(disk.to_bytes());
    out.extend(entries_at.to_le_bytes());
    for number in [ENTRIES, ENTRY, table] {
        out.extend(number.to_le_bytes());
    }
    let sum = crc32(&out).to_le_bytes();
    out[16..20].copy_from_slice(&sum);
    out.resize(512, 0);
    out
}

fn protective_mbr(last: u64) -> Vec<u8> {
    let mut out = vec![0; 446];
    out.extend([0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0]);
    out.extend(u32::try_from(last).unwrap_or(u32::MAX).to_le_bytes());
    out.resize(510, 0);
    out.extend([0x55, 0xaa]);
    out
}

/// CRC-32 as in Ethernet and GPT (reflected polynomial 0xedb88320).
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |mut sum, byte| {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
        }
        sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    fn sample() -> Layout {
        let partition = |kind, n, label: &str, size| Partition {
            kind,
            unique: Guid::new(n),
            label: label.to_owned(),
            size,
            attributes: 0,
        };
        layout(
            Guid::new(7),
            &[
                partition(kind::ESP, 1, "esp", 3 << 20),
                partition(kind::ROOT, 2, "root-a", 1),
            ],
        )
    }

    #[test]
    fn crc_of_the_check_string_is_the_catalogued_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn partitions_follow_each_other_aligned_and_the_backup_ends_the_disk() {
        let layout = sample();
        assert_eq!(
            layout.extents[1],
            Extent {
                start: 4 << 20,
                size: 1 << 20
            }
        );
        assert_eq!(layout.size, 6 << 20);
        assert_eq!(layout.head.len(), 34 * 512);
        assert_eq!(layout.tail.len(), 33 * 512);
        assert_eq!(&layout.tail[32 * 512..32 * 512 + 8], b"EFI PART");
    }

    #[test]
    fn the_tables_are_the_golden_ones() {
        let layout = sample();
        let digest = Sha256::digest([layout.head, layout.tail].concat());
        assert_eq!(
            hex::encode(digest),
            "1877924a20cd23a95f89a921f6d972571016c8f0f5491c6ec3e17bba84eb87e7"
        );
    }
}
