//! The state partition: made on first boot behind the image, encrypted, opened with the TPM's key
//! and mounted at `/var`.
//!
//! Making it is two-phased by the partition's label, so that a power cut never leaves a half-made
//! file system that is taken for a state: `pratique-state-new` (may be formatted again) becomes
//! `pratique-state` only when mke2fs is done. The label is untrusted; it decides only whether an
//! unreadable state is replaced by a new one. [`crate::unlock`] decides whether the volume is
//! trusted, [`crate::generation`] whether its files are. There is no e2fsck in the image: ext4's
//! journal replay, done by the mount, covers power cuts; a filesystem that is damaged beyond that,
//! or in which the kernel found a fault while it was mounted ([`crate::ext4`]), is replaced on a
//! worker, and must be recovered on a master.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use agent_sys::crypt::{self, Volume};
use agent_sys::mount::{Limits, mount, mount_again};
use agent_sys::process::{Ended, run};
use agent_volume::header::{COPIES, DAMAGED, DATA_OFFSET, SIZE, VolumeKey, WrappingKey};
use agent_volume::kept::MADE;
use agent_volume::report::InitAnswer;
use agent_volume::{Reason, Report};

use crate::console::Console;
use crate::disks::{self, Device, RootDisk};
use crate::fatal::{AfterFailure, Fatal};
use crate::gpt::{GptError, NewPartition, Partition, Table};
use crate::guid::Guid;
use crate::mounts::directory;
use crate::state_kept::{keeps_the_disk, unrecoverable};
use crate::state_text::{made, opened_line, record};
use crate::unlock::{self, Owner, UnlockError, WaitingAgent};
use crate::{allowed, ext4, generation};

/// The finished partition's label.
pub const LABEL: &str = "pratique-state";
const UNFINISHED: &str = "pratique-state-new";
/// Where the state is mounted.
pub const TARGET: &str = "/var";
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

const CURE: &str = "check the disk; a worker's state can be made anew by writing the whole image again (what the machine stored is lost)";
const ROOM_CURE: &str = "enlarge the disk behind the image";

/// Options of the mount on the disk, and in memory where the disk is left alone.
const DISK: &str = "errors=remount-ro";
const MEMORY: &str = "mode=755,size=40%";
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

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("the disk of the running root cannot be found")]
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

/// The volume's name with the device mapper.
const NAME: &str = "state";
/// init's own part of the state.
pub(crate) const OWN: &str = "/var/lib/pratique/init";
/// The key of a master's recovery slot, stored in the volume: the master puts it into its recovery
/// copy. Earlier versions kept one for workers, too.
pub const RECOVERY: &str = "/var/lib/pratique/init/state-recovery";
/// The security version of the machine's last admission: the agent writes it.
const ADMITTED: &str = "/var/lib/pratique/agent/admitted-svn";
/// Facts about the state that the agent reports on the machine's Node.
const RECORD: &str = "/run/pratique/state.json";
const CLEAR: &str = "clear the TPM in the machine's firmware setup; a worker's state is then made anew, and a master's opens again by \
                     `pratique recover-state` (the admin's guide has the steps)";
const MAKE_ROOM: &str = "remove those indices with another system on this machine (`tpm2_nvundefine`), or clear the TPM in the machine's \
                         firmware setup; once it is cleared, a worker's state is made anew, and a master's opens again by \
                         `pratique recover-state` (the admin's guide has the steps)";
const LATER: &str = "trying again by a reboot in a minute";
const RENEWED: &str = "it is made anew by a reboot in a minute; what the machine stored is lost";
const MASTER_CURE: &str = "a master's state is never made anew: put back its disk, its board, or an image of its version; where the \
                           board is gone, `pratique recover-state` opens the state on this one (the admin's guide has the steps)";
const MASTER_DAMAGED: &str = "a master's state is never made anew by itself: put back a copy of this disk that was taken after its \
                              last start, or clear the TPM, write the whole image again and bring back the cluster from a snapshot by \
                              `master restore` (the admin's guide has the steps)";
