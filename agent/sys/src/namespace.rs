//! Namespaces that outlive their processes: each is made on a thread of its own and held by a bind
//! mount.
//!
//! The kernel keeps a namespace as long as something refers to it (namespaces(7)). A bind mount of
//! its file is such a reference, so a pod needs no pause process. Threads that enter other
//! namespaces end before the call returns: no other work of this process ever runs on one.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread;

use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::error::{Context, Error, Result};
use crate::mount::detach;

/// The kernel's magic number of the file system of namespaces.
const NSFS_MAGIC: i64 = 0x6E73_6673;

/// Ids of a user namespace: 0 and those above it, of users and of groups.
pub const IDS: u32 = 65_536;

/// A kind of namespace that a pod can have of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Links, addresses, ports, the packet filter, abstract sockets.
    Network,
    /// System V and POSIX shared memory, semaphores, message queues.
    Ipc,
    /// Host name and domain name.
    Uts,
    /// Ids of users and groups, and capabilities over the namespaces that belong to it
    /// ([`hold_owned`]).
    User,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Network, Self::Ipc, Self::Uts, Self::User];

    /// Its name in `/proc/PID/ns`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Network => "net",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
            Self::User => "user",
        }
    }

    fn flag(self) -> CloneFlags {
        match self {
            Self::Network => CloneFlags::CLONE_NEWNET,
            Self::Ipc => CloneFlags::CLONE_NEWIPC,
            Self::Uts => CloneFlags::CLONE_NEWUTS,
            Self::User => CloneFlags::CLONE_NEWUSER,
        }
    }
}

/// Makes new namespaces of these kinds and runs `work` in them, on a thread that ends with it.
/// Namespaces that `work` does not [`hold`] end with it.
///
/// # Errors
/// The kernel's refusal to make them, as always of a user namespace (a thread can't have one for
/// itself), or that of `work`.
pub fn in_new<T: Send>(kinds: &[Kind], work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let flags = kinds
        .iter()
        .fold(CloneFlags::empty(), |all, kind| all | kind.flag());
    on_thread(move || {
        unshare(flags).at("make", "namespaces")?;
        work()
    })
}

/// Runs `work` in the held namespaces at these paths, on a thread that ends with it.
///
/// # Errors
/// The kernel's refusal to enter them, or that of `work`.
pub fn inside<T: Send>(
    held: &[(Kind, &Path)],
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    on_thread(move || {
        for (kind, path) in held {
            let name = path.display().to_string();
            let file = File::open(path).at("open the namespace", &name)?;
            setns(file, kind.flag()).at("enter the namespace", &name)?;
        }
        work()
    })
}

fn on_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let lost = || {
        Error::new(
            "run",
            "a thread in other namespaces",
            io::Error::other("it died"),
        )
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("namespaces".to_owned())
            .spawn_scoped(scope, work)
            .at("start", "a thread for other namespaces")?;
        thread.join().map_err(|_panic| lost())?
    })
}

/// Holds the calling thread's namespace of a kind at a path, whose file is made where it isn't
/// there.
///
/// # Errors
/// If the file can't be made, or the kernel refuses the mount.
pub fn hold(kind: Kind, path: &Path) -> Result<()> {
    hold_of("thread-self", kind, path)
}

/// As [`hold`], of the process or thread with this name in `/proc`.
fn hold_of(holder: &str, kind: Kind, path: &Path) -> Result<()> {
    let name = path.display().to_string();
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .at("make", &name)?;
    let own = format!("/proc/{holder}/ns/{}", kind.name());
    let none = None::<&str>;
    mount(Some(own.as_str()), path, none, MsFlags::MS_BIND, none).at("hold a namespace at", &name)
}

/// Makes namespaces of these kinds and holds each at its path. All belong to the new user namespace
/// that is among them: its root has capabilities over the others, and over nothing else of the
/// machine. Its ids 0 to [`IDS`] − 1, of users and of groups, are the machine's from `first` on.
///
/// Assumption: no other user namespace has one of these ids.
///
/// # Errors
/// The kernel's refusal: as many user namespaces as it allows are there
/// (`user.max_user_namespaces`), `first` is beyond the ids of the machine, or a file can't be made.
/// What was held by then stays held.
pub fn hold_owned(first: u32, places: &[(Kind, &Path)]) -> Result<()> {
    let kinds = places.iter();
    let flags = kinds.fold(CloneFlags::empty(), |all, (kind, _)| all | kind.flag());
    let holder = Holder::start(flags)?;
    let name = holder.0.to_string();
    for map in ["uid_map", "gid_map"] {
        let path = format!("/proc/{name}/{map}");
        std::fs::write(&path, format!("0 {first} {IDS}\n")).at("write", &path)?;
    }
    let mut places = places.iter();
    places.try_for_each(|(kind, path)| hold_of(&name, *kind, path))
}

/// A process that does nothing; it ends when this is dropped, and with the thread that started it.
struct Holder(Pid);

impl Holder {
    /// Starts one in namespaces of its own: only a process can be in a new user namespace, no
    /// thread.
    fn start(flags: CloneFlags) -> Result<Self> {
        let flags = flags.bits() | libc::SIGCHLD;
        // SAFETY: without CLONE_VM and a stack this is fork(2): the child has a copy of all memory,
        // and goes on with the calling thread alone. Below it makes system calls and nothing else:
        // no lock that another thread held is taken, no memory is asked for, and it never returns.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        if pid == 0 {
            // SAFETY: the call takes numbers and touches no memory.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            loop {
                // SAFETY: as above; it returns at each signal that is handled.
                unsafe { libc::pause() };
            }
        }
        let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
        let made = pid.ok_or_else(io::Error::last_os_error);
        Ok(Self(Pid::from_raw(made.at("make", "a user namespace")?)))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Both succeed: it is this process's own child, and nobody else waits for it.
        kill(self.0, Signal::SIGKILL).ok();
        waitpid(self.0, None).ok();
    }
}

