//! Counts the disk usage of a folder, correctly also while a hostile pod renames everything in it.
//!
//! The walk goes from folder to folder by descriptors, so that renames above the present folder do
//! not matter. A folder that cannot be opened by the name that it had when its parent was read is
//! looked for again in that parent, and opened as soon as it is seen; each file is counted once,
//! however many names it has had meanwhile. Where that fails too often, the result says that the
//! count is incomplete ([`Usage::more`]).
//!
//! Not counted is what is moved from a folder that has not been read yet into one that has.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::Type;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};

use crate::beneath::Beneath;

/// Most bytes of names in memory: of the folders that are still to be read, and of those above
/// them.
const MAX_WAITING: usize = 16 << 20;
/// Bytes of a block in `st_blocks` (stat(2)).
pub(crate) const BLOCK: u64 = 512;
/// Descriptors that are held open, of the deepest folders. Those above are opened again when the
/// walk comes back to them.
const HELD: usize = 32;
/// Most nested folders: more than any path has (PATH_MAX is 4096 bytes).
const DEEPEST: usize = 4096;
/// How often a folder is read again because files vanished between its reading and their `stat`.
const AGAIN_FOR_FILES: u32 = 8;
/// How often a folder is read again because of vanished subfolders without finding a new one.
const AGAIN_FOR_FOLDERS: u32 = 64;

/// Device and inode number.
type Id = (u64, u64);

/// The disk usage of a folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on the disk, each file once however many names it has.
    pub bytes: u64,
    /// Files and folders.
    pub entries: u64,
    /// The count is incomplete: there are more entries than the limit, some are deeper than the
    /// longest path, or folders were renamed all the time.
    pub more: bool,
}

impl Usage {
    /// The usage of both together. A sum that does not fit is the largest number.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            entries: self.entries.saturating_add(other.entries),
            more: self.more || other.more,
        }
    }
}

/// A subfolder that is still to be read.
#[derive(Debug)]
struct Child {
    id: Id,
    name: OsString,
}

/// A folder that was read, and its subfolders that are still to be read.
#[derive(Debug)]
struct Level {
    /// `None` while more than [`HELD`] levels are below it.
    folder: Option<Beneath>,
    id: Id,
    /// Its name in the level above.
    name: OsString,
    children: Vec<Child>,
    /// A subfolder could not be found by its name: the folder must be read again.
    missed: bool,
    /// How often it was read again without finding a new subfolder.
    again: u32,
}

/// The content of one folder, without that of its subfolders.
#[derive(Debug, Default)]
struct Found {
    usage: Usage,
    folders: BTreeMap<Id, OsString>,
    /// Bytes of their names.
    names: usize,
    /// Files with several names (hard links), and their bytes: not in `usage`, as the same file may
    /// lie in another folder, too.
    several: BTreeMap<Id, u64>,
    /// Everything that was counted, if the folder is read more than once.
    seen: Option<BTreeSet<Id>>,
}

/// A count in progress.
#[derive(Debug)]
pub(crate) struct Walk {
    usage: Usage,
    most: u64,
    /// Entries that may still be read again: it bounds the work that renames can cause.
    spare: u64,
    levels: Vec<Level>,
    /// Bytes of names in memory.
    waiting: usize,
    folders: BTreeSet<Id>,
    /// Files with several names that were counted.
    several: BTreeSet<Id>,
}

/// The result of opening a subfolder.
enum Look {
    /// A folder that was not counted yet.
    New(Beneath, Child),
    /// No folder of this file system, or one that was counted.
    Known,
    /// The name is gone, or is that of something else now.
    Missed,
}

impl Walk {
    pub(crate) fn new(most: u64) -> Self {
        Self {
            usage: Usage::default(),
            most,
            spare: most,
            levels: Vec::new(),
            waiting: 0,
            folders: BTreeSet::new(),
            several: BTreeSet::new(),
        }
    }

