//! The container runtime as containerd's shim starts it: crun, with the specification of a new
//! container from memory.
//!
//! The shim starts this program in the place of crun, with runc's command line. A new container's
//! specification is not the one that containerd put into the bundle, as that one has no process:
//! the agent wrote the whole of it into a folder in memory ([`config_machine::specification`]).
//! All other arguments go to crun unchanged.

use config_machine::programs::CRUN;
use config_machine::specification;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
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
    let error = Command::new(CRUN).args(arguments(given, folder)).exec();
    // The shim shows what its runtime writes here.
    drop(writeln!(
        std::io::stderr(),
        "cannot execute {CRUN}: {error}"
    ));
    ExitCode::from(NOT_EXECUTED)
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
