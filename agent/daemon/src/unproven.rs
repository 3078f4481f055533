//! Chooses how the machine attests: by its TPM or, on a machine without one whose user-data allows
//! it, unproven.
//!
//! A machine with a TPM never joins without it: the setting has no effect there, and a failing TPM
//! is a failure. The key of a machine without one is made for this boot and never written to a
//! disk: nothing on the machine could protect it from someone with the disk. So the machine has a
//! new key after a reboot, which a person must approve again.

use crate::RunArguments;
use crate::console::say;
use crate::error::Error;
use agent_enroll::{Logs, NodeKey, Prover};
use agent_tpm::{Presence, Tpm};
use config_model::MachineConfig;
use config_tpm::Digest;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use zeroize::Zeroizing;

/// The key of this boot, in the folder for data of this boot.
const KEY: &str = "node-key";
/// Largest key that is read; P-256 in PKCS#8 has 138 bytes.
const KEY_LIMIT: u64 = 1024;
/// What a person can do to admit the machine nevertheless.
const WITHOUT: &str = "Where the cluster's rule says `insecure_no_tpm = true`, write `insecure_no_tpm = true` under `[machine]` \
                       and it asks without proving anything";

/// How a machine attests.
#[derive(Debug)]
pub(crate) enum Means {
    /// Its TPM.
    Tpm(Box<Prover>),
    /// Only by this key.
    Key(NodeKey),
}

/// Looks for the TPM, prints what cannot be proven, and opens it or makes the key of this boot.
pub(crate) async fn means(
    arguments: &RunArguments,
    machine: &MachineConfig,
) -> Result<Means, Error> {
    let (arguments, wanted) = (arguments.clone(), machine.insecure_no_tpm);
    let found = tokio::task::spawn_blocking(move || find(&arguments, wanted)).await;
    found.map_err(|error| Error::Part("TPM", error.into()))?
}

fn find(arguments: &RunArguments, wanted: bool) -> Result<Means, Error> {
    let presence = Presence::of(&arguments.tcti, &arguments.sys);
    let why = match presence {
        Presence::Tpm => {
            if wanted {
                say("`insecure_no_tpm` is not used: this machine has a TPM, and attests with it");
            }
            return open(arguments).map(|prover| Means::Tpm(Box::new(prover)));
        }
        Presence::NotDriven => {
            return Err(Error::NoTpm(
                "the firmware names a TPM 2.0 and the kernel drives none: look for tpm_crb and tpm_tis in the kernel's log, and \
                 reset the TPM in the firmware's settings; `insecure_no_tpm` is for machines that have none"
                    .to_owned(),
            ));
        }
        Presence::Tpm12 => {
            "this machine has a TPM 1.2, which has neither the registers nor the keys of the proof"
        }
        Presence::Absent => "this machine has no TPM",
    };
    if !wanted {
        let cure = if presence == Presence::Tpm12 {
            "where its firmware's settings can make it a TPM 2.0, do so"
        } else {
            "switch it on in the firmware's settings (TPM, fTPM, PTT, security device), or give the virtual machine one"
        };
        return Err(Error::NoTpm(format!(
            "{why}, so it cannot prove what it is: {cure}. {WITHOUT}"
        )));
    }
    let key = key(&arguments.run)?;
    say(&format!(
        "WARNING: {why}: NOTHING CAN BE PROVEN: not which machine this is, what it booted, with which configuration, or that its \
         key is here alone; it asks by `insecure_no_tpm`"
    ));
    say(&format!(
        "node key of this boot: {} (compare it before you approve this machine)",
        Digest::of(key.spki()).to_text()
    ));
    Ok(Means::Key(key))
}

fn open(arguments: &RunArguments) -> Result<Prover, Error> {
    let tpm = Tpm::open(&arguments.tcti).map_err(Error::Tpm)?;
    tpm.check().map_err(Error::Tpm)?;
    let config_event = arguments
        .config_event
        .clone()
        .unwrap_or_else(|| arguments.run.join("config-event.json"));
    let prover = Prover::new(
        tpm,
        Logs {
            firmware: arguments.event_log.clone(),
            config_event,
        },
    );
    match prover.lacks() {
        Ok(lacks) => lacks
            .iter()
            .for_each(|lack| say(&format!("NOT PROVABLE: {lack}"))),
        // The same failure is reported again when the TPM is used.
        Err(error) => tracing::warn!(
            error = config_errors::chain(&error),
            "cannot check what the TPM lacks for attestation"
        ),
    }
    Ok(prover)
}

/// The key of this boot: a restarted agent finds it again if the folder is in memory.
fn key(run: &Path) -> Result<NodeKey, Error> {
    let path = run.join(KEY);
    let kept = in_memory(run);
    if let Some(key) = kept
        .then(|| read(&path))
        .flatten()
        .and_then(|pkcs8| NodeKey::from_pkcs8(&pkcs8).ok())
    {
        return Ok(key);
    }
    let key = NodeKey::in_memory().map_err(Error::Enroll)?;
    if let Some(pkcs8) = key.to_pkcs8().filter(|_| kept) {
        write(&path, &pkcs8).map_err(|source| Error::File {
            what: "write",
            path,
            source,
        })?;
    }
    Ok(key)
}

fn in_memory(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC)
}

/// A key that this user wrote, and no one else can read.
fn read(path: &Path) -> Option<Zeroizing<Vec<u8>>> {
    let file = File::open(path).ok()?;
    let meta = file.metadata().ok()?;
    let own = meta.is_file()
        && meta.uid() == nix::unistd::geteuid().as_raw()
        && meta.mode() & 0o777 == 0o600;
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(KEY_LIMIT)
        .read_to_end(&mut bytes)
        .ok()
        .filter(|_| own)?;
    Some(bytes)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?
        .write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_is_kept_only_in_memory_and_reused_only_if_no_one_else_could_read_it() {
        let disk = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory");
        if !in_memory(disk.path()) {
            let first = key(disk.path()).expect("a key");
            assert_ne!(first.spki(), key(disk.path()).expect("a key").spki());
            assert!(!disk.path().join(KEY).exists(), "no key on a disk");
        }
        let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
            return;
        };
        let first = key(memory.path()).expect("a key");
        assert_eq!(first.spki(), key(memory.path()).expect("the same").spki());
        let path = memory.path().join(KEY);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))
            .expect("permissions");
        assert_ne!(first.spki(), key(memory.path()).expect("another").spki());
    }
}