    /// Counts what is in a folder.
    ///
    /// # Errors
    /// If the folder itself can't be read.
    pub(crate) fn of(mut self, root: &Beneath) -> io::Result<Usage> {
        let own = root.dir(Path::new(""))?;
        let id = id(&fstat(&own)?);
        self.enter(
            own,
            Child {
                id,
                name: OsString::new(),
            },
        )?;
        while !self.levels.is_empty() {
            self.step(root);
            if self.usage.more {
                break;
            }
        }
        Ok(self.usage)
    }

    /// Does one step at the deepest level: enters a subfolder, reads the folder again, or leaves
    /// it.
    fn step(&mut self, root: &Beneath) {
        let Some(level) = self.levels.last_mut() else {
            return;
        };
        let child = level.children.pop();
        if child.is_none() && !level.missed {
            self.waiting -= level.name.len();
            self.levels.pop();
            return;
        }
        if level.folder.is_none() && self.hold_again(root).is_err() {
            // Its path leads elsewhere by now: what it still has cannot be found.
            self.usage.more = true;
            return;
        }
        let Some(child) = child else {
            self.look_again();
            return;
        };
        self.waiting -= child.name.len();
        match self.look(&child.name, Some(child.id)) {
            Look::New(folder, found) => {
                // Another folder took the name: count it, and look for the wanted one again.
                if found.id != child.id && !self.folders.contains(&child.id) {
                    self.miss();
                }
                // A folder that can't be read is not counted.
                drop(self.enter(folder, found));
            }
            Look::Known => {}
            Look::Missed => self.miss(),
        }
    }

