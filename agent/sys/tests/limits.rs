//! The limits with which a program starts.

use agent_sys::process::{self, Program};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use std::io::Read as _;
use tests_support::programs::shell;

#[test]
fn a_program_has_the_open_files_that_it_was_given_soft_and_hard() {
    let program = Program {
        open_files: Some(300),
        ..shell("ulimit -Sn; ulimit -Hn")
    };
    let mut started = process::start(&program).unwrap();
    waitpid(Pid::from_raw(started.pid), None).unwrap();
    let mut said = String::new();
    started.output.read_to_string(&mut said).unwrap();
    assert_eq!(said, "300\n300\n");
}
