//! `agent state-key`: asks the TPM for the key of the machine's state, for init, before the state
//! is mounted.
//!
//! The key goes only to init, by standard output. After mounting the state, init answers by
//! standard input with the security version of the machine's last admission (zero for a state that
//! was just made); then header and TPM move to the next generation. Afterwards init extends the cap
//! register, so that nothing can get the key again in this boot.
//!
//! The admin's one-off key in front of a master's state opens it on another board
//! ([`crate::state_recovery`]).

use crate::approvals;
use crate::error::Error;
use crate::machine::ImageDescription;
use crate::state_medium::{Partition, TpmStore, fault, part};
use crate::state_recovery::{self, Unrecovered};
use agent_tpm::{Presence, Tpm, Unlock};
use agent_volume::engine::{self, ClosedVolume, OpenOutcome};
use agent_volume::report::{InitAnswer, MAX_ANSWER};
use agent_volume::{BootFacts, Reason, Report, header};
use config_tpm::Digest;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Arguments of `agent state-key`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StateKeyArguments {
    /// The state partition.
    #[arg(long)]
    partition: PathBuf,
    /// The partition that ends with the image's approvals.
    #[arg(long)]
    approvals: PathBuf,
    /// The partition was made just now, or was never finished.
    #[arg(long)]
    fresh: bool,
    /// The digest of the configuration that the state belongs to (64 hexadecimal digits), where it
    /// belongs to one.
    #[arg(long)]
    configuration: Option<Digest>,
    /// The booted image's description.
    #[arg(long, default_value = "/etc/pratique/image.toml", hide = true)]
    image: PathBuf,
    /// The TPM, in tpm2-tss's notation.
    #[arg(long, default_value = "device:/dev/tpmrm0", hide = true)]
    tcti: String,
    /// The kernel's folder of devices (`/sys`).
    #[arg(long, default_value = "/sys", hide = true)]
    sys: PathBuf,
}

/// Finds the state's key, passes it to init, and moves to the next generation.
///
/// # Errors
/// The disk or the TPM failed. Then no new state was made.
pub(crate) fn run(arguments: &StateKeyArguments) -> Result<u8, Error> {
    run_with(arguments, &mut io::stdin().lock(), &mut io::stdout().lock())
}

fn run_with(
    arguments: &StateKeyArguments,
    input: &mut impl Read,
    output: &mut impl Write,
) -> Result<u8, Error> {
    let image = ImageDescription::read(&arguments.image).unwrap_or_default();
    let keeper = keeper(arguments, &image)?;
    let (tpm, unlock) = match keeper {
        Ok(found) => found,
        Err(reason) => return tell(output, &without(reason, &image)?).map(|()| 0),
    };
    let open = |path: &Path| File::options().read(true).write(true).open(path);
    let file = open(&arguments.partition).map_err(fault("open", &arguments.partition))?;
    let (mut disk, mut store) = (Partition(file), TpmStore { tpm, unlock });
    let facts = BootFacts {
        fresh: arguments.fresh,
        configuration: arguments.configuration.map(|digest| digest.0),
        recoverable: image.role == "master",
    };
    let svn = store.unlock.svn;
    let is_master = image.role == "master";
    match engine::open(&mut disk, &mut store, facts).map_err(part)? {
        OpenOutcome::Opened(opened) => {
            tell(output, &opened_report(&opened))?;
            // Without an answer init doesn't use the state, and nothing moves: this disk as it is,
            // or a copy from its last start, opens in another boot.
            if let Some(InitAnswer { admitted, boot }) = answer(input) {
                opened
                    .advance(&mut disk, &mut store, admitted.min(svn), boot)
                    .map_err(part)?;
            }
        }
        // The partition table is untrusted, so it does not make a master's state anew.
        OpenOutcome::Closed(ClosedVolume {
            reason,
            finished: true,
            ..
        }) if is_master && arguments.fresh => {
            tell(output, &Report::Refused { reason })?;
        }
        OpenOutcome::Closed(ClosedVolume { reason, .. }) if is_master && !arguments.fresh => {
            recover(&mut disk, &mut store, reason, input, output)?;
        }
        // Another boot of this machine may open the state: one with the user-data that made it, of
        // the newer image, or of the other role's. If a new state were made here, a typing error in
        // the user-data would lose the old one, booting any older image would lower the floor, and
        // a worker's image that is booted once would lose a master's state.
        OpenOutcome::Closed(closed) if let Some(reason) = of_another_boot(closed, svn) => {
            tell(output, &without(reason, &image)?)?;
        }
        OpenOutcome::Closed(closed) => {
            let made = engine::make(&mut disk, &mut store, svn, closed, facts).map_err(part)?;
            let report = Report::Made {
                key: made.volume,
                recovery: made.recovery,
                reason: closed.reason,
                renewals: made.renewals,
            };
            tell(output, &report)?;
            // Without an answer there is no file system, and the next boot makes it anew.
            if let Some(InitAnswer { boot, .. }) = answer(input) {
                engine::finish(&mut disk, &mut store, facts, boot).map_err(part)?;
            }
        }
    }
    Ok(0)
}

fn opened_report(opened: &engine::OpenVolume) -> Report {
    Report::Opened {
        key: opened.volume.clone(),
        generation: opened.generation(),
        boots: opened.boots.clone(),
        renewals: opened.kept.renewals,
        admin: opened.admin(),
    }
}