    fn miss(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.missed = true;
        }
    }

    /// Opens the deepest level's folder by its path, and makes sure that it is the same.
    fn hold_again(&mut self, root: &Beneath) -> io::Result<()> {
        let path: PathBuf = self.levels.iter().map(|level| &level.name).collect();
        let folder = root.dir_here(&path)?;
        let found = id(&fstat(&folder)?);
        match self.levels.last_mut() {
            Some(level) if level.id == found => {
                level.folder = Some(folder);
                Ok(())
            }
            _ => Err(Errno::ESTALE.into()),
        }
    }

    /// Opens a subfolder of the deepest level by its name.
    fn look(&self, name: &OsStr, wanted: Option<Id>) -> Look {
        let Some(at) = self.levels.last().and_then(|level| level.folder.as_ref()) else {
            return Look::Missed;
        };
        let opened = match at.dir_here(Path::new(name)) {
            Ok(opened) => opened,
            Err(error) => {
                let gone = [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP, Errno::EAGAIN];
                let raw = error.raw_os_error();
                let gone = gone.iter().any(|errno| raw == Some(*errno as i32));
                // Mounts are not entered.
                return if gone { Look::Missed } else { Look::Known };
            }
        };
        let Ok(stat) = fstat(&opened) else {
            return Look::Known;
        };
        let id = id(&stat);
        if !self.folders.contains(&id) {
            let name = name.to_owned();
            return Look::New(opened, Child { id, name });
        }
        if wanted.is_some_and(|wanted| wanted != id && !self.folders.contains(&wanted)) {
            return Look::Missed;
        }
        Look::Known
    }

    /// Reads the deepest folder again for subfolders that were not counted. The first one is
    /// entered at once, before it can be renamed.
    fn look_again(&mut self) {
        let Some(level) = self.levels.last_mut() else {
            return;
        };
        level.missed = false;
        level.again += 1;
        if level.again > AGAIN_FOR_FOLDERS {
            self.usage.more = true;
            return;
        }
        let Some(Ok(mut dir)) = level.folder.as_ref().map(Beneath::read_dir) else {
            return;
        };
        for entry in dir.iter().filter_map(Result::ok) {
            if self.spare == 0 {
                self.usage.more = true;
                return;
            }
            self.spare -= 1;
            let name = entry.file_name();
            let may_be = matches!(entry.file_type(), None | Some(Type::Directory));
            if !may_be || is_dot(name) {
                continue;
            }
            match self.look(OsStr::from_bytes(name.to_bytes()), None) {
                Look::New(folder, child) => {
                    // A new subfolder was found, so this reading does not count, and another one
                    // follows.
                    if let Some(level) = self.levels.last_mut() {
                        level.missed = true;
                        level.again -= 1;
                    }
                    drop(self.enter(folder, child));
                    return;
                }
                Look::Known => {}
                Look::Missed => self.miss(),
            }
        }
    }

    /// Counts what is in one folder, and makes it the deepest level.
    fn enter(&mut self, folder: Beneath, child: Child) -> io::Result<()> {
        let Child { id, name } = child;
        self.folders.insert(id);
        if self.levels.len() >= DEEPEST {
            self.usage.more = true;
            return Ok(());
        }
        let found = self.read(&folder)?;
        self.usage = self.usage.and(found.usage);
        for (id, bytes) in found.several {
            if self.several.insert(id) {
                self.usage.bytes = self.usage.bytes.saturating_add(bytes);
            }
        }
        let names = found.folders.values().map(|name| name.len());
        self.waiting += name.len() + names.sum::<usize>();
        if self.waiting > MAX_WAITING {
            self.usage.more = true;
        }
        let children = found.folders.into_iter();
        self.levels.push(Level {
            folder: Some(folder),
            id,
            name,
            children: children.map(|(id, name)| Child { id, name }).collect(),
            missed: false,
            again: 0,
        });
        if let Some(far) = self.levels.len().checked_sub(HELD + 1) {
            self.levels[far].folder = None;
        }
        Ok(())
    }

    /// Reads a folder once, and again if an entry vanished before its `stat`: then everything that
    /// was there at any of the later readings counts.
    fn read(&mut self, folder: &Beneath) -> io::Result<Found> {
        let mut first = Found::default();
        if self.scan(folder, &mut first)? {
            return Ok(first);
        }
        let mut all = Found {
            seen: Some(BTreeSet::new()),
            ..Found::default()
        };
        for _ in 0..AGAIN_FOR_FILES {
            let whole = self.scan(folder, &mut all)?;
            self.spare = self.spare.saturating_sub(all.usage.entries);
            if whole || self.spare == 0 {
                break;
            }
        }
        // The larger result: a pod must not get a smaller figure by renaming its files.
        let (mut most, other) = if all.usage.bytes >= first.usage.bytes {
            (all, first)
        } else {
            (first, all)
        };
        most.several.extend(other.several);
        for (id, name) in other.folders {
            most.folders.entry(id).or_insert(name);
        }
        Ok(most)
    }

    /// Adds the entries of a folder; false if one vanished before its `stat`.
    fn scan(&self, folder: &Beneath, found: &mut Found) -> io::Result<bool> {
        let mut whole = true;
        for entry in folder.read_dir()?.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if is_dot(name) {
                continue;
            }
            let waiting = self.waiting + found.names;
            if self.usage.entries + found.usage.entries >= self.most || waiting > MAX_WAITING {
                found.usage.more = true;
                return Ok(true);
            }
            let Ok(stat) = fstatat(folder.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) else {
                whole = false;
                continue;
            };
            found.add(&stat, name);
        }
        Ok(whole)
    }
}

impl Found {
    fn add(&mut self, stat: &FileStat, name: &CStr) {
        let id = id(stat);
        if self.seen.as_mut().is_some_and(|seen| !seen.insert(id)) {
            return;
        }
        self.usage.entries += 1;
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0);
        let bytes = bytes.saturating_mul(BLOCK);
        let is_folder = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
        if is_folder {
            let name = OsStr::from_bytes(name.to_bytes());
            self.names += name.len();
            self.folders.insert(id, name.to_owned());
        } else if stat.st_nlink > 1 {
            self.several.insert(id, bytes);
            return;
        }
        self.usage.bytes = self.usage.bytes.saturating_add(bytes);
    }
}

fn id(stat: &FileStat) -> Id {
    (stat.st_dev, stat.st_ino)
}

pub(crate) fn is_dot(name: &CStr) -> bool {
    name == c"." || name == c".."
}
