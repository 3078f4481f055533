//! Mounts made from descriptors: the file that was checked is the one that is mounted, even if its
//! name changes in between.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc;

use crate::beneath::PathHandle;
use crate::error::{Context, Result};

/// Mount propagation (`mountPropagation`): whether mounts that are made below a mount later show
/// below its copy, and the reverse (mount_namespaces(7), shared subtrees).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Propagation {
    /// Neither (upstream's `None`).
    #[default]
    Private,
    /// Those of the machine are seen in the copy (`HostToContainer`).
    Slave,
    /// All are seen everywhere (`Bidirectional`).
    Shared,
}

impl Propagation {
    /// The option of a bind mount in an OCI specification, and its `rootfsPropagation`.
    pub fn option(self) -> &'static str {
        match self {
            Self::Private => "rprivate",
            Self::Slave => "rslave",
            Self::Shared => "rshared",
        }
    }

    fn flag(self) -> libc::c_ulong {
        match self {
            Self::Private => libc::MS_PRIVATE,
            Self::Slave => libc::MS_SLAVE,
            Self::Shared => libc::MS_SHARED,
        }
    }
}

/// Mounts `source`, with all mounted below it, at `target`, which must exist and be a folder if
/// `source` is one, else a file. The mount ignores set-user-id bits and devices; with `read_only`,
/// all of it is read-only. With `users`, a user namespace, all of it belongs to that: what user 0
/// owns on the file system is owned by the namespace's user 0 there, and so on, and what is written
/// there is owned on the file system the same way.
///
/// Assumption: nobody but this machine's own programs can change what `target` means.
///
/// # Errors
/// If the kernel refuses it: `ENOTDIR` where one is a folder and the other is not, `EINVAL` where a
/// file system can't show ids of user namespaces, as overlayfs can't. Nothing stays mounted then.
pub fn attach(
    source: &PathHandle,
    target: &Path,
    read_only: bool,
    propagation: Propagation,
    users: Option<BorrowedFd<'_>>,
) -> Result<()> {
    let subject = target.to_string_lossy();
    let tree = clone(source.as_fd(), true).at("clone the mount for", &subject)?;
    restrict(&tree, read_only, propagation).at("restrict the mount at", &subject)?;
    if let Some(users) = users {
        give(&tree, users).at("show the ids of a user namespace at", &subject)?;
    }
    let path = CString::new(target.as_os_str().as_bytes()).at("mount at", &subject)?;
    // SAFETY: both strings end with NUL and live over the call; the kernel writes nowhere.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    settled(result).map(drop).at("mount at", &subject)
}

/// Opens the device that `device` is open on once more, for reading and writing, by a mount of its
/// own that is read-only: the device works as ever, and nobody who has the descriptor can give it
/// another owner, mode or time (`EROFS`), not even who opens it anew through `/proc`.
///
/// # Errors
/// If the kernel refuses it: `EINVAL` where the mount of `device` is not in this process's mount
/// namespace, `EPERM` without CAP_SYS_ADMIN there.
pub fn unchangeable(device: BorrowedFd<'_>) -> Result<File> {
    const SUBJECT: &str = "a device";
    let tree = clone(device, false).at("clone the mount of", SUBJECT)?;
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    set(&tree, &attributes).at("make read-only the mount of", SUBJECT)?;
    let path = format!("/proc/self/fd/{}", tree.as_raw_fd());
    let open = File::options().read(true).write(true).open(path);
    open.at("open by a read-only mount", SUBJECT)
}

/// A detached mount of what `place` is open on, with all that is mounted below it where that is
/// asked for. It ends with its descriptor and the files that were opened by it.
fn clone(place: BorrowedFd<'_>, recursive: bool) -> io::Result<OwnedFd> {
    let below = if recursive {
        libc::AT_RECURSIVE.cast_unsigned()
    } else {
        0
    };
    let flags = libc::OPEN_TREE_CLONE
        | libc::OPEN_TREE_CLOEXEC
        | libc::AT_EMPTY_PATH.cast_unsigned()
        | below;
    // SAFETY: the empty path ends with NUL; the kernel writes nowhere.
    let result =
        unsafe { libc::syscall(libc::SYS_open_tree, place.as_raw_fd(), c"".as_ptr(), flags) };
    let fd = i32::try_from(settled(result)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn restrict(tree: &OwnedFd, read_only: bool, propagation: Propagation) -> io::Result<()> {
    let write = if read_only {
        libc::MOUNT_ATTR_RDONLY
    } else {
        0
    };
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | write,
        attr_clr: 0,
        propagation: propagation.flag(),
        userns_fd: 0,
    };
    set(tree, &attributes)
}

/// Maps the ids of a detached mount to those of a user namespace (`MOUNT_ATTR_IDMAP`).
fn give(tree: &OwnedFd, users: BorrowedFd<'_>) -> io::Result<()> {
    let fd = u64::try_from(users.as_raw_fd()).map_err(io::Error::other)?;
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: fd,
    };
    set(tree, &attributes)
}

fn set(tree: &OwnedFd, attributes: &libc::mount_attr) -> io::Result<()> {
    // SAFETY: the structure has the kernel's layout and the stated length, and outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    settled(result).map(drop)
}

fn settled(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::{Mode, fchmod, fstat};
    use std::io::{Read as _, Write as _};

    #[test]
    fn a_device_that_was_opened_so_works_and_keeps_its_owner_and_mode() {
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.unwrap();
        let before = fstat(&null).unwrap();
        let mut safe = unchangeable(null.as_fd()).unwrap();
        safe.write_all(b"gone").unwrap();
        assert_eq!(safe.read(&mut [0; 8]).unwrap(), 0);
        assert_eq!(fstat(&safe).unwrap().st_rdev, before.st_rdev);
        let again = format!("/proc/self/fd/{}", safe.as_raw_fd());
        let again = File::options().write(true).open(again).unwrap();
        for file in [&safe, &again] {
            let owner = std::os::unix::fs::fchown(file, Some(7), None).unwrap_err();
            assert_eq!(owner.raw_os_error(), Some(libc::EROFS));
            let mode = fchmod(file, Mode::from_bits_truncate(before.st_mode));
            assert_eq!(mode, Err(nix::errno::Errno::EROFS));
        }
    }
}