/// Writes a setting below `/proc/sys` for the calling thread's IPC namespace as the root of the
/// user namespace whose ids begin at `first`: the kernel lets no other user write the settings of a
/// namespace that a user namespace owns. The thread loses its capabilities, so it must do nothing
/// afterwards ([`inside`]). As at each change of a user, the kernel then writes no core dump of the
/// process (`fs.suid_dumpable`).
///
/// # Errors
/// As [`set`].
pub fn set_as_owner(first: u32, setting: &str, value: &str) -> Result<()> {
    const KEPT: libc::c_long = -1;
    // SAFETY: the call takes numbers and touches no memory. Unlike the C library's function of this
    // name it changes the calling thread alone.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, KEPT, i64::from(first), KEPT) };
    if result < 0 {
        return Err(io::Error::last_os_error()).at("become user", &first.to_string());
    }
    set(setting, value)
}

/// Whether a namespace is held at a path.
pub fn is_held(path: &Path) -> bool {
    nix::sys::statfs::statfs(path).is_ok_and(|stat| stat.filesystem_type().0 == NSFS_MAGIC)
}

/// Releases the namespace held at a path, and removes its file; does nothing if there is none.
///
/// # Errors
/// If something is left there.
pub fn release(path: &Path) -> Result<()> {
    let name = path.display().to_string();
    while is_held(path) {
        detach(&name)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::new("remove", name, error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Names the calling thread's machine, which is that of its UTS namespace.
///
/// # Errors
/// If the kernel refuses the name.
pub fn name_host(name: &str) -> Result<()> {
    nix::unistd::sethostname(name).at("name the host", name)
}

/// Writes a setting below `/proc/sys`, for the calling thread's namespaces.
///
/// # Errors
/// If there is no such setting, or the kernel refuses the value.
pub fn set(setting: &str, value: &str) -> Result<()> {
    let path = Path::new("/proc/sys").join(setting);
    std::fs::write(&path, value).at("write", &path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a thread can have for itself.
    const OWN: [Kind; 3] = [Kind::Network, Kind::Ipc, Kind::Uts];

    fn own(kind: Kind) -> String {
        let link = std::fs::read_link(format!("/proc/thread-self/ns/{}", kind.name())).unwrap();
        link.to_string_lossy().into_owned()
    }

    #[test]
    fn a_namespace_lives_on_while_it_is_held_and_goes_when_it_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let place = |kind: Kind| dir.path().join(kind.name());
        let before = OWN.map(own);
        let made = in_new(&OWN, || {
            name_host("of-a-pod")?;
            OWN.iter().try_for_each(|kind| hold(*kind, &place(*kind)))?;
            Ok(OWN.map(own))
        })
        .unwrap();
        assert_eq!(OWN.map(own), before, "the caller stays where it was");
        assert!(made.iter().zip(&before).all(|(new, old)| new != old));
        let places = OWN.map(|kind| (kind, place(kind)));
        let held: Vec<(Kind, &Path)> = places
            .iter()
            .map(|(kind, path)| (*kind, path.as_path()))
            .collect();
        let again = inside(&held, || {
            let name = nix::unistd::gethostname().at("read", "the host's name")?;
            Ok((OWN.map(own), name.to_string_lossy().into_owned()))
        });
        assert_eq!(again.unwrap(), (made, "of-a-pod".to_owned()));
        for kind in OWN {
            assert!(is_held(&place(kind)));
            release(&place(kind)).unwrap();
            release(&place(kind)).unwrap();
            assert!(!place(kind).exists());
        }
    }

    #[test]
    fn what_belongs_to_a_user_namespace_is_its_roots_and_the_machines_to_set() {
        const FIRST: u32 = 7 * IDS;
        const SETTING: &str = "kernel/shm_rmid_forced";
        let dir = tempfile::tempdir().unwrap();
        let places = Kind::ALL.map(|kind| (kind, dir.path().join(kind.name())));
        let all: Vec<(Kind, &Path)> = places
            .iter()
            .map(|(kind, path)| (*kind, path.as_path()))
            .collect();
        hold_owned(FIRST, &all).unwrap();
        let entered: Vec<(Kind, &Path)> = all
            .iter()
            .filter(|(kind, _)| *kind != Kind::User)
            .copied()
            .collect();
        inside(&entered, || {
            name_host("of-a-pod")?;
            set("net/ipv4/ip_unprivileged_port_start", "0")?;
            assert!(set(SETTING, "1").is_err(), "it is its owner's alone");
            Ok(())
        })
        .unwrap();
        // nsenter(1) enters the namespace as its root and reads the map from there.
        let map = std::process::Command::new("nsenter")
            .arg(format!("--user={}", all[3].1.display()))
            .args(["cat", "/proc/self/uid_map", "/proc/self/gid_map"])
            .output()
            .unwrap();
        let map = String::from_utf8(map.stdout).unwrap();
        let words: Vec<&str> = map.split_whitespace().collect();
        assert_eq!(words, ["0", "458752", "65536", "0", "458752", "65536"]);
        for (kind, place) in &places {
            assert!(is_held(place), "{kind:?}");
            release(place).unwrap();
        }
    }
}
