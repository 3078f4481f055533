//! What the engine asks of the disk, behind one trait, so that a test can stand in for a disk that fails.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The operations that make a write durable. The provided methods are the real ones.
///
/// Assumption of the engine: after a failed [`Disk::flush`] nothing is known about the blocks that were written before it. The
/// kernel reports such an error once and then takes the pages for clean, so a second flush that succeeds proves nothing.
pub trait Disk: Debug + Send + Sync {
    /// Bytes that the file system of `folder` has left for us.
    ///
    /// # Errors
    /// The file system can't be asked.
    fn free(&self, folder: &Path) -> io::Result<u64> {
        let said = nix::sys::statvfs::statvfs(folder).map_err(io::Error::from)?;
        Ok(said.blocks_available().saturating_mul(said.fragment_size()))
    }

    /// Writes all of `bytes` at an offset.
    ///
    /// # Errors
    /// As `pwrite(2)`.
    fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    /// Puts what was written to a file, or the names in a folder, onto the disk.
    ///
    /// # Errors
    /// As `fdatasync(2)`.
    fn flush(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// As `rename(2)`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }
}

/// The operating system's own.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalDisk;

impl Disk for LocalDisk {}

/// Whether a write failed for want of room only. Where a *flush* says so, the blocks are lost all the same.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

/// Writes to the end of a new file.
#[derive(Debug)]
pub(super) struct Appending {
    disk: Arc<dyn Disk>,
    file: File,
    at: u64,
}

impl Appending {
    pub(super) fn new(disk: Arc<dyn Disk>, file: File) -> Self {
        Self { disk, file, at: 0 }
    }

    pub(super) fn into_file(self) -> File {
        self.file
    }
}

impl Write for Appending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.write(&self.file, bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