const MASTER_GONE: &str = "a master's state is never made anew by itself: put back its disk, or the partition's entry and its label \
                           `pratique-state`; where its disk comes from another board, `pratique recover-state` opens the state on this \
                           one; to begin a new cluster here, clear the TPM in the machine's firmware setup (the admin's guide has the \
                           steps)";
/// The master's keys as they came with a state from another board, until the master has sealed them
/// to this one's TPM.
pub const RECOVERED_KEYS: &str = "/var/lib/pratique/init/recovered-keys.pem";

/// Why a volume that opened is not usable.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A state that is refused.
#[derive(Debug, thiserror::Error)]
#[error("the state is not opened: {0}")]
struct Refused(Reason);

/// The state's partition, and the disk that it is on.
struct StatePartition {
    root: RootDisk,
    part: Partition,
    device: Device,
    /// Whether it was made in this boot, or never finished.
    fresh: bool,
}

/// The admin who moved a state to this board: SHA-256 of the admin's key; `None` if the state was
/// made here.
pub type MovedBy = Option<[u8; 32]>;

/// What the services need to know about an open state.
#[derive(Debug)]
pub struct Opened {
    /// The partition with the approvals of the image that runs.
    pub approvals: String,
    /// The admin who moved the state to this board.
    pub moved_by: MovedBy,
}

/// Opens the state and mounts it at [`TARGET`]; makes it if there is none, or if a worker's does
/// not open. In any case the key can't be used again in this boot.
///
/// # Errors
/// A disk, TPM or file system that failed, or a master's state that does not open: each says what
/// this machine does next.
pub fn open(console: &Console, root_hash: &[u8; 32], owner: Owner) -> Result<Opened, Fatal> {
    let outcome = opened(console, root_hash, owner);
    let capped = leave_closed();
    let state = outcome?;
    capped.map(|()| state)
}

/// Has no one get the key in this boot, which has no use for the state.
///
/// # Errors
/// The TPM fails.
pub fn leave_closed() -> Result<(), Fatal> {
    unlock::cap().map_err(|cause| Fatal::retry("STATE", LATER, cause))
}

fn opened(console: &Console, root_hash: &[u8; 32], owner: Owner) -> Result<Opened, Fatal> {
    let partition = find_or_add(root_hash).map_err(fatal)?;
    let agent = unlock::ask(
        console,
        &partition.device.node(),
        &partition.root.hashes.node(),
        partition.fresh,
        owner,
    )
    .map_err(later)?;
    let recorded = record(&agent.report, &partition.device.node());
    let moved_by = mount_reported(console, agent, &partition, owner)?;
    std::fs::write(RECORD, recorded)
        .map_err(|cause| fatal(StateError::Write(RECORD.to_owned(), cause)))?;
    Ok(Opened {
        approvals: partition.root.hashes.node(),
        moved_by,
    })
}

/// Mounts the state as the agent reports it, or makes it, and lets the agent end.
fn mount_reported(
    console: &Console,
    agent: WaitingAgent,
    partition: &StatePartition,
    owner: Owner,
) -> Result<MovedBy, Fatal> {
    let report = agent.report.clone();
    match &report {
        Report::Opened {
            key,
            generation,
            admin,
            ..
        } => {
            own_state(console, agent, partition, key, *generation, owner)?;
            console.milestone(&opened_line(&report));
            return Ok(*admin);
        }
        Report::Recovered {
            key,
            generation,
            admin,
            keys,
        } => {
            recovered_state(console, agent, partition, key, *generation, keys)?;
            console.milestone(&opened_line(&report));
            return Ok(Some(*admin));
        }
        Report::Made {
            key,
            recovery,
            reason,
            renewals,
        } => {
            new_state(console, agent, partition, key, recovery.as_ref())?;
            console.line(&made(*reason, *renewals));
        }
        Report::Temporary { key, reason } => {
            agent.finish(console, None).map_err(later)?;
            temporary_state(console, partition, key, *reason)?;
        }
        Report::Refused { reason } => {
            agent.finish(console, None).map_err(later)?;
            return Err(refused(*reason));
        }
    }
    Ok(None)
}

