//! Processes that were started here, and only those, are ended here.

use crate::{Error, Result, file_error, lifetime, wait::eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A process by pid and start time, so that a reused pid is not killed by mistake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// The program's name, for messages.
    pub program: String,
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot (proc(5), field 22 of stat).
    pub started: u64,
}

impl Owned {
    /// Starts `command` in a process group of its own, its output appended to `log`. It ends with
    /// this process, unless [`lifetime::outlive`] was called.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let out = open_log(log)?;
        let err = out
            .try_clone()
            .map_err(file_error("cannot share the log", log))?;
        lifetime::bind(&mut command)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Start {
                program: program.clone(),
                source,
            })?;
        let pid = child.id().cast_signed();
        // Reap in the background, so that an ended child does not look alive as a zombie.
        std::thread::spawn(move || {
            let mut child = child;
            drop(child.wait());
        });
        let started = start_time(pid).unwrap_or_default();
        Ok(Self {
            program,
            pid,
            started,
        })
    }

    /// Whether it still runs.
    pub fn alive(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// Asks it to end; after `grace`, ends it.
    pub fn stop(&self, grace: Duration) -> Result<()> {
        self.signal(Signal::SIGTERM);
        let gone = || Ok((!self.alive()).then_some(()));
        if eventually("the end of a process", grace, "", gone).is_ok() {
            return Ok(());
        }
        self.kill()
    }

    /// Ends it at once, as a power cut would.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::SIGKILL);
        let what = format!("{} (pid {}) to end", self.program, self.pid);
        eventually(
            &what,
            Duration::from_secs(120),
            "it may be stuck in the kernel",
            || Ok((!self.alive()).then_some(())),
        )
    }

    fn signal(&self, signal: Signal) {
        if self.alive() {
            // A process that ends between the look and the signal is what we want anyway.
            kill(Pid::from_raw(self.pid), signal).ok();
        }
    }
}

/// Runs `command` to its end and returns what it printed on stdout; a fault carries the end of its
/// stderr.
pub fn run(mut command: Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    lifetime::bind(&mut command)?;
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start {
            program: program.clone(),
            source,
        })?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(Error::Failed {
        program,
        status: output.status.to_string(),
        output: tail(&format!("{stdout}{stderr}"), 30),
    })
}

/// Resident memory of a process in KiB.
pub fn resident(pid: i32) -> Result<u64> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let status = std::fs::read_to_string(&path).map_err(file_error("cannot read", &path))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| Error::Missing(format!("no VmRSS of process {pid}")))
}

/// The last `lines` lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn open_log(log: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .map_err(file_error("cannot open the log", log))
}

/// Start time of a live process; none for one that is gone or a zombie.
fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?;
    // While other threads end, what the process holds open is not free yet.
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    if state == "X" || state == "Z" && threads() < 2 {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_started_process_is_alive_until_it_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000");
        let process = Owned::start(command, &dir.path().join("log")).unwrap();
        assert!(process.alive());
        process.stop(Duration::from_secs(5)).unwrap();
        assert!(!process.alive());
    }

    #[test]
    fn another_process_under_the_same_pid_is_not_ours() {
        let me = i32::try_from(std::process::id()).unwrap();
        let other = Owned {
            program: "x".into(),
            pid: me,
            started: 1,
        };
        assert!(!other.alive());
        other.stop(Duration::ZERO).unwrap();
    }

    #[test]
    fn a_failing_program_shows_the_end_of_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo found; echo lost >&2; false"]);
        let text = run(command).unwrap_err().to_string();
        assert!(text.contains("found") && text.contains("lost"), "{text}");
    }
}
