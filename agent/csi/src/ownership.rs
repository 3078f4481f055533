//! Gives the files of a volume the pod's group (`fsGroup`), where the CSI driver leaves that to the
//! node.
//!
//! The file system is the driver's and may never answer, or have millions of files: it is walked on
//! a thread of its own.

use crate::ledger::key;
use crate::request::{Group, Request};
use agent_confine::{Steps, Threads, apart};
use agent_sys::beneath::{Beneath, Links};
use nix::fcntl::AtFlags;
use nix::unistd::{Gid, fchownat};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Permission bits that are added to every file (read and write) and, in addition, to every folder
/// (search, and setgid, by which new files get the group); upstream's.
const FILE: u32 = 0o660;
const FOLDER: u32 = 0o2110;
/// Most files and folders that are visited in a volume.
const MAX_FILES: u64 = 4_000_000;
/// Most names of one folder, all of which are in memory at once.
const MOST_NAMES: usize = 1_000_000;

/// Volumes that are walked at the same time, and of these, those of one namespace.
const WALKS: usize = 32;
const WALKS_OF_A_NAMESPACE: usize = 4;

/// Gives volumes their pods' groups.
#[derive(Debug)]
pub(crate) struct Groups {
    threads: Threads,
    /// How long a file system may be silent.
    silence: Duration,
}

impl Groups {
    pub(crate) fn new(silence: Duration) -> Self {
        Self {
            threads: Threads::new(WALKS, WALKS_OF_A_NAMESPACE),
            silence,
        }
    }

    /// Gives the volume's files the group. Dropped, it ends with the file system's next answer; a
    /// volume whose thread goes on so long gets no second one.
    ///
    /// # Errors
    /// See [`give`]; the file system is silent, or all threads of the namespace are in such ones.
    pub(crate) async fn give(
        &self,
        request: &Request,
        group: Group,
        root: &Path,
        path: PathBuf,
    ) -> Result<(), String> {
        let key = key(&request.driver, &request.handle);
        let place = self.threads.place(&request.namespace, &key).await?;
        let root = root.to_owned();
        let walk = move |steps: &Steps| {
            let given = give(&root, &path, group, steps);
            given.map_err(|error| error.to_string())
        };
        apart(self.silence, place, walk).await
    }
}

/// Gives everything in the folder at `path` below `root` the group; links are not followed. With
/// `only_on_mismatch` (`fsGroupChangePolicy`) nothing is done if the folder itself has group and
/// mode already.
///
/// # Errors
/// A system call fails, nobody waits for it any more, or the volume has more than [`MAX_FILES`]
/// files and folders.
fn give(root: &Path, path: &Path, group: Group, steps: &Steps) -> io::Result<()> {
    let volume = Beneath::root(root)?.dir(path)?;
    let own = std::fs::metadata(held(&volume))?;
    let whole = FILE | FOLDER;
    if group.only_on_mismatch && own.gid() == group.id && own.mode() & whole == whole {
        return Ok(());
    }
    let mut left = MAX_FILES;
    let mut folders = vec![PathBuf::new()];
    while let Some(at) = folders.pop() {
        let folder = volume.dir(&at)?;
        for name in folder.names(MOST_NAMES)? {
            steps.step()?;
            left = left.checked_sub(1).ok_or_else(|| {
                io::Error::other(format!("it has more than {MAX_FILES} files and folders"))
            })?;
            let gid = Some(Gid::from_raw(group.id));
            fchownat(
                folder.as_fd(),
                name.as_os_str(),
                None,
                gid,
                AtFlags::AT_SYMLINK_NOFOLLOW,
            )?;
            let Ok(place) = folder.handle(Path::new(&name), Links::Refused) else {
                // A link has no mode of its own.
                continue;
            };
            let wider = if place.is_dir() { FILE | FOLDER } else { FILE };
            std::fs::set_permissions(held(&place), Permissions::from_mode(place.mode() | wider))?;
            if place.is_dir() {
                folders.push(at.join(name));
            }
        }
    }
    // Last: `only_on_mismatch` takes the folder's own group as a sign that all below it has it.
    volume.set_group(group.id)?;
    volume.set_mode(own.mode() & 0o7777 | whole)
}

/// The path in `/proc` of an open descriptor, for calls that take only a path.
fn held(place: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", place.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn all_in_a_volume_gets_the_group_and_nothing_beyond_it() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("v"), dir.path().join("outside"));
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(volume.join("a/b/f"), "").unwrap();
        fs::set_permissions(volume.join("a/b/f"), Permissions::from_mode(0o600)).unwrap();
        fs::write(&outside, "").unwrap();
        std::os::unix::fs::symlink(&outside, volume.join("link")).unwrap();
        let before = fs::metadata(&outside).unwrap();
        let give = |id, only_on_mismatch| {
            let given = true;
            let group = Group {
                id,
                given,
                only_on_mismatch,
            };
            give(dir.path(), Path::new("v"), group, &Steps::default()).unwrap();
        };
        give(7, false);
        let meta = |path: &str| fs::symlink_metadata(volume.join(path)).unwrap();
        for path in ["", "a", "a/b", "a/b/f", "link"] {
            assert_eq!(meta(path).gid(), 7, "{path}");
        }
        assert_eq!(meta("a/b/f").mode() & 0o7777, 0o660);
        assert_eq!(meta("a").mode() & 0o2070, 0o2070);
        let after = fs::metadata(&outside).unwrap();
        assert_eq!((after.gid(), after.mode()), (before.gid(), before.mode()));

        fs::write(volume.join("new"), "").unwrap();
        let new = || meta("new").gid();
        fs::set_permissions(volume.join("new"), Permissions::from_mode(0o600)).unwrap();
        give(7, true);
        assert_eq!(
            meta("new").mode() & 0o777,
            0o600,
            "as the folder had the group"
        );
        give(8, true);
        assert_eq!(new(), 8);
    }
}
