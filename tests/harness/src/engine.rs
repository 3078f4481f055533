//! containerd on this host, in namespaces of its own, so that its containers end with it and touch
//! nothing else.

use crate::process::Owned;
use crate::tools::Tools;
use crate::wait::eventually;
use crate::{Error, Result, file_error};
use config_machine::containerd::{Places, configuration};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Makes a root of the tools tree's own packages (crun wants their libraries), read-only as on a
/// machine, with the host's devices and control groups and the shared folder at its place, and
/// moves there. A host that has control groups of both versions shows those of version 1 alone, as
/// crun runs with one version; machines have version 2 alone. containerd is restarted when it dies,
/// as init does on a machine. Arguments: the tree, the shared folder, the configuration.
///
/// What is mounted in the folders of [`SHARED`] is seen on both sides, as on a machine; all else
/// that is mounted here stays here. The old root is made private before it goes: its mounts are the
/// host's own.
///
/// Where an agent names no runtime, as on a host, the shim looks for `runc`, which is crun here.
const SCRIPT: &str = "set -e; mount --make-private /; ! mountpoint -q /mnt || mount --make-private /mnt; \
    mount -t tmpfs root /mnt; cd /mnt; mkdir -p usr etc proc sys dev run tmp old runtime \".$1\"; \
    ln -s /usr/bin/crun runtime/runc; \
    for name in bin sbin lib lib64; do ln -s usr/$name $name; done; \
    mount --bind \"$0/usr\" usr; mount -o remount,bind,ro usr; mount --rbind /sys sys; mount --rbind /dev dev; mount --rbind \"$1\" \".$1\"; \
    for name in usr sys dev \".$1\"; do mount --make-rslave $name; done; \
    if [ -d sys/fs/cgroup/unified ]; then mount -t tmpfs none sys/fs/cgroup/unified; fi; \
    for name in kubelet run; do mount --rbind \"$1/$name\" \".$1/$name\"; done; \
    mount -t proc proc proc; pivot_root . old; exec /usr/bin/busybox sh -c 'export PATH=/usr/sbin:/usr/bin:/runtime; \
    busybox mount --make-rprivate /old && busybox umount -l /old || exit 1; \
    while :; do containerd --config \"$0\" || :; busybox sleep 0.2; done' \"$2\"";
/// Folders of the shared one that are shared in both directions: those in which a node's pods mount
/// and are mounted.
const SHARED: [&str; 2] = ["kubelet", "run"];

/// A containerd that was started; its namespaces and all that runs in them end with it.
#[derive(Debug)]
pub struct Engine {
    process: Owned,
    dir: PathBuf,
    users: Users,
    /// Dropped after the process.
    _shared: Shared,
}

/// A folder in which mounts made here are seen in the engine's namespace, as they are on a machine,
/// where the agent and the engine share one. Mounts in it end with it.
#[derive(Debug)]
struct Shared(PathBuf);

impl Shared {
    fn make(dir: &Path) -> Result<Self> {
        use nix::mount::{MsFlags, mount};
        let none = None::<&str>;
        let fault = |error: nix::Error| {
            Error::Missing(format!(
                "mounts in {} can't be shared: {error}",
                dir.display()
            ))
        };
        mount(Some(dir), dir, none, MsFlags::MS_BIND, none).map_err(fault)?;
        let shared = Self(dir.to_owned());
        mount(none, dir, none, MsFlags::MS_SHARED, none).map_err(fault)?;
        Ok(shared)
    }

    /// A file system in memory in the folder, as a machine has for all that a boot does not
    /// outlive: on a disk each start would wait for what its shim flushes.
    fn hold_in_memory(&self, dir: &Path) -> Result<()> {
        use nix::mount::{MsFlags, mount};
        debug_assert!(dir.starts_with(&self.0), "it would outlive the folder");
        std::fs::create_dir_all(dir).map_err(file_error("cannot make", dir))?;
        let none = None::<&str>;
        mount(Some("memory"), dir, Some("tmpfs"), MsFlags::empty(), none)
            .map_err(|error| Error::Missing(format!("no memory at {}: {error}", dir.display())))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A failed unmount shows when the folder is removed.
        nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH).ok();
    }
}

