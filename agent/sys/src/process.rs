//! Starting, ending and reaping processes.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};

use crate::error::{Context, Result};

/// A program to start, with nothing inherited but what is named here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Absolute path.
    pub path: String,
    /// Arguments after the program's name.
    pub arguments: Vec<String>,
    /// The whole environment.
    pub environment: Vec<(String, String)>,
    /// The control group directory to start in, which must exist.
    pub cgroup: Option<String>,
    /// From -1000 (never killed for memory) to 1000.
    pub oom_score: i16,
    /// Soft and hard limit of its open files; `None`: the limits of the calling process.
    pub open_files: Option<u64>,
}

/// A started program.
#[derive(Debug)]
pub struct Started {
    /// Its process id, also the id of its session.
    pub pid: i32,
    /// What it writes to standard output and error; reads never block.
    pub output: PipeReader,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Starts `program` in a session of its own, with no signal blocked and no input.
///
/// # Errors
/// The program cannot be executed, or no pipe or process can be made.
pub fn start(program: &Program) -> Result<Started> {
    let (output, writer) = output_pipe(&program.path)?;
    let shared = writer.try_clone().at("share the pipe of", &program.path)?;
    let pid = spawn(program, Stdio::null(), shared.into(), writer.into())?;
    Ok(Started { pid, output })
}

/// A started program, with pipes for its standard input and its standard output.
#[derive(Debug)]
pub struct Talking {
    /// The program; its output is what it writes to standard error.
    pub started: Started,
    /// Its standard input.
    pub input: PipeWriter,
    /// Its standard output; reads never block.
    pub answers: PipeReader,
}

/// As [`start`], with standard input and output for the caller alone.
///
/// # Errors
/// The program cannot be executed, or no pipe or process can be made.
pub fn start_talking(program: &Program) -> Result<Talking> {
    let name = program.path.as_str();
    let (output, errors) = output_pipe(name)?;
    let (answers, writer) = output_pipe(name)?;
    let (reader, input) = std::io::pipe().at("make a pipe for", name)?;
    let pid = spawn(program, reader.into(), writer.into(), errors.into())?;
    Ok(Talking {
        started: Started { pid, output },
        input,
        answers,
    })
}

/// A pipe whose reads never block.
fn output_pipe(name: &str) -> Result<(PipeReader, PipeWriter)> {
    let (output, writer) = std::io::pipe().at("make a pipe for", name)?;
    fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).at("make a pipe for", name)?;
    Ok((output, writer))
}

fn spawn(program: &Program, input: Stdio, output: Stdio, errors: Stdio) -> Result<i32> {
    let name = program.path.as_str();
    let group = match &program.cgroup {
        Some(path) => {
            let file = Path::new(path).join("cgroup.procs");
            Some(
                File::options()
                    .write(true)
                    .open(&file)
                    .at("enter the control group of", name)?,
            )
        }
        None => None,
    };
    let oom_score = program.oom_score.to_string();
    let open_files = program.open_files;
    let mut command = Command::new(name);
    command
        .args(&program.arguments)
        .env_clear()
        .envs(program.environment.iter().cloned())
        .current_dir("/");
    command.stdin(input).stdout(output).stderr(errors);
    let prepare = move || {
        setsid()?;
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        if let Some(most) = open_files {
            setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
        }
        if let Some(mut file) = group.as_ref() {
            file.write_all(b"0")?;
        }
        let mut own = File::options()
            .write(true)
            .open("/proc/self/oom_score_adj")?;
        own.write_all(oom_score.as_bytes())
    };
    // SAFETY: between fork and exec the closure makes plain system calls only (the paths are short
    // enough for std's stack buffer, the text was made before), so it takes no lock and allocates
    // nothing.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn().at("start", name)?;
    i32::try_from(child.id())
        .map_err(std::io::Error::other)
        .at("start", name)
}

/// Runs `program` to its end and returns how it ended with what it wrote, at most `limit` bytes.
///
/// # Errors
/// The program cannot be executed. How it ended is no error here.
pub fn run(path: &str, arguments: &[&str], limit: usize) -> Result<(Ended, Vec<u8>)> {
    let mut command = Command::new(path);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin")
        .stdin(Stdio::null());
    let mut done = command.output().at("run", path)?;
    done.stdout.append(&mut done.stderr);
    done.stdout.truncate(limit);
    Ok((ended(done.status), done.stdout))
}

fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Code(code),
        (None, Some(signal)) => Ended::Signal(signal),
        (None, None) => Ended::Code(-1),
    }
}

/// Reaps one dead child; `None` when there is none now.
pub fn reap() -> Option<(i32, Ended)> {
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => return Some((pid.as_raw(), Ended::Code(code))),
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                return Some((pid.as_raw(), Ended::Signal(signal as i32)));
            }
            Ok(
                WaitStatus::Stopped(..)
                | WaitStatus::Continued(_)
                | WaitStatus::PtraceEvent(..)
                | WaitStatus::PtraceSyscall(_),
            )
            | Err(Errno::EINTR) => {}
            Ok(WaitStatus::StillAlive) | Err(_) => return None,
        }
    }
}

/// Whether this process has any child, dead or alive.
pub fn has_children() -> bool {
    use nix::sys::wait::{Id, waitid};
    waitid(
        Id::All,
        WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT,
    ) != Err(Errno::ECHILD)
}

/// Protects this process: no other may read its memory, descriptors, environment or root folder, or
/// trace it, unless it holds CAP_SYS_PTRACE (prctl(2), PR_SET_DUMPABLE; ptrace(2), access mode
/// checking), and no core of it is written. A program that it executes is not covered and must call
/// this itself.
///
/// # Errors
/// The kernel refuses, as it never does for this request.
pub fn keep_private() -> Result<()> {
    nix::sys::prctl::set_dumpable(false).at("keep to itself", "this process")
}

/// Ends this process with a code and runs none of the handlers that libraries registered for its
/// end (`_exit(2)`, not `exit(3)`). For programs with threads that are not waited for: OpenSSL's
/// handler frees what a thread that still closes the TPM uses, and the process would end by a fault
/// (SIGSEGV) after its work was done. Flush standard output before.
pub fn leave(code: u8) -> ! {
    // SAFETY: the call takes a number, reads and writes no memory of this process, and does not
    // return.
    unsafe { nix::libc::_exit(i32::from(code)) }
}

/// Asks a process to end (SIGTERM). A process already gone is no error.
///
/// # Errors
/// The kernel refuses: the process belongs to another user.
pub fn ask_to_end(pid: i32) -> Result<()> {
    send(pid, Signal::SIGTERM)
}

/// Ends a process at once (SIGKILL). A process already gone is no error.
///
/// # Errors
/// The kernel refuses: the process belongs to another user.
pub fn end_at_once(pid: i32) -> Result<()> {
    send(pid, Signal::SIGKILL)
}

/// Sends SIGTERM (or, `at_once`, SIGKILL) to every process but this one. Only PID 1 may use it.
///
/// # Errors
/// The kernel refuses to send to any process.
pub fn end_everything(at_once: bool) -> Result<()> {
    send(
        -1,
        if at_once {
            Signal::SIGKILL
        } else {
            Signal::SIGTERM
        },
    )
}

fn send(pid: i32, signal: Signal) -> Result<()> {
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(cause) => Err(cause).at("signal process", &pid.to_string()),
    }
}

/// Replaces this process's program; returns only where that failed.
pub fn replace(path: &str, arguments: &[&str]) -> crate::Error {
    let cause = Command::new(path).args(arguments).env_clear().exec();
    crate::Error::new("execute", path, cause)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_private_process_is_not_dumpable() {
        assert_eq!(nix::sys::prctl::get_dumpable(), Ok(true));
        super::keep_private().unwrap();
        assert_eq!(nix::sys::prctl::get_dumpable(), Ok(false));
    }

    #[test]
    fn leave_runs_no_exit_handler_of_a_library() {
        extern "C" fn handler() {
            // SAFETY: as in `leave`.
            unsafe { nix::libc::_exit(9) }
        }
        const CHILD: &str = "PRATIQUE_TEST_LEAVES";
        if std::env::var_os(CHILD).is_some() {
            // SAFETY: the handler may run at any time: it only ends the process.
            let refused = unsafe { nix::libc::atexit(handler) };
            assert_eq!(refused, 0);
            super::leave(7);
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "process::tests::leave_runs_no_exit_handler_of_a_library",
        ]);
        let status = child.env(CHILD, "1").status().unwrap();
        assert_eq!(status.code(), Some(7));
    }
}
