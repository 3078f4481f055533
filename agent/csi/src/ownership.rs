//! Gives the files of a volume the pod's group (`fsGroup`), where the CSI driver leaves that to the
//! node.
//!
//! The file system is the driver's: it may never answer, tell entries without end, or have millions
//! of files. So it is walked on a thread of its own, each entry is treated as it is read, and what
//! is kept, the names of folders that are still to be read, has a bound in bytes.

use crate::ledger::key;
use crate::request::{Group, Request};
use agent_confine::{Steps, Threads, apart};
use agent_sys::beneath::{Beneath, Links};
use config_errors::chain;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::unistd::{Gid, fchownat};
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Permission bits that are added to every file (read and write) and, in addition, to every folder
/// (search, and setgid, by which new files get the group); upstream's.
const FILE: u32 = 0o660;
const FOLDER: u32 = 0o2110;
/// Most entries that are read in a volume, each folder's `.` and `..` among them.
const MOST_ENTRIES: u64 = 4_000_000;
/// Most bytes of the names of folders that are still to be read, in one walk: room for 220,000
/// folders side by side whose names are as long as a UUID. The walks of a namespace have 32 MiB at
/// most, all of a node 256 MiB.
const MOST_WAITING: usize = 8 << 20;
/// Its first allocation. As it is a power of two, and longer than any name, doubling it ends at
/// exactly [`MOST_WAITING`].
const FIRST_WAITING: usize = 4096;

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

    /// Gives the volume's files the group. If the future is dropped, its thread ends with the file
    /// system's next answer; until then the volume gets no other thread.
    ///
    /// # Errors
    /// See [`give`]; the file system is silent, or all threads of the namespace wait for silent
    /// file systems.
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
        let name = request.name.clone();
        let walk = move |steps: &Steps| {
            let given = give(&root, &path, group, steps);
            given.map_err(|error| format!("volume {name}: {error}"))
        };
        let refused = apart(self.silence, place, walk).await?;
        if let Some((path, error)) = &refused.first {
            tracing::warn!(
                driver = request.driver,
                namespace = request.namespace,
                name = request.name,
                failures = refused.failures,
                ?path,
                error = chain(error),
                "the file system of a volume refuses some files the pod's group"
            );
        }
        Ok(())
    }
}

/// What the file system refused to change. As upstream, a pod starts nevertheless.
#[derive(Debug, Default)]
struct Refused {
    failures: u64,
    /// The first of them: its path in the volume, and why.
    first: Option<(PathBuf, io::Error)>,
}

impl Refused {
    /// Keeps a refusal.
    ///
    /// # Errors
    /// The change failed, and not because the file system or the mount refuses it (`EPERM`,
    /// `EACCES`, `EROFS`, `EOPNOTSUPP`).
    fn note(&mut self, change: io::Result<()>, path: impl FnOnce() -> PathBuf) -> io::Result<()> {
        let Err(error) = change else {
            return Ok(());
        };
        let refusals = [Errno::EPERM, Errno::EACCES, Errno::EROFS, Errno::EOPNOTSUPP];
        if !is_one_of(&error, &refusals) {
            return Err(error);
        }
        self.failures += 1;
        self.first.get_or_insert_with(|| (path(), error));
        Ok(())
    }
}

/// Gives everything in the folder at `path` below `root` the group; links are not followed. With
/// `only_on_mismatch` (`fsGroupChangePolicy`) nothing is done if the folder itself has group and
/// mode already.
///
/// # Errors
/// The file system fails, nobody waits for it any more, or the volume has more than
/// [`MOST_ENTRIES`] entries, or too many folders for [`MOST_WAITING`].
fn give(root: &Path, path: &Path, group: Group, steps: &Steps) -> io::Result<Refused> {
    let volume = Beneath::root(root)?.dir(path)?;
    let own = std::fs::metadata(held(&volume))?;
    let whole = FILE | FOLDER;
    if group.only_on_mismatch && own.gid() == group.id && own.mode() & whole == whole {
        return Ok(Refused::default());
    }
    let mut walk = Walk {
        volume: &volume,
        group: Gid::from_raw(group.id),
        steps,
        left: MOST_ENTRIES,
        waiting: Names(Vec::with_capacity(FIRST_WAITING)),
        refused: Refused::default(),
    };
    walk.all()?;
    let mut refused = walk.refused;
    // Last: `only_on_mismatch` takes the folder's own group as a sign that all below it has it.
    refused.note(volume.set_group(group.id), PathBuf::new)?;
    refused.note(volume.set_mode(own.mode() & 0o7777 | whole), PathBuf::new)?;
    Ok(refused)
}

