//! The volumes of drivers on the disk: a file for each, in a folder that no pod can mount.
//!
//! A file has its whole content before it has its name, and its folder is written out: what an
//! agent finds after a crash is the last state before a call, or the one after it.

use crate::paths::is_name;
use crate::volume::Volume;
use agent_sys::beneath::Beneath;
use config_errors::chain;
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Most volumes; more than any machine can mount.
const MAX_VOLUMES: usize = 4096;
/// Bytes of a file: a volume that 500 pods share has 40 KiB.
const MAX_FILE: u64 = 256 << 10;
/// What a file is called before it is complete.
const NEW: &str = ".new";

/// The folder.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    /// Held while a file is written, so that two writers do not use the temporary name at once.
    turn: Mutex<()>,
}

/// The name of a volume in folders: the same for the same driver and handle, whatever bytes the
/// handle has.
pub(crate) fn key(driver: &str, handle: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(driver.as_bytes());
    // No name of a driver has this byte.
    hash.update([0]);
    hash.update(handle.as_bytes());
    hex::encode(hash.finalize())
}

impl Ledger {
    /// The ledger in this folder, which is made with its first file.
    pub(crate) fn new(path: PathBuf) -> Self {
        let turn = Mutex::default();
        Self { path, turn }
    }

    /// All volumes. A file that can't be read is left where it is.
    pub(crate) fn all(&self) -> Vec<Volume> {
        let Ok(folder) = Beneath::root(&self.path) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for name in folder.names(MAX_VOLUMES).unwrap_or_default() {
            if name == NEW {
                continue;
            }
            let read = folder.read(Path::new(&name), MAX_FILE);
            let volume = read.and_then(|bytes| Ok(serde_json::from_slice::<Volume>(&bytes)?));
            match volume {
                Ok(volume) if is_name(&volume.driver) => found.push(volume),
                Ok(volume) => tracing::warn!(
                    driver = volume.driver,
                    "ignoring a recorded volume: its driver has an invalid name"
                ),
                Err(error) => {
                    tracing::warn!(
                        ?name,
                        error = chain(&error),
                        "cannot read what is known of a driver's volume"
                    );
                }
            }
        }
        found
    }

    /// Writes a volume down.
    ///
    /// # Errors
    /// The folder or the file can't be made, written, flushed or renamed. The record that was there
    /// before stays then.
    pub(crate) fn keep(&self, volume: &Volume) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = Beneath::make_root(&self.path)?;
        folder.set_mode(0o700)?;
        let mut file = folder.rewrite(Path::new(NEW), 0o600)?;
        file.write_all(&serde_json::to_vec(volume)?)?;
        file.sync_all()?;
        let name = key(&volume.driver, &volume.handle);
        folder.rename(Path::new(NEW), Path::new(&name))?;
        std::fs::File::open(&self.path)?.sync_all()
    }

    /// Forgets a volume.
    ///
    /// # Errors
    /// The folder of the ledger can't be opened, or the kernel refuses to remove the record
    /// (`unlinkat`).
    pub(crate) fn forget(&self, volume: &Volume) -> io::Result<()> {
        let name = key(&volume.driver, &volume.handle);
        Beneath::root(&self.path)?.remove_file(Path::new(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{Progress, Step};

    #[test]
    fn what_is_kept_is_found_and_what_is_forgotten_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(dir.path().join("csi"));
        assert!(ledger.all().is_empty());
        let mut volume = Volume::new("disk.example", "../../x", "1");
        volume.begin(Step::Publish("u/pv"));
        ledger.keep(&volume).unwrap();
        volume.done(Step::Publish("u/pv"));
        ledger.keep(&volume).unwrap();
        // A temporary file of an agent that ended while it wrote, and a file of an unknown origin.
        std::fs::write(dir.path().join("csi/.new"), "{").unwrap();
        std::fs::write(dir.path().join("csi/other"), "{").unwrap();
        assert_eq!(ledger.all(), [volume.clone()]);
        assert_eq!(volume.targets["u/pv"], Progress::Done);
        ledger.forget(&volume).unwrap();
        assert!(ledger.all().is_empty());
    }

    #[test]
    fn no_two_volumes_share_a_file() {
        assert_ne!(key("a", "b"), key("ab", ""));
        assert_eq!(key("a", "b"), key("a", "b"));
    }
}
