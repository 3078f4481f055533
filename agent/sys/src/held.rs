//! Deleted files that processes keep open or mapped: they still take the disk, and no walk through
//! folders finds them.
//!
//! The descriptors of all threads and the mapped files are examined, without any call to the file
//! system that a file is on, which may hang. Descriptors on their way through a Unix socket
//! (`SCM_RIGHTS`) are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;

use crate::usage::BLOCK;

/// How the kernel ends the name of what has none (`proc_pid_fd(5)`).
const DELETED: &[u8] = b" (deleted)";
/// What `kcmp(2)` compares: tables of descriptors.
const KCMP_FILES: libc::c_int = 2;

/// A file without a name that a process keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamelessFile {
    /// Its bytes on the disk.
    pub bytes: u64,
    /// The folder of the file system that is mounted where it was opened. `None` if no process
    /// that was looked at has that mount.
    pub root: Option<PathBuf>,
    /// It is on the disk itself. Otherwise in what lies above: a container's layer.
    pub direct: bool,
}

/// The files without a name that processes keep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamelessFiles {
    /// Each file once.
    pub files: Vec<NamelessFile>,
    /// The list is incomplete: they have more descriptors and mappings than were to be looked at.
    pub more: bool,
}

/// A file before it is known where it was opened.
struct Found {
    device: u64,
    bytes: u64,
    mount: u64,
}

/// A mount, by its number.
struct Mount {
    device: u64,
    root: PathBuf,
    overlay: bool,
}

struct Search {
    found: BTreeMap<(u64, u64), Found>,
    left: u64,
}

/// The regular files without a name that these processes keep on the file system of this device,
/// or in layers above it. Looks at `most` descriptors and mappings.
#[must_use]
pub fn held(processes: &[u32], device: u64, most: u64) -> NamelessFiles {
    let mut search = Search {
        found: BTreeMap::new(),
        left: most,
    };
    for process in processes {
        search.process(*process);
    }
    let more = search.left == 0;
    // Mounts are read only where something was found.
    let mounts = if search.found.is_empty() {
        BTreeMap::new()
    } else {
        mounts(processes)
    };
    // Files in memory without a mount: `memfd_create(2)`, shared memory.
    let unmounted = memfd_create(c"", MFdFlags::MFD_CLOEXEC).ok();
    let memory = unmounted.and_then(|file| Some(fstat(&file).ok()?.st_dev));
    let other = |found: &Found| {
        let mut same = mounts.values().filter(|mount| mount.device == found.device);
        Some(found.device) == memory || same.any(|mount| !mount.overlay)
    };
    let of_disk = |found: &Found| {
        // Layers have devices without a driver, as file systems in memory do.
        found.device == device || (libc::major(found.device) == 0 && !other(found))
    };
    let files = search.found.into_values().filter(of_disk);
    let files = files.map(|found| NamelessFile {
        bytes: found.bytes,
        root: mounts.get(&found.mount).map(|mount| mount.root.clone()),
        direct: found.device == device,
    });
    NamelessFiles {
        files: files.collect(),
        more,
    }
}

impl Search {
    /// A process may be gone at any moment: what it kept is then free, or another's.
    fn process(&mut self, process: u32) {
        let threads = fs::read_dir(format!("/proc/{process}/task"));
        for thread in threads.into_iter().flatten().filter_map(Result::ok) {
            let name = thread.file_name();
            let number = name.to_str().and_then(|name| name.parse().ok());
            let Some(number) = number.filter(|_| self.left > 0) else {
                continue;
            };
            self.left -= 1;
            if number == process || !same_files(process, number) {
                self.descriptors(&thread.path().join("fd"));
            }
        }
        self.mappings(process);
    }

    fn descriptors(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            let Ok(path) = entry.map(|entry| entry.path()) else {
                continue;
            };
            let target = fs::read_link(&path);
            if target.is_ok_and(|target| target.as_os_str().as_bytes().ends_with(DELETED)) {
                self.file(&path);
            }
        }
    }

    fn mappings(&mut self, process: u32) {
        let Ok(maps) = File::open(format!("/proc/{process}/maps")) else {
            return;
        };
        for line in BufReader::new(maps).split(b'\n').map_while(Result::ok) {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            if !line.ends_with(DELETED) {
                continue;
            }
            let range = line.split(|byte| *byte == b' ').next();
            let range = range.and_then(|range| std::str::from_utf8(range).ok());
            if let Some((start, end)) = range.and_then(|range| range.split_once('-')) {
                // The folder's names have no zeros in front.
                let [start, end] = [start, end].map(|at| at.trim_start_matches('0'));
                let path = format!("/proc/{process}/map_files/{start}-{end}");
                self.file(Path::new(&path));
            }
        }
    }

    /// Takes a file that one of the kernel's links leads to, if it is a regular one without a name.
    fn file(&mut self, link: &Path) {
        let Some(stat) = status(link) else {
            return;
        };
        let is_file = libc::mode_t::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFREG;
        if !is_file || stat.stx_nlink > 0 {
            return;
        }
        let device = libc::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        self.found.insert(
            (device, stat.stx_ino),
            Found {
                device,
                bytes: stat.stx_blocks.saturating_mul(BLOCK),
                mount: stat.stx_mnt_id,
            },
        );
    }
}

/// What the kernel knows of a file, without a call to a server that has it.
fn status(path: &Path) -> Option<libc::statx> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let wanted = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
    // SAFETY: the path ends with a zero, the buffer is of the kernel's type, and both live until
    // the call is over.
    let done = unsafe {
        libc::statx(
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_STATX_DONT_SYNC,
            wanted,
            stat.as_mut_ptr(),
        )
    };
    // SAFETY: the buffer was all zeros, which is a value of its type, and the kernel fills it.
    (done == 0).then(|| unsafe { stat.assume_init() })
}

/// Whether two threads have the same table of descriptors; false where the kernel does not say.
fn same_files(one: u32, other: u32) -> bool {
    // SAFETY: kcmp(2) takes numbers alone.
    let compared = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) };
    compared == 0
}

/// The mounts that these processes see, each namespace read once.
fn mounts(processes: &[u32]) -> BTreeMap<u64, Mount> {
    let mut read = BTreeSet::new();
    let mut all = BTreeMap::new();
    for process in processes {
        let Ok(namespace) = fs::read_link(format!("/proc/{process}/ns/mnt")) else {
            continue;
        };
        if read.insert(namespace) {
            let text = fs::read(format!("/proc/{process}/mountinfo"));
            let text = text.unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            all.extend(text.lines().filter_map(mount));
        }
    }
    all
}

/// A line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)): number, parent, device, root, place and
/// options, then after a dash the type.
fn mount(line: &str) -> Option<(u64, Mount)> {
    let mut words = line.split(' ');
    let number = words.next()?.parse().ok()?;
    let (major, minor) = words.nth(1)?.split_once(':')?;
    let device = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
    let root = PathBuf::from(words.next()?);
    let kind = words.skip_while(|word| *word != "-").nth(1)?;
    let overlay = kind == "overlay";
    Some((
        number,
        Mount {
            device,
            root,
            overlay,
        },
    ))
}
