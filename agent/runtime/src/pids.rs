//! Translates PIDs: a process has one in each PID namespace from ours down to its own
//! (`pid_namespaces(7)`), and the engine may be in another namespace than the agent.

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getsid};
use std::io;
use std::path::Path;
use tokio::net::UnixStream;

/// The PID namespace of the program at a socket: how many levels below the agent's it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Depth(usize);

impl Depth {
    /// The depth of the program that listens at `socket`.
    ///
    /// # Errors
    /// Nobody listens, or the program can't be seen from here.
    pub(crate) async fn of(socket: &Path) -> io::Result<Self> {
        let listener = UnixStream::connect(socket).await?.peer_cred()?.pid();
        let unseen = || io::Error::other("the engine's process can't be seen");
        let status = status(listener.ok_or_else(unseen)?);
        let depth = numbers(&status).count().checked_sub(1);
        depth.map(Self).ok_or_else(unseen)
    }

    /// Whether the process with this status has this PID in the namespace. In another namespace it
    /// may be the PID of another process.
    fn is(self, status: &str, pid: u32) -> bool {
        numbers(status).nth(self.0) == Some(pid)
    }
}

/// Kills the process with this PID in the engine's namespace, and what it started: its whole
/// session, as far as it is in the control group `group`. So a shell's commands end with the shell.
/// The runtime gives each process a session of its own.
pub(crate) fn kill_session(group: &str, pid: u32, depth: Depth) {
    let members = members(group);
    let is_first = |member: &&i32| depth.is(&status(**member), pid);
    let Some(first) = members.iter().find(is_first) else {
        return;
    };
    for member in &members {
        let member = Pid::from_raw(*member);
        if getsid(Some(member)) == Ok(Pid::from_raw(*first)) {
            // A process that has ended meanwhile needs no signal.
            kill(member, Signal::SIGKILL).ok();
        }
    }
}

/// The PID in our namespace of a process in the control group `group` that has this PID in the
/// engine's.
pub(crate) fn own_number(group: &str, pid: u32, depth: Depth) -> Option<u32> {
    let all = members(group).into_iter();
    let mut all = all.filter(|member| depth.is(&status(*member), pid));
    all.next()?.try_into().ok()
}

/// The processes of a control group.
fn members(group: &str) -> Vec<i32> {
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    // Control groups of version 2, and of version 1 by the controller that counts processes.
    let trees = ["/sys/fs/cgroup", "/sys/fs/cgroup/pids"];
    let members = trees.map(|tree| read(format!("{tree}{group}/cgroup.procs")));
    let lines = members.iter().flat_map(|members| members.lines());
    lines.filter_map(|line| line.parse().ok()).collect()
}

/// The kernel's status of a process; empty if it has ended.
fn status(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

/// A process's PIDs from its status: in our namespace first, in its own last.
fn numbers(status: &str) -> impl Iterator<Item = u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let words = line.into_iter().flat_map(str::split_whitespace);
    words.filter_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_another_namespace_is_another_process() {
        // A container's first process, a command in it, and one whose PID in the container is the
        // command's outside.
        let [first, command, other] = ["450\t90\t1", "9000\t450\t7", "9001\t451\t450"]
            .map(|numbers| format!("Name:\tsh\nTgid:\t450\nNSpid:\t{numbers}\nNSpgid:\t450\n"));
        let engine = Depth(1);
        assert!(engine.is(&command, 450));
        assert!(!engine.is(&first, 450), "ours is 450");
        assert!(!engine.is(&other, 450), "that inside is 450");
        // On a machine the engine is in our namespace.
        assert!(Depth(0).is(&first, 450) && !Depth(0).is(&command, 450));
        assert!(!engine.is("", 450), "it has ended");
    }

    #[tokio::test]
    async fn a_program_in_our_own_namespace_counts_as_we_do() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(Depth::of(&socket).await.unwrap(), Depth(0));
        assert!(Depth::of(&dir.path().join("none")).await.is_err());
    }
}
