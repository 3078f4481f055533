//! The folders of volumes, below a folder that pods reach only through their own volumes.

use agent_sys::beneath::{Beneath, Links};
use config_kube::local_volume::{self, is_name};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Prefix of a folder's name while it is removed; no volume has such a name.
const REMOVING: &str = ".going-";
/// Prefix of a folder's name while it is made.
const CREATING: &str = ".coming";
/// Permission bits of a new folder: pods run as any user, and the parent folder keeps everyone else
/// out.
const OPEN: u32 = 0o777;
/// Permission bits of the parent folder.
const CLOSED: u32 = 0o700;
/// The same if the pod names a group: new files inside belong to that group.
const SHARED: u32 = 0o2777;
/// Names that one call removes at most: a pod that still has the folder may fill it as fast as it
/// is emptied.
const MOST_NAMES: u64 = 1_000_000;
/// Folders that are removed at once; each has a thread.
const MAX_REMOVALS: usize = 8;

/// Why a folder can't be made, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The name can't be a volume's.
    #[error("{0:?} can't be the name of a volume")]
    Name(String),
    /// There is less room than the claim asks for.
    #[error("the claim requests {requested} bytes, and only {free} are free for volumes")]
    Full {
        /// Bytes that are free.
        free: u64,
        /// Bytes that are asked for.
        requested: u64,
    },
    /// The volume's folder is missing on this machine.
    #[error(
        "the data of volume {0:?} is LOST: this machine has no folder of it. A worker's state that does not open is made anew, and \
         its volumes are gone with it. Delete the claim to get a new, empty volume"
    )]
    Lost(String),
    /// Not all of it is removed yet, or others are being removed.
    #[error("the folder of volume {0:?} is being removed: ask again")]
    Going(String),
    /// A system call failed.
    #[error("the folder of volume {0:?} can't be used")]
    System(String, #[source] io::Error),
}

/// The folders of this machine's volumes.
#[derive(Debug)]
pub struct Folders {
    root: PathBuf,
    /// Held while a folder is made or renamed, or an empty one removed; not while one is emptied.
    turn: Mutex<()>,
    /// Volumes whose folders are being removed.
    going: Mutex<BTreeSet<String>>,
}

/// Marks a folder as being removed until this is dropped.
struct Removal<'a>(&'a Folders, &'a str);

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.0.going().remove(self.1);
    }
}

