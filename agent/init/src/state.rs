//! The machine's state: made on first boot behind the image, encrypted, opened with the TPM's key
//! and mounted at `/var`.
//!
//! [`open`] does what the agent, which holds the TPM, reports. The partition itself is found, made
//! and mounted by `state_partition`; what a failure leads to is in `state_fault`.
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

use agent_volume::generation::BootNonce;
use agent_volume::header::{COPIES, DAMAGED, SIZE, VolumeKey, WrappingKey};
use agent_volume::kept::MADE;
use agent_volume::report::InitAnswer;
use agent_volume::{Reason, Report};

use crate::console::Console;
use crate::fatal::Fatal;
use crate::generation::StateGeneration;
use crate::state_fault::{
    CURE, Cause, LATER, RENEWED, StateError, fatal, later, masters_cure, recovery_cure, refused,
    system,
};
use crate::state_kept::{keeps_the_disk, unrecoverable};
use crate::state_partition::{
    DISK, LABEL, MEMORY, StatePartition, UNFINISHED, decrypt, find_or_add, format, mount_state,
    write,
};
use crate::state_text::{made, opened_line, record};
use crate::unlock::{self, Owner, WaitingAgent};
use crate::{allowed, ext4, generation};

/// init's own part of the state.
pub(crate) const OWN: &str = "/var/lib/pratique/init";
/// The key of a master's recovery slot, stored in the volume: the master puts it into its recovery
/// copy. Earlier versions kept one for workers, too.
pub const RECOVERY: &str = "/var/lib/pratique/init/state-recovery";
/// The security version of the machine's last admission: the agent writes it.
const ADMITTED: &str = "/var/lib/pratique/agent/admitted-svn";
/// Facts about the state that the agent reports on the machine's Node.
const RECORD: &str = "/run/pratique/state.json";
/// The master's keys as they came with a state from another board, until the master has sealed them
/// to this one's TPM.
pub const RECOVERED_KEYS: &str = "/var/lib/pratique/init/recovered-keys.pem";

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
    /// Its generation, which names what must not be set back; a state that ends with this boot has
    /// none.
    pub generation: Option<StateGeneration>,
}

/// Opens the state and mounts it at `/var`; makes it if there is none, or if a worker's does not
/// open. In any case the key can't be used again in this boot.
///
/// # Errors
/// A disk, TPM or file system that failed, or a master's state that does not open: each says what
/// this machine does next.
pub fn open(console: &Console, root_hash: &[u8; 32], owner: Owner) -> Result<Opened, Fatal> {
    let outcome = open_state(console, root_hash, owner);
    let capped = leave_closed();
    let state = outcome?;
    capped.map(|()| state)
}

/// Closes the state's key for the rest of this boot, which does not use the state.
///
/// # Errors
/// The TPM failed to extend the register that closes the key; the machine tries again.
pub fn leave_closed() -> Result<(), Fatal> {
    unlock::cap().map_err(|cause| Fatal::retry("STATE", LATER, cause))
}

fn open_state(console: &Console, root_hash: &[u8; 32], owner: Owner) -> Result<Opened, Fatal> {
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
    let (moved_by, generation) = mount_reported(console, agent, &partition, owner)?;
    let failed = |path: &str| {
        let path = path.to_owned();
        move |cause| fatal(StateError::Write(path, cause))
    };
    if let Some(generation) = &generation {
        let given = generation.give_key(Path::new(generation::KEY));
        given.map_err(failed(generation::KEY))?;
    }
    std::fs::write(RECORD, recorded).map_err(failed(RECORD))?;
    Ok(Opened {
        approvals: partition.root.hashes.node(),
        moved_by,
        generation,
    })
}

/// Mounts the state as the agent reports it, or makes it, and lets the agent end.
fn mount_reported(
    console: &Console,
    agent: WaitingAgent,
    partition: &StatePartition,
    owner: Owner,
) -> Result<(MovedBy, Option<StateGeneration>), Fatal> {
    let report = agent.report.clone();
    let of = |key: &VolumeKey| StateGeneration::of(Path::new(OWN), key);
    match &report {
        Report::Opened {
            key,
            generation,
            boots,
            admin,
            ..
        } => {
            let of_header = OfHeader {
                generation: *generation,
                boots,
            };
            own_state(console, agent, partition, key, of_header, owner)?;
            console.milestone(&opened_line(&report));
            Ok((*admin, Some(of(key))))
        }
        Report::Recovered {
            key,
            generation,
            admin,
            keys,
        } => {
            recovered_state(console, agent, partition, key, *generation, keys)?;
            console.milestone(&opened_line(&report));
            Ok((Some(*admin), Some(of(key))))
        }
        Report::Made {
            key,
            recovery,
            reason,
            renewals,
        } => {
            new_state(console, agent, partition, key, recovery.as_ref())?;
            console.line(&made(*reason, *renewals));
            Ok((None, Some(of(key))))
        }
        Report::Temporary { key, reason } => {
            agent.finish(console, None).map_err(later)?;
            temporary_state(console, partition, key, *reason)?;
            Ok((None, None))
        }
        Report::Refused { reason } => {
            agent.finish(console, None).map_err(later)?;
            Err(refused(*reason))
        }
    }
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
        mount_state("tmpfs", "tmpfs", MEMORY).map_err(system)?;
        console.line(&format!(
            "pratique: WARNING STATE: the state is in memory and lasts only until the next reboot: {reason}; the state on the \
             disk stays as it is, for a boot that may open it"
        ));
        return Ok(());
    }
    format_and_mount(partition, key, Lasts::UntilReboot)?;
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
    let boot = draw()?;
    if let Err(fatal) = format_and_mount(partition, key, Lasts::Kept { recovery, boot }) {
        drop(agent.finish(console, None));
        return Err(fatal);
    }
    let answer = InitAnswer { admitted: 0, boot };
    agent.finish(console, Some(answer)).map_err(later)
}

