//! Oneshot programs: init starts them before the services, and waits for their end for a limited
//! time.

use std::fs;
use std::io::{PipeReader, Read as _};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use agent_sys::process::{self, Ended, Program};
use agent_sys::signal::wait_readable;

use crate::console::Console;
use crate::lines::{Gate, Splitter};

/// Most memory of a oneshot program in bytes, and most processes and threads.
const MEMORY: &str = "134217728";
const PIDS: &str = "64";
/// How often the program's exit is polled.
const LOOK: Duration = Duration::from_millis(50);
/// Most reads of the output left in a program's pipe, which holds sixteen of them: its children may
/// go on writing.
const MAX_LEFT: usize = 16;
/// How long a killed program may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(2);

/// Why a oneshot program gave no exit code.
#[derive(Debug, thiserror::Error)]
pub enum OneshotError {
    /// It could not be started.
    #[error("it can't be started")]
    Start(#[source] agent_sys::Error),
    /// It took too long and was killed with all that it had started.
    #[error("it did not end in {0} s and was stopped")]
    TooLong(u64),
    /// A signal ended it.
    #[error("signal {0} ended it")]
    Signal(i32),
}

/// Runs `program` in a control group of its own, shows its output on the console, and returns its
/// exit code. After `limit` it is killed with everything that it started.
///
/// # Errors
/// [`OneshotError`] where it cannot be started, did not end in time, or was ended by a signal.
pub fn run(
    console: &Console,
    name: &str,
    program: &Program,
    limit: Duration,
) -> Result<i32, OneshotError> {
    confine(program);
    let started = process::start(program).map_err(OneshotError::Start)?;
    let mut shown = ProgramOutput::new(console, name);
    let mut pipe = Some(started.output);
    let end = Instant::now() + limit;
    let ended = loop {
        listen(&mut pipe, &mut shown, LOOK);
        // Nothing else was started yet, so any other child that exits is an orphan of this program.
        if let Some((_, how)) = process::reap().filter(|(pid, _)| *pid == started.pid) {
            break how;
        }
        if Instant::now() >= end {
            kill(program, started.pid);
            return Err(OneshotError::TooLong(limit.as_secs()));
        }
    };
    // Processes that it left behind are not needed any more.
    kill(program, started.pid);
    drain(&mut pipe, &mut shown);
    match ended {
        Ended::Code(code) => Ok(code),
        Ended::Signal(signal) => Err(OneshotError::Signal(signal)),
    }
}

/// Limits on the control group. A limit that the kernel does not support is skipped.
pub(crate) fn confine(program: &Program) {
    if let Some(group) = &program.cgroup {
        drop(fs::write(format!("{group}/memory.max"), MEMORY));
        drop(fs::write(format!("{group}/pids.max"), PIDS));
    }
}

/// Ends the program and, by its control group, all that it started; then reaps them.
pub(crate) fn kill(program: &Program, pid: i32) {
    if let Some(group) = &program.cgroup {
        drop(fs::write(format!("{group}/cgroup.kill"), "1"));
    }
    drop(process::end_at_once(pid));
    let end = Instant::now() + KILL_LIMIT;
    while process::has_children() && Instant::now() < end {
        while process::reap().is_some() {}
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A helper program's output, forwarded to the console.
pub(crate) struct ProgramOutput<'a> {
    console: &'a Console,
    name: &'a str,
    splitter: Splitter,
    gate: Gate,
}

impl<'a> ProgramOutput<'a> {
    pub(crate) fn new(console: &'a Console, name: &'a str) -> Self {
        Self {
            console,
            name,
            splitter: Splitter::default(),
            gate: Gate::new(Duration::ZERO),
        }
    }

    fn say(&mut self, line: &[u8]) {
        if self.gate.pass(agent_sys::clock::since_boot()).is_none() {
            return;
        }
        let text = String::from_utf8_lossy(line);
        let name = self.name;
        match text.strip_prefix("pratique: ") {
            Some(ours) => self.console.line(&format!("pratique: {name}: {ours}")),
            None => self.console.line(&format!("{name}: {text}")),
        }
    }
}

/// Waits for output for at most `time`, and shows the lines that are complete; a closed pipe is
/// dropped. Returns whether anything was read.
pub(crate) fn listen(
    pipe: &mut Option<PipeReader>,
    shown: &mut ProgramOutput<'_>,
    time: Duration,
) -> bool {
    let Some(open) = pipe.as_mut() else {
        std::thread::sleep(time);
        return false;
    };
    wait_readable(&[open.as_fd()], time);
    let mut buffer = [0; 4096];
    match open.read(&mut buffer) {
        Ok(0) => *pipe = None,
        Ok(length) => {
            for line in shown
                .splitter
                .push(buffer.get(..length).unwrap_or_default())
            {
                shown.say(&line);
            }
            return true;
        }
        Err(cause)
            if matches!(
                cause.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
            ) => {}
        Err(_) => *pipe = None,
    }
    false
}

/// Shows the output that an exited program left in its pipe, which says why it exited, and a last
/// line without a newline.
pub(crate) fn drain(pipe: &mut Option<PipeReader>, shown: &mut ProgramOutput<'_>) {
    for _ in 0..MAX_LEFT {
        if !listen(pipe, shown, Duration::ZERO) {
            break;
        }
    }
    if let Some(line) = shown.splitter.finish() {
        shown.say(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::{ProgramOutput, drain};
    use crate::console::Console;
    use std::io::Write as _;

    #[test]
    fn the_output_of_an_exited_program_is_read_to_its_end() {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        writer
            .write_all(&[b"a line\n".repeat(3_000), b"why it ended".to_vec()].concat())
            .expect("room in the pipe");
        drop(writer);
        let console = Console::open();
        let (mut pipe, mut shown) = (Some(reader), ProgramOutput::new(&console, "test"));
        drain(&mut pipe, &mut shown);
        assert!(pipe.is_none() && shown.splitter.finish().is_none());
    }
}
