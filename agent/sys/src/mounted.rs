//! The mounts of a process as the kernel lists them (proc_pid_mountinfo(5)), and what may be
//! changed of a mount namespace that this process is not in.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use nix::libc;
use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::beneath::Beneath;
use crate::error::{Context, Result};
use crate::mount::Limits;

/// Mounts one upon another that are taken away; far more than anybody needs.
const LAYERS: usize = 1024;

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The kernel's number of it.
    pub id: u64,
    /// The file system's device, as `major:minor`.
    pub device: String,
    /// The folder or file of the file system that is mounted.
    pub root: PathBuf,
    /// Where, below the root of the process.
    pub point: PathBuf,
    /// What this mount refuses, whatever its file system does.
    pub limits: Limits,
}

impl Mounted {
    /// Reads a line of the kernel's; `None` for one of another form.
    pub(crate) fn read(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut text = || String::from_utf8(fields.next()?.to_vec()).ok();
        let id = text()?.parse().ok()?;
        let _parent = text()?;
        let device = text()?;
        let root = path(fields.next()?);
        let point = path(fields.next()?);
        let options: Vec<&[u8]> = fields.next()?.split(|byte| *byte == b',').collect();
        let has = |option: &str| options.contains(&option.as_bytes());
        let limits = Limits {
            read_only: has("ro"),
            no_suid: has("nosuid"),
            no_dev: has("nodev"),
            no_exec: has("noexec"),
        };
        Some(Self {
            id,
            device,
            root,
            point,
            limits,
        })
    }
}

/// A path in which the kernel has written some bytes as `\` and three octal digits.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(code.unwrap_or(*first));
        rest = &after[if code.is_some() { 3 } else { 0 }..];
    }
    OsString::from_vec(bytes).into()
}

/// The mounts that this process sees.
///
/// # Errors
/// The kernel's list can't be read.
pub fn own() -> Result<Vec<Mounted>> {
    list("/proc/thread-self/mountinfo")
}

fn list(name: &str) -> Result<Vec<Mounted>> {
    let file = File::open(name).at("open", name)?;
    let mut all = Vec::new();
    for line in BufReader::new(file).split(b'\n') {
        let line = line.at("read", name)?;
        let strange = || io::Error::other("a line of another form");
        let mounted = Mounted::read(&line).ok_or_else(strange);
        all.push(mounted.at("read", name)?);
    }
    Ok(all)
}

/// Takes the mounts at `path` in the folder `root`, and all below it, out of the tree; the kernel
/// ends each when its last user is gone. Copies of them elsewhere keep what is mounted in them. No
/// link is followed, and no such mount is entered: containers may have made both, and file systems
/// whose server is silent.
///
/// Assumption: nobody but this machine's own programs can change what `root` means, and nobody
/// mounts anything there meanwhile.
///
/// # Errors
/// The kernel refuses, a link or another mount is on the way, or there are more mounts one upon
/// another than anybody needs.
pub fn detach_below(root: &Path, path: &Path) -> Result<()> {
    let name = root.to_string_lossy();
    let whole = match root.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.at("find", &name)?,
    };
    for _ in 0..LAYERS {
        let points = outermost(own()?, &whole.join(path));
        if points.is_empty() {
            return Ok(());
        }
        let root = Beneath::root(&whole).at("open", &name)?;
        for point in points {
            let below = point.strip_prefix(&whole).unwrap_or(&point);
            detach_at(&root, below).at("detach", &point.to_string_lossy())?;
        }
    }
    Err(io::Error::from(io::ErrorKind::ResourceBusy)).at("detach all mounts in", &name)
}

/// Where something is mounted at or below `top` and not in another such mount.
fn outermost(all: Vec<Mounted>, top: &Path) -> Vec<PathBuf> {
    let points = all.into_iter().map(|mount| mount.point);
    let mut points: Vec<PathBuf> = points.filter(|point| point.starts_with(top)).collect();
    // A folder comes before all that is in it, and these before all others.
    points.sort_unstable();
    points.dedup_by(|point, before| point.starts_with(before));
    points
}

/// Detaches the mount at a path below a folder, with all that is mounted in it.
fn detach_at(root: &Beneath, path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = root.dir_here(parent)?;
    // Else copies of the mount would lose what is mounted in them, too.
    make_private(parent.as_fd(), name)?;
    let target = format!("/proc/thread-self/fd/{}", parent.as_fd().as_raw_fd());
    let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
    Ok(umount2(&Path::new(&target).join(name), flags)?)
}

