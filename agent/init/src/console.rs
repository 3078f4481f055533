//! The consoles: milestones and failures, one line each, so that a person or a test can follow the
//! boot on every console that the machine has: a screen, a serial line, the serial line that the
//! firmware names.
//!
//! Guarantees: a console that blocks (flow control on a serial line, a stopped screen) costs
//! [`PATIENCE`] once and then nothing until it accepts text again; missed lines are counted. No
//! other console waits for it.
//!
//! Init's own lines also go into the kernel's log, where the agent finds them until the end of the
//! boot.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agent_sys::terminal::{open, set_speed, wait_writable};
use config_machine::journal::{DAEMON, TAG};

use crate::fatal::Fatal;
use crate::spcr;

/// The consoles that the kernel writes to, by name: those of the command line that the machine has.
const ACTIVE: &str = "/sys/class/tty/console/active";
/// Used if there is no such list.
const FALLBACK: &str = "/dev/console";
/// How long a console may keep one line waiting: a serial line's buffer of 4 KiB takes this time at
/// 19200 bits a second.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most consoles; more than a machine has.
const MAX_CONSOLES: usize = 8;
/// The kernel's log.
const LOG: &str = "/dev/kmsg";
/// Most bytes of a line there: the kernel refuses records of more than 1024.
const MAX_LINE: usize = 900;

/// All consoles of the machine; a machine without one boots all the same. Clones write to the same
/// consoles, line by line.
#[derive(Debug, Clone)]
pub struct Console {
    outlets: Arc<Mutex<Vec<Outlet>>>,
    /// Where init's own lines are kept.
    log: Option<PathBuf>,
}

impl Console {
    /// Opens the consoles to which the kernel writes, and the serial line that the firmware names.
    pub fn open() -> Self {
        let active = std::fs::read_to_string(ACTIVE).unwrap_or_default();
        let mut files: Vec<File> = names(&active)
            .filter_map(|name| open(&format!("/dev/{name}")).ok())
            .collect();
        if let Some((name, baud)) =
            spcr::terminal().filter(|(name, _)| names(&active).all(|other| other != name))
        {
            let path = format!("/dev/{name}");
            let file = open(&path).ok();
            if let (Some(file), Some(baud)) = (&file, baud) {
                // If setting the speed fails, the line is only unreadable.
                drop(set_speed(file, &path, baud));
            }
            files.extend(file);
        }
        if files.is_empty() {
            files.extend(open(FALLBACK).ok());
        }
        let outlets = files.into_iter().map(|file| Outlet::new(file, PATIENCE));
        Self::of(outlets, Some(LOG.into()))
    }

    fn of(outlets: impl IntoIterator<Item = Outlet>, log: Option<PathBuf>) -> Self {
        let outlets = outlets.into_iter().take(MAX_CONSOLES).collect();
        Self {
            outlets: Arc::new(Mutex::new(outlets)),
            log,
        }
    }

    /// Writes `pratique: <ms since kernel start> <text>`.
    pub fn milestone(&self, text: &str) {
        self.line(&format!(
            "pratique: {} {text}",
            agent_sys::clock::since_boot().as_millis()
        ));
    }

    /// Writes a failure with what to do about it.
    pub fn fatal(&self, fatal: &Fatal) {
        self.line(&fatal.line());
    }

    /// Writes one line of init's own, cleaned of control characters, to every console and into the
    /// kernel's log.
    pub fn line(&self, text: &str) {
        self.keep(text);
        self.show(text);
    }

    /// Writes one line into the kernel's log, as a daemon's informational message (RFC 5424:
    /// facility 3, severity 6), which a kernel with `quiet` does not print.
    fn keep(&self, text: &str) {
        let mut line = format!("<{}>{TAG}{}", (DAEMON << 3) | 6, clean(text));
        let end = (0..=MAX_LINE).rev().find(|end| line.is_char_boundary(*end));
        line.truncate(end.unwrap_or_default());
        // Without a newline the kernel waits for the rest, and readers don't see the record before
        // the next one.
        line.push('\n');
        // Opened for each line, because the kernel limits the rate per open file.
        let log = self.log.as_ref().map(|path| {
            let mut open = File::options();
            open.append(true).open(path)
        });
        if let Some(Ok(mut log)) = log {
            // If the log can't be written, the consoles still have the line.
            drop(log.write_all(line.as_bytes()));
        }
    }

    /// Writes one line, cleaned of control characters, to every console.
    pub fn show(&self, text: &str) {
        let mut line = clean(text);
        line.push('\n');
        for outlet in self
            .outlets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter_mut()
        {
            outlet.line(line.as_bytes());
        }
    }
}

