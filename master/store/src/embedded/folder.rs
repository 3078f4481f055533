//! The store's folder: file names, the lock, durable renames, free space.

use super::disk::Disk;
use crate::error::StoreError;
use crate::model::Revision;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Suffix of unfinished files; they are removed at the next start.
pub(super) const UNFINISHED: &str = ".unfinished";
const LOCK: &str = "lock";
/// The file of the engine in earlier versions.
const OLD_ENGINE: &str = "store.redb";

/// A folder that only this process writes to.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    made: AtomicU64,
    _lock: File,
}

/// The files of the folder by type, each with the revision in its name, sorted.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) states: Vec<(Revision, PathBuf)>,
    pub(super) logs: Vec<(Revision, PathBuf)>,
}

impl Folder {
    /// Creates the folder if it does not exist, and locks it.
    pub(super) fn open(path: &Path, disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        std::fs::create_dir_all(path).map_err(StoreError::Folder)?;
        let lock = File::create(path.join(LOCK)).map_err(StoreError::Folder)?;
        // The kernel releases the lock when the process ends, however it ends: no stale lock file
        // can remain.
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(StoreError::Folder(error)),
        }
        if path.join(OLD_ENGINE).exists() {
            let what = format!(
                "{OLD_ENGINE} was written by another engine of an earlier version; give an empty folder"
            );
            return Err(StoreError::Corrupt(what));
        }
        Ok(Self {
            path: path.to_owned(),
            disk,
            made: AtomicU64::new(0),
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(super) fn log(&self, base: Revision) -> PathBuf {
        self.path.join(format!("log-{base:020}"))
    }

    pub(super) fn state(&self, head: Revision) -> PathBuf {
        self.path.join(format!("state-{head:020}"))
    }

    /// A unique name for a file that is renamed when it is complete.
    pub(super) fn unfinished(&self, name: &str) -> PathBuf {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        self.path.join(format!("{name}-{number}{UNFINISHED}"))
    }

    /// Removes unfinished files of an earlier process. No other process writes any: the folder is
    /// locked.
    pub(super) fn sweep(&self) -> Result<(), StoreError> {
        for entry in std::fs::read_dir(&self.path).map_err(StoreError::Folder)? {
            let path = entry.map_err(StoreError::Folder)?.path();
            if path.to_string_lossy().ends_with(UNFINISHED) {
                std::fs::remove_file(&path).map_err(StoreError::file("remove", &path))?;
            }
        }
        Ok(())
    }

    /// The files in the folder.
    pub(super) fn files(&self) -> Result<Files, StoreError> {
        let mut files = Files::default();
        for entry in std::fs::read_dir(&self.path).map_err(StoreError::Folder)? {
            let path = entry.map_err(StoreError::Folder)?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let number = |prefix: &str| {
                name.strip_prefix(prefix)
                    .and_then(|digits| digits.parse().ok())
            };
            // Files of other names are not the store's, and are left alone.
            if let Some(revision) = number("state-") {
                files.states.push((revision, path));
            } else if let Some(revision) = number("log-") {
                files.logs.push((revision, path));
            }
        }
        files.states.sort();
        files.logs.sort();
        Ok(files)
    }

    /// Renames a file to its final name, durably.
    ///
    /// # Errors
    /// [`StoreError::Full`] if the file still has its old name. After any other error it is unknown
    /// which of the two names is on disk, so the file may not be used, nor may another file take
    /// its name.
    pub(super) fn adopt(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.disk
            .rename(from, to)
            .map_err(|error| StoreError::full_or("name", to, error))?;
        let flushed = File::open(&self.path).and_then(|folder| self.disk.flush(&folder));
        flushed.map_err(StoreError::file("flush the folder", &self.path))
    }
}

/// Whether a folder is missing or empty.
pub(super) fn is_empty(path: &Path) -> io::Result<bool> {
    match std::fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}