/// Makes the mount with this name in a folder private, and all that is mounted in it.
fn make_private(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: 0,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let flags = libc::AT_RECURSIVE | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    let name = CString::new(name.as_bytes())?;
    set_attributes(parent.as_raw_fd(), &name, flags, &attributes)
}

/// The device of what is at `path`, where it lies in that file system, and its whole path, found by
/// these mounts, which are this process's own.
///
/// # Errors
/// Nothing is there, or what is there lies on no mount of the list.
pub fn place_of(path: &Path, own: &[Mounted]) -> Result<(String, PathBuf, PathBuf)> {
    let name = path.to_string_lossy();
    let whole = path.canonicalize().at("find", &name)?;
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(&whole)
        .at("open", &name)?;
    let info = format!("/proc/thread-self/fdinfo/{}", file.as_raw_fd());
    let text = std::fs::read_to_string(&info).at("read", &info)?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id: Option<u64> = id.and_then(|id| id.trim().parse().ok());
    let mount = own.iter().find(|mount| Some(mount.id) == id);
    let within = mount.and_then(|mount| {
        let below = whole.strip_prefix(&mount.point).ok()?;
        // A join with nothing would end in a slash, which a file doesn't.
        let root = if below.as_os_str().is_empty() {
            mount.root.clone()
        } else {
            mount.root.join(below)
        };
        Some((mount.device.clone(), root))
    });
    let strange = || io::Error::other("it lies on no mount of this process");
    let (device, root) = within.ok_or_else(strange).at("find the mount of", &name)?;
    Ok((device, root, whole))
}

/// A mount namespace of another process, held open.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// The namespace of the process with this number, and its mounts.
    ///
    /// Assumption: the caller finds out afterwards that the process was the one that it meant, all
    /// the time.
    ///
    /// # Errors
    /// There is no such process, or it is in this process's own namespace.
    pub fn of(pid: u32) -> Result<(Self, Vec<Mounted>)> {
        let name = format!("/proc/{pid}/ns/mnt");
        let file = File::open(&name).at("open", &name)?;
        let of = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino()));
        let own = File::open("/proc/thread-self/ns/mnt").at("open", "the own mount namespace")?;
        if of(&file).at("look at", &name)? == of(&own).at("look at", "the own mount namespace")? {
            let shared = io::Error::other("it is this process's own mount namespace");
            return Err(shared).at("enter", &name);
        }
        Ok((Self(file), list(&format!("/proc/{pid}/mountinfo"))?))
    }

    /// Has the mount at the namespace's root ignore device nodes; whatever else it refuses stays
    /// so.
    ///
    /// # Errors
    /// The process may not enter the namespace (`CAP_SYS_ADMIN`), the kernel refuses the mount's
    /// new flags, or no thread can be started for it.
    pub fn ignore_devices_of_root(&self) -> Result<()> {
        let Self(file) = self;
        let work = || {
            // The thread's root and folder become the namespace's, and nobody else's.
            unshare(CloneFlags::CLONE_FS).at("prepare", "to enter a mount namespace")?;
            setns(file, CloneFlags::CLONE_NEWNS).at("enter", "a mount namespace")?;
            restrict_root().at("restrict", "the root of a mount namespace")
        };
        let lost = || io::Error::other("it died");
        thread::scope(|scope| {
            let thread = thread::Builder::new()
                .name("mounts".to_owned())
                .spawn_scoped(scope, work)
                .at("start", "a thread for another mount namespace")?;
            let ended = thread.join().map_err(|_panic| lost());
            ended.at("run", "a thread in another mount namespace")?
        })
    }
}