/// Opens a master's state of another board by the admin's one-off key, where there is one, and
/// binds it to this board once init uses it.
fn recover(
    disk: &mut Partition,
    store: &mut TpmStore,
    reason: Reason,
    input: &mut impl Read,
    output: &mut impl Write,
) -> Result<(), Error> {
    let found = match state_recovery::look(disk, store, reason) {
        Ok(found) => found,
        Err(Unrecovered::Refused(reason)) => return tell(output, &Report::Refused { reason }),
        Err(Unrecovered::Failed(error)) => return Err(error),
    };
    tell(output, &found.report())?;
    // Without an answer nothing was mounted or stored: the state stays bound to the other board.
    if let Some(InitAnswer { boot, .. }) = answer(input) {
        found.bind(disk, store, boot)?;
    }
    Ok(())
}

/// The reason if the state does not open now, but would open in another boot: of a newer image, of
/// one of the other role, or with the earlier user-data. What the TPM has for other images counts
/// whatever the disk holds, since an attacker can change the disk.
fn of_another_boot(closed: ClosedVolume, svn: u64) -> Option<Reason> {
    let newer = closed.floor.filter(|floor| *floor > svn);
    newer
        .map(Reason::Floor)
        .or(closed.other_role.then_some(Reason::OtherRole))
        .or((closed.reason == Reason::OtherConfiguration).then_some(closed.reason))
}

/// The TPM and the image's approvals, or why no key can be kept.
fn keeper(
    arguments: &StateKeyArguments,
    image: &ImageDescription,
) -> Result<Result<(Tpm, Unlock), Reason>, Error> {
    match Presence::of(&arguments.tcti, &arguments.sys) {
        Presence::Tpm => {}
        Presence::Tpm12 | Presence::NotDriven | Presence::Absent => return Ok(Err(Reason::NoTpm)),
    }
    let read = approvals::read(image, &arguments.approvals);
    let Some(unlock) = read.map_err(fault("read", &arguments.approvals))? else {
        return Ok(Err(Reason::NoApprovals));
    };
    let tpm = Tpm::open(&arguments.tcti).map_err(Error::Tpm)?;
    let good = tpm.approved(&unlock).map_err(Error::Tpm)?;
    Ok(if good {
        Ok((tpm, unlock))
    } else {
        Err(Reason::NotApproved)
    })
}

/// Without a place for a key: a worker's state lasts until the next reboot, a master has none.
fn without(reason: Reason, image: &ImageDescription) -> Result<Report, Error> {
    if image.role == "master" {
        return Ok(Report::Refused { reason });
    }
    let key = header::random_volume_key().map_err(|cause| Error::Part("state", Box::new(cause)))?;
    Ok(Report::Temporary { key, reason })
}

fn tell(output: &mut impl Write, report: &Report) -> Result<(), Error> {
    let written = output
        .write_all(report.to_text().as_bytes())
        .and_then(|()| output.flush());
    written.map_err(fault("write", Path::new("standard output")))
}

/// One line from init; `None` if init closed the pipe or sent anything else.
fn answer(input: &mut impl Read) -> Option<InitAnswer> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MAX_ANSWER && line.last() != Some(&b'\n') && input.read(&mut byte).ok()? == 1
    {
        line.extend(byte);
    }
    InitAnswer::parse(std::str::from_utf8(&line).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(role: &str) -> String {
        format!("id = \"x\"\nrole = \"{role}\"\nsvn = 1\n")
    }

    /// A machine without a TPM: a worker gets a new key in each boot, a master stops.
    #[test]
    fn without_a_tpm_a_state_lasts_until_the_next_reboot() {
        let dir = tempfile::tempdir().expect("a folder");
        let image = dir.path().join("image.toml");
        let arguments = StateKeyArguments {
            partition: "/nonexistent".into(),
            approvals: "/nonexistent".into(),
            fresh: false,
            configuration: None,
            image: image.clone(),
            tcti: format!("device:{}", dir.path().join("tpm").display()),
            sys: dir.path().to_owned(),
        };
        let asked = || {
            let mut output = Vec::new();
            assert_eq!(
                run_with(&arguments, &mut io::empty(), &mut output).expect("written"),
                0
            );
            Report::parse(std::str::from_utf8(&output).expect("text")).expect("a report")
        };
        std::fs::write(&image, text("worker")).expect("written");
        let (one, two) = (asked(), asked());
        assert!(
            matches!(
                one,
                Report::Temporary {
                    reason: Reason::NoTpm,
                    ..
                }
            ) && one != two,
            "{one:?}"
        );
        std::fs::write(&image, text("master")).expect("written");
        assert_eq!(
            asked(),
            Report::Refused {
                reason: Reason::NoTpm
            }
        );
    }

    #[test]
    fn an_answer_is_one_short_line() {
        let read = |text: &str| answer(&mut text.as_bytes());
        let whole = InitAnswer {
            admitted: 7,
            boot: [9; 8],
        };
        let text = whole.to_text();
        assert_eq!(read(&format!("{text}more")), Some(whole));
        assert_eq!(read(text.trim_end()), None, "cut");
        assert_eq!(read(&format!("{}{text}", "7".repeat(100))), None);
    }
}
