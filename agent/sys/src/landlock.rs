//! A domain of processes whose signals stay inside of it (Landlock's signal scope, Linux 6.12;
//! landlock(7)).
//!
//! A process of the domain can signal, trace and inspect only processes of the domain, whatever its
//! user, its capabilities and its PID namespace are. Nothing leaves the domain: a child is in it
//! for good. Signals *into* the domain are not restricted, nor is anything else that its processes
//! do: files, mounts and networks are as before.
//!
//! Two domains cannot signal each other, so a restarted program must run in the same one: otherwise
//! it could not end what its predecessor left. The kernel gives a domain to a thread and to what
//! that thread starts, so a [`Domain`] is a thread of its own, which starts programs and does
//! nothing else.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use nix::errno::Errno;
use nix::libc;

use crate::error::{Context, Result};
use crate::process::{self, Program, Started};

/// `LANDLOCK_SCOPE_SIGNAL` (linux/landlock.h).
const SCOPE_SIGNAL: u64 = 1 << 1;
/// `LANDLOCK_CREATE_RULESET_VERSION` (linux/landlock.h).
const ASK_VERSION: u32 = 1;
/// The version of Landlock's interface that has signal scopes: that of Linux 6.12.
pub const NEEDED: i64 = 6;
/// The subject of errors.
const SUBJECT: &str = "a domain of signals (Landlock)";

/// `struct landlock_ruleset_attr` (linux/landlock.h) as Linux 6.12 has it.
#[repr(C)]
struct Attributes {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// A program to start, and where to send the result.
type StartRequest = (Program, SyncSender<Result<Started>>);

/// Programs started by it can send no signal to processes outside of it.
#[derive(Debug, Clone)]
pub struct Domain {
    requests: SyncSender<StartRequest>,
}

impl Domain {
    /// Makes a domain without any process yet. It needs `CAP_SYS_ADMIN`.
    ///
    /// # Errors
    /// Where the kernel is older than 6.12, was built or started without Landlock, or refuses it.
    pub fn new() -> Result<Self> {
        let ruleset = ruleset().at("make", SUBJECT)?;
        let (requests, received) = sync_channel::<StartRequest>(1);
        let (entered, outcome) = sync_channel(1);
        std::thread::Builder::new()
            .name("domain".to_owned())
            .spawn(move || {
                let inside = enter(&ruleset);
                drop(ruleset);
                if entered.send(inside).is_ok() && inside.is_ok() {
                    serve(&received);
                }
            })
            .at("start a thread for", SUBJECT)?;
        outcome
            .recv()
            .unwrap_or(Err(Errno::EPIPE))
            .at("enter", SUBJECT)?;
        Ok(Self { requests })
    }

    /// As [`process::start`], in this domain. The program is a child of the calling process.
    ///
    /// # Errors
    /// As [`process::start`].
    pub fn start(&self, program: &Program) -> Result<Started> {
        let (answer, outcome) = sync_channel(1);
        self.requests
            .send((program.clone(), answer))
            .map_err(|_gone| Errno::ESRCH)
            .at("start", &program.path)?;
        outcome
            .recv()
            .map_err(std::io::Error::other)
            .at("start", &program.path)?
    }
}

/// Starts programs until the last handle of the domain is dropped.
fn serve(requests: &Receiver<StartRequest>) {
    for (program, answer) in requests {
        drop(answer.send(process::start(&program)));
    }
}

/// The version of the kernel's Landlock; 0 where it has none, or was started without it.
pub fn version() -> i64 {
    // SAFETY: a null pointer of no bytes asks for the version, and the kernel reads nothing.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<Attributes>(),
            0_usize,
            ASK_VERSION,
        )
    };
    answer.max(0)
}

/// A ruleset that restricts signals and nothing else.
fn ruleset() -> nix::Result<OwnedFd> {
    let attributes = Attributes {
        handled_access_fs: 0,
        handled_access_net: 0,
        scoped: SCOPE_SIGNAL,
    };
    // SAFETY: the kernel reads as many bytes as the last but one argument says, which live until it
    // returns.
    let made = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attributes,
            size_of::<Attributes>(),
            0_u32,
        )
    };
    let fd = i32::try_from(Errno::result(made)?).map_err(|_too_large| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Puts the calling thread, and what it starts from now on, into a new domain.
fn enter(ruleset: &OwnedFd) -> nix::Result<()> {
    // SAFETY: the call takes two numbers; the descriptor is open for as long as it lasts.
    let answer =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    Errno::result(answer).map(drop)
}