/// What a state's files have to belong to.
#[derive(Debug, Clone, Copy)]
struct OfHeader<'a> {
    /// The header's generation.
    generation: u64,
    /// The boots that this board's TPM has recorded; none where the state is of another board.
    boots: &'a [BootNonce],
}

/// A value for this boot.
fn draw() -> Result<BootNonce, Fatal> {
    config_state::generation::draw().map_err(|cause| Fatal::retry("STATE", LATER, cause))
}

/// Mounts the state of this machine, by its key and what its header and the TPM say, and has the
/// agent move it to the next generation.
///
/// A state that did not move is not used, as its header and floor would stay behind: any later copy
/// of it would fit them.
fn own_state(
    console: &Console,
    agent: WaitingAgent,
    partition: &StatePartition,
    key: &VolumeKey,
    of_header: OfHeader<'_>,
    owner: Owner,
) -> Result<(), Fatal> {
    let boot = draw()?;
    let node = decrypt(partition, key)?;
    let state = StateGeneration::of(Path::new(OWN), key);
    if let Err(cause) = usable(&node, &state, of_header, boot) {
        // Without an answer the agent leaves header and TPM as they are: a master's cure begins
        // from this disk, or from a copy that was taken after its last start.
        drop(agent.finish(console, None));
        return Err(damaged(partition, owner == Owner::Master, cause));
    }
    if owner != Owner::Master {
        unrecoverable(console, Path::new(RECOVERY));
    }
    let answer = InitAnswer {
        admitted: admitted(),
        boot,
    };
    agent.finish(console, Some(answer)).map_err(later)
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
    let boot = draw()?;
    let node = decrypt(partition, key)?;
    let state = StateGeneration::of(Path::new(OWN), key);
    // The header on the disk is still of the generation before.
    let of_header = OfHeader {
        generation: generation.saturating_sub(1),
        boots: &[],
    };
    let ready = usable(&node, &state, of_header, boot)
        .and_then(|()| take_over(keys).map_err(Cause::from))
        .and_then(|()| allowed::forget(Path::new(allowed::LIST), &state).map_err(Cause::from));
    if let Err(cause) = ready {
        drop(agent.finish(console, None));
        return Err(Fatal::hold("STATE", recovery_cure(&cause), cause));
    }
    // By now the state is bound to this board, or a reboot recovers it again.
    let answer = InitAnswer { admitted: 0, boot };
    agent.finish(console, Some(answer)).map_err(later)
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

/// The number that the agent wrote; zero if the machine was never admitted.
fn admitted() -> u64 {
    let mut text = String::new();
    let read = File::open(ADMITTED).and_then(|file| file.take(32).read_to_string(&mut text));
    read.ok()
        .and_then(|_| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Mounts a volume that opened, and moves its files to the next generation, that of `boot`, unless
/// they don't belong to their header. A file system in which the kernel found faults is not used.
fn usable(
    node: &str,
    state: &StateGeneration,
    of_header: OfHeader<'_>,
    boot: BootNonce,
) -> Result<(), Cause> {
    mount_state(node, "ext4", DISK)?;
    ext4::without_faults(&File::open(node)?)?;
    state.advance(of_header.generation, of_header.boots, boot)?;
    Ok(())
}

/// How long the state of a volume lasts.
#[derive(Debug, Clone, Copy)]
enum Lasts<'a> {
    /// The TPM keeps the volume's key.
    Kept {
        /// The key of its recovery slot, if it has one.
        recovery: Option<&'a WrappingKey>,
        /// The value of this boot.
        boot: BootNonce,
    },
    /// Nothing keeps it.
    UntilReboot,
}

/// Makes the file system of a volume, mounts it, and sets the partition's label to finished. Where
/// nothing keeps the volume's key, the label stays as it is.
fn format_and_mount(
    partition: &StatePartition,
    key: &VolumeKey,
    lasts: Lasts<'_>,
) -> Result<(), Fatal> {
    let StatePartition {
        root, part, fresh, ..
    } = partition;
    if !fresh && matches!(lasts, Lasts::Kept { .. }) {
        write(&root.disk, &root.table.renamed(part.number, UNFINISHED)).map_err(fatal)?;
    }
    let node = decrypt(partition, key)?;
    format(&node).map_err(fatal)?;
    mount_state(&node, "ext4", DISK).map_err(system)?;
    if let Lasts::Kept { recovery, boot } = lasts {
        if let Some(recovery) = recovery {
            let text = zeroize::Zeroizing::new(hex::encode(recovery.as_slice()));
            keep(RECOVERY, text.as_bytes())
                .map_err(|cause| fatal(StateError::Write(RECOVERY.to_owned(), cause)))?;
        }
        // The generation to which the agent moves header and TPM next.
        StateGeneration::of(Path::new(OWN), key)
            .note(MADE + 1, boot)
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
        return Fatal::hold("STATE", masters_cure(&cause), cause);
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
