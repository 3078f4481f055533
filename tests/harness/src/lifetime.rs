//! Nothing that a test starts or writes outlives it: children, theirs, what they started in
//! sessions of their own, and temporary files, however the test's process ends, also by SIGKILL.
//!
//! Every command has a mark in its environment, which all its descendants inherit. A guard process
//! holds the reading end of a pipe; the kernel closes the writing end with the test's process, and
//! the guard then kills every process with the mark until none is left. A container's processes do
//! not inherit the mark; they are in a PID namespace whose first process does, and end with it, as
//! do mounts in a namespace of their own.
//!
//! A span may have a folder for temporary files, too. What is bound to it has that folder as
//! TMPDIR, and the guard removes it when nothing runs any more, with the mounts in it.
//!
//! Guarantee: soon after the process ends, everything bound to it has ended. Assumption: no one
//! kills the guard.

use crate::{Error, Result, wait::eventually};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Prefix of the names of marks; the rest is the process and a number, so that nested processes
/// have different marks.
const MARK: &str = "PRATIQUE_ENDS_WITH";
/// Waits for the pipe's end, then ends what carries the mark `$0`. A process that starts others
/// while it is being ended is met again in the next round; sixty seconds of rounds are for those
/// that the kernel holds. A process in the middle of an `execve` shows an empty environment for a
/// moment: only two rounds that found nothing are the end.
///
/// Then it removes the folder `$1`, after the mounts in it, so that the files behind a mount stay.
/// A mount that does not go keeps the folder.
const GUARD: &str = "trap '' HUP INT TERM; cat >/dev/null; n=0; none=0; while [ $n -lt 600 ]; do \
    found=$(grep -lzsxF \"$0\" /proc/[0-9]*/environ); \
    if [ -n \"$found\" ]; then none=0; else none=$((none + 1)); fi; [ $none -lt 2 ] || break; \
    for file in $found; do pid=${file#/proc/}; kill -KILL \"${pid%/environ}\"; done 2>/dev/null; \
    n=$((n + 1)); sleep 0.1; done; [ -n \"$1\" ] || exit 0; \
    while m=$(cut -d' ' -f5 /proc/self/mountinfo | grep -F \"$1/\" | tail -n1); [ -n \"$m\" ] && umount -l \"$m\"; do :; \
    done 2>/dev/null; [ -n \"$m\" ] || rm -rf --one-file-system \"$1\"";
/// Time for marked processes to be gone after they were ended.
const LIMIT: Duration = Duration::from_secs(60);

/// A span that processes are bound to. It ends when it is dropped, or with the process that made
/// it.
#[derive(Debug)]
pub struct Lifetime {
    name: String,
    /// For temporary files of what is bound to it.
    folder: Option<PathBuf>,
    guard: Child,
    /// Closed when this process ends, for any reason.
    pipe: Option<ChildStdin>,
}

impl Lifetime {
    /// Begins a span, with its guard.
    ///
    /// # Errors
    /// Where the guard, a shell, can't be started.
    pub fn begin() -> Result<Self> {
        Self::with(None)
    }

    /// Begins a span that has a folder for temporary files. Its path is short: those of sockets end
    /// after 107 bytes.
    ///
    /// # Errors
    /// Where the folder can't be made, or the guard can't be started.
    pub fn begin_with_folder() -> Result<Self> {
        let within = std::env::temp_dir();
        let mut named = tempfile::Builder::new();
        let made = named.prefix("pt").rand_bytes(5).tempdir_in(&within);
        let folder = made.map_err(crate::file_error("cannot make a folder in", &within))?;
        let lifetime = Self::with(Some(folder.path().to_owned()))?;
        // From here on it is the guard's to remove.
        drop(folder.keep());
        Ok(lifetime)
    }

    fn with(folder: Option<PathBuf>) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "{MARK}_{}_{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let mut command = Command::new("sh");
        command
            .args(["-c", GUARD])
            .arg(mark(&name))
            .args(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // A group of its own: a key that interrupts the test does not interrupt its guard.
        let started = command.process_group(0).spawn();
        let mut guard = started.map_err(|source| Error::Start {
            program: "the guard".to_owned(),
            source,
        })?;
        let pipe = guard.stdin.take();
        Ok(Self {
            name,
            folder,
            guard,
            pipe,
        })
    }

    /// Has what `command` starts end with this span, with its temporary files.
    pub fn bind<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some(folder) = &self.folder {
            command.env("TMPDIR", folder);
        }
        command.env(&self.name, "1")
    }

    /// Processes that are bound to this span and still run: pid and command line. A process that
    /// was started a moment ago may not show yet ([`GUARD`] says why).
    pub fn left(&self) -> Vec<(i32, String)> {
        marked(&mark(&self.name))
    }

    /// Ends the span and every process that is bound to it.
    ///
    /// # Errors
    /// Where something is left after a minute.
    pub fn end(mut self) -> Result<()> {
        self.close();
        let left = || Ok(self.left().is_empty().then_some(()));
        eventually(
            "the end of what a test started",
            LIMIT,
            "it may be stuck in the kernel",
            left,
        )
    }

    fn close(&mut self) {
        drop(self.pipe.take());
        // It ends when there is nothing left, or after a limit of its own.
        self.guard.wait().ok();
    }
}

impl Drop for Lifetime {
    fn drop(&mut self) {
        self.close();
    }
}

fn mark(name: &str) -> String {
    format!("{name}=1")
}

static OUTLIVES: AtomicBool = AtomicBool::new(false);

/// Has what is started from here on outlive this process, as the machines of `up` must.
pub fn outlive() {
    OUTLIVES.store(true, Ordering::Relaxed);
}

/// Has what `command` starts end with this process, however that ends.
///
/// # Errors
/// Where the guard can't be started.
pub fn bind(command: &mut Command) -> Result<&mut Command> {
    static OWN: OnceLock<Lifetime> = OnceLock::new();
    if OUTLIVES.load(Ordering::Relaxed) {
        return Ok(command);
    }
    if let Some(own) = OWN.get() {
        return Ok(own.bind(command));
    }
    let fresh = Lifetime::begin()?;
    // If two threads were first at once, the other's guard is dropped without effect.
    Ok(OWN.get_or_init(|| fresh).bind(command))
}

/// Processes whose environment holds `entry`.
fn marked(entry: &str) -> Vec<(i32, String)> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered =
        processes.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    let holds = |pid: i32| {
        let environment = std::fs::read(of(pid, "environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|one| one == entry.as_bytes())
    };
    let line = |pid: i32| {
        String::from_utf8_lossy(&std::fs::read(of(pid, "cmdline")).unwrap_or_default())
            .replace('\0', " ")
    };
    numbered
        .filter(|pid| holds(*pid))
        .map(|pid| (pid, line(pid)))
        .collect()
}

fn of(pid: i32, file: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(file)
}
