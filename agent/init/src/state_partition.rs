//! The state's partition: found, or added behind the image; formatted, decrypted and mounted.

use std::fs::File;
use std::time::Duration;

use agent_sys::crypt::{self, Volume};
use agent_sys::mount::{Limits, mount, mount_again};
use agent_sys::process::{Ended, run};
use agent_volume::header::{DATA_OFFSET, VolumeKey};

use crate::disks::{self, Device, RootDisk};
use crate::fatal::Fatal;
use crate::gpt::{NewPartition, Partition, Table};
use crate::guid::Guid;
use crate::mounts::directory;
use crate::state_fault::{StateError, fatal, system};

/// The finished partition's label.
pub(crate) const LABEL: &str = "pratique-state";
pub(crate) const UNFINISHED: &str = "pratique-state-new";
/// Where the state is mounted.
pub(crate) const TARGET: &str = "/var";
/// "Linux filesystem data" of the Discoverable Partitions Specification.
const LINUX_DATA: Guid = Guid([
    0x0F, 0xC6, 0x3D, 0xAF, 0x84, 0x83, 0x47, 0x72, 0x8E, 0x79, 0x3D, 0x69, 0xD8, 0x47, 0x7D, 0xE4,
]);
/// Smallest state: room for one container image and the logs.
const MIN_BYTES: u64 = 256 << 20;
const NODE_LIMIT: Duration = Duration::from_secs(10);
const MKE2FS: &str = "/usr/sbin/mke2fs";
const MKE2FS_OUTPUT: usize = 2048;
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

/// Options of the mount on the disk, and in memory where the disk is left alone.
pub(crate) const DISK: &str = "errors=remount-ro";
pub(crate) const MEMORY: &str = "mode=755,size=40%";
/// Mount flags of the state's file system: no execution, no devices, no setuid. Containers' root
/// file systems are overlays over parts of it, mounts of their own with their own limits.
const LIMITS: Limits = Limits {
    read_only: false,
    no_suid: true,
    no_dev: true,
    no_exec: true,
};
/// Pods' volumes: a pod may execute what it wrote there, as everywhere in Kubernetes. The host's
/// programs use nothing from there.
const VOLUMES: [&str; 2] = [POD_VOLUMES, LOCAL_VOLUMES];
const POD_VOLUMES: &str = "/var/lib/kubelet/pods";
/// Persistent volumes.
const LOCAL_VOLUMES: &str = "/var/lib/kubelet/local-volumes";
const VOLUME_LIMITS: Limits = Limits {
    no_exec: false,
    ..LIMITS
};

/// Directories of the state, with their modes.
const DIRECTORIES: [(&str, u32); 12] = [
    ("/var/lib", 0o755),
    ("/var/lib/containerd", 0o700),
    ("/var/lib/kubelet", 0o700),
    (POD_VOLUMES, 0o750),
    (LOCAL_VOLUMES, 0o700),
    ("/var/lib/pratique", 0o700),
    ("/var/lib/pratique/init", 0o700),
    ("/var/log", 0o755),
    ("/var/log/containers", 0o755),
    ("/var/log/pods", 0o755),
    ("/var/log/pratique", 0o700),
    ("/var/tmp", 0o1777),
];
/// The volume's name with the device mapper.
const NAME: &str = "state";

/// The state's partition, and the disk that it is on.
pub(crate) struct StatePartition {
    pub(crate) root: RootDisk,
    pub(crate) part: Partition,
    pub(crate) device: Device,
    /// Whether it was made in this boot, or never finished.
    pub(crate) fresh: bool,
}

/// Finds the partition, or adds it to the table.
pub(crate) fn find_or_add(root_hash: &[u8; 32]) -> Result<StatePartition, StateError> {
    let mut root = disks::with_root(root_hash).ok_or(StateError::NoDisk)?;
    let named =
        |root: &RootDisk, name: &str| root.table.partitions().find(|part| part.name == name);
    let (part, fresh) = match (named(&root, LABEL), named(&root, UNFINISHED)) {
        (Some(part), _) => (part, false),
        (None, Some(part)) => (part, true),
        (None, None) => (add(&mut root)?, true),
    };
    let device = node(&root.disk, part.number)?;
    Ok(StatePartition {
        root,
        part,
        device,
        fresh,
    })
}

/// Opens the encrypted volume in the partition. Returns the node of its device.
pub(crate) fn decrypt(partition: &StatePartition, key: &VolumeKey) -> Result<String, Fatal> {
    let name = partition.device.node();
    let file = File::open(&name).map_err(|cause| fatal(StateError::Write(name.clone(), cause)))?;
    let volume = Volume {
        name: NAME.to_owned(),
        device: agent_sys::block::device_number(&partition.device.name).map_err(system)?,
        offset: DATA_OFFSET,
        size: agent_sys::block::size_bytes(&file, &name).map_err(system)?,
    };
    crypt::open(&volume, key).map_err(system)
}

