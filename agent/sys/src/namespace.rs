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

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::{Context, Error, Result};
use crate::mount::detach;

/// The kernel's magic number of the file system of namespaces.
const NSFS_MAGIC: i64 = 0x6E73_6673;

/// A kind of namespace that a pod can have of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Links, addresses, ports, the packet filter, abstract sockets.
    Network,
    /// System V and POSIX shared memory, semaphores, message queues.
    Ipc,
    /// Host name and domain name.
    Uts,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Network, Self::Ipc, Self::Uts];

    /// Its name in `/proc/PID/ns`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Network => "net",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
        }
    }

    fn flag(self) -> CloneFlags {
        match self {
            Self::Network => CloneFlags::CLONE_NEWNET,
            Self::Ipc => CloneFlags::CLONE_NEWIPC,
            Self::Uts => CloneFlags::CLONE_NEWUTS,
        }
    }
}

/// Makes new namespaces of these kinds and runs `work` in them, on a thread that ends with it.
/// Namespaces that `work` does not [`hold`] end with it.
///
/// # Errors
/// The kernel's refusal to make them, or that of `work`.
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

/// Holds the calling thread's namespace of a kind at a path, whose file is made where it isn't there.
///
/// # Errors
/// If the file can't be made, or the kernel refuses the mount.
pub fn hold(kind: Kind, path: &Path) -> Result<()> {
    let name = path.display().to_string();
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .at("make", &name)?;
    let own = format!("/proc/thread-self/ns/{}", kind.name());
    let none = None::<&str>;
    mount(Some(own.as_str()), path, none, MsFlags::MS_BIND, none).at("hold a namespace at", &name)
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

    fn own(kind: Kind) -> String {
        let link = std::fs::read_link(format!("/proc/thread-self/ns/{}", kind.name())).unwrap();
        link.to_string_lossy().into_owned()
    }

    #[test]
    fn a_namespace_lives_on_while_it_is_held_and_goes_when_it_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let place = |kind: Kind| dir.path().join(kind.name());
        let before = Kind::ALL.map(own);
        let made = in_new(&Kind::ALL, || {
            name_host("of-a-pod")?;
            Kind::ALL
                .iter()
                .try_for_each(|kind| hold(*kind, &place(*kind)))?;
            Ok(Kind::ALL.map(own))
        })
        .unwrap();
        assert_eq!(Kind::ALL.map(own), before, "the caller stays where it was");
        assert!(made.iter().zip(&before).all(|(new, old)| new != old));
        let places = Kind::ALL.map(|kind| (kind, place(kind)));
        let held: Vec<(Kind, &Path)> = places
            .iter()
            .map(|(kind, path)| (*kind, path.as_path()))
            .collect();
        let again = inside(&held, || {
            let name = nix::unistd::gethostname().at("read", "the host's name")?;
            Ok((Kind::ALL.map(own), name.to_string_lossy().into_owned()))
        });
        assert_eq!(again.unwrap(), (made, "of-a-pod".to_owned()));
        for kind in Kind::ALL {
            assert!(is_held(&place(kind)));
            release(&place(kind)).unwrap();
            release(&place(kind)).unwrap();
            assert!(!place(kind).exists());
        }
    }
}
