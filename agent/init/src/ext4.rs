//! Whether the kernel has found faults in an ext4 file system that were not repaired since.
//!
//! At the first fault that the kernel meets in the mounted state it makes the state read-only
//! (`errors=remount-ro`) and notes the fault in the superblock. The next mount still succeeds, and
//! the kernel meets the fault again sooner or later. There is no e2fsck in the image, so a state
//! with that note counts as damaged. A power cut leaves no such note.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Where the superblock begins, in bytes (the kernel's `Documentation/filesystems/ext4/super.rst`;
/// the fields below, too).
const SUPERBLOCK: u64 = 1024;
/// `s_magic`, 16 bits, and its value.
const MAGIC_AT: usize = 0x38;
const MAGIC: u16 = 0xEF53;
/// `s_state`, 16 bits, and its bit for faults that were found (`EXT4_ERROR_FS`).
const STATE_AT: usize = 0x3A;
const ERROR: u16 = 2;
/// `s_error_count`, 32 bits: faults since the last e2fsck.
const COUNT_AT: usize = 0x194;
/// Bytes of the superblock that are read.
const LENGTH: usize = COUNT_AT + 4;

/// Why a file system is not used.
#[derive(Debug, thiserror::Error)]
pub enum Ext4Error {
    /// The kernel found faults in it.
    #[error(
        "the kernel has found {0} faults in the state's file system, in this boot or an earlier one, and they were not repaired"
    )]
    Faults(u32),
    /// It is not ext4.
    #[error("the state holds no ext4 file system")]
    Foreign,
    /// Its superblock can't be read.
    #[error("the superblock of the state's file system can't be read")]
    Read(#[source] io::Error),
}

/// Checks the file system on `device`, which must be mounted: the mount copies a fault that only
/// the journal has noted into the superblock.
///
/// # Errors
/// Where the kernel has found faults in it, and where it is no ext4 or can't be read.
pub fn without_faults(device: &File) -> Result<(), Ext4Error> {
    let mut block = [0; LENGTH];
    device
        .read_exact_at(&mut block, SUPERBLOCK)
        .map_err(Ext4Error::Read)?;
    let [magic, state] =
        [MAGIC_AT, STATE_AT].map(|at| u16::from_le_bytes([block[at], block[at + 1]]));
    let count = u32::from_le_bytes([
        block[COUNT_AT],
        block[COUNT_AT + 1],
        block[COUNT_AT + 2],
        block[COUNT_AT + 3],
    ]);
    if magic != MAGIC {
        Err(Ext4Error::Foreign)
    } else if state & ERROR != 0 || count != 0 {
        // The flag without a count means at least one fault.
        Err(Ext4Error::Faults(count.max(1)))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Ext4Error, without_faults};
    use std::fs::File;
    use std::path::Path;
    use std::process::Command;

    fn looked(image: &Path) -> Result<(), Ext4Error> {
        without_faults(&File::open(image).expect("an image"))
    }

    /// Sets a field of the superblock with debugfs.
    fn set(image: &Path, field: &str) {
        let done = Command::new("/usr/sbin/debugfs")
            .args(["-w", "-R", &format!("set_super_value {field}")])
            .arg(image)
            .output()
            .expect("debugfs of e2fsprogs");
        assert!(done.status.success(), "{done:?}");
    }

    #[test]
    fn a_file_system_in_which_the_kernel_found_faults_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let image = dir.path().join("state");
        File::create(&image)
            .and_then(|file| file.set_len(32 << 20))
            .expect("an image");
        crate::state_partition::format(&image.display().to_string()).expect("formatted");
        looked(&image).expect("new");
        // Mounted, or after a power cut: not unmounted cleanly, but without a fault.
        set(&image, "state 0");
        looked(&image).expect("cut");
        for (field, faults) in [
            ("state 3", 1),
            ("state 2", 1),
            ("error_count 7", 7),
            ("state 1", 7),
        ] {
            set(&image, field);
            let refused = looked(&image);
            assert!(
                matches!(refused, Err(Ext4Error::Faults(found)) if found == faults),
                "{field}: {refused:?}"
            );
        }
        set(&image, "error_count 0");
        looked(&image).expect("repaired");
    }

    #[test]
    fn another_file_system_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let image = dir.path().join("other");
        for (length, what) in [(4096, "zeros"), (1500, "cut"), (0, "nothing")] {
            std::fs::write(&image, vec![0; length]).expect("written");
            let refused = looked(&image);
            assert!(
                matches!(refused, Err(Ext4Error::Foreign | Ext4Error::Read(_))),
                "{what}: {refused:?}"
            );
        }
    }
}
