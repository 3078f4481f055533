//! Files that someone else may change at any moment: a folder is held by a descriptor, and
//! everything in it is reached from there without following a link.
//!
//! A pod can put a link, a pipe, a device, a million files or a thousand nested folders where the
//! agent expects a file of its own. Guarantees of every call here:
//! - Nothing outside the folder is opened, made, changed or removed (`openat2(2)` with
//!   `RESOLVE_BENEATH`), also while someone exchanges folders and links.
//! - No symbolic link is followed, not even inside (`RESOLVE_NO_SYMLINKS`), but by
//!   [`Beneath::place`] where the caller asks for that; no link of `/proc` ever
//!   (`RESOLVE_NO_MAGICLINKS`).
//! - Only regular files are read or written, checked on the descriptor itself; pipes and devices
//!   are not even opened.
//! - Stack, memory and descriptors in use are bounded, whatever the folder holds.
//!
//! Errors are the system's own: `ELOOP` for a link, `EXDEV` for a path that leads out, `EINVAL` for
//! anything but a regular file, `EFBIG` for more bytes than the limit.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::{Dir, Entry, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{
    OFlag, OpenHow, RenameFlags, ResolveFlag, openat, openat2, readlinkat, renameat2,
};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

pub use crate::usage::Usage;
use crate::usage::{Walk, is_dot};

/// How often a look-up is repeated after a concurrent rename disturbed it (`EAGAIN`).
const TRIES: u32 = 64;
/// Names taken from a folder at once while it is emptied.
const BATCH: usize = 1024;

/// Whether links inside the folder are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// No link is followed.
    Refused,
    /// A link is followed as long as it stays inside. Only for folders that nobody else writes.
    Inside,
}

/// A folder, held by its descriptor; it stays the same folder even if its name changes.
#[derive(Debug)]
pub struct Beneath {
    fd: OwnedFd,
}

/// An entry of a folder, held by a descriptor that can neither read nor write it (`O_PATH`).
#[derive(Debug)]
pub struct PathHandle {
    fd: OwnedFd,
    stat: FileStat,
}

impl PathHandle {
    /// Whether it is a folder.
    pub fn is_dir(&self) -> bool {
        self.is(SFlag::S_IFDIR)
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.is(SFlag::S_IFREG)
    }

    /// Whether it is a character device.
    pub fn is_char_device(&self) -> bool {
        self.is(SFlag::S_IFCHR)
    }