impl Engine {
    /// Starts containerd, configured as on a machine, with its state in `share/engine` and waits
    /// for its socket. It sees nothing of the host's files but `share`, where FIFOs and volumes of
    /// its containers must be.
    pub fn start(tools: &Tools, share: &Path) -> Result<Self> {
        let dir = share.join("engine");
        std::fs::create_dir_all(&dir).map_err(file_error("cannot make", &dir))?;
        let config = dir.join("containerd.toml");
        let place = |name: &str| dir.join(name).display().to_string();
        let (root, state, socket) = (place("root"), place("state"), place("containerd.sock"));
        let text = configuration(Places {
            root: &root,
            state: &state,
            socket: &socket,
        });
        std::fs::write(&config, text).map_err(file_error("cannot write", &config))?;
        for name in SHARED {
            let folder = share.join(name);
            std::fs::create_dir_all(&folder).map_err(file_error("cannot make", &folder))?;
        }
        let shared = Shared::make(share)?;
        shared.hold_in_memory(&dir.join("state"))?;
        let users = Users::join(Path::new(USERS))?;
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation",
            "unchanged",
            "--pid",
            "--uts",
            "--ipc",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            SCRIPT,
        ]);
        command.arg(tools.file("/")).arg(share).arg(&config);
        let log = dir.join("containerd.log");
        let engine = Self {
            process: Owned::start(command, &log)?,
            dir,
            users,
            _shared: shared,
        };
        eventually(
            "containerd's socket",
            Duration::from_secs(300),
            &format!("see {}", log.display()),
            || {
                Ok(std::os::unix::net::UnixStream::connect(engine.socket())
                    .is_ok()
                    .then_some(()))
            },
        )?;
        Ok(engine)
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    /// Its root directory.
    pub fn state(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The names of the processes in its namespaces, sorted; those of containers are among them.
    pub fn processes(&self) -> Vec<String> {
        let all = descendants(self.process.pid).into_iter();
        let mut names: Vec<String> = all.filter_map(name_of).collect();
        names.sort();
        names
    }

    /// Resident memory of containerd in KiB.
    pub fn resident(&self) -> Result<u64> {
        crate::process::resident(self.containerd()?)
    }

    fn containerd(&self) -> Result<i32> {
        let containerd = |pid: &i32| {
            is_named(*pid, "containerd")
                && std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.contains("--config"))
        };
        let missing = "containerd is not among the processes that were started here";
        let mut all = descendants(self.process.pid).into_iter();
        all.find(containerd)
            .ok_or_else(|| Error::Missing(missing.to_owned()))
    }

    /// Gives containerd at most so many open files, until it starts anew.
    pub fn limit_open_files(&self, most: u64) -> Result<()> {
        let mut command = Command::new("prlimit");
        command.arg(format!("--pid={}", self.containerd()?));
        command.arg(format!("--nofile={most}:{most}"));
        crate::process::run(command).map(drop)
    }

    /// Kills containerd alone; the containers live on, and it comes back.
    pub fn kill_containerd(&self) -> Result<()> {
        signal(self.containerd()?, Signal::SIGKILL)
    }

    /// Kills the shims of all containers; what runs in these is left to containerd.
    pub fn kill_shims(&self) -> Result<()> {
        let mut all = self.shims()?.into_iter();
        all.try_for_each(|pid| signal(pid, Signal::SIGKILL))
    }

    fn shims(&self) -> Result<Vec<i32>> {
        // The kernel keeps 15 characters of a name.
        let all = descendants(self.process.pid).into_iter();
        let shims = all.filter(|pid| is_named(*pid, "containerd-shim"));
        let shims: Vec<i32> = shims.collect();
        if shims.is_empty() {
            return Err(Error::Missing("no container's shim runs".to_owned()));
        }
        Ok(shims)
    }

    /// Stops the shims of all containers, so that containerd gets no answer of them, until what is
    /// returned is dropped.
    pub fn stop_shims(&self) -> Result<StoppedShims> {
        let stopped = StoppedShims(self.shims()?);
        for pid in &stopped.0 {
            signal(*pid, Signal::SIGSTOP)?;
        }
        Ok(stopped)
    }
}

/// Shims that do not run; they go on when this is dropped.
#[derive(Debug)]
pub struct StoppedShims(Vec<i32>);

impl Drop for StoppedShims {
    fn drop(&mut self) {
        for pid in &self.0 {
            // One that has ended needs nothing.
            signal(*pid, Signal::SIGCONT).ok();
        }
    }
}

fn is_named(pid: i32, name: &str) -> bool {
    name_of(pid).is_some_and(|found| found == name)
}

/// A process's name; none where it has ended.
fn name_of(pid: i32) -> Option<String> {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(comm.trim().to_owned())
}

fn signal(pid: i32, signal: Signal) -> Result<()> {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal)
        .map_err(|error| Error::Missing(format!("no {signal} to process {pid}: {error}")))
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A process that can't be ended here shows in the next test.
        self.process.kill().ok();
        if !self.users.is_last() {
            return;
        }
        let controllers = std::fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .filter_map(std::result::Result::ok);
        for top in controllers
            .map(|entry| entry.path())
            .chain([PathBuf::from("/sys/fs/cgroup")])
        {
            for name in CGROUPS {
                prune(&top.join(name));
            }
        }
    }
}

/// Control groups that containers of tests are in.
const CGROUPS: [&str; 2] = ["kubepods", "pratique-test"];

/// Locked by every program whose tests have containers. Not in TMPDIR, which each program has for
/// itself.
const USERS: &str = "/run/pratique-test-cgroups.lock";

/// The programs on this host whose tests have containers, by a shared lock of one file. The last
/// one removes the control groups of all: an empty group may be what another test is about to read,
/// or to start a process in.
#[derive(Debug)]
struct Users(std::fs::File);

impl Users {
    fn join(path: &Path) -> Result<Self> {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(file_error("cannot open", path))?;
        file.lock_shared()
            .map_err(file_error("cannot lock", path))?;
        Ok(Self(file))
    }

    /// Whether no other is left; while this lives, none can join then.
    fn is_last(&self) -> bool {
        self.0.try_lock().is_ok()
    }
}

/// Removes a control group and those in it, where they are empty.
fn prune(dir: &Path) {
    for entry in std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(std::result::Result::ok)
    {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            prune(&entry.path());
        }
    }
    std::fs::remove_dir(dir).ok();
}

/// All children of a process, and theirs (proc(5): the fourth field of stat is the parent).
fn descendants(pid: i32) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(std::result::Result::ok);
    let parents: Vec<(i32, i32)> = processes
        .filter_map(|entry| {
            let child = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((
                child,
                stat.rsplit_once(')')?
                    .1
                    .split_whitespace()
                    .nth(1)?
                    .parse()
                    .ok()?,
            ))
        })
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(child, _)| *child),
        );
        next += 1;
    }
    found.split_off(1)
}
