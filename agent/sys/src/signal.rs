//! Signals as a readable file, so that one poll waits for everything.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::error::{Context, Result};

/// Signals that PID 1 handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// SIGCHLD: some child ended.
    ChildEnded,
    /// SIGTERM: power off.
    PowerOff,
    /// SIGINT: reboot.
    Reboot,
}

/// The signals PID 1 takes, blocked in this thread (and those started later) and readable here.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks SIGCHLD, SIGTERM and SIGINT and opens them for reading. Call before threads are made.
    ///
    /// # Errors
    /// The kernel refuses, as it does where no descriptor is left.
    pub fn open() -> Result<Self> {
        let set: SigSet = [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT]
            .into_iter()
            .collect();
        set.thread_block().at("block", "signals")?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        SignalFd::with_flags(&set, flags)
            .map(Self)
            .at("open", "signals")
    }

    /// The next signal, without waiting.
    pub fn take(&mut self) -> Option<Heard> {
        let info = self.0.read_signal().ok()??;
        match i32::try_from(info.ssi_signo).ok()? {
            nix::libc::SIGTERM => Some(Heard::PowerOff),
            nix::libc::SIGINT => Some(Heard::Reboot),
            _ => Some(Heard::ChildEnded),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of `files` can be read or is closed, or the time is over; an interruption counts
/// as either.
pub fn wait_readable(files: &[BorrowedFd<'_>], limit: Duration) {
    let mut files: Vec<PollFd<'_>> = files
        .iter()
        .map(|file| PollFd::new(*file, PollFlags::POLLIN))
        .collect();
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    let _: nix::Result<i32> = poll(&mut files, timeout);
}
