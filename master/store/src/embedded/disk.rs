//! The engine's disk operations behind one trait, so that a test can simulate a failing disk.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The operations that make a write durable. The provided methods call the operating system.
///
/// Assumption of the engine: after a failed [`Disk::flush`] nothing is known about the blocks
/// written before it. The kernel reports such an error once and then marks the pages as clean, so a
/// later successful flush proves nothing.
pub trait Disk: Debug + Send + Sync {
    /// Free bytes of the file system of `folder` that this process may use.
    ///
    /// # Errors
    /// The file system cannot be queried.
    fn free(&self, folder: &Path) -> io::Result<u64> {
        let stats = nix::sys::statvfs::statvfs(folder).map_err(io::Error::from)?;
        Ok(stats
            .blocks_available()
            .saturating_mul(stats.fragment_size()))
    }

    /// Writes all of `bytes` at an offset.
    ///
    /// # Errors
    /// As `pwrite(2)`.
    fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    /// Flushes a file's content, or a folder's entries, to the disk.
    ///
    /// # Errors
    /// As `fdatasync(2)`.
    fn flush(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Renames a file.
    ///
    /// # Errors
    /// As `rename(2)`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }
}

/// The operating system's disk operations.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalDisk;

impl Disk for LocalDisk {}

/// Whether a write failed only because the disk is full. But if a *flush* reports it, the blocks
/// are lost.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

/// Appends to a new file.
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
        // Each write has reached the kernel. The owner of the file flushes it to the disk, once.
        Ok(())
    }
}
