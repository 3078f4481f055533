//! Decides whether a boot that can't open the state leaves it on the disk and keeps its own in
//! memory. Removes the recovery keys that earlier versions kept in workers' states.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use agent_volume::Reason;
use agent_volume::header::{COPIES, Header, SIZE};

use crate::console::Console;

/// Whether a boot that may not open the state leaves it on the partition. The machine was started
/// in an unapproved way (a kernel argument from outside, an unsigned image), with other user-data,
/// by an older image or one of the other role, or without its TPM, which may have failed for this
/// boot or be switched off; and the next boot as before needs its state. `fresh`: the table labels
/// the partition as unfinished.
pub(crate) fn keeps_the_disk(reason: Reason, fresh: bool, partition: &Path) -> bool {
    let as_before = matches!(
        reason,
        Reason::NotApproved
            | Reason::NoApprovals
            | Reason::NoTpm
            | Reason::OtherConfiguration
            | Reason::OtherRole
            | Reason::Floor(_)
    );
    as_before && (!fresh || holds_a_state(partition))
}

/// Whether a partition that the table labels as unfinished begins with a state's header: an
/// attacker with the disk can change the label. A partition that can't be read counts as one with a
/// header, so that no state is formatted by mistake.
fn holds_a_state(partition: &Path) -> bool {
    let read = |offset: &u64| {
        let mut bytes = vec![0; SIZE];
        File::open(partition)
            .and_then(|file| file.read_exact_at(&mut bytes, *offset))
            .map_or(true, |()| Header::parse(&bytes).is_ok())
    };
    COPIES.iter().any(read)
}

/// Removes the recovery key that an earlier version kept in a worker's state. Its slot in the
/// header goes when the agent moves the header: a key that can't be removed then opens nothing.
pub(crate) fn unrecoverable(console: &Console, key: &Path) {
    match std::fs::remove_file(key) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            console.line(&format!(
                "pratique: WARNING STATE: {} can't be removed: {cause}; it opens nothing any more",
                key.display()
            ));
        }
        Ok(()) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{holds_a_state, keeps_the_disk, unrecoverable};
    use crate::console::Console;
    use agent_volume::Reason;
    use agent_volume::header::{COPIES, DAMAGED, DATA_OFFSET, Header};
    use zeroize::Zeroizing;

    /// A firmware that doesn't start the TPM in one boot, or in which somebody switched it off.
    #[test]
    fn a_boot_without_the_tpm_leaves_a_state_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let partition = dir.path().join("partition");
        std::fs::write(&partition, vec![0; usize::try_from(DATA_OFFSET).unwrap()]).unwrap();
        assert!(keeps_the_disk(Reason::NoTpm, false, &partition));
        assert!(keeps_the_disk(Reason::OtherRole, false, &partition));
        assert!(
            !keeps_the_disk(Reason::NoTpm, true, &partition),
            "a machine that never had one has its state on the disk"
        );
        // Relabelled by somebody who has the disk.
        let header = Header::seal(1, &Zeroizing::new([1; 64]), &Zeroizing::new([2; 32]), None)
            .unwrap()
            .to_bytes();
        std::fs::write(&partition, [header, vec![0; 1 << 20]].concat()).unwrap();
        assert!(keeps_the_disk(Reason::NoTpm, true, &partition));
        assert!(
            !keeps_the_disk(Reason::OlderCopy, false, &partition),
            "made anew"
        );
    }

    #[test]
    fn a_workers_state_keeps_no_recovery_key() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("state-recovery");
        std::fs::write(&key, "5a".repeat(32)).unwrap();
        for _ in 0..2 {
            unrecoverable(&Console::open(), &key);
            assert!(!key.exists());
        }
    }

    /// A boot that may not open a state does not format it, even if an attacker relabelled the
    /// partition as unfinished.
    #[test]
    fn a_partition_that_is_called_new_and_holds_a_state_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let partition = dir.path().join("partition");
        let header = Header::seal(1, &Zeroizing::new([1; 64]), &Zeroizing::new([2; 32]), None)
            .unwrap()
            .to_bytes();
        let mut disk = vec![0; usize::try_from(DATA_OFFSET).unwrap()];
        for (at, bytes, expected) in [
            (None, &header[..], false),
            (Some(COPIES[0]), &header[..], true),
            (Some(COPIES[1]), &header[..], true),
            (Some(COPIES[0]), &DAMAGED[..], false),
        ] {
            disk.fill(0);
            if let Some(at) = at {
                let at = usize::try_from(at).unwrap();
                disk[at..at + bytes.len()].copy_from_slice(bytes);
            }
            std::fs::write(&partition, &disk).unwrap();
            assert_eq!(holds_a_state(&partition), expected, "{at:?}");
        }
        assert!(holds_a_state(&dir.path().join("absent")), "it may");
    }
}