/// A volume that is being given a group.
struct Walk<'a> {
    volume: &'a Beneath,
    group: Gid,
    steps: &'a Steps,
    /// Entries that may still be read.
    left: u64,
    waiting: Names,
    refused: Refused,
}

/// Names, one after the other, each with a NUL after it.
struct Names(Vec<u8>);

impl Names {
    /// # Errors
    /// It would be more than [`MOST_WAITING`] bytes.
    fn push(&mut self, name: &OsStr) -> io::Result<()> {
        if self.0.len() + name.len() >= MOST_WAITING {
            return Err(io::Error::other(format!(
                "it has too many folders side by side (more than {} MiB of names) to give them \
                 the pod's fsGroup; put fewer into one folder, or start the pod without fsGroup",
                MOST_WAITING >> 20
            )));
        }
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
        Ok(())
    }

    /// The last name, unless it is before `begin`.
    fn pop(&mut self, begin: usize) -> Option<OsString> {
        let (_, names) = self.0.get(begin..)?.split_last()?;
        let before = names.iter().rposition(|byte| *byte == 0);
        let at = before.map_or(0, |nul| nul + 1);
        let name = names.get(at..)?.to_vec();
        self.0.truncate(begin + at);
        Some(OsString::from_vec(name))
    }
}

impl Walk<'_> {
    /// Walks from folder to folder; what is in a folder comes before what is beside it, so that few
    /// names wait.
    fn all(&mut self) -> io::Result<()> {
        let mut at = PathBuf::new();
        self.folder(&at)?;
        // Where the waiting names of each folder on the way to the present one begin.
        let mut begins = vec![0];
        while let Some(begin) = begins.last() {
            if let Some(name) = self.waiting.pop(*begin) {
                at.push(name);
                begins.push(self.waiting.0.len());
                self.folder(&at)?;
            } else {
                begins.pop();
                at.pop();
            }
        }
        Ok(())
    }

    /// Treats what is in a folder; its folders then wait.
    fn folder(&mut self, at: &Path) -> io::Result<()> {
        let opened = self.volume.dir(at).and_then(|folder| {
            let entries = folder.entries()?;
            Ok((folder, entries))
        });
        let (folder, entries) = match opened {
            // Meanwhile it went, and something else may have its name.
            Err(error) if is_one_of(&error, &[Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP]) => {
                return Ok(());
            }
            opened => opened?,
        };
        for name in entries {
            self.steps.step()?;
            self.left = self.left.checked_sub(1).ok_or_else(|| {
                io::Error::other(format!(
                    "it has more than {MOST_ENTRIES} files and folders, too many to give them \
                     the pod's fsGroup; start the pod without fsGroup"
                ))
            })?;
            let Some(name) = name? else {
                continue;
            };
            match self.entry(&folder, at, &name) {
                // Meanwhile it went, as files of a volume in use do.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                is_dir => {
                    if is_dir? {
                        self.waiting.push(&name)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives one entry of a folder the group; true for a folder.
    fn entry(&mut self, folder: &Beneath, at: &Path, name: &OsStr) -> io::Result<bool> {
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
        let given = fchownat(folder.as_fd(), name, None, Some(self.group), flags);
        let path = || at.join(name);
        self.refused.note(given.map_err(io::Error::from), path)?;
        let place = match folder.handle(Path::new(name), Links::Refused) {
            // A link has no mode of its own.
            Err(error) if is_one_of(&error, &[Errno::ELOOP]) => return Ok(false),
            place => place?,
        };
        let wider = if place.is_dir() { FILE | FOLDER } else { FILE };
        let wider = Permissions::from_mode(place.mode() | wider);
        let widened = std::fs::set_permissions(held(&place), wider);
        self.refused.note(widened, path)?;
        Ok(place.is_dir())
    }
}

fn is_one_of(error: &io::Error, errnos: &[Errno]) -> bool {
    let raw = error.raw_os_error();
    errnos.iter().any(|errno| raw == Some(*errno as i32))
}

/// The path in `/proc` of an open descriptor, for calls that take only a path.
fn held(place: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", place.as_fd().as_raw_fd()))
}

#[cfg(test)]
#[path = "ownership_tests.rs"]
mod tests;
