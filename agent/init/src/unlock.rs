//! Gets the state's key from the agent, which talks to the TPM.
//!
//! init starts `agent state-key` from the verified root, reads its report from a private pipe,
//! opens the state, tells the agent the security version of the machine's last admission, waits for
//! the agent's exit, and extends the cap register: from then on the TPM gives no one that key
//! before the next boot.

use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use agent_sys::process::{self, Ended, Program};
use agent_sys::signal::wait_readable;
use agent_volume::Report;
use agent_volume::report::{InitAnswer, MAX_REPORT};
use config_machine::state_key;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::console::Console;
use crate::oneshot::{self, OneshotError, ProgramOutput};

/// The register that is extended after the state was opened, or failed to open;
/// `config_unlock::approvals` says why this one.
pub const CAP_PCR: u32 = 8;
/// What is extended into it.
pub const CAP_EVENT: &[u8] = b"pratique: the state was opened in this boot";

const AGENT: &str = "/usr/bin/agent";
const GROUP: &str = "/sys/fs/cgroup/pratique/state-key";
/// How long the agent may take: a slow discrete TPM takes seconds for each of a dozen commands.
const LIMIT: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(50);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum UnlockError {
    /// It could not be started, took too long, or was ended.
    #[error("the agent can't ask the TPM")]
    Errand(#[source] OneshotError),
    /// It exited with a failure of disk or TPM, which it printed.
    #[error("the agent could not ask the TPM (code {0}): see its line above")]
    Failed(i32),
    /// The authorization of the TPM's owner hierarchy was changed.
    #[error(
        "another system on this machine changed the authorization of the TPM's owner hierarchy, and the state's key needs it"
    )]
    Authorization,
    /// The TPM has no room.
    #[error(
        "the TPM's NV memory is full of objects of other systems on this machine, and there is no room for the state's key"
    )]
    Full,
    /// Its output is not a valid report.
    #[error("the agent's answer can't be understood")]
    Report,
    /// The pipe to it broke.
    #[error("the answer to the agent can't be sent")]
    Pipe(#[source] io::Error),
}

/// The running agent, which waits for init's answer to its report.
#[derive(Debug)]
pub struct WaitingAgent {
    /// Its report.
    pub report: Report,
    agent: Agent,
}

#[derive(Debug)]
struct Agent {
    program: Program,
    pid: i32,
    input: Option<PipeWriter>,
    answers: PipeReader,
    output: Option<PipeReader>,
    ended: Option<Ended>,
    end: Instant,
}

/// Whose state it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A master's: it lists the configurations that may use it ([`crate::allowed`]).
    Master,
    /// A worker's.
    Worker {
        /// The digest of this boot's configuration, as it will be measured, where the image has the
        /// state belong to one.
        configuration: Option<[u8; 32]>,
    },
}

