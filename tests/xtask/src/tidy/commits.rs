//! Subjects of commits: `room: imperative summary` in at most 72 characters.

use std::path::Path;
use std::process::Command;

/// Commits before this time were made without the rule.
const SINCE: &str = "2026-11-24T15:00:00Z";
/// Characters of a subject at most, so that `git log --oneline` shows it whole.
const MAX_SUBJECT: usize = 72;

/// Checks the subjects of the commits that lead to this tree. A tree without its history (an
/// archive) has none.
pub(super) fn commits(root: &Path, faults: &mut Vec<String>) {
    let log = Command::new("git")
        .args(["log", "--no-merges", "--format=%h %s", "--since", SINCE])
        .current_dir(root)
        .output();
    let Ok(log) = log else { return };
    for line in String::from_utf8_lossy(&log.stdout).lines() {
        if let Some((commit, subject)) = line.split_once(' ')
            && let Err(fault) = subject_of(subject)
        {
            faults.push(format!("commit {commit}: {subject:?} {fault}"));
        }
    }
}

/// Whether a subject keeps the rule.
///
/// # Errors
/// It does not; the text says how.
fn subject_of(subject: &str) -> Result<(), String> {
    let length = subject.chars().count();
    if length > MAX_SUBJECT {
        return Err(format!("has {length} characters; {MAX_SUBJECT} at most"));
    }
    let Some((room, summary)) = subject.split_once(": ") else {
        return Err("names no room; write `room: imperative summary`".to_owned());
    };
    let of_a_room = |letter: char| {
        letter.is_ascii_lowercase() || letter.is_ascii_digit() || " ,/-_.".contains(letter)
    };
    if !room.chars().all(of_a_room) {
        return Err("begins with no room in small letters".to_owned());
    }
    let verb = summary.split_whitespace().next().unwrap_or_default();
    let third_person =
        verb.ends_with('s') && !["ss", "us", "as"].iter().any(|end| verb.ends_with(end));
    let gerund = verb.ends_with("ing") && !["bring", "string", "ring", "ping"].contains(&verb);
    if verb.is_empty() || third_person || gerund {
        return Err(format!(
            "does not begin with an imperative after the room ({verb:?}); \"add\", not \"adds\" or \"adding\""
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_a_room_and_an_imperative_of_72_characters() {
        let long = format!("store: keep {}", "x".repeat(61));
        for good in [
            "store: keep names apart from keys",
            "api, kinds: pass values on",
            &long[..72],
        ] {
            assert_eq!(subject_of(good), Ok(()), "{good}");
        }
        for bad in [
            "keep names apart from keys",
            "Store: keep names apart",
            "store: keeps names apart",
            "store: keeping names apart",
            "store: ",
            &long,
        ] {
            assert!(subject_of(bad).is_err(), "{bad}");
        }
    }
}