/// Mounts a file system as the state, and makes the state's folders.
pub(crate) fn mount_state(node: &str, kind: &str, options: &str) -> Result<(), agent_sys::Error> {
    mount(node, TARGET, kind, LIMITS, options)?;
    DIRECTORIES
        .iter()
        .try_for_each(|(path, mode)| directory(path, *mode))?;
    VOLUMES
        .iter()
        .try_for_each(|path| mount_again(path, VOLUME_LIMITS))
}

/// Adds the partition, labelled as unfinished, to the disk's table and informs the kernel.
fn add(root: &mut RootDisk) -> Result<Partition, StateError> {
    let name = root.disk.node();
    let wanted = NewPartition {
        kind: LINUX_DATA,
        id: random_guid(&name)?,
        name: UNFINISHED,
        least_bytes: MIN_BYTES,
    };
    let (table, part) = root
        .table
        .with(&wanted)
        .map_err(|cause| StateError::Table(name.clone(), cause))?;
    let disk = write(&root.disk, &table)?;
    let sector = agent_sys::block::sector_bytes(&disk, &name).map_or(512, u64::from);
    let length = (part.last - part.first + 1) * sector;
    agent_sys::block::add_partition(&disk, &name, part.number, part.first * sector, length)
        .map_err(|cause| StateError::Write(name, std::io::Error::other(cause)))?;
    root.table = table;
    Ok(part)
}

/// Writes the table to its disk.
pub(crate) fn write(disk: &Device, table: &Table) -> Result<File, StateError> {
    let name = disk.node();
    let writes = table
        .writes()
        .map_err(|cause| StateError::Table(name.clone(), cause))?;
    let write = |cause| StateError::Write(name.clone(), cause);
    let file = File::options()
        .read(true)
        .write(true)
        .open(&name)
        .map_err(write)?;
    disks::write(&file, &writes).map_err(write)?;
    Ok(file)
}

/// Makes an empty ext4 file system on a device.
pub(crate) fn format(node: &str) -> Result<(), StateError> {
    let arguments = [
        "-q",
        "-F",
        "-b",
        "4096",
        "-I",
        "256",
        "-m",
        "1",
        "-O",
        FEATURES,
        "-L",
        LABEL,
        "-E",
        "lazy_itable_init=1,lazy_journal_init=1,nodiscard",
        node,
    ];
    let (ended, output) = run(MKE2FS, &arguments, MKE2FS_OUTPUT)
        .map_err(|cause| StateError::Write(node.to_owned(), std::io::Error::other(cause)))?;
    if ended != Ended::Code(0) {
        let text = String::from_utf8_lossy(&output)
            .lines()
            .collect::<Vec<_>>()
            .join(" / ");
        return Err(StateError::Format(node.to_owned(), ended, text));
    }
    Ok(())
}

/// A partition's device, once the kernel shows it.
fn node(disk: &Device, number: u32) -> Result<Device, StateError> {
    let found = disks::wait_for(NODE_LIMIT, || disks::partition(disk, number));
    found.ok_or_else(|| StateError::NoNode {
        disk: disk.node(),
        number,
    })
}

fn random_guid(disk: &str) -> Result<Guid, StateError> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map_err(|cause| StateError::Write(disk.to_owned(), cause))?;
    Ok(Guid::parse(&text).unwrap_or(Guid([0xFF; 16])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use nix::mount::MsFlags;
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::statvfs::{FsFlags, statvfs};
    use std::process::Command;

    /// Whether a program that lies in `folder` runs.
    fn runs(folder: &str) -> bool {
        let program = format!("{folder}/program");
        // By a process of its own, since a program that a process has open for writing doesn't run.
        let copied = Command::new("cp").args(["/bin/true", &program]).status();
        assert!(copied.unwrap().success(), "{folder}");
        match Command::new(&program).status() {
            Ok(status) => status.success(),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::EACCES as i32), "{folder}");
                false
            }
        }
    }

    /// Somebody who had the disk can have left programs, device nodes and setuid files there.
    #[test]
    fn no_program_on_the_state_runs_but_in_pods_volumes() {
        let in_a_namespace = || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            mount_state("tmpfs", "tmpfs", MEMORY).unwrap();
            let folders = DIRECTORIES.map(|(folder, _)| folder);
            for folder in folders.into_iter().chain([TARGET]) {
                let flags = statvfs(folder).unwrap().flags();
                let refused = FsFlags::ST_NODEV | FsFlags::ST_NOSUID;
                assert!(flags.contains(refused), "{folder}: {flags:?}");
                assert_eq!(runs(folder), VOLUMES.contains(&folder), "{folder}");
            }
        };
        // Namespaces are a thread's, so that no other test sees this one's mounts.
        std::thread::spawn(in_a_namespace).join().unwrap();
    }
}
