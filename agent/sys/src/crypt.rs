//! dm-crypt: a volume encrypted by AES-256-XTS in sectors of 4096 bytes.
//!
//! Layout: the kernel's admin guide on dm-crypt for the table line. The key goes to the kernel
//! through its keyring as a `logon` key, which no program can read back, and is removed from it
//! again once the volume is open. Root can read the table, which only names the key.

use std::io;

use nix::libc;

use crate::error::{Context, Error, Result};
use crate::mapper::{self, Mapped};

/// Bytes of a volume key: two keys of AES-256.
pub const KEY: usize = 64;
const SECTOR: u64 = 512;
/// Sectors of 512 bytes in one of 4096, which is what is encrypted at once.
const BLOCK: u64 = 8;
/// The name under which the kernel holds the key for a moment; `logon` keys have a prefix and a
/// colon.
const KEY_NAME: &str = "pratique:state";
/// KEY_SPEC_PROCESS_KEYRING and KEYCTL_INVALIDATE of linux/keyctl.h.
const PROCESS_KEYRING: libc::c_long = -2;
const KEYCTL_INVALIDATE: libc::c_long = 21;

/// An encrypted volume to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Device-mapper name, 1 to 127 bytes.
    pub name: String,
    /// `major:minor` of the partition.
    pub device: String,
    /// Where the data begins in it, in bytes, a multiple of 4096.
    pub offset: u64,
    /// Bytes of the partition.
    pub size: u64,
}

impl Volume {
    /// Sectors of 512 bytes that the volume has: whole blocks of 4096 bytes behind the offset.
    fn sectors(&self) -> Option<u64> {
        let sectors = self.size.checked_sub(self.offset)? / SECTOR / BLOCK * BLOCK;
        (sectors > 0 && self.offset.is_multiple_of(SECTOR * BLOCK)).then_some(sectors)
    }

    /// The table line of the kernel's `crypt` target. No discards: they would show on the disk
    /// which blocks are in use.
    pub fn table(&self) -> String {
        let (device, start) = (&self.device, self.offset / SECTOR);
        format!("aes-xts-plain64 :{KEY}:logon:{KEY_NAME} 0 {device} {start} 1 sector_size:4096")
    }
}

/// Opens the volume and returns its node, `/dev/dm-N`.
///
/// # Errors
/// A partition without room for data, or a kernel that refuses (no module `dm_crypt`, `xts` or
/// `aes`). A wrong key is no error: the volume then reads as noise.
pub fn open(volume: &Volume, key: &[u8; KEY]) -> Result<String> {
    let small = || {
        Error::new(
            "open the volume",
            &volume.name,
            io::Error::other("the partition has no room for data"),
        )
    };
    let sectors = volume.sectors().ok_or_else(small)?;
    let lent = lend(key).at("hand over the key of", &volume.name)?;
    let table = volume.table();
    let opened = mapper::activate(&Mapped {
        name: &volume.name,
        read_only: false,
        kind: "crypt",
        sectors,
        table: &table,
    });
    let taken = take_back(lent).at("take back the key of", &volume.name);
    let node = opened?;
    taken.map(|()| node)
}

/// Closes a volume that is not in use.
///
/// # Errors
/// The device mapper refuses: it is in use, or there is no such volume.
pub fn close(name: &str) -> Result<()> {
    mapper::remove(name)
}

/// Puts the key into this process's keyring.
fn lend(key: &[u8; KEY]) -> io::Result<libc::c_long> {
    let name = c"pratique:state";
    // SAFETY: add_key(2) reads both names to their NUL and KEY bytes of the key, which outlive the
    // call.
    let id = unsafe {
        libc::syscall(
            libc::SYS_add_key,
            c"logon".as_ptr(),
            name.as_ptr(),
            key.as_ptr(),
            key.len(),
            PROCESS_KEYRING,
        )
    };
    if id < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(id)
    }
}

/// Removes it from the keyring at once; the volume has its own copy.
fn take_back(id: libc::c_long) -> io::Result<()> {
    // SAFETY: keyctl(2) KEYCTL_INVALIDATE takes a key's number and no pointer.
    let done = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_INVALIDATE, id) };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{KEY_NAME, Volume};

    fn volume(offset: u64, size: u64) -> Volume {
        Volume {
            name: "state".to_owned(),
            device: "253:7".to_owned(),
            offset,
            size,
        }
    }

    #[test]
    fn the_table_names_the_key_and_holds_none_of_it() {
        let table = volume(1 << 20, 1 << 30).table();
        assert_eq!(
            table,
            "aes-xts-plain64 :64:logon:pratique:state 0 253:7 2048 1 sector_size:4096"
        );
        assert!(table.contains(KEY_NAME));
    }

    #[test]
    fn only_whole_blocks_behind_the_offset_count() {
        assert_eq!(
            volume(1 << 20, (1 << 20) + 4096 * 3 + 512).sectors(),
            Some(24)
        );
        for (offset, size) in [
            (1 << 20, 1 << 20),
            (1 << 20, 0),
            (1 << 20, (1 << 20) + 4095),
            (100, 1 << 20),
        ] {
            assert_eq!(volume(offset, size).sectors(), None, "{offset} {size}");
        }
    }
}
