//! The state partition: made on first boot behind the image, mounted at `/var` ever after.
//!
//! Making it is two-phased by the partition's label, so that a power cut never leaves a half-made filesystem that
//! passes for state: `pratique-state-new` (may be formatted again) becomes `pratique-state` (never formatted) only
//! when mke2fs is done. There is no e2fsck in the image: ext4's journal replay, done by the mount, covers power cuts;
//! a filesystem that is damaged beyond that belongs to a bad disk, and the machine says so instead of guessing.

use std::fs::File;
use std::time::Duration;

use agent_sys::mount::{Limits, mount, mount_again};
use agent_sys::process::{Ended, run};

use crate::disks::{self, Device, RootDisk};
use crate::fatal::Fatal;
use crate::gpt::{GptError, Partition, Table, Wanted};
use crate::guid::Guid;
use crate::mounts::directory;

/// The finished partition's label.
pub const LABEL: &str = "pratique-state";
const UNFINISHED: &str = "pratique-state-new";
/// Where the state is mounted.
pub const TARGET: &str = "/var";
/// "Linux filesystem data" of the Discoverable Partitions Specification.
const LINUX_DATA: Guid =
    Guid([0x0F, 0xC6, 0x3D, 0xAF, 0x84, 0x83, 0x47, 0x72, 0x8E, 0x79, 0x3D, 0x69, 0xD8, 0x47, 0x7D, 0xE4]);
/// Less can't hold one container image and the logs.
const LEAST_BYTES: u64 = 256 << 20;
const NODE_LIMIT: Duration = Duration::from_secs(10);
const MKE2FS: &str = "/usr/sbin/mke2fs";
const MKE2FS_OUTPUT: usize = 2048;
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

const CURE: &str =
    "check the disk; its state can be made anew by writing the image again (what the machine stored is lost)";
const ROOM_CURE: &str = "enlarge the disk behind the image";

/// What the state's file system allows: nothing on it is executed, is a device, or gives rights. Containers' root file
/// systems are overlays over parts of it, mounts of their own with their own limits.
const LIMITS: Limits = Limits { read_only: false, no_suid: true, no_dev: true, no_exec: true };
/// Pods' volumes: a pod may execute what it wrote there, as everywhere in Kubernetes. The host's programs name nothing there.
const VOLUMES: &str = "/var/lib/kubelet/pods";
const VOLUME_LIMITS: Limits = Limits { no_exec: false, ..LIMITS };

/// Directories of the state, with their modes.
const DIRECTORIES: [(&str, u32); 11] = [
    ("/var/lib", 0o755),
    ("/var/lib/containerd", 0o700),
    ("/var/lib/kubelet", 0o700),
    (VOLUMES, 0o750),
    ("/var/lib/pratique", 0o700),
    ("/var/lib/pratique/init", 0o700),
    ("/var/log", 0o755),
    ("/var/log/containers", 0o755),
    ("/var/log/pods", 0o755),
    ("/var/log/pratique", 0o700),
    ("/var/tmp", 0o1777),
];

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
enum StateError {
    #[error("the disk of the running root is not to be found")]
    NoDisk,
    #[error("the disk {0} can't take a state partition")]
    Table(String, #[source] GptError),
    #[error("the partition table of {0} can't be written")]
    Write(String, #[source] std::io::Error),
    #[error("partition {number} of {disk} did not appear")]
    NoNode { disk: String, number: u32 },
    #[error("mke2fs on {0} ended with {1:?}: {2}")]
    Format(String, Ended, String),
}

/// What was found or done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It was there.
    Found,
    /// It was made now.
    Made,
}

/// Mounts the state at [`TARGET`], making it where the disk has none.
pub fn open(root_hash: &[u8; 32]) -> Result<State, Fatal> {
    let fatal = |cause: StateError| {
        let cure = if matches!(cause, StateError::Table(..)) { ROOM_CURE } else { CURE };
        Fatal::hold("STATE", cure, cause)
    };
    let root = disks::with_root(root_hash).ok_or_else(|| fatal(StateError::NoDisk))?;
    let named = |name: &str| root.table.partitions().find(|part| part.name == name);
    let (state, part) = match (named(LABEL), named(UNFINISHED)) {
        (Some(part), _) => (State::Found, node(&root.disk, part.number).map_err(fatal)?),
        (None, Some(part)) => (State::Made, format(&root.disk, &root.table, &part).map_err(fatal)?),
        (None, None) => (State::Made, make(&root).map_err(fatal)?),
    };
    let system = |cause: agent_sys::Error| Fatal::hold("STATE", CURE, cause);
    mount(&part.node(), TARGET, "ext4", LIMITS, "errors=remount-ro").map_err(system)?;
    DIRECTORIES.iter().try_for_each(|(path, mode)| directory(path, *mode)).map_err(system)?;
    mount_again(VOLUMES, VOLUME_LIMITS).map_err(system)?;
    Ok(state)
}

fn make(root: &RootDisk) -> Result<Device, StateError> {
    let name = root.disk.node();
    let wanted = Wanted { kind: LINUX_DATA, id: random_guid(&name)?, name: UNFINISHED, least_bytes: LEAST_BYTES };
    let (table, part) = root.table.with(&wanted).map_err(|cause| StateError::Table(name.clone(), cause))?;
    let disk = write(&root.disk, &table)?;
    let sector = agent_sys::block::sector_bytes(&disk, &name).map_or(512, u64::from);
    let length = (part.last - part.first + 1) * sector;
    agent_sys::block::add_partition(&disk, &name, part.number, part.first * sector, length)
        .map_err(|cause| StateError::Write(name, std::io::Error::other(cause)))?;
    format(&root.disk, &table, &part)
}

fn write(disk: &Device, table: &Table) -> Result<File, StateError> {
    let name = disk.node();
    let writes = table.writes().map_err(|cause| StateError::Table(name.clone(), cause))?;
    let write = |cause| StateError::Write(name.clone(), cause);
    let file = File::options().read(true).write(true).open(&name).map_err(write)?;
    disks::write(&file, &writes).map_err(write)?;
    Ok(file)
}

fn format(disk: &Device, table: &Table, part: &Partition) -> Result<Device, StateError> {
    let device = node(disk, part.number)?;
    let node = device.node();
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
        &node,
    ];
    let (ended, output) = run(MKE2FS, &arguments, MKE2FS_OUTPUT)
        .map_err(|cause| StateError::Write(node.clone(), std::io::Error::other(cause)))?;
    if ended != Ended::Code(0) {
        let text = String::from_utf8_lossy(&output).lines().collect::<Vec<_>>().join(" / ");
        return Err(StateError::Format(node, ended, text));
    }
    write(disk, &table.renamed(part.number, LABEL))?;
    Ok(device)
}

fn node(disk: &Device, number: u32) -> Result<Device, StateError> {
    let found = disks::wait_for(NODE_LIMIT, || disks::partition(disk, number));
    found.ok_or_else(|| StateError::NoNode { disk: disk.node(), number })
}

fn random_guid(disk: &str) -> Result<Guid, StateError> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map_err(|cause| StateError::Write(disk.to_owned(), cause))?;
    Ok(Guid::parse(&text).unwrap_or(Guid([0xFF; 16])))
}
