//! The demo of `cargo xtask up`, which a story checks: an application behind a Service, and a
//! client that sends requests without a pause while it is rolled to another version.

use crate::cluster::Lab;
use crate::{Result, file_error};
use std::time::Duration;

/// Deployment, Service and client.
const OBJECTS: &str = include_str!("../data/demo.yaml");
/// The client's pod.
pub const CLIENT: &str = "client";
/// Pods under emulation: pull, unpack, start, probes.
const LIMIT: Duration = Duration::from_secs(600);

/// The client's counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// Requests.
    pub asked: u64,
    /// Those without an answer.
    pub failed: u64,
    /// The last answer.
    pub answer: String,
}

/// A line of the client: `12 asked, 0 failed: hello, …`.
fn counted(line: &str) -> Option<Counted> {
    let (numbers, answer) = line.split_once(" failed: ")?;
    let (asked, failed) = numbers.split_once(" asked, ")?;
    Some(Counted {
        asked: asked.parse().ok()?,
        failed: failed.parse().ok()?,
        answer: answer.to_owned(),
    })
}

/// Applies the application and its client, and waits for the client's first answers.
pub fn begin(lab: &Lab) -> Result<Counted> {
    let file = lab.dir.join("demo.yaml");
    std::fs::write(&file, OBJECTS).map_err(file_error("cannot write", &file))?;
    lab.kubectl(&["apply", "-f", &file.display().to_string()])?;
    settled(lab)?;
    answered(lab, "version 1", 0)
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
    let last = |log: &str| log.lines().rev().find_map(counted);
    let words = ["logs", CLIENT, "--tail=3"];
    let what = format!("the client's answer of {version}");
    let log = lab.kubectl_until(&words, &what, LIMIT, |log| {
        last(log).is_some_and(|found| found.asked > after && found.answer.contains(version))
    })?;
    last(&log).ok_or(crate::Error::Missing(what))
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn the_clients_lines_are_read() {
        let line = "12 asked, 1 failed: hello, version 2, from worker-1, an attested machine";
        let found = counted(line).map(|found| (found.asked, found.failed));
        assert_eq!(found, Some((12, 1)));
        for line in [
            "",
            "wget: server returned error",
            "x asked, 1 failed: hello",
        ] {
            assert_eq!(counted(line), None, "{line}");
        }
    }
}