/// The names in the kernel's list of active consoles.
fn names(active: &str) -> impl Iterator<Item = &str> {
    active
        .split_ascii_whitespace()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// One console.
#[derive(Debug)]
struct Outlet {
    file: File,
    /// How long it may keep one line waiting.
    patience: Duration,
    /// It blocked for too long, and has accepted nothing since.
    stalled: bool,
    /// Lines that it missed, or got in part.
    missed: u64,
}

impl Outlet {
    fn new(file: File, patience: Duration) -> Self {
        Self {
            file,
            patience,
            stalled: false,
            missed: 0,
        }
    }

    fn line(&mut self, line: &[u8]) {
        if self.stalled && !wait_writable(&self.file, Duration::ZERO) {
            self.missed += 1;
            return;
        }
        let note = match std::mem::take(&mut self.missed) {
            0 => Vec::new(),
            missed => format!("\npratique: this console missed {missed} lines\n").into_bytes(),
        };
        let patience = if self.stalled {
            Duration::ZERO
        } else {
            self.patience
        };
        self.stalled = !self.write([note.as_slice(), line].concat().as_slice(), patience);
        self.missed += u64::from(self.stalled);
    }

    /// Writes all of it; false if the console did not accept it in time.
    fn write(&mut self, mut text: &[u8], patience: Duration) -> bool {
        let end = Instant::now() + patience;
        while !text.is_empty() {
            match self.file.write(text) {
                Ok(count) => text = text.get(count..).unwrap_or_default(),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => {
                    if !wait_writable(&self.file, end.saturating_duration_since(Instant::now())) {
                        return false;
                    }
                }
                // An error of a console can't be reported anywhere.
                Err(_) => return false,
            }
        }
        true
    }
}

/// `text` with control characters replaced, so that no program can control the reader's terminal.
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && c != '\t' {
                '\u{FFFD}'
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Console, MAX_LINE, Outlet, clean, names};
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\tc\r"), "a\u{FFFD}[2Jb\tc\u{FFFD}");
    }

    #[test]
    fn the_kernels_list_names_consoles_and_nothing_else() {
        assert_eq!(names("tty0 ttyS0\n").collect::<Vec<_>>(), ["tty0", "ttyS0"]);
        assert_eq!(names("../null hvc0").collect::<Vec<_>>(), ["hvc0"]);
    }

    /// Stands for a console: what is written on one side is read on the other.
    fn pair() -> (File, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (File::from(OwnedFd::from(ours)), theirs)
    }

    #[test]
    fn a_line_of_init_is_one_record_of_the_kernels_log() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let console = Console::of([], Some(log.path().to_owned()));
        console.show("agent: a line of a service");
        console.line("pratique: held\u{1b}[2J");
        let kept = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(kept, "<30>init: pratique: held\u{fffd}[2J\n");
        console.line(&"\u{e9}".repeat(2000));
        let kept = std::fs::read(log.path()).unwrap().len() - kept.len();
        assert!((MAX_LINE..=MAX_LINE + 1).contains(&kept), "{kept}");
    }

    #[test]
    fn a_blocked_console_delays_no_one_and_the_others_get_every_line() {
        let ((dead, mut silent), (alive, mut heard)) = (pair(), pair());
        // The patience is so long that the test would take a quarter of an hour if every line
        // waited for the blocked console.
        let both = [
            Outlet::new(dead, Duration::from_millis(50)),
            Outlet::new(alive, Duration::from_secs(3600)),
        ];
        let console = Console::of(both, None);
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            heard.read_to_string(&mut text).unwrap();
            text
        });
        let line = "x".repeat(1000);
        for _ in 0..20_000 {
            console.line(&line);
        }
        // It accepts text again: the next line comes with the number of missed ones.
        silent.set_nonblocking(true).unwrap();
        let mut sink = vec![0; 1 << 20];
        while silent.read(&mut sink).is_ok_and(|count| count > 0) {}
        console.line("back");
        let count = silent.read(&mut sink).unwrap();
        let written = String::from_utf8_lossy(&sink[..count]).into_owned();
        assert!(
            written.contains("this console missed") && written.ends_with("\nback\n"),
            "{written}"
        );
        drop(console);
        let text = reader.join().unwrap();
        assert_eq!(
            text.lines().filter(|heard| **heard == *line).count(),
            20_000
        );
        assert!(text.ends_with("\nback\n"));
    }
}