/// Mounts a state that lasts until the next reboot: in memory where the one on the disk may open in
/// another boot, else on the disk.
fn temporary_state(
    console: &Console,
    partition: &StatePartition,
    key: &VolumeKey,
    reason: Reason,
) -> Result<(), Fatal> {
    let device = partition.device.node();
    if keeps_the_disk(reason, partition.fresh, Path::new(&device)) {
        mounted("tmpfs", "tmpfs", MEMORY).map_err(system)?;
        console.line(&format!(
            "pratique: WARNING STATE: the state is in memory and lasts only until the next reboot: {reason}; the state on the \
             disk stays as it is, for a boot that may open it"
        ));
        return Ok(());
    }
    formatted(partition, key, Lasts::UntilReboot)?;
    console.line(&format!(
        "pratique: WARNING STATE: the state lasts only until the next reboot: {reason}"
    ));
    Ok(())
}

/// Makes the file system of a new state, and has the agent note that it is finished.
fn new_state(
    console: &Console,
    agent: WaitingAgent,
    partition: &StatePartition,
    key: &VolumeKey,
    recovery: Option<&WrappingKey>,
) -> Result<(), Fatal> {
    if let Err(fatal) = formatted(partition, key, Lasts::Kept { recovery }) {
        drop(agent.finish(console, None));
        return Err(fatal);
    }
    moved(
        console,
        agent.finish(console, Some(InitAnswer { admitted: 0 })),
    )
}

/// Mounts the state of this machine, by its key and its header's generation, and has the agent move
/// it to the next generation.
fn own_state(
    console: &Console,
    agent: WaitingAgent,
    partition: &StatePartition,
    key: &VolumeKey,
    generation: u64,
    owner: Owner,
) -> Result<(), Fatal> {
    let node = decrypt(partition, key)?;
    if let Err(cause) = usable(&node, generation) {
        // The agent writes the next generation's header before it exits; the mark overwrites it.
        drop(agent.finish(console, None));
        return Err(damaged(partition, owner == Owner::Master, cause));
    }
    if owner != Owner::Master {
        unrecoverable(console, Path::new(RECOVERY));
    }
    let admitted = admitted();
    moved(
        console,
        agent.finish(console, Some(InitAnswer { admitted })),
    )
}

/// Mounts a state of another board that the admin's one-off key opened, and puts the master's keys
/// into it.
fn recovered_state(
    console: &Console,
    agent: WaitingAgent,
    partition: &StatePartition,
    key: &VolumeKey,
    generation: u64,
    keys: &[u8],
) -> Result<(), Fatal> {
    let node = decrypt(partition, key)?;
    // The header on the disk is still of the generation before.
    let ready = usable(&node, generation.saturating_sub(1))
        .and_then(|()| take_over(keys).map_err(Cause::from))
        .and_then(|()| {
            allowed::forget(Path::new(allowed::LIST), Path::new(OWN)).map_err(Cause::from)
        });
    if let Err(cause) = ready {
        drop(agent.finish(console, None));
        return Err(Fatal::hold("STATE", CURE, cause));
    }
    // By now the state is bound to this board, or a reboot recovers it again.
    agent
        .finish(console, Some(InitAnswer { admitted: 0 }))
        .map_err(later)
}

/// Puts the master's keys into the state, for the master to seal. It first removes what an earlier
/// attempt left.
fn take_over(keys: &[u8]) -> Result<(), agent_sys::Error> {
    let written = match std::fs::remove_file(RECOVERED_KEYS) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(cause),
        Ok(()) | Err(_) => keep(RECOVERED_KEYS, keys),
    };
    written.map_err(|cause| agent_sys::Error::new("write", RECOVERED_KEYS, cause))
}

