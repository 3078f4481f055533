//! A folder for the files of one run of tests at a time: a second run in the same clone ends before
//! it destroys the files of the first.

use crate::{Error, Result, file_error};
use std::fs::{self, File, TryLockError};
use std::path::Path;

/// The file whose lock says that a run uses the folder. It stays, so that all runs lock the same.
const LOCK: &str = "lock";

/// Makes a folder this run's own, and removes what an earlier run left there. It is free for
/// another run when the file that this returns is closed, at the latest with the process.
pub fn take(folder: &Path) -> Result<File> {
    fs::create_dir_all(folder).map_err(file_error("cannot make", folder))?;
    let path = folder.join(LOCK);
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(file_error("cannot open", &path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::Missing(format!(
                "another run uses {}, and this one would destroy its files; wait for its end, or run this one in another clone",
                folder.display()
            )));
        }
        Err(TryLockError::Error(cause)) => return Err(file_error("cannot lock", &path)(cause)),
    }
    clear(folder)?;
    Ok(lock)
}

/// Removes all but the lock.
fn clear(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(file_error("cannot list", folder))?;
    for entry in entries {
        let entry = entry.map_err(file_error("cannot list", folder))?;
        let path = entry.path();
        let kind = entry
            .file_type()
            .map_err(file_error("cannot examine", &path))?;
        let removed = if entry.file_name() == LOCK {
            Ok(())
        } else if kind.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.map_err(file_error("cannot clear", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::take;
    use std::fs;

    #[test]
    fn a_second_run_ends_at_once_and_leaves_the_files_of_the_first() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("stories");
        let first = take(&folder).unwrap();
        fs::create_dir(folder.join("worker-1")).unwrap();
        let console = folder.join("worker-1/console");
        fs::write(&console, "booted").unwrap();
        let error = take(&folder).unwrap_err().to_string();
        assert!(
            error.contains(&folder.display().to_string()) && error.contains("another clone"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&console).unwrap(), "booted");
        drop(first);
        let _third = take(&folder).unwrap();
        assert!(!console.exists(), "the files of a run that ended go");
        assert!(take(&folder).is_err(), "the lock stayed");
    }
}
