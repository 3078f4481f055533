//! What init says about the state: lines for the console, and facts for the agent.

use crate::state_partition::TARGET;
use agent_volume::{Reason, Report};

/// The milestone line of an existing state.
pub(crate) fn opened_line(report: &Report) -> String {
    match report {
        Report::Opened {
            generation,
            renewals,
            ..
        } => format!("state opened generation={generation} renewals={renewals}"),
        Report::Recovered {
            generation, admin, ..
        } => format!(
            "state of another board opened by the admin's key sha256:{} generation={generation}",
            hex::encode(admin)
        ),
        Report::Made { .. } | Report::Temporary { .. } | Report::Refused { .. } => String::new(),
    }
}

/// The console line of a new state.
pub(crate) fn made(reason: Reason, renewals: u32) -> String {
    if reason == Reason::FirstStart {
        return "pratique: state made: it is encrypted, and opens only for images of this release key".to_owned();
    }
    format!(
        "pratique: WARNING STATE: the state did not open and was made anew, for the {renewals}. time: {reason}; what the \
         machine stored is lost"
    )
}

/// The milestone line of a mounted state, with its mount options as the kernel shows them.
pub(crate) fn mounted() -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let options = options(&mounts, TARGET).unwrap_or("which the kernel does not show");
    format!("state mounted at {TARGET}: {options}")
}

/// The options of what was mounted last at a place, in the text of `/proc/self/mountinfo`
/// (proc(5)).
fn options<'a>(mountinfo: &'a str, place: &str) -> Option<&'a str> {
    mountinfo.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(4);
        (fields.next()? == place).then(|| fields.next())?
    })
}

/// One line of JSON for the agent. It holds no key.
pub(crate) fn record(report: &Report, partition: &str) -> String {
    let (outcome, reason, renewals, generation) = match report {
        Report::Opened {
            generation,
            renewals,
            ..
        } => ("opened", String::new(), *renewals, *generation),
        Report::Recovered { generation, .. } => ("recovered", String::new(), 0, *generation),
        Report::Made {
            reason, renewals, ..
        } => ("made", reason.word(), *renewals, 1),
        Report::Temporary { reason, .. } => ("temporary", reason.word(), 0, 0),
        Report::Refused { reason } => ("refused", reason.word(), 0, 0),
    };
    format!(
        "{{\"outcome\":\"{outcome}\",\"reason\":\"{reason}\",\"renewals\":{renewals},\"generation\":{generation},\"partition\":\"{partition}\"}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::Zeroizing;

    #[test]
    fn the_options_of_the_last_mount_of_a_place_are_shown() {
        let text = "24 1 0:5 / / ro - erofs x ro\n25 24 0:6 / /var rw,nosuid - tmpfs t rw\n\
                    26 25 0:7 / /var rw,noexec - ext4 /dev/dm-1 rw\n27 26 0:7 /a /var/lib rw - ext4 x rw\n";
        assert_eq!(options(text, "/var"), Some("rw,noexec"));
        assert_eq!(options(text, "/run"), None);
        assert_eq!(options("24 1", "/var"), None);
    }

    #[test]
    fn the_record_says_what_was_made_and_no_key() {
        let key = Zeroizing::new([0xAB; 64]);
        let report = Report::Made {
            key,
            recovery: Some(Zeroizing::new([0xAB; 32])),
            reason: Reason::OlderCopy,
            renewals: 2,
        };
        let expected =
            "{\"outcome\":\"made\",\"reason\":\"OlderCopy\",\"renewals\":2,\"generation\":1,";
        let text = record(&report, "/dev/vda6");
        assert_eq!(text, format!("{expected}\"partition\":\"/dev/vda6\"}}\n"));
    }

    #[test]
    fn the_record_of_a_moved_state_names_the_admin_and_no_key() {
        let report = Report::Recovered {
            key: Zeroizing::new([0xAB; 64]),
            generation: 8,
            admin: [0xCD; 32],
            keys: Zeroizing::new(vec![0xAB; 100]),
        };
        let line = opened_line(&report);
        assert!(
            line.contains(&"cd".repeat(32)) && line.ends_with("generation=8"),
            "{line}"
        );
        let record = record(&report, "/dev/vda6");
        assert!(
            record.starts_with(
                "{\"outcome\":\"recovered\",\"reason\":\"\",\"renewals\":0,\"generation\":8,"
            ),
            "{record}"
        );
        assert!(!format!("{line}{record}").contains("abab"));
    }

    #[test]
    fn making_a_state_warns_only_if_it_replaces_one() {
        assert!(!made(Reason::FirstStart, 0).contains("WARNING"));
        let line = made(Reason::OtherKey, 3);
        assert!(
            line.starts_with("pratique: WARNING STATE: ") && line.contains("for the 3. time"),
            "{line}"
        );
    }
}
