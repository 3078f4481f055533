//! The container runtime as containerd's shim starts it: crun, with the specification of a new
//! container from memory.
//!
//! The shim starts this program in the place of crun, with runc's command line. A new container's
//! specification is not the one that containerd put into the bundle, as that one has no process:
//! the agent wrote the whole of it into a folder in memory ([`config_machine::specification`]).
//! All other arguments go to crun unchanged.
//!
//! Where the agent names no pipe for a stream, the shim starts this program with the machine's own
//! `/dev/null`. crun gives its streams to the user that is to run, with the machine's rights: the
//! root of a pod with users of its own, and the user of every command in a container. Such a user
//! could then close the device to the whole machine. So crun gets the device by a read-only mount,
//! where nothing changes its owner ([`agent_sys::attach::unchangeable`]), and goes on by its own
//! rule for `EROFS`.

use agent_sys::attach;
use config_machine::programs::CRUN;
use config_machine::specification;
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, isatty};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Options before the command's name that are followed by a value, as the shim gives them (go-runc
/// 1.0, `Runc.args`).
const WITH_VALUE: [&str; 3] = ["--root", "--log", "--log-format"];
/// The exit code of shells for a program that can't be executed (POSIX).
const NOT_EXECUTED: u8 = 126;

/// Becomes crun, with the arguments of this program; specifications are below `folder`.
///
/// Returns only where crun can't be executed.
pub fn crun(folder: &Path) -> ExitCode {
    let given: Vec<OsString> = std::env::args_os().skip(1).collect();
    let of_a_process = |at: usize| given[at] == "create" || given[at] == "exec";
    if command(&given).is_some_and(of_a_process)
        && let Err(error) = keep_devices()
    {
        let text = config_errors::chain(&*error);
        drop(writeln!(
            io::stderr(),
            "cannot keep the machine's devices from the container: {text}"
        ));
        return ExitCode::from(NOT_EXECUTED);
    }
    let error = Command::new(CRUN).args(arguments(given, folder)).exec();
    // The shim shows what its runtime writes here.
    drop(writeln!(io::stderr(), "cannot execute {CRUN}: {error}"));
    ExitCode::from(NOT_EXECUTED)
}

/// Puts devices by read-only mounts in the place of those that are the streams of this program.
///
/// # Errors
/// The kernel refuses it; then no container may be given the streams.
fn keep_devices() -> Result<(), Box<dyn std::error::Error>> {
    let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
    if let Some(safe) = safe(input.as_fd())? {
        dup2_stdin(safe)?;
    }
    if let Some(safe) = safe(output.as_fd())? {
        dup2_stdout(safe)?;
    }
    if let Some(safe) = safe(errors.as_fd())? {
        dup2_stderr(safe)?;
    }
    Ok(())
}

/// A stream's device, if it is one that crun would give away: pipes and terminals are the
/// container's own.
fn safe(stream: BorrowedFd<'_>) -> Result<Option<File>, agent_sys::Error> {
    let is_device = fstat(stream).is_ok_and(|found| {
        SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR
    });
    let is_given = is_device && !isatty(stream).unwrap_or(false);
    is_given.then(|| attach::unchangeable(stream)).transpose()
}

/// The arguments for crun: what was given, and with `create` where the container's specification
/// is.
fn arguments(given: Vec<OsString>, folder: &Path) -> Vec<OsString> {
    let mut all = given;
    let (Some(at), Some(id)) = (command(&all), all.last()) else {
        return all;
    };
    if all[at] == "create" {
        let path = specification::path(folder, &id.to_string_lossy());
        all.splice(
            at + 1..=at,
            [OsString::from("--config"), path.into_os_string()],
        );
    }
    all
}

/// The place of the command's name.
fn command(all: &[OsString]) -> Option<usize> {
    let mut value = false;
    all.iter().map(OsString::as_os_str).position(|word| {
        let is_command = !value && !word.as_encoded_bytes().starts_with(b"-");
        value = !value && WITH_VALUE.iter().any(|option| word == OsStr::new(option));
        is_command
    })
}

#[cfg(test)]
mod tests {
    use super::arguments;
    use std::ffi::OsString;
    use std::path::Path;

    fn given(text: &str) -> String {
        let words = text.split(' ').map(OsString::from).collect();
        let all = arguments(words, Path::new("/run/x"));
        all.join(OsString::from(" ".to_owned()).as_os_str())
            .into_string()
            .unwrap()
    }

    #[test]
    fn a_new_container_is_made_by_the_specification_in_memory() {
        assert_eq!(
            given(
                "--root /r --log /b/log.json --log-format json create --bundle /b --pid-file /b/p c1"
            ),
            "--root /r --log /b/log.json --log-format json create --config /run/x/c1/config.json --bundle /b --pid-file /b/p c1"
        );
    }

    #[test]
    fn every_other_command_is_crun_s_as_it_was_said() {
        for text in [
            "--root /r start create",
            "--root create delete --force c1",
            "--root /r --log create exec --process /p --detach c1",
            "--version",
        ] {
            assert_eq!(given(text), text);
        }
    }
}
