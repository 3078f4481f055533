//! dm-verity: the superblock, the table, and opening by [`crate::mapper`].
//!
//! Layouts: the kernel's admin guide on dm-verity for the table line and the superblock.

use std::io;

use crate::error::{Error, Result};
use crate::mapper::{self, Mapped};

/// The part of a verity superblock that the kernel's table needs. Having one proves that format and
/// sizes are the ones we build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Number of 4096-byte blocks that the tree covers.
    pub data_blocks: u64,
    /// Salt of every hash, at most 256 bytes.
    pub salt: Vec<u8>,
}

/// Why a superblock was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SuperblockError {
    /// Fewer than 512 bytes or another signature.
    #[error("there is no verity superblock")]
    Absent,
    /// Another version, hash, block size, or an impossible length.
    #[error("the verity superblock's {0} is not what our images have")]
    Foreign(&'static str),
}

impl Superblock {
    /// Reads the first 512 bytes of a hash partition.
    ///
    /// # Errors
    /// [`SuperblockError::Absent`] where there is no superblock, [`SuperblockError::Foreign`] with
    /// the field that is not what images of this project have.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Self, SuperblockError> {
        let absent = || SuperblockError::Absent;
        let bytes: &[u8; 512] = bytes.first_chunk().ok_or_else(absent)?;
        if !bytes.starts_with(b"verity\0\0") {
            return Err(SuperblockError::Absent);
        }
        let word = |at: usize| {
            bytes
                .get(at..at + 4)
                .and_then(|b| b.try_into().ok())
                .map(u32::from_le_bytes)
        };
        let expect = |at, value, what| {
            if word(at) == Some(value) {
                Ok(())
            } else {
                Err(SuperblockError::Foreign(what))
            }
        };
        expect(8, 1, "version")?;
        expect(12, 1, "hash type")?;
        if bytes.get(32..39) != Some(b"sha256\0") {
            return Err(SuperblockError::Foreign("hash algorithm"));
        }
        expect(64, 4096, "data block size")?;
        expect(68, 4096, "hash block size")?;
        let data_blocks = bytes
            .get(72..80)
            .and_then(|b| b.try_into().ok())
            .map(u64::from_le_bytes)
            .ok_or_else(absent)?;
        let length = bytes
            .get(80..82)
            .and_then(|b| b.try_into().ok())
            .map(u16::from_le_bytes)
            .ok_or_else(absent)?;
        if data_blocks == 0 || data_blocks > u64::MAX / 4096 {
            return Err(SuperblockError::Foreign("number of blocks"));
        }
        let salt = bytes
            .get(88..88 + usize::from(length))
            .filter(|_| length <= 256);
        Ok(Self {
            data_blocks,
            salt: salt
                .ok_or(SuperblockError::Foreign("salt length"))?
                .to_vec(),
        })
    }
}

/// A verity device to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Device-mapper name, 1 to 127 bytes.
    pub name: String,
    /// `major:minor` of the data partition.
    pub data: String,
    /// `major:minor` of the hash partition.
    pub hash: String,
    /// What the hash partition says.
    pub superblock: Superblock,
    /// The trusted root hash, lower-case hexadecimal.
    pub root_hash: String,
}

impl Target {
    /// The table line of the kernel's `verity` target. The tree starts behind the superblock, in
    /// block 1.
    pub fn table(&self) -> String {
        let salt = match self.superblock.salt.as_slice() {
            [] => "-".to_owned(),
            some => hex::encode(some),
        };
        let Self {
            data,
            hash,
            root_hash,
            superblock,
            ..
        } = self;
        format!(
            "1 {data} {hash} 4096 4096 {} 1 sha256 {root_hash} {salt}",
            superblock.data_blocks
        )
    }
}

/// What the kernel found while reading through a verity device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Every block read so far was as built.
    Verified,
    /// At least one block was not; its readers got an I/O error.
    Corrupted,
}

/// Opens a verity device read-only and returns its node, `/dev/dm-N`.
///
/// Guarantees that every byte read from the node is covered by the root hash; a block that isn't
/// gives an I/O error.
///
/// # Errors
/// The device mapper refuses: no such device, a name in use, or a kernel without `dm_verity`.
pub fn open(target: &Target) -> Result<String> {
    let sectors = target.superblock.data_blocks * 8;
    let table = target.table();
    mapper::activate(&Mapped {
        name: &target.name,
        read_only: true,
        kind: "verity",
        sectors,
        table: &table,
    })
}

/// Asks the kernel whether corruption was seen on the verity device `name`.
///
/// # Errors
/// There is no verity device of this name, or the device mapper gives no status of one.
pub fn health(name: &str) -> Result<Health> {
    match mapper::status(name)?.first() {
        Some(b'V') => Ok(Health::Verified),
        Some(b'C') => Ok(Health::Corrupted),
        Some(_) | None => Err(Error::new(
            "understand the state of",
            name,
            io::Error::other("unknown verity status"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{Superblock, SuperblockError, Target};

    fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
        buffer[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn superblock() -> Vec<u8> {
        let mut bytes = vec![0_u8; 512];
        put(&mut bytes, 0, b"verity\0\0");
        put(&mut bytes, 8, &[1, 0, 0, 0, 1]);
        put(&mut bytes, 32, b"sha256");
        put(&mut bytes, 64, &4096_u32.to_le_bytes());
        put(&mut bytes, 68, &4096_u32.to_le_bytes());
        put(&mut bytes, 72, &1000_u64.to_le_bytes());
        put(&mut bytes, 80, &2_u16.to_le_bytes());
        put(&mut bytes, 88, &[0xAB, 0xCD]);
        bytes
    }

    #[test]
    fn a_superblock_of_ours_is_read() {
        assert_eq!(
            Superblock::parse(&superblock()),
            Ok(Superblock {
                data_blocks: 1000,
                salt: vec![0xAB, 0xCD]
            })
        );
    }

    #[test]
    fn each_foreign_field_is_named() {
        for (at, value, what) in [
            (8, 2, "version"),
            (12, 0, "hash type"),
            (33, 1, "hash algorithm"),
            (65, 8, "data block size"),
            (69, 8, "hash block size"),
            (81, 2, "salt length"),
            (79, 255, "number of blocks"),
        ] {
            let mut bytes = superblock();
            bytes[at] = value;
            assert_eq!(
                Superblock::parse(&bytes),
                Err(SuperblockError::Foreign(what))
            );
        }
        assert_eq!(
            Superblock::parse(&superblock()[..511]),
            Err(SuperblockError::Absent)
        );
        assert_eq!(Superblock::parse(&[0; 512]), Err(SuperblockError::Absent));
    }

    #[test]
    fn the_table_names_devices_sizes_and_hash() {
        let target = Target {
            name: "root".to_owned(),
            data: "253:2".to_owned(),
            hash: "253:3".to_owned(),
            superblock: Superblock {
                data_blocks: 10,
                salt: vec![],
            },
            root_hash: "ab".repeat(32),
        };
        assert_eq!(
            target.table(),
            format!("1 253:2 253:3 4096 4096 10 1 sha256 {} -", "ab".repeat(32))
        );
    }
}