/// Sets what holds for the mount at a path, which begins at `folder` if it is relative.
fn set_attributes(
    folder: RawFd,
    path: &CStr,
    flags: libc::c_int,
    attributes: &libc::mount_attr,
) -> io::Result<()> {
    // SAFETY: the path ends with NUL; the structure has the kernel's layout and the stated length;
    // both outlive the call, and the kernel writes nowhere.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            folder,
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn restrict_root() -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    set_attributes(libc::AT_FDCWD, c"/", 0, &attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount;
    use nix::mount::MsFlags;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_line_of_the_kernels_says_what_is_mounted_where_and_what_it_refuses() {
        let line = br"36 35 98:0 /a\040b /mnt2/\134x ro,nosuid,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let mounted = Mounted::read(line).unwrap();
        let limits = Limits {
            read_only: true,
            no_suid: true,
            ..Limits::default()
        };
        let wanted = Mounted {
            id: 36,
            device: "98:0".into(),
            root: "/a b".into(),
            point: r"/mnt2/\x".into(),
            limits,
        };
        assert_eq!(mounted, wanted);
        for bad in [&b""[..], b"36 35 98:0 /a /b", b"x 35 98:0 / / rw - a b c"] {
            assert_eq!(Mounted::read(bad), None);
        }
    }

    /// Needs root.
    #[test]
    fn mounts_below_a_folder_go_and_what_they_show_or_a_link_leads_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        in_own_namespace(|| {
            let [pods, outside] = ["pods", "outside"].map(|name| base.join(name));
            let volume = pods.join("u/a volume");
            for folder in [
                &volume.join("m"),
                &volume.join("shown"),
                &pods.join("u2/m"),
                &outside,
            ] {
                fs::create_dir_all(folder).unwrap();
            }
            // One upon another, and one in another; and a file.
            memory(&volume.join("m"));
            memory(&volume.join("m"));
            memory(&volume.join("m/inner"));
            fs::write(volume.join("message"), "").unwrap();
            bind(Path::new("/proc/version"), &volume.join("message"));
            // What is mounted elsewhere, too, and propagates between the two.
            memory(&outside);
            memory(&outside.join("below"));
            mount::share_all().unwrap();
            bind(&outside, &volume.join("shown"));
            symlink(&outside, pods.join("u/link")).unwrap();
            memory(&pods.join("u2/m"));

            detach_below(&pods, Path::new("u")).unwrap();
            fs::remove_dir_all(pods.join("u")).unwrap();
            for stays in [&outside, &outside.join("below"), &pods.join("u2/m")] {
                assert!(is_mount(stays), "{}", stays.display());
            }
            detach_below(&base.join("none"), Path::new("u")).unwrap();
            // As if a container had put a link on the way after the list was read.
            fs::create_dir(pods.join("u3")).unwrap();
            symlink(&outside, pods.join("u3/link")).unwrap();
            let root = Beneath::root(&pods).unwrap();
            for path in ["u3/link/below", "u3/link", "u2/m/nothing"] {
                detach_at(&root, Path::new(path)).unwrap_err();
            }
            assert!(is_mount(&outside.join("below")) && is_mount(&outside));
        });
    }

    /// Runs `work` in a mount namespace of its own, on a thread that ends with it.
    fn in_own_namespace(work: impl FnOnce() + Send) {
        let work = || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount::make_private("/").unwrap();
            work();
        };
        thread::scope(|scope| scope.spawn(work).join()).unwrap();
    }

    /// Mounts a file system in memory in a folder, which it makes.
    fn memory(at: &Path) {
        fs::create_dir_all(at).unwrap();
        mount::mount(
            "tmpfs",
            &at.to_string_lossy(),
            "tmpfs",
            Limits::default(),
            "",
        )
        .unwrap();
    }

    fn is_mount(path: &Path) -> bool {
        own().unwrap().iter().any(|mount| mount.point == *path)
    }

    fn bind(from: &Path, to: &Path) {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        nix::mount::mount(Some(from), to, None::<&str>, flags, None::<&str>).unwrap();
    }

    #[test]
    fn a_place_is_found_by_the_mount_that_it_lies_on() {
        let own = own().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (device, root, whole) = place_of(dir.path(), &own).unwrap();
        assert_eq!(whole, dir.path().canonicalize().unwrap());
        assert!(root.ends_with(dir.path().file_name().unwrap()));
        fs::write(dir.path().join("f"), "").unwrap();
        let below = place_of(&dir.path().join("f"), &own).unwrap();
        assert_eq!((below.0, below.1), (device, root.join("f")));
        place_of(&dir.path().join("g"), &own).unwrap_err();
    }

    #[test]
    fn the_own_namespace_is_never_another_processes() {
        Namespace::of(std::process::id()).unwrap_err();
    }
}
