//! The demo of `cargo xtask up`, which a story checks: an application on two machines behind a
//! Service and a NetworkPolicy, a client that sends requests without a pause while it is rolled to
//! another version, and a stranger that gets no answer.

use crate::cluster::Lab;
use crate::{Result, file_error};
use std::time::Duration;

/// Deployment, Service, NetworkPolicy, client and stranger.
const OBJECTS: &str = include_str!("../data/demo.yaml");
/// The client's pod.
pub const CLIENT: &str = "client";
/// The pod that the policy keeps out.
pub const STRANGER: &str = "stranger";
/// Pods under emulation: pull, unpack, start, probes.
const LIMIT: Duration = Duration::from_secs(600);

/// What a pod that asks has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// Requests.
    pub asked: u64,
    /// Those without an answer.
    pub failed: u64,
    /// The last answer.
    pub answer: String,
}

/// A line of a pod that asks: `12 asked, 0 failed: hello, …`.
fn counted(line: &str) -> Option<Counted> {
    let (numbers, answer) = line.split_once(" failed: ")?;
    let (asked, failed) = numbers.split_once(" asked, ")?;
    Some(Counted {
        asked: asked.parse().ok()?,
        failed: failed.parse().ok()?,
        answer: answer.to_owned(),
    })
}

/// The last count in a log.
fn last_count(log: &str) -> Option<Counted> {
    log.lines().rev().find_map(counted)
}

/// The machine of an answer: `hello, version 1, from worker-1, an attested machine`.
fn answered_by(answer: &str) -> Option<String> {
    let (_, rest) = answer.split_once(" from ")?;
    rest.split_once(',').map(|(node, _)| node.to_owned())
}

/// Applies the application and its client, and waits for the client's first answers.
pub fn begin(lab: &Lab) -> Result<Counted> {
    let file = lab.dir.join("demo.yaml");
    std::fs::write(&file, OBJECTS).map_err(file_error("cannot write", &file))?;
    lab.kubectl(&["apply", "-f", &file.display().to_string()])?;
    settled(lab)?;
    answered(lab, "version 1", 0)
}

/// Waits until the client has an answer from another machine than its own; that machine's name.
pub fn crossed(lab: &Lab) -> Result<String> {
    let own = lab.kubectl(&["get", "pod", CLIENT, "-o", "jsonpath={.spec.nodeName}"])?;
    let other = |log: &str| {
        let mut answers = log.lines().filter_map(counted);
        answers.find_map(|found| answered_by(&found.answer).filter(|node| *node != own.trim()))
    };
    let what = format!("an answer from another machine than {}", own.trim());
    let log = lab.kubectl_until(&["logs", CLIENT], &what, LIMIT, |log| other(log).is_some())?;
    other(&log).ok_or(crate::Error::Missing(what))
}

/// Waits until the stranger has asked twice more, with the policy in force; what it counted since.
pub fn denied(lab: &Lab) -> Result<Counted> {
    let words = ["logs", STRANGER, "--tail=1"];
    let what = "the stranger's count";
    let log = lab.kubectl_until(&words, what, LIMIT, |log| last_count(log).is_some())?;
    let (asked, failed) = last_count(&log).map_or((0, 0), |found| (found.asked, found.failed));
    let more = |log: &str| last_count(log).is_some_and(|found| found.asked >= asked + 2);
    let log = lab.kubectl_until(&words, what, LIMIT, more)?;
    let found = last_count(&log).ok_or(crate::Error::Missing(what.to_owned()))?;
    Ok(Counted {
        asked: found.asked - asked,
        failed: found.failed - failed,
        answer: found.answer,
    })
}

/// Rolls the application to version 2 and waits until the client has answers of it alone.
pub fn roll(lab: &Lab) -> Result<Counted> {
    lab.kubectl(&["set", "env", "deployment/hello", "VERSION=2"])?;
    settled(lab)?;
    let first = answered(lab, "version 2", 0)?;
    // The old pods end some seconds after the rollout; what they still get counts, too.
    answered(lab, "version 2", first.asked + 5)
}

fn settled(lab: &Lab) -> Result<()> {
    let limit = format!("--timeout={}s", LIMIT.as_secs());
    let words = ["rollout", "status", "deployment/hello", &limit];
    lab.kubectl(&words).map(drop)
}

/// Waits for an answer of the version after more than `after` requests.
fn answered(lab: &Lab, version: &str, after: u64) -> Result<Counted> {
    let words = ["logs", CLIENT, "--tail=3"];
    let what = format!("the client's answer of {version}");
    let log = lab.kubectl_until(&words, &what, LIMIT, |log| {
        last_count(log).is_some_and(|found| found.asked > after && found.answer.contains(version))
    })?;
    last_count(&log).ok_or(crate::Error::Missing(what))
}

#[cfg(test)]
mod tests {
    use super::{answered_by, counted};

    #[test]
    fn the_clients_lines_are_read() {
        let line = "12 asked, 1 failed: hello, version 2, from worker-1, an attested machine";
        let found = counted(line).map(|found| (found.asked, found.failed));
        assert_eq!(found, Some((12, 1)));
        assert_eq!(answered_by(line).as_deref(), Some("worker-1"));
        for line in [
            "",
            "wget: server returned error",
            "x asked, 1 failed: hello",
        ] {
            assert_eq!(counted(line), None, "{line}");
        }
    }
}