/// A master's state that does not open.
fn refused(reason: Reason) -> Fatal {
    let cure = if reason == Reason::PartitionGone {
        MASTER_GONE
    } else {
        MASTER_CURE
    };
    Fatal::hold("STATE", cure, Refused(reason))
}

fn fatal(cause: StateError) -> Fatal {
    let cure = if matches!(cause, StateError::Table(..)) {
        ROOM_CURE
    } else {
        CURE
    };
    Fatal::hold("STATE", cure, cause)
}

/// A failure to get the key: the boot stops if only a person can fix it, as reboots would hide the
/// reason and change nothing.
fn later(cause: UnlockError) -> Fatal {
    match cause {
        UnlockError::Authorization => Fatal::hold("STATE", CLEAR, cause),
        UnlockError::Full => Fatal::hold("STATE", MAKE_ROOM, cause),
        UnlockError::Errand(_)
        | UnlockError::Failed(_)
        | UnlockError::Report
        | UnlockError::Pipe(_) => Fatal::retry("STATE", LATER, cause),
    }
}

/// A state that opened and did not move to its next generation. A temporary failure is only
/// printed, and the next boot moves the state. A permanent one stops the boot: with generation and
/// floor left behind, an older copy or an older image could come back.
fn moved(console: &Console, outcome: Result<(), UnlockError>) -> Result<(), Fatal> {
    match outcome.map_err(later) {
        Err(fatal) if fatal.then == AfterFailure::RebootLater => {
            console.line(&fatal.as_warning());
            Ok(())
        }
        outcome => outcome,
    }
}

fn system(cause: agent_sys::Error) -> Fatal {
    Fatal::hold("STATE", CURE, cause)
}