/// Asks for the key of the state on `partition`. `approvals` is the partition with the image's
/// approvals; `fresh` says that the state's partition was made just now, or was never finished.
///
/// # Errors
/// The agent cannot be started, ends, or answers something else than is asked for.
pub fn ask(
    console: &Console,
    partition: &str,
    approvals: &str,
    fresh: bool,
    owner: Owner,
) -> Result<WaitingAgent, UnlockError> {
    let made = fs::create_dir_all(GROUP).is_ok();
    let mut arguments = [
        "state-key",
        "--partition",
        partition,
        "--approvals",
        approvals,
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.extend(fresh.then(|| "--fresh".to_owned()));
    if let Owner::Worker {
        configuration: Some(configuration),
    } = owner
    {
        arguments.extend(["--configuration".to_owned(), hex::encode(configuration)]);
    }
    let program = Program {
        path: AGENT.to_owned(),
        arguments,
        environment: Vec::new(),
        cgroup: made.then(|| GROUP.to_owned()),
        oom_score: 0,
        open_files: None,
    };
    let (mut agent, mut shown) = (
        Agent::start(program)?,
        ProgramOutput::new(console, "state-key"),
    );
    match agent.report(&mut shown) {
        Ok(report) => Ok(WaitingAgent { report, agent }),
        Err(cause) => {
            agent.stop();
            Err(cause)
        }
    }
}

impl WaitingAgent {
    /// Sends the answer, if there is one, and waits for the agent's exit.
    ///
    /// # Errors
    /// The agent ended with a code that names its failure, or by a signal; or the answer can't be
    /// written to it, or its output can't be read.
    pub fn finish(
        mut self,
        console: &Console,
        answer: Option<InitAnswer>,
    ) -> Result<(), UnlockError> {
        let outcome = self
            .agent
            .finish(&mut ProgramOutput::new(console, "state-key"), answer);
        self.agent.stop();
        outcome
    }
}

impl Agent {
    fn start(program: Program) -> Result<Self, UnlockError> {
        oneshot::confine(&program);
        let started = process::start_talking(&program)
            .map_err(|cause| UnlockError::Errand(OneshotError::Start(cause)))?;
        Ok(Self {
            program,
            pid: started.started.pid,
            input: Some(started.input),
            answers: started.answers,
            output: Some(started.started.output),
            ended: None,
            end: Instant::now() + LIMIT,
        })
    }

    fn report(&mut self, shown: &mut ProgramOutput<'_>) -> Result<Report, UnlockError> {
        let mut text = Zeroizing::new(Vec::with_capacity(MAX_REPORT));
        loop {
            self.look(shown)?;
            let closed = self.read_available(&mut text)?;
            if text.ends_with(Report::END.as_bytes()) {
                return std::str::from_utf8(&text)
                    .ok()
                    .and_then(Report::parse)
                    .ok_or(UnlockError::Report);
            }
            match self.ended {
                Some(Ended::Code(code)) if closed => return Err(failed(code)),
                Some(Ended::Signal(signal)) => {
                    return Err(UnlockError::Errand(OneshotError::Signal(signal)));
                }
                Some(Ended::Code(_)) | None => {}
            }
        }
    }

    /// Reads the available part of the report; returns whether it is complete.
    fn read_available(&mut self, text: &mut Zeroizing<Vec<u8>>) -> Result<bool, UnlockError> {
        let mut buffer = Zeroizing::new(vec![0; MAX_REPORT]);
        match self.answers.read(&mut buffer) {
            Ok(0) => Ok(true),
            Ok(length) if text.len() + length <= MAX_REPORT => {
                text.extend_from_slice(buffer.get(..length).unwrap_or_default());
                Ok(false)
            }
            Ok(_) => Err(UnlockError::Report),
            Err(cause)
                if matches!(
                    cause.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(false)
            }
            Err(cause) => Err(UnlockError::Pipe(cause)),
        }
    }

    fn finish(
        &mut self,
        shown: &mut ProgramOutput<'_>,
        answer: Option<InitAnswer>,
    ) -> Result<(), UnlockError> {
        let input = self.input.take();
        if let (Some(mut input), Some(answer)) = (input, answer) {
            input
                .write_all(answer.to_text().as_bytes())
                .map_err(UnlockError::Pipe)?;
        }
        loop {
            match self.ended {
                Some(Ended::Code(0)) => return Ok(()),
                Some(Ended::Code(code)) => return Err(failed(code)),
                Some(Ended::Signal(signal)) => {
                    return Err(UnlockError::Errand(OneshotError::Signal(signal)));
                }
                None => self.look(shown)?,
            }
        }
    }

    /// Waits briefly for output, shows it, and checks whether the agent exited.
    fn look(&mut self, shown: &mut ProgramOutput<'_>) -> Result<(), UnlockError> {
        wait_readable(
            &[self.answers.as_fd()],
            if self.ended.is_none() {
                LOOK
            } else {
                Duration::ZERO
            },
        );
        oneshot::listen(&mut self.output, shown, Duration::ZERO);
        if self.ended.is_none() {
            // Nothing else was started yet, so any other child that exits is an orphan of the
            // agent.
            self.ended = process::reap()
                .filter(|(pid, _)| *pid == self.pid)
                .map(|(_, how)| how);
            if self.ended.is_some() {
                // Its last lines, such as the reason of a failure, may have come after the read
                // above.
                oneshot::drain(&mut self.output, shown);
            }
        }
        let late = self.ended.is_none() && Instant::now() >= self.end;
        if late {
            Err(UnlockError::Errand(OneshotError::TooLong(LIMIT.as_secs())))
        } else {
            Ok(())
        }
    }

    /// Kills what may be left of it.
    fn stop(&mut self) {
        if self.ended.is_none() {
            oneshot::kill(&self.program, self.pid);
        }
        // The control group is normally gone with its processes; what remains is empty.
        drop(fs::remove_dir(GROUP));
    }
}

/// The error for an exit code other than zero.
fn failed(code: i32) -> UnlockError {
    if code == i32::from(state_key::AUTHORIZATION) {
        UnlockError::Authorization
    } else if code == i32::from(state_key::FULL) {
        UnlockError::Full
    } else {
        UnlockError::Failed(code)
    }
}

/// Extends the cap register, so that no key of the state opens again in this boot. Does nothing
/// without a TPM.
///
/// # Errors
/// The TPM cannot be reached or refuses; then the state's keys can still be used in this boot.
pub fn cap() -> agent_sys::Result<()> {
    if !agent_sys::tpm::present() {
        return Ok(());
    }
    agent_sys::tpm::extend(CAP_PCR, &Sha256::digest(CAP_EVENT).into())
}

#[cfg(test)]
mod tests {
    use super::{CAP_EVENT, CAP_PCR, UnlockError, failed};

    #[test]
    fn failures_that_a_person_must_fix_have_their_own_errors() {
        assert!(matches!(failed(77), UnlockError::Authorization));
        assert!(matches!(failed(73), UnlockError::Full));
        for code in [1, 69, 70, 73 + 256] {
            assert!(matches!(failed(code), UnlockError::Failed(_)), "{code}");
        }
    }

    #[test]
    fn the_cap_event_is_the_one_in_the_approvals() {
        assert_eq!(CAP_PCR, u32::from(config_unlock::approvals::CAP_PCR));
        assert_eq!(CAP_EVENT, config_unlock::approvals::CAP_EVENT);
    }
}