    /// Whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        self.is(SFlag::S_IFBLK)
    }

    /// Whether it is a socket.
    pub fn is_socket(&self) -> bool {
        self.is(SFlag::S_IFSOCK)
    }

    /// Permission bits.
    pub fn mode(&self) -> u32 {
        self.stat.st_mode & 0o7777
    }

    /// Device and inode number, which identify it.
    pub fn id(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    fn is(&self, kind: SFlag) -> bool {
        SFlag::from_bits_truncate(self.stat.st_mode) & SFlag::S_IFMT == kind
    }

    /// Opens it, if it is a regular file.
    fn open(&self, options: &OpenOptions) -> io::Result<File> {
        if !self.is_file() {
            return Err(Errno::EINVAL.into());
        }
        // The kernel's link in `/proc/self/fd` leads to exactly the file that was checked.
        options.open(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }
}

impl AsFd for PathHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The entries of a folder: their names, and `None` for `.` and `..`. A bad server (NFS, FUSE) can
/// return entries without end, these two as well: the caller must count each.
#[derive(Debug)]
pub struct Entries(OwningIter);

impl Iterator for Entries {
    type Item = io::Result<Option<OsString>>;

    fn next(&mut self) -> Option<Self::Item> {
        let named = |entry: Entry| {
            let name = entry.file_name();
            (!is_dot(name)).then(|| OsStr::from_bytes(name.to_bytes()).to_owned())
        };
        let entry = self.0.next()?;
        Some(entry.map(named).map_err(io::Error::from))
    }
}

impl Beneath {
    /// A folder by its path. Assumption: nobody but this machine's own programs can change what the
    /// path means.
    ///
    /// # Errors
    /// If it isn't there or is no folder.
    pub fn root(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        Ok(Self {
            fd: nix::fcntl::open(path, flags, Mode::empty())?,
        })
    }

    /// As [`Beneath::root`]; makes it, with all folders above it, if it doesn't exist.
    ///
    /// # Errors
    /// A folder of the path can't be made, or `path` is no folder.
    pub fn make_root(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        Self::root(path)
    }

    /// A folder in this one; `""` is this one.
    ///
    /// # Errors
    /// If it isn't there, is no folder, or a link is on the way.
    pub fn dir(&self, path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY;
        Ok(Self {
            fd: self.resolve(path, flags, ResolveFlag::RESOLVE_NO_SYMLINKS)?,
        })
    }

    /// As [`Beneath::dir`], but fails with `EXDEV` if it, or a folder on the way, is a mount.
    pub(crate) fn dir_here(&self, path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY;
        let limits = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
        Ok(Self {
            fd: self.resolve(path, flags, limits)?,
        })
    }

    /// Whether the folder at a path is a mount, or lies in one that begins below this folder: also
    /// a bind mount of the same file system. The mount is not entered: a file system whose server
    /// is silent (NFS, FUSE) would hold the caller.
    ///
    /// # Errors
    /// As [`Beneath::dir`], for what is not below a mount.
    pub fn is_mount(&self, path: &Path) -> io::Result<bool> {
        match self.dir_here(path) {
            Err(error) if error.raw_os_error() == Some(Errno::EXDEV as i32) => Ok(true),
            here => here.map(|_| false),
        }
    }

    /// A folder in this one; makes it, with those above it, if it doesn't exist. New ones get
    /// `mode`, regardless of the umask.
    ///
    /// # Errors
    /// If it can't be made, or something else is on the way.
    pub fn make_dirs(&self, path: &Path, mode: u32) -> io::Result<Self> {
        let mut at = self.dir(Path::new(""))?;
        for part in path.components() {
            let Component::Normal(name) = part else {
                return Err(Errno::EXDEV.into());
            };
            at = at.enter(name, mode)?;
        }
        Ok(at)
    }

    fn enter(&self, name: &OsStr, mode: u32) -> io::Result<Self> {
        let path = Path::new(name);
        match self.dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        match mkdirat(&self.fd, name, Mode::S_IRWXU) {
            Ok(()) => {
                let new = self.dir(path)?;
                new.set_mode(mode)?;
                Ok(new)
            }
            Err(Errno::EEXIST) => self.dir(path),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the folder's own permission bits.
    ///
    /// # Errors
    /// As `fchmod(2)`: the folder is another user's (`EPERM`), or on a mount that is read-only
    /// (`EROFS`).
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(nix::sys::stat::fchmod(
            &self.fd,
            Mode::from_bits_truncate(mode),
        )?)
    }

    /// Sets the folder's own group.
    ///
    /// # Errors
    /// As `fchown(2)`: the process may not give it away (`EPERM`), or the mount is read-only
    /// (`EROFS`).
    pub fn set_group(&self, group: u32) -> io::Result<()> {
        Ok(nix::unistd::fchown(
            &self.fd,
            None,
            Some(nix::unistd::Gid::from_raw(group)),
        )?)
    }

    /// The entry at a path, without opening it.
    ///
    /// # Errors
    /// If nothing is there, or the path leads out of the folder.
    pub fn handle(&self, path: &Path, links: Links) -> io::Result<PathHandle> {
        let links = match links {
            Links::Refused => ResolveFlag::RESOLVE_NO_SYMLINKS,
            Links::Inside => ResolveFlag::empty(),
        };
        let fd = self.resolve(path, OFlag::O_PATH, links)?;
        let stat = fstat(&fd)?;
        // O_PATH with O_NOFOLLOW would hold the link itself.
        if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFLNK {
            return Err(Errno::ELOOP.into());
        }
        Ok(PathHandle { fd, stat })
    }

    /// A regular file, to be read.
    ///
    /// # Errors
    /// If it isn't there or is none.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        self.handle(path, Links::Refused)?
            .open(options.read(true).custom_flags(OFlag::O_NONBLOCK.bits()))
    }

    /// A regular file's bytes.
    ///
    /// # Errors
    /// If it isn't there, is none, or is longer than `limit` bytes.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(path)?
            .take(limit.saturating_add(1))
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            Err(Errno::EFBIG.into())
        } else {
            Ok(bytes)
        }
    }

    /// The last bytes of a regular file, at most `limit`.
    ///
    /// # Errors
    /// If it isn't there or is none.
    pub fn read_end(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let mut file = self.open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A regular file, to be written at its end; made with `mode` where it isn't there.
    ///
    /// # Errors
    /// If it can't be made, or something else has its name, or it has several names.
    pub fn append(&self, path: &Path, mode: u32) -> io::Result<File> {
        self.write_existing(path, mode, OpenOptions::new().append(true))
    }

    /// A regular file, to be written from its beginning, emptied first; made with `mode` where it
    /// isn't there.
    ///
    /// # Errors
    /// If it can't be made, or something else has its name, or it has several names.
    pub fn rewrite(&self, path: &Path, mode: u32) -> io::Result<File> {
        self.write_existing(path, mode, OpenOptions::new().write(true).truncate(true))
    }

    fn write_existing(
        &self,
        path: &Path,
        mode: u32,
        options: &mut OpenOptions,
    ) -> io::Result<File> {
        for _ in 0..TRIES {
            let entry = match self.handle(path, Links::Refused) {
                Ok(place) => place,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match self.create(path, mode) {
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                        file => return file,
                    }
                }
                Err(error) => return Err(error),
            };
            // A second name could be in a folder that someone else controls.
            if entry.stat.st_nlink > 1 {
                return Err(Errno::EMLINK.into());
            }
            return entry.open(options.custom_flags(OFlag::O_NONBLOCK.bits()));
        }
        Err(Errno::EAGAIN.into())
    }

    /// A new regular file with `mode`, regardless of the umask.
    ///
    /// # Errors
    /// If something is there, or it can't be made.
    pub fn create(&self, path: &Path, mode: u32) -> io::Result<File> {
        let (parent, name) = self.parent(path)?;
        let flags =
            OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = File::from(openat(
            &parent.fd,
            name,
            flags,
            Mode::S_IRUSR | Mode::S_IWUSR,
        )?);
        nix::sys::stat::fchmod(&file, Mode::from_bits_truncate(mode))?;
        Ok(file)
    }

    /// A new symbolic link at `path` to `target`.
    ///
    /// # Errors
    /// If something is there, or it can't be made.
    pub fn link(&self, target: &Path, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(symlinkat(target, &parent.fd, name)?)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Nothing is there (`ENOENT`), it is no symbolic link (`EINVAL`), or a link or a way out of
    /// the folder is on the way to it.
    pub fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let (parent, name) = self.parent(path)?;
        Ok(readlinkat(&parent.fd, name)?.into())
    }

    /// Renames `from` to `to` atomically, replacing a file at `to`.
    ///
    /// # Errors
    /// As `renameat2(2)`: `from` isn't there, `to` is a folder with entries, or they are on two
    /// file systems (`EXDEV`); or a folder on the way can't be opened.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((old, from), (new, to)) = (self.parent(from)?, self.parent(to)?);
        Ok(renameat2(&old.fd, from, &new.fd, to, RenameFlags::empty())?)
    }

    /// Removes a file or a link (not the link's target), but no folder. It is no error if nothing
    /// is there.
    ///
    /// # Errors
    /// As `unlinkat(2)`: it is a folder (`EISDIR`), or the folder that it is in may not be written;
    /// or a link is on the way.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        match self.parent(path) {
            Ok((parent, name)) => settled(unlinkat(&parent.fd, name, UnlinkatFlags::NoRemoveDir)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes `path` with everything below it; it is no error if nothing is there. Deeper folders
    /// are moved up first, so that neither stack nor descriptors grow with the depth. Mounts below
    /// are neither entered nor removed.
    ///
    /// # Errors
    /// If something can't be removed: a mount, say.
    pub fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.remove_some(path, u64::MAX).map(drop)
    }

    /// As [`Beneath::remove_tree`], but handles at most `most` names, because another process may
    /// create names as fast as they are removed. False if something is left for the next call.
    ///
    /// # Errors
    /// As [`Beneath::remove_tree`].
    pub fn remove_some(&self, path: &Path, most: u64) -> io::Result<bool> {
        let (parent, name) = match self.parent(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            found => found?,
        };
        if parent.remove(name)? {
            return Ok(true);
        }
        let tree = parent.dir_here(Path::new(name))?;
        let (mut moved, mut left) = (0_u64, most);
        loop {
            let names = tree.names(BATCH)?;
            if names.is_empty() {
                break;
            }
            for name in &names {
                if left == 0 {
                    return Ok(false);
                }
                left -= 1;
                if !tree.remove(name)? {
                    tree.empty(name, &mut moved, &mut left)?;
                }
            }
        }
        settled(unlinkat(&parent.fd, name, UnlinkatFlags::RemoveDir)).map(|()| true)
    }

    /// Removes one entry; false for a folder that is not empty.
    fn remove(&self, name: &OsStr) -> io::Result<bool> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => {}
            result => return settled(result).map(|()| true),
        }
        match unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir) {
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
            result => settled(result).map(|()| true),
        }
    }

    /// Empties a folder in this one and removes it; its non-empty folders are moved up to this one.
    /// Ends before where `left` names were looked at.
    fn empty(&self, name: &OsStr, moved: &mut u64, left: &mut u64) -> io::Result<()> {
        let folder = self.dir_here(Path::new(name))?;
        loop {
            let names = folder.names(BATCH)?;
            if names.is_empty() {
                return settled(unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir));
            }
            for child in &names {
                if *left == 0 {
                    return Ok(());
                }
                *left -= 1;
                while !folder.remove(child)? {
                    *moved += 1;
                    let up = format!("moved-up-{moved}");
                    match renameat2(
                        &folder.fd,
                        child.as_os_str(),
                        &self.fd,
                        up.as_str(),
                        RenameFlags::RENAME_NOREPLACE,
                    ) {
                        Ok(()) | Err(Errno::ENOENT) => break,
                        // The name is taken: another number will do.
                        Err(Errno::EEXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }

    /// At most `most` names of entries in the folder, in no order. All are in memory at once: where
    /// there may be many, [`Beneath::entries`] has one.
    ///
    /// # Errors
    /// The folder can't be opened for reading, or `getdents64(2)` fails for one of the entries
    /// looked at.
    pub fn names(&self, most: usize) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        // Two more, for `.` and `..`, which a bad server could repeat for ever.
        for name in self.entries()?.take(most.saturating_add(2)) {
            if names.len() >= most {
                break;
            }
            names.extend(name?);
        }
        Ok(names)
    }

    /// The folder's entries, one after the other as its file system tells them: however many there
    /// are, only one is in memory.
    ///
    /// # Errors
    /// The folder can't be opened for reading. An entry that can't be read is an error of its own.
    pub fn entries(&self) -> io::Result<Entries> {
        Ok(Entries(self.read_dir()?.into_iter()))
    }

    pub(crate) fn read_dir(&self) -> io::Result<Dir> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        Ok(Dir::from_fd(openat(&self.fd, ".", flags, Mode::empty())?)?)
    }

    /// The folder's usage of the disk; mounts below are not entered. Counts at most `most` files
    /// and folders, which also bounds the memory that it needs.
    ///
    /// # Errors
    /// If the folder itself can't be read.
    pub fn usage(&self, most: u64) -> io::Result<Usage> {
        Walk::new(most).of(self)
    }

    /// A path's parent folder and its last part.
    fn parent<'p>(&self, path: &'p Path) -> io::Result<(Self, &'p OsStr)> {
        let Some(Component::Normal(name)) = path.components().next_back() else {
            return Err(Errno::EXDEV.into());
        };
        Ok((self.dir(path.parent().unwrap_or(Path::new("")))?, name))
    }

    fn resolve(&self, path: &Path, flags: OFlag, links: ResolveFlag) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let always = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        // If links are followed, the last part of the path may be a link, too.
        let last = if links.is_empty() {
            OFlag::empty()
        } else {
            OFlag::O_NOFOLLOW
        };
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC | last)
            .resolve(always | links);
        for _ in 0..TRIES {
            match openat2(&self.fd, path, how) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                result => return Ok(result?),
            }
        }
        Err(Errno::EAGAIN.into())
    }
}

impl AsFd for Beneath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Treats an entry that is already gone as removed.
fn settled(result: nix::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
