//! Shows init's report about the machine's state on its Node, and stores the security version of
//! the machine's admission for init's next boot.

use agent_kubelet::{Notice, Notices};
use agent_volume::Reason;
use agent_volume::header::{MAX_RECOVERY, RECOVERY_COPIES};
use config_errors::chain;
use serde::Deserialize;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The Node's condition: the state did not open in this boot and a new one was made, or it does not
/// survive a reboot.
pub(crate) const STATE_RENEWED: &str = "StateRenewed";
/// The file that init writes, in the folder for data of this boot.
const RECORD: &str = "state.json";
const RECORD_LIMIT: u64 = 1024;
/// The file that init reads, in the folder for persistent data.
const ADMITTED: &str = "admitted-svn";

/// init's record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateRecord {
    outcome: String,
    reason: String,
    renewals: u32,
    generation: u64,
    #[serde(default)]
    partition: String,
}

/// Sets the Node condition from init's report; does nothing if there is no report (tests on a
/// host).
pub(crate) fn tell(run: &Path, notices: &Notices) {
    if let Some(record) = read(run) {
        tracing::info!(
            outcome = record.outcome,
            reason = record.reason,
            renewals = record.renewals,
            generation = record.generation,
            "init's report on the encrypted state"
        );
        notices.set(STATE_RENEWED, notice(&record));
    }
}

fn read(run: &Path) -> Option<StateRecord> {
    let mut text = String::new();
    let file = std::fs::File::open(run.join(RECORD)).ok()?;
    file.take(RECORD_LIMIT).read_to_string(&mut text).ok()?;
    let parsed = serde_json::from_str(&text);
    parsed
        .inspect_err(|error| {
            tracing::warn!(
                error = chain(error),
                "cannot parse init's report on the encrypted state"
            );
        })
        .ok()
}

/// How often the recovery copy is checked: the master writes it again when the root is rotated.
const RECOVERY_PERIOD: Duration = Duration::from_secs(60);

/// Keeps a second recovery copy of the master's keys in front of the encrypted volume, where it can
/// be read without the TPM; ends if there is no such place.
pub(crate) async fn publish_recovery_copy(run: PathBuf, data: PathBuf) {
    let Some(record) = read(&run).filter(|record| !record.partition.is_empty()) else {
        return;
    };
    let Some(copy) = data
        .parent()
        .map(|folder| folder.join("master/ca/recovery.json"))
    else {
        return;
    };
    let mut published = Vec::new();
    loop {
        let (copy, partition) = (copy.clone(), PathBuf::from(&record.partition));
        let before = published.clone();
        let publish = move || publish(&copy, &partition, before);
        let outcome = tokio::task::spawn_blocking(publish).await;
        match outcome.map_err(io::Error::other).and_then(|done| done) {
            Ok(text) => published = text,
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "cannot write the recovery copy to the state partition's header area"
                );
            }
        }
        tokio::time::sleep(RECOVERY_PERIOD).await;
    }
}

/// Writes the copy if it differs; returns the stored copy.
fn publish(copy: &Path, partition: &Path, published: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let limit = u64::try_from(MAX_RECOVERY).unwrap_or(u64::MAX);
    std::fs::File::open(copy)?
        .take(limit.saturating_add(1))
        .read_to_end(&mut text)?;
    if text.len() > MAX_RECOVERY {
        return Err(io::Error::other("the recovery copy is too long"));
    }
    text.resize(MAX_RECOVERY, 0);
    if text == published {
        return Ok(published);
    }
    let file = std::fs::File::options().write(true).open(partition)?;
    for place in RECOVERY_COPIES {
        file.write_all_at(&text, place)?;
        file.sync_all()?;
    }
    Ok(text)
}

fn notice(record: &StateRecord) -> Notice {
    let renewals = record.renewals;
    let times = if renewals == 1 {
        "once".to_owned()
    } else {
        format!("{renewals} times")
    };
    let reason = Reason::of_word(&record.reason);
    match (record.outcome.as_str(), reason) {
        ("made", Some(reason)) if reason != Reason::FirstStart => Notice {
            on: true,
            reason: reason.name(),
            message: format!(
                "the state of this machine did not open at this boot and was made anew ({times} so far): {reason}; what the \
                 machine stored is lost"
            ),
        },
        ("temporary", Some(reason)) => Notice {
            on: true,
            reason: reason.name(),
            message: format!("what this machine stores lasts only until the next reboot: {reason}"),
        },
        _ => Notice {
            on: false,
            reason: "StateKept",
            message: format!(
                "the state of this machine is encrypted and bound to its boot; it was made anew {times} so far"
            ),
        },
    }
}

