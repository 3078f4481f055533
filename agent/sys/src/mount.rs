//! Mounts and the change of root.

use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount as sys_mount, umount2};
use nix::unistd::{chdir, chroot};

use crate::error::{Context, Result};

/// The kernel's magic number of tmpfs.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// The kernel's magic number of erofs, as `statfs(2)` reports it.
const EROFS_MAGIC: i64 = 0xE0F5_E1E2;

/// Restrictions of a mount; all off is the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "the flags are independent, as in mount(2)"
)]
pub struct Limits {
    /// Refuse writes.
    pub read_only: bool,
    /// Ignore set-user-id bits.
    pub no_suid: bool,
    /// Ignore device nodes.
    pub no_dev: bool,
    /// Refuse execution.
    pub no_exec: bool,
}

impl Limits {
    fn flags(self) -> MsFlags {
        [
            (self.read_only, MsFlags::MS_RDONLY),
            (self.no_suid, MsFlags::MS_NOSUID),
            (self.no_dev, MsFlags::MS_NODEV),
            (self.no_exec, MsFlags::MS_NOEXEC),
        ]
        .into_iter()
        .filter_map(|(on, flag)| on.then_some(flag))
        .fold(MsFlags::empty(), |all, flag| all | flag)
    }
}

/// Mounts `source` of type `kind` at `target`, with the filesystem's own `options`.
///
/// # Errors
/// The kernel refuses: no such source, target or type, or an option that the filesystem does not
/// know.
pub fn mount(source: &str, target: &str, kind: &str, limits: Limits, options: &str) -> Result<()> {
    let options = (!options.is_empty()).then_some(options);
    sys_mount(Some(source), target, Some(kind), limits.flags(), options).at("mount", target)
}

/// Whether something is mounted exactly at `target` (a mount point's device differs from its
/// parent's).
pub fn is_mount_point(target: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let of = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev());
    let path = Path::new(target);
    match (of(path), path.parent().map(of)) {
        (Ok(here), Some(Ok(above))) => here != above,
        (Ok(_), None) => true,
        (Ok(_) | Err(_), _) => false,
    }
}

/// Makes a directory a mount of its own, of the same content, under limits of its own.
///
/// # Errors
/// The kernel refuses: there is no such directory, or a limit that its own mount has cannot be
/// lifted.
pub fn mount_again(target: &str, limits: Limits) -> Result<()> {
    sys_mount(
        Some(target),
        target,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .at("mount again", target)?;
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | limits.flags();
    sys_mount(None::<&str>, target, None::<&str>, flags, None::<&str>).at("limit the mount", target)
}

/// Moves a mount to another place.
///
/// # Errors
/// The kernel refuses: `from` is no mount, or the mount above it is shared.
pub fn move_mount(from: &str, to: &str) -> Result<()> {
    sys_mount(Some(from), to, None::<&str>, MsFlags::MS_MOVE, None::<&str>)
        .at("move the mount", from)
}

/// Makes later mounts visible in the mount namespaces of children, as container runtimes expect.
///
/// # Errors
/// The kernel refuses, as it does without CAP_SYS_ADMIN.
pub fn share_all() -> Result<()> {
    sys_mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_SHARED | MsFlags::MS_REC,
        None::<&str>,
    )
    .at("share mounts under", "/")
}

/// Makes the mounts at and below `target` private, so that no mount or unmount propagates between
/// them and copies of them. To be called before they are detached: otherwise the copies would lose
/// what is mounted below them, too.
///
/// # Errors
/// The kernel refuses: it is no mount.
pub fn make_private(target: &str) -> Result<()> {
    let flags = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    sys_mount(None::<&str>, target, None::<&str>, flags, None::<&str>).at("make private", target)
}

/// Turns a mounted filesystem read-only, which writes it out.
///
/// # Errors
/// The kernel refuses: a file is open for writing.
pub fn make_read_only(target: &str) -> Result<()> {
    sys_mount(
        None::<&str>,
        target,
        None::<&str>,
        MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY,
        None::<&str>,
    )
    .at("make read-only", target)
}

/// Unmounts; refused while in use.
///
/// # Errors
/// The kernel refuses: it is in use, or no mount.
pub fn unmount(target: &str) -> Result<()> {
    umount2(target, MntFlags::UMOUNT_NOFOLLOW).at("unmount", target)
}

/// Takes the mount out of the tree now; the kernel ends it when its last user is gone.
///
/// # Errors
/// The kernel refuses: it is no mount.
pub fn detach(target: &str) -> Result<()> {
    umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).at("detach", target)
}

/// Makes the mount at `new_root` this process's root, in place of the initial one.
///
/// Assumes that nothing under the old root is needed any more.
///
/// # Errors
/// The kernel refuses: `new_root` is no mount.
pub fn switch_root(new_root: &str) -> Result<()> {
    chdir(new_root).at("enter", new_root)?;
    move_mount(".", "/")?;
    chroot(".").at("change root to", new_root)?;
    chdir("/").at("enter", "the new root")
}

/// Whether the root directory lies on erofs, which is true only after the change to the verified
/// root.
pub fn root_is_erofs() -> bool {
    nix::sys::statfs::statfs("/").is_ok_and(|stat| stat.filesystem_type().0 == EROFS_MAGIC)
}

/// Whether what is at `path` lies in memory alone (tmpfs).
pub fn is_in_memory(path: &Path) -> bool {
    nix::sys::statfs::statfs(path).is_ok_and(|stat| stat.filesystem_type().0 == TMPFS_MAGIC)
}