/// The number that the agent wrote; zero if the machine was never admitted.
fn admitted() -> u64 {
    let mut text = String::new();
    let read = File::open(ADMITTED).and_then(|file| file.take(32).read_to_string(&mut text));
    read.ok()
        .and_then(|_| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Finds the partition, or adds it to the table.
fn find_or_add(root_hash: &[u8; 32]) -> Result<StatePartition, StateError> {
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

fn decrypt(partition: &StatePartition, key: &VolumeKey) -> Result<String, Fatal> {
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

fn mounted(node: &str, kind: &str, options: &str) -> Result<(), agent_sys::Error> {
    mount(node, TARGET, kind, LIMITS, options)?;
    DIRECTORIES
        .iter()
        .try_for_each(|(path, mode)| directory(path, *mode))?;
    VOLUMES
        .iter()
        .try_for_each(|path| mount_again(path, VOLUME_LIMITS))
}

/// Mounts a volume that opened, and moves its files to the next generation unless they are older
/// than their header. A file system in which the kernel found faults is not used.
fn usable(node: &str, generation: u64) -> Result<(), Cause> {
    mounted(node, "ext4", DISK)?;
    ext4::without_faults(&File::open(node)?)?;
    generation::advance(Path::new(OWN), generation)?;
    Ok(())
}

/// How long the state of a volume lasts.
#[derive(Debug, Clone, Copy)]
enum Lasts<'a> {
    /// The TPM keeps the volume's key.
    Kept {
        /// The key of its recovery slot, if it has one.
        recovery: Option<&'a WrappingKey>,
    },
    /// Nothing keeps it.
    UntilReboot,
}

/// Makes the file system of a volume, mounts it, and sets the partition's label to finished. Where
/// nothing keeps the volume's key, the label stays as it is.
fn formatted(partition: &StatePartition, key: &VolumeKey, lasts: Lasts<'_>) -> Result<(), Fatal> {
    let StatePartition {
        root, part, fresh, ..
    } = partition;
    if !fresh && matches!(lasts, Lasts::Kept { .. }) {
        write(&root.disk, &root.table.renamed(part.number, UNFINISHED)).map_err(fatal)?;
    }
    let node = decrypt(partition, key)?;
    format(&node).map_err(fatal)?;
    mounted(&node, "ext4", DISK).map_err(system)?;
    if let Lasts::Kept { recovery } = lasts {
        if let Some(recovery) = recovery {
            let text = zeroize::Zeroizing::new(hex::encode(recovery.as_slice()));
            keep(RECOVERY, text.as_bytes())
                .map_err(|cause| fatal(StateError::Write(RECOVERY.to_owned(), cause)))?;
        }
        // The generation to which the agent moves header and TPM next.
        generation::note(Path::new(OWN), MADE + 1)
            .map_err(|cause| Fatal::hold("STATE", CURE, cause))?;
        write(&root.disk, &root.table.renamed(part.number, LABEL)).map_err(fatal)?;
    }
    Ok(())
}

/// Writes a new file that only root can read; it is on the disk when this returns.
fn keep(path: &str, secret: &[u8]) -> std::io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(secret)?;
    file.sync_all()?;
    // Syncs the directory too: the state is bound to this board next, and the keys are not
    // delivered again.
    Path::new(path)
        .parent()
        .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// A volume that opened and is not usable: on a worker it is marked, so that the next boot makes it
/// anew.
fn damaged(partition: &StatePartition, master: bool, cause: Cause) -> Fatal {
    if master {
        return Fatal::hold("STATE", MASTER_DAMAGED, cause);
    }
    let mut mark = DAMAGED.to_vec();
    mark.resize(SIZE, 0);
    let marked = File::options()
        .write(true)
        .open(partition.device.node())
        .and_then(|file| {
            COPIES
                .iter()
                .try_for_each(|offset| file.write_all_at(&mark, *offset))?;
            file.sync_all()
        });
    match marked {
        Ok(()) => Fatal::retry("STATE", RENEWED, cause),
        Err(_) => Fatal::hold("STATE", CURE, cause),
    }
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

fn write(disk: &Device, table: &Table) -> Result<File, StateError> {
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
    use super::{later, moved, refused};
    use crate::console::Console;
    use crate::fatal::AfterFailure;
    use crate::unlock::UnlockError;
    use agent_volume::Reason;

    #[test]
    fn a_master_whose_state_is_missing_is_held_and_told_how_to_begin_anew() {
        let fatal = refused(Reason::PartitionGone);
        let line = fatal.line();
        assert_eq!(fatal.then, AfterFailure::Hold, "{line}");
        for part in [
            "FATAL STATE",
            "recover-state",
            "pratique-state`",
            "clear the TPM",
        ] {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
        assert!(!refused(Reason::OtherKey).line().contains("clear the TPM"));
    }

    #[test]
    fn a_refusal_by_the_tpms_owner_stops_the_boot_and_says_what_to_do() {
        for (cause, word) in [
            (
                UnlockError::Authorization,
                "authorization of the TPM's owner",
            ),
            (UnlockError::Full, "NV memory is full"),
        ] {
            let fatal = later(cause);
            let line = fatal.line();
            assert_eq!(fatal.then, AfterFailure::Hold, "{line}");
            for part in ["FATAL STATE", word, "clear the TPM", "recover-state"] {
                assert!(line.contains(part), "no {part:?} in {line}");
            }
        }
        assert_eq!(
            later(UnlockError::Failed(70)).then,
            AfterFailure::RebootLater
        );
        // The same for an open state, which would stay behind for ever. A temporary failure does
        // not stop the boot.
        let console = Console::open();
        let refused = moved(&console, Err(UnlockError::Full)).expect_err("held");
        assert_eq!(refused.then, AfterFailure::Hold);
        moved(&console, Err(UnlockError::Failed(70))).expect("told");
        moved(&console, Ok(())).expect("moved");
    }
}
