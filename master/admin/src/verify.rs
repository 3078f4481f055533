//! `pratique verify`: the log of verdicts, checked with nothing but the root's pin.

use crate::error::{Error, Result};
use crate::files;
use clap::Args;
use config_tpm::Digest;
use config_verdicts::{Head, LogFile, Summary, verify};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Largest file: more than a master ever keeps.
const LIMIT: u64 = 256 << 20;

/// What to check, and against what.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The log: `kubectl get --raw /verdicts > FILE`, or the segments of the master's
    /// `DATA/verdicts`; in any order.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Pin of the cluster's root, `sha256:…`; once more for a root that was rotated.
    #[arg(long, required = true)]
    ca_pin: Vec<String>,
    /// A head printed by an earlier run, `NUMBER:HASH`: the log must hold that record.
    #[arg(long)]
    noted: Vec<String>,
}

/// Checks, and prints the result.
pub(crate) fn run(args: &VerifyArgs) -> Result<()> {
    let pins = args
        .ca_pin
        .iter()
        .map(|text| pin(text))
        .collect::<Result<Vec<_>>>()?;
    let noted = args
        .noted
        .iter()
        .map(|text| head(text))
        .collect::<Result<Vec<_>>>()?;
    let read = args
        .files
        .iter()
        .map(|path| Ok(LogFile::new(path.display().to_string(), read(path)?)));
    let files = read.collect::<Result<Vec<_>>>()?;
    let summary = verify(&files, &pins, &noted).map_err(|fault| {
        let cure = "nothing after this line can be believed: fetch the log again, and if it is the same then, keep it for an \
                    inquiry; an admin's backup may hold the missing part";
        Error::input("the log of verdicts is NOT whole", fault.to_string(), cure)
    })?;
    files::say(&tell(&summary));
    Ok(())
}

fn pin(text: &str) -> Result<Digest> {
    let cure = "write it as bootstrap printed it: sha256: and 64 hex digits";
    text.parse()
        .map_err(|error| Error::input(format!("--ca-pin {text}"), format!("{error}"), cure))
}

fn head(text: &str) -> Result<Head> {
    let parsed = text.split_once(':').and_then(|(number, hash)| {
        Some(Head {
            number: number.parse().ok()?,
            hash: hash.parse().ok()?,
        })
    });
    let cure = "write it as an earlier run printed it: NUMBER:HASH";
    parsed.ok_or_else(|| Error::input(format!("--noted {text}"), "not a number and a hash", cure))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let file = std::fs::File::open(path).map_err(Error::file("read", path))?;
    let mut bytes = Vec::new();
    file.take(LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(Error::file("read", path))?;
    if bytes.len() as u64 > LIMIT {
        return Err(Error::input(
            path.display().to_string(),
            "larger than 256 MiB",
            "name the right file",
        ));
    }
    Ok(bytes)
}

fn tell(summary: &Summary) -> String {
    let mut lines = vec![format!(
        "whole: records {} to {} of cluster `{}`, signed by {} key(s) of its root",
        summary.first, summary.head.number, summary.cluster, summary.keys
    )];
    if summary.first > 1 {
        lines.push(format!(
            "records before {} were dropped by age; the chain goes on from what was signed then",
            summary.first
        ));
    }
    if let Some((first, last)) = &summary.times {
        lines.push(format!("from {first} to {last}"));
    }
    let count = |count: &u64, what: String| format!("  {count:>8}  {what}");
    lines.extend(
        summary
            .kinds
            .iter()
            .map(|(kind, number)| count(number, format!("{kind:?}").to_lowercase())),
    );
    lines.extend(
        summary
            .codes
            .iter()
            .map(|(code, number)| count(number, format!("refused or changed by {code}"))),
    );
    if summary.steps_back > 0 {
        lines.push(format!(
            "the master's clock was set back {} time(s)",
            summary.steps_back
        ));
    }
    lines.push(format!(
        "head, to be noted elsewhere: {}:{}",
        summary.head.number,
        summary.head.hash.to_hex()
    ));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_run_is_the_input_of_the_next() {
        let summary = Summary {
            head: Head {
                number: 7,
                hash: Digest::of(b"x"),
            },
            ..Summary::default()
        };
        let line = tell(&summary);
        let noted = line.lines().last().unwrap().rsplit(' ').next().unwrap();
        assert_eq!(head(noted).unwrap(), summary.head);
        assert!(head("7").is_err() && pin("sha256:zz").is_err());
    }
}
