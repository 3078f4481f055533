//! Signals of a domain stay inside of it. On a kernel without such domains (before Linux 6.12)
//! making one must fail; the story in machines, whose kernel has them, then shows their effect.

use agent_sys::landlock::{self, Domain};
use agent_sys::process::{self, Program, Started};
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tests_support::programs::shell;

/// Time limit for a few shell commands.
const LIMIT: Duration = Duration::from_secs(60);
const SLEEP: &str = "exec sleep 1000";

/// A domain; `None` on a kernel without support, where making one must fail.
fn domain() -> Option<Domain> {
    let made = Domain::new();
    let has_them = landlock::version() >= landlock::NEEDED;
    assert_eq!(made.is_ok(), has_them, "{made:?}");
    made.ok()
}

/// The output of a program that has ended and was reaped.
fn said(mut started: Started) -> String {
    let (mut all, mut chunk) = (Vec::new(), [0; 4096]);
    let end = Instant::now() + LIMIT;
    loop {
        match started.output.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => all.extend_from_slice(&chunk[..length]),
            Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(Instant::now() < end, "the program goes on after {LIMIT:?}");
                std::thread::yield_now();
            }
            Err(cause) => return cause.to_string(),
        }
    }
    let pid = nix::unistd::Pid::from_raw(started.pid);
    nix::sys::wait::waitpid(pid, None).expect("a child of this process");
    String::from_utf8(all).expect("text")
}

/// A process that is ended with the test.
struct Victim(Child);

impl Victim {
    fn new() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().expect("sleep"))
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().expect("a child").is_none()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn root_of_a_domain_signals_traces_and_reads_no_process_outside() {
    let Some(domain) = domain() else { return };
    let mut victim = Victim::new();
    let pid = victim.0.id();
    let script = format!(
        "for s in KILL TERM INT STOP USR1; do kill -$s {pid} 2>/dev/null && echo $s; done; \
         kill -KILL -{pid} 2>/dev/null && echo group; sh -c 'kill -9 {pid}' 2>/dev/null && echo child; \
         setsid sh -c 'kill -9 {pid}' 2>/dev/null && echo session; readlink /proc/{pid}/ns/net; ls /proc/{pid}/root/; \
         echo done"
    );
    let tried = domain.start(&shell(&script)).expect("started");
    // It also contains the refusal that `ls` prints.
    let output = said(tried);
    let reached: Vec<&str> = output
        .lines()
        .filter(|line| !line.contains("ermission denied"))
        .collect();
    assert_eq!(reached, ["done"], "{output}");
    assert!(victim.lives());
    // Control: without a domain the same user can end it.
    let free = process::start(&shell(&format!("kill -9 {pid}"))).expect("started");
    assert_eq!(said(free), "");
    let ended = victim.0.wait().expect("a child");
    assert_eq!(ended.signal(), Some(9));
}

#[test]
fn a_restarted_program_can_signal_what_its_predecessor_left() {
    let Some(domain) = domain() else { return };
    let left = domain.start(&shell(SLEEP)).expect("started");
    let script = format!("kill -9 {} && echo ended", left.pid);
    let successor = domain.start(&shell(&script)).expect("started");
    assert_eq!(said(successor), "ended\n");
    assert_eq!(said(left), "");
    // Another domain does not, and this process, which is in none, does.
    let other = Domain::new().expect("another domain");
    let left = domain.start(&shell(SLEEP)).expect("started");
    let script = format!("kill -9 {} 2>/dev/null || echo refused", left.pid);
    assert_eq!(
        said(other.start(&shell(&script)).expect("started")),
        "refused\n"
    );
    process::end_at_once(left.pid).expect("ended from outside");
    assert_eq!(said(left), "");
}

#[test]
fn a_domain_restricts_no_mount_and_no_file() {
    let Some(domain) = domain() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display();
    let script = format!(
        "unshare -m sh -c 'mount -t tmpfs none {path} && touch {path}/file && mount --bind {path}/file /etc/hostname && \
         umount /etc/hostname && umount {path} && echo mounted'"
    );
    assert_eq!(
        said(domain.start(&shell(&script)).expect("started")),
        "mounted\n"
    );
}

#[test]
fn a_program_that_does_not_start_says_why_and_the_domain_goes_on() {
    let Some(domain) = domain() else { return };
    let absent = Program {
        path: "/nonexistent".to_owned(),
        ..shell("")
    };
    let refused = domain.start(&absent).expect_err("there is no such program");
    assert_eq!(refused.errno(), Some(nix::errno::Errno::ENOENT as i32));
    assert_eq!(
        said(domain.start(&shell("echo on")).expect("started")),
        "on\n"
    );
}
