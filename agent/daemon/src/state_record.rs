//! What init found of the machine's state, shown on its Node; and for which security version the machine was admitted, kept
//! in the state for init's next look.

use agent_kubelet::{Notice, Notices};
use agent_volume::Reason;
use serde::Deserialize;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

/// The Node's condition: the state did not open at this boot and was made anew, or does not outlive the boot.
pub(crate) const STATE_RENEWED: &str = "StateRenewed";
/// What init writes, in the folder of what lives as long as the boot.
const RECORD: &str = "state.json";
const RECORD_LIMIT: u64 = 1024;
/// What init reads, in the folder of what outlives the agent.
const ADMITTED: &str = "admitted-svn";

/// init's record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    outcome: String,
    reason: String,
    renewals: u32,
    generation: u64,
}

/// Tells on the Node what init found; nothing on a host, where there is no init of ours.
pub(crate) fn tell(run: &Path, notices: &Notices) {
    let mut text = String::new();
    let read = std::fs::File::open(run.join(RECORD)).and_then(|file| file.take(RECORD_LIMIT).read_to_string(&mut text));
    match read.ok().map(|_| serde_json::from_str::<Record>(&text)) {
        Some(Ok(record)) => {
            tracing::info!(record.outcome, record.reason, record.renewals, record.generation, "the machine's state");
            notices.set(STATE_RENEWED, notice(&record));
        }
        Some(Err(error)) => tracing::warn!(%error, "init's record of the state cannot be understood"),
        None => {}
    }
}

fn notice(record: &Record) -> Notice {
    let renewals = record.renewals;
    let times = if renewals == 1 { "once".to_owned() } else { format!("{renewals} times") };
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
            message: format!("what this machine stores lasts as long as this boot: {reason}"),
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

/// Notes for which security version the machine was admitted: init raises the state's floor to it at the next boot.
pub(crate) fn note_admission(data: &Path, svn: Option<i64>) {
    let Some(svn) = svn.filter(|svn| *svn > 0) else { return };
    if let Err(error) = write(data, svn) {
        // The floor stays where it is; the next admission tries again.
        tracing::warn!(%error, "the admission's security version cannot be noted");
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

    fn record(outcome: &str, reason: &str, renewals: u32) -> Record {
        let text =
            format!("{{\"outcome\":\"{outcome}\",\"reason\":\"{reason}\",\"renewals\":{renewals},\"generation\":4}}\n");
        serde_json::from_str(&text).expect("a record")
    }

    #[test]
    fn a_renewed_state_is_told_with_its_reason_and_count_and_a_kept_one_is_not() {
        let renewed = notice(&record("made", "OlderCopy", 3));
        assert!(renewed.on && renewed.reason == "OlderCopy" && renewed.message.contains("3 times"), "{renewed:?}");
        assert!(notice(&record("temporary", "NoTpm", 0)).on);
        assert_eq!(notice(&record("made", "Floor-7", 1)).reason, "Floor");
        for (outcome, reason) in [("opened", ""), ("made", "FirstStart")] {
            assert!(!notice(&record(outcome, reason, 0)).on, "{outcome}");
        }
    }

    #[test]
    fn an_admission_is_noted_whole() {
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