impl Folders {
    /// Folders below a path that nobody but this machine's own programs can change.
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            turn: Mutex::default(),
            going: Mutex::default(),
        }
    }

    /// The folders of this machine's volumes, below the kubelet's data folder (`/var/lib/kubelet`).
    pub fn below(data: &Path) -> Self {
        let name = Path::new(local_volume::FOLDER).file_name();
        Self::new(data.join(name.unwrap_or_default()))
    }

    /// Makes a volume's folder, if it isn't there already.
    ///
    /// # Errors
    /// [`FolderError::Full`] if a new one has less free space; the space is only checked, not
    /// reserved.
    pub fn make(&self, name: &str, bytes: u64) -> Result<(), FolderError> {
        let fault = |error| FolderError::System(name.to_owned(), error);
        let path = plain(name)?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let root = Beneath::make_root(&self.root).map_err(fault)?;
        root.set_mode(CLOSED).map_err(fault)?;
        match root.dir(path) {
            Ok(_there) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fault(error)),
        }
        let free = free(&self.root).map_err(fault)?;
        if free < bytes {
            return Err(FolderError::Full {
                free,
                requested: bytes,
            });
        }
        // It gets its name last, when it is complete.
        let make = || {
            root.remove_tree(Path::new(CREATING))?;
            root.make_dirs(Path::new(CREATING), OPEN)?;
            root.rename(Path::new(CREATING), path)
        };
        make().map_err(fault)
    }

    /// A volume's folder, for a pod with this group of files. It is never made here.
    ///
    /// # Errors
    /// [`FolderError::Lost`] where it isn't there.
    pub fn find(&self, name: &str, group: Option<u32>) -> Result<PathBuf, FolderError> {
        let path = plain(name)?;
        let found = Beneath::root(&self.root).and_then(|root| {
            let folder = root.dir(path)?;
            if let Some(group) = group {
                // Set each time: the pods, which own the folder, may have changed its mode.
                let mode = root.handle(path, Links::Refused)?.mode();
                folder.set_group(group)?;
                folder.set_mode(mode | SHARED & !0o007)?;
            }
            Ok(())
        });
        match found {
            Ok(()) => Ok(self.root.join(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(FolderError::Lost(name.to_owned()))
            }
            Err(error) => Err(FolderError::System(name.to_owned(), error)),
        }
    }

    /// Removes a volume's folder with its content; it is no error if there is none. The next call
    /// continues an interrupted removal. It delays no call for another folder.
    ///
    /// # Errors
    /// [`FolderError::Going`] while it is being removed: to be called again;
    /// [`FolderError::System`] if something of it can't be removed.
    pub fn remove(&self, name: &str) -> Result<(), FolderError> {
        self.remove_within(name, MOST_NAMES)
    }

    /// Removes a volume's folder if there is one and it is empty; else it stays.
    ///
    /// # Errors
    /// [`FolderError::System`] if it can't be removed.
    pub fn remove_empty(&self, name: &str) -> Result<(), FolderError> {
        let path = plain(name)?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = match Beneath::root(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // 0: nothing in the folder is removed.
            root => root.and_then(|root| root.remove_some(path, 0)),
        };
        let fault = |error| FolderError::System(name.to_owned(), error);
        removed.map(drop).map_err(fault)
    }

    fn remove_within(&self, name: &str, most: u64) -> Result<(), FolderError> {
        let path = plain(name)?;
        let _removal = self.begin(name)?;
        let remove = || {
            let root = match Beneath::root(&self.root) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
                root => root?,
            };
            let going = PathBuf::from(format!("{REMOVING}{name}"));
            if !root.remove_some(&going, most)? {
                return Ok(false);
            }
            let renamed = {
                let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
                root.rename(path, &going)
            };
            match renamed {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
                result => result?,
            }
            root.remove_some(&going, most)
        };
        match remove() {
            Ok(true) => Ok(()),
            Ok(false) => Err(FolderError::Going(name.to_owned())),
            Err(error) => Err(FolderError::System(name.to_owned(), error)),
        }
    }

    fn begin<'a>(&'a self, name: &'a str) -> Result<Removal<'a>, FolderError> {
        let mut going = self.going();
        if going.len() >= MAX_REMOVALS || !going.insert(name.to_owned()) {
            return Err(FolderError::Going(name.to_owned()));
        }
        Ok(Removal(self, name))
    }

    fn going(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.going.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn plain(name: &str) -> Result<&Path, FolderError> {
    if is_name(name) {
        Ok(Path::new(name))
    } else {
        Err(FolderError::Name(name.to_owned()))
    }
}

/// Bytes that are free on the file system of a folder.
fn free(path: &Path) -> io::Result<u64> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn folders() -> (tempfile::TempDir, Folders) {
        let dir = tempfile::tempdir().unwrap();
        let folders = Folders::new(dir.path().join("volumes"));
        (dir, folders)
    }

    #[test]
    fn a_folder_is_made_once_and_keeps_what_is_in_it() {
        let (_dir, folders) = folders();
        folders.make("pvc-1", 1).unwrap();
        let path = folders.find("pvc-1", None).unwrap();
        fs::write(path.join("f"), "data").unwrap();
        folders.make("pvc-1", u64::MAX).unwrap();
        assert_eq!(fs::read_to_string(path.join("f")).unwrap(), "data");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o777, 0o700));
    }

    #[test]
    fn a_missing_folder_is_lost_and_never_made_by_a_look_up() {
        let (dir, folders) = folders();
        let lost = |found: Result<PathBuf, FolderError>| matches!(found, Err(FolderError::Lost(_)));
        assert!(lost(folders.find("pvc-1", None)));
        folders.make("pvc-1", 1).unwrap();
        fs::remove_dir_all(dir.path().join("volumes")).unwrap();
        assert!(lost(folders.find("pvc-1", None)));
        assert!(!dir.path().join("volumes").exists());
    }

    #[test]
    fn a_name_never_leads_out_of_the_folder() {
        let (dir, folders) = folders();
        fs::write(dir.path().join("kept"), "").unwrap();
        folders.make("pvc-1", 1).unwrap();
        for name in ["", ".", "..", "../kept", "/etc", ".coming", "a/b"] {
            let refused = |result| matches!(result, Err(FolderError::Name(_)));
            assert!(refused(folders.make(name, 1)), "{name}");
            assert!(refused(folders.remove(name)), "{name}");
            assert!(matches!(
                folders.find(name, None),
                Err(FolderError::Name(_))
            ));
        }
        assert!(dir.path().join("kept").exists());
    }

    #[test]
    fn a_link_in_the_place_of_a_folder_is_not_followed() {
        let (dir, folders) = folders();
        folders.make("pvc-1", 1).unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("f"), "data").unwrap();
        std::os::unix::fs::symlink(&outside, dir.path().join("volumes/pvc-2")).unwrap();
        assert!(folders.find("pvc-2", Some(7)).is_err());
        folders.remove("pvc-2").unwrap();
        assert!(outside.join("f").exists(), "the link goes, not its target");
    }

    #[test]
    fn a_folder_with_something_in_it_is_not_removed_as_an_empty_one() {
        let (dir, folders) = folders();
        folders.remove_empty("pvc-1").unwrap();
        for name in ["pvc-1", "pvc-2"] {
            folders.make(name, 1).unwrap();
        }
        let inside = dir.path().join("volumes/pvc-2/d");
        fs::create_dir(&inside).unwrap();
        for name in ["pvc-1", "pvc-2", "pvc-3"] {
            folders.remove_empty(name).unwrap();
        }
        assert!(inside.exists() && !dir.path().join("volumes/pvc-1").exists());
    }

    #[test]
    fn an_interrupted_removal_is_continued() {
        let (dir, folders) = folders();
        folders.make("pvc-1", 1).unwrap();
        let root = dir.path().join("volumes");
        fs::write(root.join("pvc-1/f"), "data").unwrap();
        fs::rename(root.join("pvc-1"), root.join(".going-pvc-1")).unwrap();
        folders.remove("pvc-1").unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        folders.remove("pvc-1").unwrap();
    }

    #[test]
    fn a_folder_that_a_pod_goes_on_to_fill_holds_up_nobody() {
        let (dir, folders) = folders();
        folders.make("pvc-1", 1).unwrap();
        let root = dir.path().join("volumes");
        fs::create_dir(root.join("pvc-1/d")).unwrap();
        for number in 0..20 {
            fs::write(root.join(format!("pvc-1/d/{number}")), "").unwrap();
        }
        let going = |result| matches!(result, Err(FolderError::Going(_)));
        assert!(
            going(folders.remove_within("pvc-1", 10)),
            "it ends with work left"
        );
        assert!(!root.join("pvc-1").exists() && root.join(".going-pvc-1").exists());
        {
            // While one removal takes its time:
            let _removal = folders.begin("pvc-1").unwrap();
            assert!(going(folders.remove("pvc-1")), "nobody waits for it");
            folders.make("pvc-2", 1).unwrap();
            folders.remove("pvc-2").unwrap();
        }
        folders.remove_within("pvc-1", 20).unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        let names: Vec<String> = (0..=MAX_REMOVALS).map(|n| format!("pvc-{n}")).collect();
        let begun = names.iter().map(|name| folders.begin(name));
        let begun: Vec<_> = begun.collect();
        assert_eq!(begun.iter().filter(|one| one.is_ok()).count(), MAX_REMOVALS);
        drop(begun);
        assert!(folders.begin("pvc-1").is_ok());
    }

    #[test]
    fn a_volume_without_room_is_refused() {
        let (_dir, folders) = folders();
        let refused = folders.make("pvc-1", u64::MAX);
        assert!(matches!(refused, Err(FolderError::Full { .. })));
        assert!(folders.find("pvc-1", None).is_err());
    }

    #[test]
    fn the_pods_group_writes_to_its_folder() {
        let (_dir, folders) = folders();
        folders.make("pvc-1", 1).unwrap();
        let path = folders
            .find("pvc-1", Some(nix::unistd::getgid().as_raw()))
            .unwrap();
        let mode = fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode & 0o2770, 0o2770);
    }
}
