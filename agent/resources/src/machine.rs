//! Facts of the machine: CPUs, memory, disk, versions, ids.

use crate::Disk;
use agent_pressure::{Level, Levels, Signal};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel shows its own settings.
const SETTINGS: &str = "/proc/sys/kernel";

/// Facts that don't change while the agent runs, and the place where disk space is measured.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Logical processors that the agent may use.
    pub cpus: u64,
    /// Bytes.
    pub memory: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The file `/etc/machine-id`, or the firmware's UUID without its dashes.
    pub machine_id: String,
    /// The firmware's UUID.
    pub system_uuid: String,
    /// A new one with each boot.
    pub boot_id: String,
    /// The machine's name for itself.
    pub hostname: String,
    disk: PathBuf,
}

impl Facts {
    /// Reads the facts. Disk space will be measured at `disk`, or at the nearest existing folder
    /// above it.
    pub fn of_machine(disk: &Path) -> Self {
        let text = |path: &str| {
            fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let utsname = nix::sys::utsname::uname().ok();
        let of_utsname = |field: fn(&nix::sys::utsname::UtsName) -> &std::ffi::OsStr| {
            utsname
                .as_ref()
                .map(|name| field(name).to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        let boot_id = text("/proc/sys/kernel/random/boot_id");
        let machine_id = Some(text("/etc/machine-id")).filter(|id| !id.is_empty());
        let system_uuid = text("/sys/class/dmi/id/product_uuid");
        Self {
            cpus: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
            memory: memory("MemTotal").unwrap_or_default(),
            kernel: of_utsname(nix::sys::utsname::UtsName::release),
            hostname: of_utsname(nix::sys::utsname::UtsName::nodename),
            machine_id: machine_id.unwrap_or_else(|| system_uuid.replace('-', "")),
            system_uuid,
            boot_id,
            disk: disk.to_owned(),
        }
    }

    /// Disk space of the pods' data; all zero if it can't be measured.
    pub fn space(&self) -> Disk {
        let there = self
            .disk
            .ancestors()
            .find(|path| path.exists())
            .unwrap_or(Path::new("/"));
        nix::sys::statvfs::statvfs(there).map_or(Disk::default(), Disk::from)
    }

    /// The free resources of the machine. Images are on the same file system as the pods' data.
    pub fn levels(&self) -> Levels {
        let space = self.space();
        let level = |available, capacity| Level {
            available,
            capacity,
        };
        let bytes = level(space.free, space.size);
        let inodes = level(space.free_inodes, space.inodes);
        let memory = available_memory().map(|available| level(available, self.memory));
        let pids = pids().map(|(limit, free)| level(free, limit));
        Levels::from([
            (Signal::MemoryAvailable, memory.unwrap_or_default()),
            (Signal::NodefsAvailable, bytes),
            (Signal::NodefsInodesFree, inodes),
            (Signal::ImagefsAvailable, bytes),
            (Signal::ImagefsInodesFree, inodes),
            (Signal::PidAvailable, pids.unwrap_or_default()),
        ])
    }
}

/// A line of meminfo, in bytes.
pub fn memory(line: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let value = text
        .lines()
        .find_map(|found| found.strip_prefix(line)?.strip_prefix(':'))?;
    value
        .split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// Bytes of memory outside of the working set: free memory and inactive file pages (upstream's
/// `memory.available`).
fn available_memory() -> Option<u64> {
    Some(memory("MemFree")? + memory("Inactive(file)")?)
}

/// How many processes and threads the machine can have; `None` if the kernel does not say.
#[must_use]
pub fn most_threads() -> Option<u64> {
    least_bound(Path::new(SETTINGS))
}

/// Process ids, or threads where the kernel makes fewer of those (upstream's rule): a process takes
/// one of each.
fn least_bound(settings: &Path) -> Option<u64> {
    let read = |file: &str| -> Option<u64> {
        let text = fs::read_to_string(settings.join(file)).ok()?;
        text.trim().parse().ok()
    };
    Some(read("pid_max")?.min(read("threads-max")?))
}

/// Processes and threads: the limit, and how many more there can be.
fn pids() -> Option<(u64, u64)> {
    let limit = most_threads()?;
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let threads: u64 = load
        .split_whitespace()
        .nth(3)?
        .split_once('/')?
        .1
        .parse()
        .ok()?;
    Some((limit, limit.saturating_sub(threads)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_facts() {
        let facts = Facts::of_machine(Path::new("/no/such/folder"));
        assert!(facts.cpus > 0 && facts.memory > 0 && !facts.kernel.is_empty());
        assert!(
            facts.space().size > 0,
            "the nearest folder that exists is measured"
        );
        let levels = facts.levels();
        let left = |signal| levels[&signal];
        for signal in [
            Signal::MemoryAvailable,
            Signal::NodefsAvailable,
            Signal::PidAvailable,
        ] {
            let Level {
                available,
                capacity,
            } = left(signal);
            assert!(available > 0 && available < capacity, "{signal:?}");
        }
    }

    #[test]
    fn threads_bound_processes_where_there_are_fewer_of_them_than_process_ids() {
        let settings = tempfile::tempdir().unwrap();
        let bound = |pids: &str, threads: &str| {
            fs::write(settings.path().join("pid_max"), pids).unwrap();
            fs::write(settings.path().join("threads-max"), threads).unwrap();
            least_bound(settings.path())
        };
        assert_eq!(bound("4194304\n", "8192\n"), Some(8192));
        assert_eq!(bound("32768\n", "192730\n"), Some(32768));
        assert_eq!(bound("4194304\n", "many\n"), None);
    }
}