/// Stores the security version of the machine's admission: init raises the state's floor to it at
/// the next boot.
pub(crate) fn note_admission(data: &Path, svn: Option<i64>) {
    let Some(svn) = svn.filter(|svn| *svn > 0) else {
        return;
    };
    if let Err(error) = write(data, svn) {
        // The floor stays as it is; the next admission tries again.
        tracing::warn!(
            error = chain(&error),
            "the admission's security version cannot be stored"
        );
    }
}

fn write(data: &Path, svn: i64) -> io::Result<()> {
    let (path, neighbour) = (data.join(ADMITTED), data.join("admitted-svn.new"));
    let text = format!("{svn}\n");
    if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let mut file = std::fs::File::create(&neighbour)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(neighbour, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(outcome: &str, reason: &str, renewals: u32) -> StateRecord {
        let text = format!(
            "{{\"outcome\":\"{outcome}\",\"reason\":\"{reason}\",\"renewals\":{renewals},\"generation\":4}}\n"
        );
        serde_json::from_str(&text).expect("a record")
    }

    #[test]
    fn only_a_renewed_state_is_reported_with_its_reason_and_count() {
        let renewed = notice(&record("made", "OlderCopy", 3));
        assert!(
            renewed.on && renewed.reason == "OlderCopy" && renewed.message.contains("3 times"),
            "{renewed:?}"
        );
        assert!(notice(&record("temporary", "NoTpm", 0)).on);
        assert_eq!(notice(&record("made", "Floor-7", 1)).reason, "Floor");
        for (outcome, reason) in [("opened", ""), ("made", "FirstStart")] {
            assert!(!notice(&record(outcome, reason, 0)).on, "{outcome}");
        }
    }

    /// The data in front of the volume must not reach into it.
    #[test]
    fn a_recovery_copy_is_published_twice_and_only_in_front_of_the_volume() {
        let dir = tempfile::tempdir().expect("a folder");
        let (copy, partition) = (
            dir.path().join("recovery.json"),
            dir.path().join("partition"),
        );
        std::fs::write(&copy, "{\"version\":1}").expect("written");
        std::fs::write(&partition, vec![7; 2 << 20]).expect("written");
        let published = publish(&copy, &partition, Vec::new()).expect("published");
        let disk = std::fs::read(&partition).expect("read");
        for place in RECOVERY_COPIES {
            let text = &disk[usize::try_from(place).expect("small")..][..MAX_RECOVERY];
            assert_eq!(
                text.split(|byte| *byte == 0).next(),
                Some(&b"{\"version\":1}"[..])
            );
        }
        let data = usize::try_from(agent_volume::header::DATA_OFFSET).expect("small");
        assert!(
            disk[data..]
                .iter()
                .chain(&disk[..128 << 10])
                .all(|byte| *byte == 7)
        );
        std::fs::write(&copy, "{\"version\":1,\"root\":2}").expect("written");
        let renewed = publish(&copy, &partition, published.clone()).expect("published");
        assert_ne!(renewed, published, "a rotated root's copy");
        let disk = std::fs::read(&partition).expect("read");
        let at = usize::try_from(RECOVERY_COPIES[1]).expect("small");
        assert_eq!(disk[at..][..MAX_RECOVERY], renewed);
        std::fs::write(&copy, vec![1; MAX_RECOVERY + 1]).expect("written");
        assert!(publish(&copy, &partition, renewed).is_err());
    }

    #[test]
    fn an_admission_is_stored_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let noted = || std::fs::read_to_string(dir.path().join(ADMITTED)).ok();
        note_admission(dir.path(), None);
        assert_eq!(noted(), None);
        for svn in [2, 2, 3] {
            note_admission(dir.path(), Some(svn));
            assert_eq!(noted(), Some(format!("{svn}\n")));
        }
    }
}
